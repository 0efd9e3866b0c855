"""Killed, interrupted and resumed: real processes, real signals."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from experiments import call, read_ledger, start, summary, write_spec
from persona_mlflow.store import resolve_tracking_uri

LARGER: dict[str, Any] = {
    "limit": 20,
    "personas": ["a man", "a biologist", "a chef"],
    "factors": {"ppf": ["barebones", "youare"], "tpf": ["justanswer", "explain"], "temperature": [0.0, 1.0]},
    "decoding": {"max_new_tokens": 6},
}
RUNS, ANSWERS = 24, 480


def recorded(output: Path) -> int:
    """Answers on record, finished cells included."""
    lines = sum(path.read_bytes().count(b"\n") - 1 for path in output.glob("cells/*.jsonl"))
    return lines + 20 * finished(output)


def finished(output: Path) -> int:
    return len(list(output.glob("cells/*.parquet")))


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"the process ended with {process.returncode} too early: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "the process made no progress"
        time.sleep(0.002)


def all_runs() -> list[Any]:
    client = MlflowClient(resolve_tracking_uri(None))
    (experiment,) = [e for e in client.search_experiments() if e.name == "small"]
    return list(client.search_runs([experiment.experiment_id], max_results=1000))


@pytest.fixture(scope="module")
def uninterrupted(
    lettered_model: Path, new_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, float]]:
    """Every answer and metric of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    shutil.copyfile(new_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        spec = write_spec(folder, lettered_model, **LARGER)
        assert call("run", "-e", str(spec), "-o", "out", "--batch-size", "8") == 0
        (parent,) = [run for run in all_runs() if run.data.tags["persona_mlflow.role"] == "parent"]
    return read_ledger(folder / "out"), parent.data.metrics


def check_complete(folder: Path, expected: tuple[dict[str, Any], dict[str, float]]) -> None:
    answers, metrics = expected
    assert read_ledger(folder / "out") == answers
    runs = all_runs()
    (parent,) = [run for run in runs if run.data.tags["persona_mlflow.role"] == "parent"]
    assert parent.data.metrics == metrics
    cells = [run.data.tags["persona_mlflow.cell"] for run in runs if run is not parent]
    assert len(cells) == len(set(cells)) == RUNS
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert not list((folder / "out").glob("cells/*.jsonl"))


@pytest.mark.slow
def test_R6_killed_at_several_points_it_ends_with_the_same_answers(
    workdir: Path, lettered_model: Path, uninterrupted: tuple[dict[str, Any], dict[str, float]]
) -> None:
    spec = write_spec(workdir, lettered_model, **LARGER)
    output = workdir / "out"
    arguments = ("run", "-e", str(spec), "-o", "out", "--batch-size", "3")
    points: list[Callable[[], bool]] = [
        lambda: recorded(output) >= 1,
        lambda: recorded(output) >= ANSWERS // 3,
        lambda: finished(output) >= 4,
        lambda: finished(output) >= 15,
    ]
    before = 0
    for reached in points:
        process = start(*arguments, cwd=workdir)
        wait_until(reached, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert before <= recorded(output) < ANSWERS, "an answer on record was lost, or the kill came too late"
        before = recorded(output)
    assert {run.info.status for run in all_runs()} >= {"RUNNING"}
    assert call(*arguments) == 0
    check_complete(workdir, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_M11_R8_a_signal_ends_the_run_as_killed_and_keeps_every_answer(
    workdir: Path,
    lettered_model: Path,
    uninterrupted: tuple[dict[str, Any], dict[str, float]],
    number: signal.Signals,
    code: int,
) -> None:
    spec = write_spec(workdir, lettered_model, **LARGER)
    output = workdir / "out"
    process = start("run", "-e", str(spec), "-o", "out", "--batch-size", "3", cwd=workdir)
    wait_until(lambda: recorded(output) >= 30, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert "To go on: persona-mlflow run" in errors
    runs = all_runs()
    (parent,) = [run for run in runs if run.data.tags["persona_mlflow.role"] == "parent"]
    assert parent.info.status == "KILLED"
    assert {run.info.status for run in runs if run is not parent} <= {"FINISHED"}
    kept = recorded(output)
    assert 30 <= kept < ANSWERS
    assert call("run", "-e", str(spec), "-o", "out") == 0
    check_complete(workdir, uninterrupted)


@pytest.mark.slow
def test_a_failure_ends_the_run_as_failed_with_the_command_that_goes_on(
    workdir: Path,
    lettered_model: Path,
    uninterrupted: tuple[dict[str, Any], dict[str, float]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import errno

    from persona_mlflow.ledger import CellLog

    spec = write_spec(workdir, lettered_model, **LARGER)
    real, calls = CellLog.append, []

    def full(self: CellLog, rows: Any) -> None:
        calls.append(1)
        if len(calls) > 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, rows)

    monkeypatch.setattr(CellLog, "append", full)
    assert call("run", "-e", str(spec), "-o", "out") == 1
    assert "the disk is full" in capsys.readouterr().err
    (parent,) = [run for run in all_runs() if run.data.tags["persona_mlflow.role"] == "parent"]
    assert parent.info.status == "FAILED"
    monkeypatch.setattr(CellLog, "append", real)
    assert call("run", "-e", str(spec), "-o", "out") == 0
    check_complete(workdir, uninterrupted)
    assert [row["status"] for row in summary(capsys)] == ["FINISHED"]
