"""The links of `persona_mlflow.ui`, opened in a real browser on a real MLflow UI."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from persona_mlflow import ui
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from playwright.sync_api import Page

    from conftest import Product

TAG = "mlflow.sharedViewState."
PARAMS = ["persona", "persona_group", "ppf", "tpf", "temperature"]
METRICS = ["accuracy", "parse_error_rate", "instability/accuracy"]
CHILDREN = [
    {"persona": "a cook", "persona_group": "stable", "ppf": "as", "tpf": "q1", "temperature": "0.0"},
    {"persona": "a cook", "persona_group": "stable", "ppf": "you-are", "tpf": "q2", "temperature": "1.0"},
    {"persona": "a monk", "persona_group": "unstable", "ppf": "as", "tpf": "q1", "temperature": "0.0"},
    {"persona": "a monk", "persona_group": "unstable", "ppf": "you-are", "tpf": "q2", "temperature": "1.0"},
]
ACCURACY = ["0.625", "0.5", "0.875", "0.25"]
COMPLETIONS = [["The answer is B.", "C"], ["I would say (A)", "D, of course"]]
TABLE = "evaluation/answers.json"
OTHER_CHILDREN = 110  # more than the UI loads at once, which is 100

# Each row of the grid, in order, as {column id: text}; its pinned part and the rest are two elements.
READ_GRID = """() => {
  const rows = {};
  for (const cell of document.querySelectorAll('.ag-row .ag-cell[col-id]')) {
    const index = Number(cell.closest('.ag-row').getAttribute('row-index'));
    (rows[index] ??= {})[cell.getAttribute('col-id')] = cell.innerText.trim();
  }
  return Object.keys(rows).map(Number).sort((a, b) => a - b).map(index => rows[index]);
}"""
READ_HEADERS = """() => [...document.querySelectorAll('.ag-header-cell[col-id]')]
  .map(cell => [cell.getBoundingClientRect(), cell.getAttribute('col-id')])
  .sort((a, b) => a[0].left - b[0].left)
  .map(([box, id]) => ({id, left: box.left, right: box.right}))"""
NAME = "attributes.`Run Name`"


@dataclass(frozen=True)
class Site:
    """A running UI and what it shows."""

    url: str
    client: MlflowClient
    experiment_id: str
    parent_id: str
    child_ids: list[str]


@pytest.fixture(scope="module")
def site(product: Product, site_url: str) -> Site:
    """One parent with four children, and a later one with more than a page of them."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(product.uri)
    experiment_id = client.create_experiment("paper", artifact_location=(product.folder / "paper").as_uri())
    parent_id = client.create_run(experiment_id, run_name="model-a").info.run_id
    client.log_param(parent_id, "model", "model-a")
    client.log_metric(parent_id, "instability/accuracy", 0.1875)
    child_ids = []
    for number, params in enumerate(CHILDREN):
        tags = {"mlflow.parentRunId": parent_id, **ui.CHILD_RUN_TAGS}
        run_id = client.create_run(experiment_id, run_name=f"cell-{number}", tags=tags).info.run_id
        client.log_batch(
            run_id,
            params=[Param(key, value) for key, value in {**params, "model": "model-a"}.items()],
            metrics=[
                Metric("accuracy", float(ACCURACY[number]), 0, 0),
                Metric("parse_error_rate", 0.125, 0, 0),
            ],
        )
        if number < len(COMPLETIONS):
            answers = {"question": ["capital", "river"], "completion": COMPLETIONS[number]}
            client.log_table(run_id, answers, TABLE)
        client.set_terminated(run_id)
        child_ids.append(run_id)
    client.set_terminated(parent_id)
    other = client.create_run(experiment_id, run_name="model-b").info.run_id
    for number in range(OTHER_CHILDREN):
        tags = {"mlflow.parentRunId": other, **ui.CHILD_RUN_TAGS}
        client.create_run(experiment_id, run_name=f"other-{number}", tags=tags)
    return Site(site_url, client, experiment_id, parent_id, child_ids)


def _apply(site: Site, *parents: str) -> str:
    return ui.apply_shared_view(
        site.client, site.experiment_id, params=PARAMS, metrics=METRICS, parent_run_ids=parents
    )


def open_runs(page: Page, url: str, *, rows: int) -> list[dict[str, str]]:
    """Open the runs table and wait until it has settled with at least so many rows."""
    page.goto(url)
    page.wait_for_function(f"() => document.querySelectorAll('.ag-row[row-index=\"{rows - 1}\"]').length > 0")
    page.wait_for_timeout(1000)  # columns are moved and sized after the rows came
    found: list[dict[str, str]] = page.evaluate(READ_GRID)
    return found


