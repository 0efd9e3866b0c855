"""An MLflow server, PostgreSQL itself, and one SQLite file that many processes share."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from brute_force import metrics, read_children
from experiments import call, read_ledger, start, summary, write_spec
from persona_mlflow import ui
from persona_mlflow.outcomes import load_outcomes
from persona_mlflow.store import resolve_tracking_uri
from servers import mlflow_server, postgres_server

RUNS, LIMIT = 12, 12
ANSWERS = RUNS * LIMIT
STORES = ("server", "direct")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as uri:
        yield uri


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("server")
    with mlflow_server(database, home / "artifacts", home) as url:
        yield url


@dataclass(frozen=True)
class Site:
    """One experiment on one store: killed by SIGKILL halfway, and resumed."""

    uri: str
    folder: Path
    name: str
    printed: str

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.uri)

    def runs(self, role: str) -> list[Any]:
        experiment = self.client.get_experiment_by_name(self.name)
        assert experiment is not None
        return list(
            self.client.search_runs([experiment.experiment_id], f"tags.`persona_mlflow.role` = '{role}'")
        )

    @property
    def parent(self) -> Any:
        (run,) = self.runs("parent")
        return run


def recorded(output: Path) -> int:
    lines = sum(path.read_bytes().count(b"\n") - 1 for path in output.glob("cells/*.jsonl"))
    return lines + LIMIT * len(list(output.glob("cells/*.parquet")))


def kill_halfway(arguments: Sequence[str], folder: Path) -> int:
    """Start a run, end it by SIGKILL after a finished cell and some more answers, and count those kept."""
    process = start(*arguments, "--batch-size", "3", cwd=folder, env={"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 180
    while not list((folder / "out").glob("cells/*.parquet")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the process made no progress"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return recorded(folder / "out")


@pytest.fixture(scope="module")
def sites(
    database: str, server: str, lettered_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Site]:
    """The same experiment through the server and beside it, at the same time."""
    uris = dict(zip(STORES, (server, database), strict=True))
    folders = {store: tmp_path_factory.mktemp(store) for store in STORES}
    arguments = {}
    for store, folder in folders.items():
        spec = write_spec(folder, lettered_model, limit=LIMIT, decoding={"max_new_tokens": 6})
        options = ("--tracking-uri", uris[store], "--experiment-name", f"small-{store}")
        arguments[store] = ("run", "-e", str(spec), "-o", "out", *options)
    with ThreadPoolExecutor() as pool:
        kept = list(pool.map(lambda store: kill_halfway(arguments[store], folders[store]), STORES))
    assert all(0 < count < ANSWERS for count in kept), "an interrupt came too early or too late"
    found = {}
    for store, folder in folders.items():
        site = Site(uris[store], folder, f"small-{store}", "")
        assert site.parent.info.status == "RUNNING"
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.chdir(folder)
            assert call(*arguments[store]) == 0
        found[store] = Site(site.uri, folder, site.name, printed.getvalue())
    return found


@pytest.fixture(params=STORES)
def site(request: pytest.FixtureRequest, sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch) -> Site:
    found = sites[request.param]
    monkeypatch.chdir(found.folder)
    return found


def test_R6_the_killed_run_is_finished_with_every_child_once(site: Site) -> None:
    parent, children = site.parent, site.runs("cell")
    assert parent.info.status == "FINISHED"
    assert {run.info.status for run in children} == {"FINISHED"}
    assert len({run.data.tags["persona_mlflow.cell"] for run in children}) == len(children) == RUNS
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    (dataset,) = parent.inputs.dataset_inputs
    assert dataset.dataset.digest == parent.data.params["dataset_fingerprint"][:36]
    assert {run.data.params["dataset_fingerprint"] for run in children} == {
        parent.data.params["dataset_fingerprint"]
    }


def test_every_artifact_comes_back_from_the_store(site: Site, tmp_path: Path) -> None:
    expected = read_ledger(site.folder / "out")
    found = []
    for i, run in enumerate(site.runs("cell")):
        (tmp_path / str(i)).mkdir()
        folder = Path(site.client.download_artifacts(run.info.run_id, "", str(tmp_path / str(i))))
        assert {path.name for path in folder.iterdir()} == {
            "generations.parquet",
            "parse_errors.jsonl",
            "answers.json",
        }
        rows = pq.read_table(folder / "generations.parquet").drop_columns(["time"]).to_pylist()
        found.append({row["question_id"]: tuple(row.values()) for row in rows})
        assert len(json.loads((folder / "answers.json").read_text())["data"]) == LIMIT
    assert all(answers in found for answers in expected.values())
    names = {artifact.path for artifact in site.client.list_artifacts(site.parent.info.run_id)}
    assert names >= {"plan.json", "questions.parquet", "spec.yaml", "summary.json", "runs.csv", "engine.json"}


def test_artifacts_of_the_server_lie_with_the_server(sites: dict[str, Site]) -> None:
    assert sites["server"].parent.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert not (sites["server"].folder / "mlartifacts").exists()
    assert sites["direct"].parent.info.artifact_uri.startswith(sites["direct"].folder.as_uri())


def test_summarize_agrees_with_brute_force(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_children(site.uri, site.parent.info.run_id, ["ppf", "tpf", "temperature"], tmp_path)
    assert found["runs"] == RUNS
    (row,) = summary(capsys, site.name, "--tracking-uri", site.uri)
    assert (row["runs"], row["runs_planned"], row["status"]) == (RUNS, RUNS, "FINISHED")
    expected = metrics(found)
    assert 0 < expected["instability/accuracy"] < 1
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-12), name


def test_outcomes_load_from_the_store_and_are_those_of_the_ledger(site: Site) -> None:
    outcomes = load_outcomes(site.parent.info.run_id, tracking_uri=site.uri)
    assert outcomes.equals(load_outcomes("out"))
    assert outcomes.equals(load_outcomes(site.name, tracking_uri=site.uri))


def test_both_stores_hold_the_same_answers(sites: dict[str, Site]) -> None:
    one, two = (read_ledger(site.folder / "out") for site in sites.values())
    assert len(one) == RUNS
    assert one == two


def test_the_printed_link_is_the_store_s_and_no_password_is_shown(sites: dict[str, Site]) -> None:
    assert f"{sites['server'].uri}/#/experiments/" in sites["server"].printed
    direct = sites["direct"]
    password = direct.uri.split(":")[2].partition("@")[0]
    assert "mlflow ui --backend-store-uri" in direct.printed
    assert password not in direct.printed


def test_a_view_at_the_tag_limit_is_stored(sites: dict[str, Site]) -> None:
    """The saved view of `persona_mlflow.ui` is one long tag of the experiment."""
    client = sites["server"].client
    experiment_id = client.create_experiment("wide")
    key = ui.apply_shared_view(client, experiment_id, params=[f"factor_{n}" for n in range(45)])
    stored = client.get_experiment(experiment_id).tags[f"mlflow.sharedViewState.{key}"]
    assert 4000 < len(stored) <= 5000
    assert json.loads(stored)["selectedColumns"][44] == "params.`factor_44`"


# ------------------------------------------------------------------------ one SQLite file, many processes


PRELOAD = [
    *("persona_mlflow.cli.run", "persona_mlflow.engines.hf", "persona_mlflow.sweep", "persona_mlflow.plan"),
    *(
        "mlflow",
        "mlflow.store.tracking.sqlalchemy_store",
        "alembic.command",
        "pandas",
        "xarray",
        "scipy.stats",
    ),
    *("pyarrow.parquet", "torch", "accelerate", "transformers", "transformers.models.qwen2.modeling_qwen2"),
]


def _run(folder: str, arguments: Sequence[str]) -> None:
    """What each process does: the command line, in the user's folder."""
    from persona_mlflow.cli import main

    os.chdir(folder)
    main(arguments)


