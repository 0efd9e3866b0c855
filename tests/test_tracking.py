"""What is written to MLflow, and read back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from experiments import call, read_ledger, write_spec
from persona_mlflow.store import CELL, PARENT_RUN, connect, find_parents, resolve_tracking_uri
from persona_mlflow.tracking import Child, Tracker


@pytest.fixture
def tracker(workdir: Path) -> Tracker:
    return Tracker.open(None, "e", run_name="p", spec_hash="h", params={"model": "m"}, ledger="l")


def test_M5_M6_nothing_but_finite_numbers_is_logged(tracker: Tracker) -> None:
    values = {"fine": 0.5, "nan": math.nan, "inf": math.inf, "minus": -math.inf}
    tracker.log_parent(metrics=values, undefined={"nan": "because"})
    run = tracker.client.get_run(tracker.parent_id)
    assert run.data.metrics == {"fine": 0.5}
    assert run.data.tags["metric_undefined.nan"] == "because"


def test_M3_a_parameter_that_is_there_is_never_changed(workdir: Path, tracker: Tracker) -> None:
    again = Tracker.open(
        None, "e", run_name="p", spec_hash="h", params={"model": "other", "new": 1}, ledger="l"
    )
    assert again.parent_id == tracker.parent_id
    assert again.client.get_run(again.parent_id).data.params == {"model": "m", "new": "1"}


@pytest.mark.slow
def test_M18_all_children_are_found_beyond_one_page(tracker: Tracker) -> None:
    count = 1_010
    for i in range(count):
        tracker.client.create_run(tracker.experiment_id, tags={PARENT_RUN: tracker.parent_id, CELL: str(i)})
    assert len(tracker.children()) == count


def test_M17_children_are_found_by_the_model_s_name(workdir: Path, lettered_model: Path) -> None:
    spec = write_spec(workdir, lettered_model)
    assert call("run", "-e", str(spec), "-o", "out", "--limit", "1", "--temperature", "0") == 0
    client = MlflowClient(resolve_tracking_uri(None))
    found = client.search_runs(["1"], f"params.model = '{lettered_model}'")
    assert len(found) == 1 + 6


def test_the_artifacts_of_a_local_store_lie_beside_it_wherever_the_command_is_given(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = resolve_tracking_uri(None)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    tracker = Tracker.open(uri, "e", run_name="p", spec_hash="h", params={}, ledger="l")
    (elsewhere / "note.txt").write_text("x")
    tracker.client.log_artifact(tracker.parent_id, "note.txt")
    assert list((workdir / "mlartifacts" / "e").rglob("note.txt"))


def test_a_store_without_experiments_has_no_parents(workdir: Path) -> None:
    assert find_parents(connect(None)) == []


def test_R11_an_engine_that_loses_an_answer_fails_the_run_and_keeps_the_others(
    workdir: Path, lettered_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from persona_mlflow.engines.hf import HFEngine

    real = HFEngine.generate

    def lossy(self: HFEngine, requests: Any) -> Any:
        for number, batch in enumerate(real(self, requests)):
            yield batch[1:] if number == 0 else batch

    spec = write_spec(workdir, lettered_model)
    arguments = ("run", "-e", str(spec), "-o", "out", "--limit", "2")
    monkeypatch.setattr(HFEngine, "generate", lossy)
    assert call(*arguments) == 1
    assert "no answer to 1 draws" in capsys.readouterr().err
    monkeypatch.setattr(HFEngine, "generate", real)
    assert call(*arguments) == 0
    assert sum(map(len, read_ledger(workdir / "out").values())) == 24


def test_a_password_is_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("summarize", "--tracking-uri", "postgresql+nodriver://me:s3cret@127.0.0.1:1/none") == 2
    message = capsys.readouterr().err
    assert "s3cret" not in message
    assert "postgresql+nodriver://me:***@127.0.0.1:1/none: no database answers" in message


def test_M8_children_logged_from_threads_keep_their_parent(tracker: Tracker, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    (tmp_path / "files").mkdir()

    def log(number: int) -> str:
        return tracker.log_child(
            Child(
                str(number),
                f"run {number}",
                {"persona": "p"},
                {"accuracy": 0.5},
                tmp_path / "files",
                (),
                1,
                2,
            )
        )

    with ThreadPoolExecutor(4) as pool:
        logged = set(pool.map(log, range(8)))
    assert {run.info.run_id for run in tracker.children().values()} == logged
    assert len(logged) == 8