def _assert_cells(rows: list[dict[str, str]]) -> None:
    """The rows are the first parent and right under it its four children, each with what was logged."""
    assert [row[NAME].split("\n")[-1] for row in rows] == ["model-a", *(f"cell-{n}" for n in range(4))]
    parent, *children = rows
    assert parent["metrics.`instability/accuracy`"] == "0.1875"
    assert [parent[f"params.`{name}`"] for name in PARAMS] == ["-"] * 5
    for number, child in enumerate(children):
        assert {name: child[f"params.`{name}`"] for name in PARAMS} == CHILDREN[number]
        assert child["metrics.`accuracy`"] == ACCURACY[number]
        assert child["metrics.`parse_error_rate`"] == "0.125"


@pytest.mark.slow
def test_M16_link_shows_parent_over_its_children_with_their_values(
    page: Page, site: Site, tmp_path: Path
) -> None:
    key = _apply(site, site.parent_id)
    rows = open_runs(page, ui.runs_url(site.url, site.experiment_id, key), rows=5)
    page.screenshot(path=tmp_path / "runs.png")
    _assert_cells(rows)
    # Under the parent also means: indented.
    left = {name: page.get_by_role("link", name=name).bounding_box() for name in ("model-a", "cell-0")}
    assert left["model-a"] is not None
    assert left["cell-0"] is not None
    assert left["cell-0"]["x"] > left["model-a"]["x"]
    # The columns stand in the order that was asked for, and the first ones need no scrolling.
    headers = {header["id"]: header for header in page.evaluate(READ_HEADERS)}
    shown = [f"params.`{name}`" for name in PARAMS] + [f"metrics.`{name}`" for name in METRICS]
    assert [name for name in headers if name in shown] == shown
    assert headers["metrics.`accuracy`"]["right"] < 1920
    # The view has its name in the UI's own list.
    assert page.get_by_text(ui.DEFAULT_NAME, exact=True).count() == 1


@pytest.mark.slow
def test_link_works_in_the_older_form_without_an_envelope(page: Page, site: Site) -> None:
    tag, value = ui.shared_view(
        site.experiment_id, params=PARAMS, metrics=METRICS, parent_run_ids=[site.parent_id]
    )
    envelope = ("name", "createdAt", "updatedAt", "state")
    bare = {name: part for name, part in json.loads(value).items() if name not in envelope}
    site.client.set_experiment_tag(site.experiment_id, f"{TAG}older", json.dumps(bare))
    assert tag != f"{TAG}older"
    _assert_cells(open_runs(page, ui.runs_url(site.url, site.experiment_id, "older"), rows=5))


@pytest.mark.slow
def test_M16_link_for_all_parents_keeps_late_children_under_their_parent(page: Page, site: Site) -> None:
    key = _apply(site)
    rows = open_runs(page, ui.runs_url(site.url, site.experiment_id, key), rows=5)
    names = [row[NAME].split("\n")[-1] for row in rows]
    # The parent is older than the 100 runs that the UI loads first, and yet it stands above them.
    assert names[:3] == ["model-b", f"other-{OTHER_CHILDREN - 1}", f"other-{OTHER_CHILDREN - 2}"]


@pytest.mark.slow
def test_without_the_link_no_param_and_no_metric_is_shown(page: Page, site: Site, tmp_path: Path) -> None:
    open_runs(page, f"{site.url}/#/experiments/{site.experiment_id}/runs", rows=1)
    page.screenshot(path=tmp_path / "default.png")
    ids = [header["id"] for header in page.evaluate(READ_HEADERS)]
    assert NAME in ids
    assert [name for name in ids if name.startswith(("params.", "metrics."))] == []


@pytest.mark.slow
def test_evaluation_view_opens_the_table_of_answers(page: Page, site: Site, tmp_path: Path) -> None:
    key = _apply(site, site.parent_id)
    page.set_viewport_size({"width": 2600, "height": 1000})  # the view draws the runs in sight only
    page.goto(ui.evaluation_url(site.url, site.experiment_id, key))
    page.get_by_text(TABLE).first.wait_for()
    for completions in COMPLETIONS:
        for completion in completions:
            page.get_by_text(completion, exact=True).first.wait_for()
    page.screenshot(path=tmp_path / "evaluation.png")


@pytest.mark.slow
def test_artifact_page_of_a_cell_shows_its_answers(page: Page, site: Site, tmp_path: Path) -> None:
    route = f"experiments/{site.experiment_id}/runs/{site.child_ids[0]}/artifacts/{TABLE}"
    page.goto(f"{site.url}/#/{route}")
    page.get_by_role("cell", name=COMPLETIONS[0][0], exact=True).wait_for()
    page.screenshot(path=tmp_path / "artifact.png")


def _unpack(value: str) -> dict[str, Any]:
    state = json.loads(value)["state"]
    assert state.startswith("deflate;")
    unpacked: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(state.removeprefix("deflate;"))))
    return unpacked


def test_both_generations_of_the_ui_find_the_same_state() -> None:
    _, value = ui.shared_view("7", params=["persona", "ppf"], metrics=["accuracy"], parent_run_ids=["abc"])
    state, beside = _unpack(value), json.loads(value)
    assert state["selectedColumns"] == ["params.`persona`", "params.`ppf`", "metrics.`accuracy`"]
    assert {name: beside[name] for name in state} == state
    assert beside["runsExpanded"] == {"abc": True}


