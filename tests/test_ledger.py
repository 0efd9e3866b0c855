"""The ledger: what is on record survives, and nothing else is read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persona_mlflow.catalog import load_catalogue
from persona_mlflow.errors import UserError
from persona_mlflow.grid import Cell, Grid
from persona_mlflow.ledger import CellLog, Ledger, Row, is_disk_full

CATALOGUE = load_catalogue()


def cell(**generation: Any) -> Cell:
    personas = CATALOGUE.select_personas(["a chef"], "test")
    return Grid(personas, {"temperature": (0.5,)}, CATALOGUE, {"model": "m", "seed": 0, **generation}).cells[
        0
    ]


def row(question: str, text: str = "A") -> Row:
    return Row(question, text, "stop", 10, 1, "", 1.5)


def parse(row: Row) -> dict[str, Any]:
    return {
        "category": "c",
        "label": "l",
        "gold": "A",
        "letter": row.text,
        "status": "ok",
        "correct": row.text == "A",
    }


@pytest.fixture
def log(tmp_path: Path) -> CellLog:
    return Ledger(tmp_path / "out").open(cell())


def test_rows_come_back_as_they_were_appended(log: CellLog) -> None:
    texts = ["A", "", "line\nbreak \u2028 \x85 \r\n", "{persona} “ünï” 🎲", "x" * 100_000]
    for i, text in enumerate(texts):
        log.append([row(f"q{i}", text)])
    assert {q: r.text for q, r in log.rows().items()} == {f"q{i}": t for i, t in enumerate(texts)}


def test_R7_a_torn_last_line_is_dropped_and_the_rest_kept(log: CellLog) -> None:
    log.append([row("q0"), row("q1"), row("q2")])
    whole = log.jsonl.read_bytes()
    last = len(whole) - len(whole.splitlines(keepends=True)[-1])
    for cut in range(last, len(whole)):
        log.jsonl.write_bytes(whole[:cut])
        assert set(log.rows()) == {"q0", "q1"}
        log.append([row("q2", "B")])
        assert {q: r.text for q, r in log.rows().items()} == {"q0": "A", "q1": "A", "q2": "B"}


def test_a_file_torn_in_its_first_line_is_begun_anew(log: CellLog) -> None:
    log.append([row("q0")])
    log.jsonl.write_bytes(log.jsonl.read_bytes()[:20])
    assert log.rows() == {}
    log.append([row("q1")])
    assert set(log.rows()) == {"q1"}


def test_a_damaged_line_in_the_middle_is_named(log: CellLog) -> None:
    log.append([row("q0"), row("q1")])
    lines = log.jsonl.read_text().splitlines(keepends=True)
    log.jsonl.write_text("".join([lines[0], "garbage\n", lines[2]]))
    with pytest.raises(UserError, match=r"jsonl:2: damaged"):
        log.rows()


def test_finishing_compacts_in_the_planned_order(log: CellLog) -> None:
    log.append([row("q1", "B"), row("q0")])
    assert not log.is_finished("f")
    log.finish(["q0", "q1"], "f", parse)
    assert log.is_finished("f")
    assert not log.is_finished("other questions")
    assert not log.jsonl.exists()
    table = log.table()
    assert table["question_id"].to_pylist() == ["q0", "q1"]
    assert table["correct"].to_pylist() == [True, False]
    assert log.rows()["q1"] == row("q1", "B")


def test_R5_R10_a_larger_and_a_smaller_limit_reuse_what_is_there(log: CellLog) -> None:
    log.append([row("q0"), row("q1")])
    log.finish(["q0", "q1"], "two", parse)
    assert not log.is_finished("three")
    log.append([row("q2")])
    log.finish(["q0", "q1", "q2"], "three", parse)
    assert log.table()["question_id"].to_pylist() == ["q0", "q1", "q2"]
    log.finish(["q1"], "one", parse)
    assert log.table()["question_id"].to_pylist() == ["q1"]
    assert set(log.rows()) == {"q0", "q1", "q2"}


def test_R5_a_cell_with_a_missing_draw_is_never_finished(log: CellLog) -> None:
    log.append([row("q0")])
    with pytest.raises(RuntimeError, match="1 of 2 draws are missing"):
        log.finish(["q0", "q1"], "f", parse)
    assert not log.is_finished("f")


def test_R1_a_file_of_another_model_is_refused_even_under_this_cell_s_name(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out")
    mine, other = ledger.open(cell()), ledger.open(cell(model="n"))
    assert mine.jsonl != other.jsonl
    other.append([row("q0")])
    other.jsonl.rename(mine.jsonl)
    with pytest.raises(UserError, match="another experiment"):
        mine.rows()


def test_a_damaged_parquet_is_named_with_what_to_do(log: CellLog) -> None:
    log.append([row("q0")])
    log.finish(["q0"], "f", parse)
    log.parquet.write_bytes(log.parquet.read_bytes()[:100])
    with pytest.raises(UserError, match=r"parquet: damaged .*delete the file"):
        log.is_finished("f")


@pytest.mark.parametrize("damage", [b"[1]\n", b"7\n", b'{"question_id": 1}\n'])
def test_a_line_that_is_no_draw_is_named(log: CellLog, damage: bytes) -> None:
    log.append([row("q0")])
    log.jsonl.write_bytes(log.jsonl.read_bytes() + damage)
    with pytest.raises(UserError, match=r"jsonl:3: damaged"):
        log.rows()


def test_damage_inside_a_parquet_file_is_named(log: CellLog) -> None:
    log.append([row(f"q{i}", "some text") for i in range(50)])
    log.finish([f"q{i}" for i in range(50)], "f", parse)
    content = bytearray(log.parquet.read_bytes())
    content[20:60] = bytes(40)
    log.parquet.write_bytes(content)
    with pytest.raises(UserError, match=r"parquet: damaged .*delete the file"):
        log.rows()


def test_a_folder_that_is_no_ledger_or_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="--output"):
        Ledger(tmp_path / "file")
    Ledger(tmp_path / "list")
    (tmp_path / "list" / "ledger.json").write_text("[]")
    with pytest.raises(UserError, match="cannot be used as a ledger"):
        Ledger(tmp_path / "list")
    Ledger(tmp_path / "later")
    (tmp_path / "later" / "ledger.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        Ledger(tmp_path / "later")


def test_two_processes_cannot_write_one_ledger_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from persona_mlflow.ledger import Ledger\n"
        "with Ledger(Path(sys.argv[1])).lock():\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match="another process"), Ledger(tmp_path).lock():
            pass
    finally:
        holder.kill()
        holder.wait()
    with Ledger(tmp_path).lock():
        pass


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting a small tmpfs needs root")
def test_R7_a_full_disk_is_recognised_and_loses_no_recorded_row(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        log = Ledger(disk / "out").open(cell())
        recorded: list[str] = []

        def fill() -> None:
            for i in range(1000):
                log.append([row(f"q{i}", "x" * 10_000)])
                recorded.append(f"q{i}")

        with pytest.raises(OSError, match="No space left") as caught:
            fill()
        assert is_disk_full(caught.value)
        assert set(log.rows()) == set(recorded)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_disk_full_is_recognised_through_a_chain_of_causes() -> None:
    wrapped = RuntimeError("could not write")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(wrapped)
    assert not is_disk_full(RuntimeError("no space"))
