"""`mlflow run .`: the run that MLflow makes is the parent, through Ctrl-C, SIGTERM and another call."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from experiments import call, read_ledger, write_spec
from persona_mlflow.store import connect

ROOT = Path(__file__).parents[1]
RUNS, LIMIT = 12, 16
ANSWERS = RUNS * LIMIT


@dataclass(frozen=True)
class Ended:
    """What a call of `mlflow run` left."""

    run_id: str
    code: int
    log: str
    recorded: int
    times: set[float]

    @classmethod
    def read(cls, code: int, log: Path, output: Path) -> Ended:
        text = log.read_text()
        found = re.search(r"in run with ID '(\w+)'", text)
        assert found, text
        return cls(found[1], code, text, recorded(output), draw_times(output))


class Project:
    """A user's folder, from which the project is run, and its store."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.model = model
        self.spec = write_spec(folder, model, decoding={"max_new_tokens": 6})
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        dropped = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID")
        self.env = {name: value for name, value in os.environ.items() if name not in dropped} | {
            "MLFLOW_TRACKING_URI": self.uri,
            # `mlflow run` says `python`; its environment manager `local` takes the one of PATH.
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.uri)

    def start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Start `mlflow run` as the leader of a process group, as a terminal does."""
        with (self.folder / log).open("wb") as sink:
            return subprocess.Popen(
                ["mlflow", "run", str(ROOT), "--env-manager", "local", *arguments],
                cwd=self.folder,
                env=self.env,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    def run(
        self,
        *arguments: str,
        log: str,
        output_name: str = "out",
        interrupt: Callable[[int], None] | None = None,
    ) -> Ended:
        """Run the experiment to its end, or interrupt it once some more answers are on record."""
        output, before = self.folder / output_name, recorded(self.folder / output_name)
        parameters = {"experiment": self.spec, "limit": LIMIT, "output": output}
        if interrupt is not None:
            parameters["batch_size"] = 3  # so that there is a moment between two batches
        options = [part for name, value in parameters.items() for part in ("-P", f"{name}={value}")]
        process = self.start(*options, *arguments, log=log)
        if interrupt is not None:
            deadline = time.monotonic() + 120
            while recorded(output) < before + 20:
                assert process.poll() is None, (self.folder / log).read_text()
                assert time.monotonic() < deadline, "the process made no progress"
                time.sleep(0.005)
            interrupt(process.pid)
        code = process.wait(timeout=180)
        return Ended.read(code, self.folder / log, output)

    def run_ids(self) -> set[str]:
        """Every run that is no child."""
        runs = self.client.search_runs([e.experiment_id for e in self.client.search_experiments()])
        return {run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags}

    def children(self, parent_id: str) -> list[Any]:
        """All children of a run, in whatever experiment they are."""
        experiments = [e.experiment_id for e in self.client.search_experiments()]
        return list(self.client.search_runs(experiments, f"tags.mlflow.parentRunId = '{parent_id}'"))


def recorded(output: Path) -> int:
    """Answers on record, those of finished cells included."""
    lines = sum(path.read_bytes().count(b"\n") - 1 for path in output.glob("cells/*.jsonl"))
    return lines + LIMIT * len(list(output.glob("cells/*.parquet")))


def draw_times(output: Path) -> set[float]:
    """When each answer on record was made."""
    lines = [line for path in output.glob("cells/*.jsonl") for line in path.read_text().splitlines()[1:]]
    tables = [pq.read_table(path, columns=["time"]) for path in output.glob("cells/*.parquet")]
    return {json.loads(line)["time"] for line in lines} | {
        t for table in tables for t in table["time"].to_pylist()
    }


def press_ctrl_c(pid: int) -> None:
    """What a terminal does: SIGINT for every process of the group, upon which `mlflow run` sends SIGTERM."""
    os.killpg(pid, signal.SIGINT)


def terminate_ours(pid: int) -> None:
    """SIGTERM for the process that `mlflow run` started."""
    (ours,) = [p for p in psutil.Process(pid).children(recursive=True) if "persona_mlflow" in p.cmdline()]
    ours.terminate()


@pytest.fixture(scope="module")
def project(lettered_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("project"), lettered_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.folder)  # the artifacts of "Default" lie where its store was made
        connect(project.uri)
    return project


@pytest.fixture(scope="module")
def story(project: Project) -> dict[str, Ended]:
    """One experiment stopped by Ctrl-C, finished, and run once more; beside it, one stopped by SIGTERM."""
    in_checkout = {path.name for path in ROOT.iterdir()}
    told: dict[str, Ended] = {}
    with ThreadPoolExecutor() as pool:
        one = pool.submit(project.run, log="ctrl-c.log", interrupt=press_ctrl_c)
        two = pool.submit(project.run, log="sigterm.log", output_name="other", interrupt=terminate_ours)
        told |= {"ctrl-c": one.result(), "sigterm": two.result()}
    told["finished"] = project.run("-P", f"model={project.model}", "--run-name", "mine", log="finished.log")
    told["again"] = project.run("--experiment-name", "elsewhere", log="again.log")
    new = {path.name for path in ROOT.iterdir()} - in_checkout
    assert not new & {"mlruns", "mlartifacts", "mlflow.db", "outputs"}
    return told


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("ctrl-c", 1), ("sigterm", 1)])
def test_M11_an_interrupt_under_mlflow_run_ends_as_killed_with_its_answers_kept(
    project: Project, story: dict[str, Ended], how: str, code: int
) -> None:
    ended = story[how]
    assert ended.code == code
    assert "To go on: persona-mlflow run" in ended.log
    assert "Error: the run failed" not in ended.log
    deadline = time.monotonic() + 60
    while project.client.get_run(ended.run_id).info.status != "KILLED":  # `mlflow run` itself says "failed"
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert 20 <= ended.recorded < ANSWERS
    assert {run.info.status for run in project.children(ended.run_id)} <= {"FINISHED"}


@pytest.mark.slow
def test_R8_the_next_call_keeps_the_answers_that_are_there(project: Project, story: dict[str, Ended]) -> None:
    assert story["finished"].recorded == ANSWERS
    assert story["ctrl-c"].times
    assert story["ctrl-c"].times < story["finished"].times


@pytest.mark.slow
def test_M9_M10_M25_the_run_of_mlflow_run_is_the_parent_of_every_child(
    project: Project, story: dict[str, Ended]
) -> None:
    parent = project.client.get_run(story["finished"].run_id)
    assert story["finished"].code == 0
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["mlflow.source.type"] == "PROJECT"
    assert parent.data.tags["persona_mlflow.role"] == "parent"
    assert 0 < parent.data.metrics["instability/accuracy"] < 1
    assert parent.inputs is not None
    assert len(parent.inputs.dataset_inputs) == 1
    runs = project.children(parent.info.run_id)
    assert len({run.data.tags["persona_mlflow.cell"] for run in runs}) == len(runs) == RUNS
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.info.experiment_id for run in runs} == {parent.info.experiment_id} == {"0"}
    # The spec's name makes no experiment, and no other run is a parent beside those of `mlflow run`.
    assert {e.name for e in project.client.search_experiments()} == {"Default", "elsewhere"}
    assert project.run_ids() >= {ended.run_id for ended in story.values()}
    roles = [
        project.client.get_run(run_id).data.tags.get("mlflow.source.type") for run_id in project.run_ids()
    ]
    assert set(roles) == {"PROJECT"}


@pytest.mark.slow
def test_M3_parameters_stay_as_typed_with_what_they_came_to_beside_them(
    project: Project, story: dict[str, Ended]
) -> None:
    run = project.client.get_run(story["finished"].run_id)
    params = run.data.params
    assert params["model"] == params["resolved.model"] == str(project.model)
    assert params["experiment"] == str(project.spec)
    assert params["resolved.experiment"] == "small"
    assert params["limit"] == str(LIMIT)
    assert params["output"] == str(project.folder / "out")
    assert params["temperature"] == "0.0, 1.0"
    assert params["resolved.revision"].startswith("files:")
    assert run.info.run_name == "mine"


@pytest.mark.slow
def test_a_model_that_was_not_typed_is_the_experiment_s(project: Project, story: dict[str, Ended]) -> None:
    run = project.client.get_run(story["again"].run_id)
    assert run.data.params["model"] == str(project.model)
    assert run.info.run_name.startswith("small · ")


@pytest.mark.slow
def test_M25_the_same_call_again_makes_no_answer_and_logs_all_under_its_own_run(
    project: Project, story: dict[str, Ended]
) -> None:
    again, client = story["again"], project.client
    assert again.code == 0
    assert "Loading" not in again.log
    assert again.times == story["finished"].times
    parents = [client.get_run(story[name].run_id) for name in ("finished", "again")]
    assert parents[1].info.status == "FINISHED"
    assert parents[0].data.metrics == parents[1].data.metrics
    assert client.get_experiment(parents[1].info.experiment_id).name == "elsewhere"
    old, new = (project.children(parent.info.run_id) for parent in parents)
    assert {run.info.experiment_id for run in new} == {parents[1].info.experiment_id}
    assert len(new) == RUNS
    by_name = {run.info.run_name: run.data.metrics for run in old}
    assert {run.info.run_name: run.data.metrics for run in new} == by_name
    answers = read_ledger(project.folder / "out")
    for run in new:
        path = Path(client.download_artifacts(run.info.run_id, "generations.parquet"))
        rows = pq.read_table(path).drop_columns(["time"]).to_pylist()
        assert {row["question_id"]: tuple(row.values()) for row in rows} in answers.values()


@pytest.mark.slow
def test_a_wrong_name_or_model_fails_with_our_message_and_leaves_no_child(
    project: Project,
    story: dict[str, Ended],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = {"modle": "smollm2", "model": "llama9b"}
    messages = {"modle": "--modle", "model": "llama9b"}
    output = project.folder / "wrong"
    processes = [
        project.start(
            *("-P", f"experiment={project.spec}", "-P", f"{name}={value}", "-P", f"output={output}"),
            log=f"wrong-{name}.log",
        )
        for name, value in wrong.items()
    ]
    codes = [process.wait(timeout=120) for process in processes]
    assert codes == [1, 1]
    for name in wrong:
        log = (project.folder / f"wrong-{name}.log").read_text()
        assert "Error: " in log
        assert messages[name] in log.partition("Error: ")[2]
        assert "Traceback" not in log
        run_id = Ended.read(1, project.folder / f"wrong-{name}.log", output).run_id
        assert project.client.get_run(run_id).info.status == "FAILED"
        assert project.children(run_id) == []
    # What `mlflow run` hides: the exit code of the process in it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", project.uri)
    for name, value in wrong.items():
        assert (
            call("run", "--experiment", str(project.spec), f"--{name}", value, "--output", str(output)) == 2
        )
        assert messages[name] in capsys.readouterr().err


# ------------------------------------------------------------------- MLFLOW_RUN_ID without `mlflow run`


@pytest.fixture
def own_run(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[MlflowClient, str]:
    """A run of the user's own, which the environment names."""
    client = MlflowClient(f"sqlite:///{workdir / 'mlflow.db'}")
    experiment_id = client.create_experiment("own", artifact_location=(workdir / "artifacts").as_uri())
    run = client.create_run(experiment_id, run_name="my run")
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    return client, run.info.run_id


