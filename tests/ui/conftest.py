"""One store, one MLflow UI and one browser for all the tests of this folder: each takes seconds to start."""

from __future__ import annotations

import contextlib
import io
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiments import call, write_spec
from persona_mlflow import ui
from servers import chromium_page, mlflow_command

if TYPE_CHECKING:
    from playwright.sync_api import Page


@dataclass(frozen=True)
class Product:
    """An experiment that the product has run, and what it printed."""

    folder: Path
    uri: str
    printed: str

    def line_with(self, text: str) -> str:
        (line,) = [line.strip() for line in self.printed.splitlines() if text in line]
        return line


@pytest.fixture(scope="package")
def product(lettered_model: Path, new_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Product:
    folder = tmp_path_factory.mktemp("product")
    shutil.copyfile(new_store, folder / "mlflow.db")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert call("run", "-e", str(write_spec(folder, lettered_model)), "-o", "out") == 0
    return Product(folder, f"sqlite:///{folder / 'mlflow.db'}", printed.getvalue())


@pytest.fixture(scope="package")
def site_url(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the UI that the printed command starts, in another folder."""
    command = product.line_with("mlflow ui")
    assert command == ui.ui_command(product.uri)
    program, *arguments = shlex.split(command)
    assert program == "mlflow"
    with mlflow_command(arguments, tmp_path_factory.mktemp("elsewhere")) as url:
        yield url


@pytest.fixture(scope="package")
def chromium() -> Iterator[Page]:
    with chromium_page(1920, 1000) as page:
        yield page


@pytest.fixture
def page(chromium: Page, site_url: str) -> Page:
    """A page as on a first visit: the UI keeps the state of its tables in the browser."""
    chromium.set_viewport_size({"width": 1920, "height": 1000})
    chromium.goto(f"{site_url}/health")
    chromium.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    return chromium
