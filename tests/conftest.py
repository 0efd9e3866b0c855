"""Fixtures that every test may use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Two workers share the cores; more threads than cores make torch many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

SHARED = Path(__file__).parents[1].parent / "shared"


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test inherits a tracking store or a run from the shell that started it."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data sets beside a checkout; tests that need them skip where they are not."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the public data sets are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def lettered_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model whose answers are letters often enough for the metrics to be interesting."""
    from experiments import save_lettered_model

    return save_lettered_model(tmp_path_factory.mktemp("model") / "lettered")


@pytest.fixture
def bare_workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory: the store, the artifacts and the ledger land in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store as MLflow makes it, which takes some seconds: made once, and copied."""
    from persona_mlflow.store import connect

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def workdir(bare_workdir: Path, new_store: Path) -> Path:
    """A working directory with a store in which nothing is logged yet."""
    shutil.copyfile(new_store, bare_workdir / "mlflow.db")
    return bare_workdir