def test_M14_M15_six_processes_at_once_on_a_new_sqlite_store_all_finish(
    bare_workdir: Path, lettered_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seeds, and one of them twice: the same spec with another output is an experiment of its own."""
    factors = {"ppf": ["youare"], "tpf": ["justanswer"], "temperature": [0.0, 1.0]}
    spec = write_spec(bare_workdir, lettered_model, limit=2, factors=factors)
    # A server process imports all there is once, so that the six start at the same moment.
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context.set_forkserver_preload(PRELOAD)
    jobs = [(seed, f"out-{number}") for number, seed in enumerate([0, 0, 1, 2, 3, 4])]
    processes = [
        context.Process(
            target=_run,
            args=(str(bare_workdir), ("run", "-e", str(spec), "--seed", str(seed), "-o", output)),
        )
        for seed, output in jobs
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * 6
    client = MlflowClient(resolve_tracking_uri(None))
    (experiment,) = [e for e in client.search_experiments() if e.name == "small"]
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    assert {run.info.status for run in runs} == {"FINISHED"}
    parents = [run for run in runs if run.data.tags["persona_mlflow.role"] == "parent"]
    assert sorted(int(run.data.params["seed"]) for run in parents) == [0, 0, 1, 2, 3, 4]
    for parent in parents:
        cells = [
            run.data.tags["persona_mlflow.cell"]
            for run in runs
            if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
        ]
        assert len(cells) == len(set(cells)) == 6
    answers = [read_ledger(bare_workdir / output) for _, output in jobs]
    assert answers[0] == answers[1]
    assert answers[1] != answers[2]
