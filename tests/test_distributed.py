"""Several processes share an experiment: real processes, one ledger, one store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from experiments import call, read_ledger, start, write_spec
from persona_mlflow.distributed.claims import Claim, Claims, Gone
from persona_mlflow.distributed.place import Place, find_place, leave_group, own_gpus
from persona_mlflow.distributed.presence import Presence, is_alive, last_sign
from persona_mlflow.distributed.units import Lengths, Unit, cut
from persona_mlflow.errors import UserError
from persona_mlflow.ledger import Ledger, Row
from persona_mlflow.plan import Plan, make_plan
from persona_mlflow.spec import load_spec
from persona_mlflow.store import resolve_tracking_uri

SPEC: dict[str, Any] = {
    "limit": 16,
    "personas": ["a man", "a chef"],
    "factors": {"ppf": ["barebones", "youare"], "tpf": ["justanswer", "explain"], "temperature": [0.0, 1.0]},
    "decoding": {"max_new_tokens": 24},
}
RUNS, ANSWERS = 16, 256
RUN = ("run", "-e", "small.yaml", "-o", "out", "--batch-size", "4")
TWO = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

Answers = tuple[dict[str, Any], dict[str, float]]


def all_runs(uri: str | None = None) -> list[Any]:
    client = MlflowClient(resolve_tracking_uri(uri))
    ids = [e.experiment_id for e in client.search_experiments() if e.name == "small"]
    return list(client.search_runs(ids, max_results=1000)) if ids else []


def parent_of(runs: list[Any]) -> Any:
    (parent,) = [run for run in runs if run.data.tags["persona_mlflow.role"] == "parent"]
    return parent


@pytest.fixture(scope="module")
def alone(lettered_model: Path, new_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Every answer and metric of one process."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copyfile(new_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_spec(folder, lettered_model, **SPEC)
        assert call(*RUN) == 0
        return read_ledger(folder / "out"), parent_of(all_runs()).data.metrics


@pytest.fixture
def folder(workdir: Path, lettered_model: Path) -> Path:
    write_spec(workdir, lettered_model, **SPEC)
    return workdir


def check_complete(folder: Path, expected: Answers) -> None:
    """One parent, the planned children, the answers and metrics of one process, and nothing else left."""
    answers, metrics = expected
    assert read_ledger(folder / "out") == answers
    runs = all_runs()
    parent = parent_of(runs)
    assert parent.data.metrics == metrics
    cells = [run.data.tags["persona_mlflow.cell"] for run in runs if run is not parent]
    assert len(cells) == len(set(cells)) == RUNS
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert not list((folder / "out").rglob("*.jsonl"))
    assert {path.name for path in (folder / "out").iterdir()} == {
        ".lock",
        "cells",
        "ledger.json",
        "outcomes.npz",
        "plan.json",
        "questions.parquet",
    }


def written_by(folder: Path, rank: int) -> int:
    """Answers that a process has put into files of its own."""
    files = (folder / "out" / "parts").glob(f"{rank}-*/*.jsonl")
    return sum(file.read_bytes().count(b"\n") - 1 for file in files)


def wait_until(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        for process in processes:
            if process.poll() is not None:
                pytest.fail(f"ended with {process.returncode} too early: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.01)


def start_rank(folder: Path, rank: int, **environment: str) -> subprocess.Popen[str]:
    env = {**TWO, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment}
    return start(*RUN, cwd=folder, env=env)


@pytest.mark.slow
def test_X1_accelerate_launch_gives_the_answers_of_one_process_and_logs_once(
    folder: Path, alone: Answers
) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "-m"]
    process = subprocess.Popen(
        [*launch, "persona_mlflow", *RUN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: set[str] = set()

    def both() -> bool:
        seen.update(path.name[0] for path in (folder / "out" / "parts").glob("*"))
        return seen == {"0", "1"}

    wait_until(both, process)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("2 processes share the work") == 1
    check_complete(folder, alone)


@pytest.mark.slow
def test_X1_the_others_take_over_from_a_process_that_is_killed(folder: Path, alone: Answers) -> None:
    main = start(*RUN, "--num-processes", "2", cwd=folder)
    wait_until(lambda: written_by(folder, 1) >= 3, main)
    (helper,) = [child for child in psutil.Process(main.pid).children() if "run" in child.cmdline()]
    helper.send_signal(signal.SIGKILL)
    _, errors = main.communicate(timeout=120)
    assert main.returncode == 0, errors
    assert "Process 1 is gone" in errors
    check_complete(folder, alone)


@pytest.mark.slow
def test_X1_when_the_main_process_is_killed_the_others_end_and_one_process_goes_on(
    folder: Path, alone: Answers
) -> None:
    main, other = start_rank(folder, 0), start_rank(folder, 1)
    wait_until(lambda: min(written_by(folder, 0), written_by(folder, 1)) >= 3, main, other)
    main.send_signal(signal.SIGKILL)
    main.communicate()
    assert other.wait(60) == 1
    kept = written_by(folder, 0) + written_by(folder, 1)
    assert 6 <= kept < ANSWERS
    assert call(*RUN) == 0
    check_complete(folder, alone)


@pytest.mark.slow
def test_M11_a_signal_to_the_main_process_ends_all_and_two_go_on_from_what_is_there(
    folder: Path, alone: Answers
) -> None:
    assert call(*RUN, "--limit", "4", "--experiment-name", "fewer questions") == 0
    main, other = start_rank(folder, 0), start_rank(folder, 1)
    wait_until(lambda: written_by(folder, 1) >= 1, main, other)
    main.send_signal(signal.SIGTERM)
    _, errors = main.communicate(timeout=60)
    assert main.returncode == 143
    assert "Traceback" not in errors
    assert "To go on: persona-mlflow run" in errors
    assert other.wait(60) in (143, 0), "0: it was through with its share already"
    assert other.communicate()[1] == ""
    assert parent_of(all_runs()).info.status == "KILLED"
    main, other = start_rank(folder, 0), start_rank(folder, 1)
    assert main.wait(120) == 0
    assert other.wait(60) == 0
    check_complete(folder, alone)


@pytest.mark.slow
def test_X2_one_run_even_with_a_first_process_on_each_node_and_with_empty_shards(
    workdir: Path, lettered_model: Path
) -> None:
    write_spec(workdir, lettered_model, limit=1, personas=["a man"], factors={"temperature": [0.0]})
    # Each of the other nodes has a store of its own, in which nothing may appear.
    processes = [
        start(
            *RUN,
            cwd=workdir,
            env={
                "WORLD_SIZE": "3",
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                **({"MLFLOW_TRACKING_URI": f"sqlite:///{workdir}/{rank}.db"} if rank else {}),
            },
        )
        for rank in (1, 2, 0)
    ]
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        if process is not processes[-1]:
            assert output + errors == ""
    runs = all_runs()
    assert len(runs) == 2
    assert parent_of(runs).info.status == "FINISHED"
    assert not list(workdir.glob("[12].db"))
    assert sum(map(len, read_ledger(workdir / "out").values())) == 1


# ----------------------------------------------------------------------------------------- the ledger


def test_R7_what_another_process_is_writing_is_left_alone_and_gathered_when_it_is_gone(
    tmp_path: Path, plan: Plan
) -> None:
    cell = plan.grid.cells[0]
    ledger = Ledger(tmp_path)
    before, mine, theirs = ledger.open(cell), ledger.open(cell, "0-a"), ledger.open(cell, "1-b")
    rows = [Row(f"q{i}", "A", "stop", 1, 1, "", 0.0) for i in range(4)]
    before.append(rows[:1])
    mine.append(rows[1:2])
    theirs.append(rows[2:])
    (part,) = tmp_path.glob("parts/1-b/*.jsonl")
    part.write_bytes(part.read_bytes()[:-9])
    torn = part.read_bytes()
    assert set(mine.rows()) == {"q0", "q1", "q2"}
    assert set(mine.rows(parts=False)) == {"q0"}
    assert part.read_bytes() == torn
    before.gather()
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == [before.jsonl.name]
    assert before.rows() == {row.question_id: row for row in rows[:3]}
    ledger.drop_empty_parts()
    assert not (tmp_path / "parts").exists()


# ------------------------------------------------------------------------------------------ the queue


def units(count: int) -> list[Unit]:
    return [Unit((0,), i, i + 1, 1, float(count - i), True) for i in range(count)]


def test_every_unit_is_claimed_once_whoever_is_faster(tmp_path: Path) -> None:
    queue = units(200)
    taken: dict[int, list[Claim]] = {}

    def work(rank: int) -> None:
        claims = Claims(tmp_path, f"{rank}-x", queue, 4, lambda _: True)
        while (claim := claims.take()) is not None:
            taken.setdefault(rank, []).append(claim)
            claims.finish(claim)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chain = sorted((claim for mine in taken.values() for claim in mine), key=lambda claim: claim.number)
    assert [claim.number for claim in chain] == list(range(len(chain)))
    assert [i for claim in chain for i in range(claim.start, claim.stop)] == list(range(200))
    costs = [sum(unit.cost for unit in queue[claim.start : claim.stop]) for claim in chain]
    assert costs[0] <= sum(costs) / 8 + queue[0].cost
    assert costs[-1] == 1.0, "the last share is the smallest there is"
    assert not list(tmp_path.glob("*.draft"))


def test_only_what_a_dead_process_had_not_done_is_taken_over_and_once(tmp_path: Path) -> None:
    queue, alive = units(4), {"a": True, "b": True, "c": True}
    a, b, c = (Claims(tmp_path, name, queue, 1, alive.__getitem__) for name in "abc")
    first, second = a.take(), a.take()
    assert first is not None
    assert second is not None
    a.finish(first)
    while (claim := b.take()) is not None:
        b.finish(claim)
    alive["a"] = False
    taken = b.take()
    assert taken is not None
    assert (taken.takes, taken.start, taken.stop) == (second.number, second.start, second.stop)
    assert c.take() is None
    alive["b"] = False
    again = c.take()
    assert again is not None
    assert again.takes == taken.number
    c.finish(again)
    assert a.take() is b.take() is None


def test_a_folder_that_is_removed_ends_the_work(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "session", "a", units(4), 1, lambda _: True)
    (tmp_path / "session").mkdir()
    claim = claims.take()
    assert claim is not None
    shutil.rmtree(tmp_path / "session")
    with pytest.raises(Gone):
        claims.finish(claim)
    with pytest.raises(Gone):
        claims.take()


def test_a_process_is_there_until_it_ends_or_on_another_machine_falls_silent(tmp_path: Path) -> None:
    presence = Presence(tmp_path, "0-a")
    assert not is_alive(tmp_path, "0-a", 0.0)
    presence.start()
    assert is_alive(tmp_path, "0-a", time.time() + 1e6), "its lock counts here, not its age"
    presence.stop()
    assert not is_alive(tmp_path, "0-a", time.time())
    (tmp_path / "1-b.beat").write_text(json.dumps({"host": "another machine", "draws": 7}))
    last = last_sign(tmp_path, "1-b")
    assert is_alive(tmp_path, "1-b", last + 100)
    assert not is_alive(tmp_path, "1-b", last + 1000)


@pytest.fixture(scope="module")
def plan(lettered_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    spec = {**SPEC, "decoding": {"max_new_tokens": 1000}}
    path = write_spec(tmp_path_factory.mktemp("plan"), lettered_model, **spec)
    return make_plan(load_spec(path, {}))


@pytest.mark.parametrize("processes", [1, 2, 7, 500])
def test_the_units_are_what_is_missing_the_dearest_first(plan: Plan, processes: int) -> None:
    ids = [question.id for question in plan.questions.questions]
    missing = {cell.index: set(ids) for cell in plan.grid.cells}
    missing[0] = set(ids[5:9])
    del missing[3]
    missing[4] = set()
    new = {index for index in missing if index not in (0, 4)}
    queue = cut(plan, missing, new, Lengths(plan), processes)
    covered: Counter[tuple[int, str]] = Counter()
    for unit in queue:
        wanted = [(i, q) for i in unit.cells for q in ids[unit.start : unit.stop] if q in missing[i]]
        assert len(wanted) == unit.draws > 0
        assert unit.new == new.issuperset(unit.cells)
        covered.update(wanted)
    assert covered == Counter((index, q) for index, left in missing.items() for q in left)
    formats = [plan.grid.cells[unit.cells[0]].setting.all_levels["tpf"] for unit in queue]
    assert formats == sorted(formats, key=lambda name: name != "explain"), "long answers come first"


def test_no_unit_is_larger_than_memory_and_balance_allow(plan: Plan) -> None:
    missing = {cell.index: {q.id for q in plan.questions.questions} for cell in plan.grid.cells}
    queue = cut(plan, missing, set(missing), Lengths(plan), 2)
    assert max(unit.draws for unit in queue) <= 64
    assert len(queue) >= ANSWERS // 64


# ------------------------------------------------------------------------------------- which process it is


def test_the_place_comes_from_the_launcher_or_from_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert find_place() == Place()
    assert find_place(3) == Place(0, 3, 0, 3, to_start=2)
    with pytest.raises(UserError, match="give 1 or more"):
        find_place(0)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    assert find_place() == Place(2, 8, 0, 0)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert find_place() == find_place(1) == find_place(6) == Place(5, 6, 1, 2)
    with pytest.raises(UserError, match="one of 6 already"):
        find_place(2)
    monkeypatch.setenv("RANK", "6")
    with pytest.raises(UserError, match="RANK=6: not from 0 to 5"):
        find_place()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UserError, match="RANK=first: not a whole number"):
        find_place()


def test_no_library_finds_a_process_group_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    leave_group(find_place())
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"} & set(os.environ)


def test_a_machine_s_gpus_are_dealt_out_evenly() -> None:
    def dealt(gpus: int, processes: int) -> list[list[str]]:
        names = [str(i) for i in range(gpus)]
        return [own_gpus(names, Place(i, processes, i, processes)) for i in range(processes)]

    assert dealt(2, 2) == [["0"], ["1"]]
    assert dealt(8, 3) == [["0", "1"], ["2", "3", "4"], ["5", "6", "7"]]
    assert dealt(2, 4) == [["0"], ["1"], ["0"], ["1"]]
    assert dealt(4, 1) == [["0", "1", "2", "3"]]
    assert own_gpus(["a", "b"], Place(5, 8, 1, 0)) == ["b"]


def test_the_others_are_given_the_same_options() -> None:
    from persona_mlflow.cli.run import _same_call, run

    words = ["--limit=3", "--ppf=a,b", "--factor=x=1,2", "--factor=y=3", "--json", "--deterministic"]
    context = run.make_context("run", [*words, "--num-processes", "2", "-o", "a folder"])
    again = _same_call(context)
    assert again[0] == "run"
    assert "--num-processes" not in " ".join(again)
    expected = {**context.params, "num_processes": None}
    assert run.make_context("run", again[1:]).params == expected
