"""What a user sees who runs an experiment and opens the link that it prints."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mlflow import MlflowClient
from test_ui import NAME, READ_HEADERS, open_runs

from experiments import RUNS
from persona_mlflow import ui

if TYPE_CHECKING:
    from mlflow.entities import Run
    from playwright.sync_api import Page

    from conftest import Product

FACTORS = ("persona", "ppf", "tpf", "temperature")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(product: Product) -> MlflowClient:
    return MlflowClient(product.uri)


@pytest.fixture(scope="module")
def parent(client: MlflowClient) -> Run:
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "tags.`persona_mlflow.role` = 'parent'")
    return run


@pytest.fixture(scope="module")
def children(client: MlflowClient, parent: Run) -> dict[str, Run]:
    """The children by name."""
    query = f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    found = {run.info.run_name: run for run in client.search_runs([parent.info.experiment_id], query)}
    assert len(found) == RUNS
    return found


def test_M16_the_printed_link_shows_every_cell_under_its_parent(
    page: Page, product: Product, site_url: str, parent: Run, children: Mapping[str, Run], tmp_path: Path
) -> None:
    link = product.line_with("/#/experiments/")
    assert link.startswith(ui.LOCAL_UI)
    rows = open_runs(page, site_url + link.removeprefix(ui.LOCAL_UI), rows=1 + RUNS)
    page.screenshot(path=tmp_path / "runs.png")
    first, *rest = ({**row, NAME: row[NAME].split("\n")[-1]} for row in rows)
    assert first[NAME] == parent.info.run_name
    assert {row[NAME] for row in rest} == children.keys()
    for row in rest:
        run = children[row[NAME]]
        assert {name: row[f"params.`{name}`"] for name in FACTORS} == {
            name: run.data.params[name] for name in FACTORS
        }
        assert float(row["metrics.`accuracy`"]) == run.data.metrics["accuracy"]
    assert len({row["metrics.`accuracy`"] for row in rest}) > 1
    headers = {header["id"]: header for header in page.evaluate(READ_HEADERS)}
    for name in (*(f"params.`{factor}`" for factor in FACTORS), "metrics.`accuracy`"):
        assert headers[name]["right"] < 1920, f"{name} needs scrolling"


def test_the_compare_page_shows_two_settings_side_by_side(
    page: Page, site_url: str, parent: Run, children: Mapping[str, Run], tmp_path: Path
) -> None:
    pair = next(pair for pair in combinations(children.values(), 2) if _differ(*pair))
    page.set_viewport_size({"width": 1600, "height": 2200})
    page.goto(ui.compare_url(site_url, [parent.info.experiment_id] * 2, [run.info.run_id for run in pair]))
    page.get_by_text("Comparing 2 Runs from 1 Experiment").wait_for()
    for name in FACTORS:
        page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).first.wait_for()
    rows = [row.replace("\n", "").split("\t") for row in page.get_by_role("row").all_inner_texts()]
    table = {row[0]: row[1:] for row in rows}
    for name in FACTORS:
        assert table[name] == [run.data.params[name] for run in pair]
    # Metrics are placed by coordinates: on the line of the metric's name, in the order of the runs.
    metrics = page.locator(".ReactVirtualized__Grid")
    name_box = _box(metrics.get_by_text("accuracy", exact=True).first)
    on_line = []
    for run in pair:
        # The page rounds, and leaves the zeros at the end out.
        value = f"{run.data.metrics['accuracy']:.3f}".rstrip("0").rstrip(".")
        boxes = [_box(spot) for spot in metrics.get_by_text(value, exact=True).all()]
        on_line.append([box["x"] for box in boxes if abs(box["y"] - name_box["y"]) < name_box["height"]])
    page.screenshot(path=tmp_path / "compare.png")
    assert [len(found) for found in on_line] == [1, 1]
    assert name_box["x"] < on_line[0][0] < on_line[1][0]


def _differ(one: Run, two: Run) -> bool:
    """Whether two cells have nothing in common that the page could mix up."""
    varied = ("persona", "ppf", "temperature")
    return one.data.metrics["accuracy"] != two.data.metrics["accuracy"] and all(
        one.data.params[name] != two.data.params[name] for name in varied
    )


def _box(spot: Any) -> dict[str, float]:
    box: dict[str, float] | None = spot.bounding_box()
    assert box is not None
    return box