def small(folder: Path, model: Path, **changes: Any) -> tuple[str, ...]:
    return ("run", "-e", str(write_spec(folder, model, limit=1, **changes)), "-o", "out")


@pytest.mark.slow
def test_M9_the_run_that_the_environment_names_is_the_parent(
    workdir: Path, lettered_model: Path, own_run: tuple[MlflowClient, str], capsys: pytest.CaptureFixture[str]
) -> None:
    client, run_id = own_run
    assert call(*small(workdir, lettered_model)) == 0
    parent = client.get_run(run_id)
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "my run")
    runs = client.search_runs([parent.info.experiment_id], f"tags.mlflow.parentRunId = '{run_id}'")
    assert len(runs) == 12
    assert {e.name for e in client.search_experiments()} == {"Default", "own"}
    assert "MLFLOW_RUN_ID" not in os.environ


@pytest.mark.slow
def test_M9_a_run_that_cannot_be_the_parent_is_refused(
    workdir: Path,
    lettered_model: Path,
    own_run: tuple[MlflowClient, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client, run_id = own_run
    client.set_tag(run_id, "persona_mlflow.spec_hash", "of another spec")
    deleted = client.create_run("0").info.run_id
    client.delete_run(deleted)
    for wrong, message in (
        (run_id, "another experiment"),
        (deleted, "deleted"),
        ("0" * 32, "holds no such run"),
    ):
        monkeypatch.setenv("MLFLOW_RUN_ID", wrong)
        assert call(*small(workdir, lettered_model)) == 2
        errors = capsys.readouterr().err
        assert f"Error: MLFLOW_RUN_ID={wrong}" in errors
        assert message in errors
    assert len(client.search_runs(["0", "1"])) == 1


@pytest.mark.slow
def test_M11_ctrl_c_while_the_model_loads_ends_the_run_of_mlflow_run_as_killed(
    workdir: Path, lettered_model: Path, own_run: tuple[MlflowClient, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import persona_mlflow.engines.hf

    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(persona_mlflow.engines.hf, "load_engine", interrupted)
    assert call(*small(workdir, lettered_model)) == 130
    client, run_id = own_run
    assert client.get_run(run_id).info.status == "KILLED"


@pytest.mark.slow
def test_M11_sigterm_on_top_of_ctrl_c_does_not_cut_the_closing_short(
    workdir: Path, lettered_model: Path, own_run: tuple[MlflowClient, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from persona_mlflow.ledger import CellLog
    from persona_mlflow.tracking import Tracker

    close = Tracker.close

    def interrupted(self: CellLog, rows: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    def closing(self: Tracker, status: str) -> None:
        signal.raise_signal(signal.SIGTERM)
        close(self, status)

    monkeypatch.setattr(CellLog, "append", interrupted)
    monkeypatch.setattr(Tracker, "close", closing)
    before = signal.getsignal(signal.SIGTERM)
    assert call(*small(workdir, lettered_model)) == 130
    client, run_id = own_run
    assert client.get_run(run_id).info.status == "KILLED"
    assert signal.getsignal(signal.SIGTERM) == before