def test_one_parent_filters_and_several_do_not() -> None:
    one = _unpack(ui.shared_view("7", parent_run_ids=["abc"])[1])
    two = _unpack(ui.shared_view("7", parent_run_ids=["abc", "def"])[1])
    assert (one["searchFilter"], one["orderByAsc"]) == ("tags.mlflow.parentRunId = 'abc'", True)
    assert (two["searchFilter"], two["orderByAsc"]) == ("", False)


def test_key_is_stable_over_columns_and_distinct_over_parents() -> None:
    key = ui.shared_view("7", parent_run_ids=["abc"])[0]
    assert key == ui.shared_view("7", params=["persona"], parent_run_ids=["abc"])[0]
    others = [
        ui.shared_view("7", parent_run_ids=["def"]),
        ui.shared_view("8", parent_run_ids=["abc"]),
        ui.shared_view("7", parent_run_ids=["abc"], name="other"),
        ui.shared_view("7"),
    ]
    assert len({key, *(other for other, _ in others)}) == 5


def test_too_many_columns_for_a_tag_keep_the_envelope_and_then_are_refused() -> None:
    many = [f"factor_{n}" for n in range(100)]
    _, value = ui.shared_view("7", params=many)
    assert len(value) <= 5000
    assert "selectedColumns" not in json.loads(value)
    assert _unpack(value)["selectedColumns"][:100] == [f"params.`{name}`" for name in many]
    with pytest.raises(UserError, match=r"3002 columns.*show fewer of them"):
        ui.shared_view("7", params=[f"factor_{n}" for n in range(3000)])


def test_applying_the_same_view_again_writes_nothing(tmp_path: Path, new_store: Path) -> None:
    from mlflow import MlflowClient

    class Counting(MlflowClient):
        written = 0

        def set_experiment_tag(self, experiment_id: str, key: str, value: Any) -> None:
            self.written += 1
            super().set_experiment_tag(experiment_id, key, value)

    client = Counting(f"sqlite:///{shutil.copyfile(new_store, tmp_path / 'mlflow.db')}")
    experiment_id = client.create_experiment("paper", artifact_location=tmp_path.as_uri())
    keys = [ui.apply_shared_view(client, experiment_id) for _ in range(2)]
    assert client.written == 1
    keys.append(ui.apply_shared_view(client, experiment_id, metrics=["accuracy"]))
    assert client.written == 2
    assert len(set(keys)) == 1
    assert list(client.get_experiment(experiment_id).tags) == [f"{TAG}{keys[0]}"]


@pytest.mark.parametrize(
    ("uri", "command", "base"),
    [
        ("sqlite:///mlflow.db", "mlflow ui --backend-store-uri sqlite:///{cwd}/mlflow.db", ui.LOCAL_UI),
        ("sqlite:////data/runs.db", "mlflow ui --backend-store-uri sqlite:////data/runs.db", ui.LOCAL_UI),
        (
            "sqlite:////data/my runs.db?timeout=9",
            "mlflow ui --backend-store-uri 'sqlite:////data/my runs.db?timeout=9'",
            ui.LOCAL_UI,
        ),
        (
            "mysql://me@db/runs?charset=utf8&password=s3cret",
            "mlflow ui --backend-store-uri 'mysql://me@db/runs?charset=utf8&password=***'",
            ui.LOCAL_UI,
        ),
        (
            "postgresql+psycopg2://me:s3c/r@t@db:5432/runs",
            "mlflow ui --backend-store-uri 'postgresql+psycopg2://me:***@db:5432/runs'",
            ui.LOCAL_UI,
        ),
        ("https://me:pw@runs.org/base/", "https://runs.org/base", "https://runs.org/base"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_command_and_address(
    uri: str, command: str, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ui.ui_command(uri) == command.format(cwd=tmp_path)
    assert ui.ui_base_url(uri) == base


@pytest.mark.parametrize(
    "uri", ["./mlruns", "file:///data/mlruns", "sqlite://", "sqlite:///:memory:", "oracle://x/y"]
)
def test_a_store_that_the_ui_cannot_show_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match=r"write (one such as )?sqlite:///mlflow\.db"):
        ui.ui_command(uri)


def test_compare_link_names_each_run_and_each_experiment_once() -> None:
    parts = urlsplit(ui.compare_url("http://127.0.0.1:5000/", ["7", "7"], ["abc", "def"]))
    route, _, query = parts.fragment.partition("?")
    assert (parts.netloc, parts.path, route) == ("127.0.0.1:5000", "/", "/compare-runs")
    assert {name: json.loads(value) for name, (value,) in parse_qs(query).items()} == {
        "runs": ["abc", "def"],
        "experiments": ["7"],
    }
