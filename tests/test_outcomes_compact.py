"""The compact outcomes on the parent: what was packed comes back, and nothing else is ever taken for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient

from experiments import call, write_spec
from persona_mlflow.errors import UserError
from persona_mlflow.outcomes import (
    OUTCOMES,
    label_outcomes,
    load_outcomes,
    pack_outcomes,
    read_questions,
    unpack_outcomes,
)
from persona_mlflow.parsing import STATUSES
from persona_mlflow.store import children_of, resolve_tracking_uri

relaxed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def make_plan(personas: int, levels: list[int], spec_hash: str = "abc") -> dict[str, Any]:
    cells = personas * int(np.prod(levels, dtype=int))
    return {
        "name": "small",
        "model": "m",
        "spec_hash": spec_hash,
        "personas": [{"name": f"p{i}", "group": "G", "subgroup": ""} for i in range(personas)],
        "factors": {f"f{i}": list(range(n)) for i, n in enumerate(levels)},
        "cells": [{"key": str(i), "slug": str(i), "name": str(i)} for i in range(cells)],
    }


def make_questions(count: int) -> pd.DataFrame:
    ids = [f"q{i}" for i in range(count)]
    return pd.DataFrame({"id": ids, "category": ["Math"] * count, "label": ["algebra"] * count})


def make_dataset(plan: dict[str, Any], questions: pd.DataFrame, seed: int = 0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    shape = (len(plan["cells"]), len(questions))
    status = rng.integers(0, len(STATUSES), shape, dtype=np.int8)
    return label_outcomes(plan, questions, rng.random(shape) < 0.5, status, where="here")


grids = st.tuples(
    st.integers(1, 3), st.lists(st.integers(1, 3), max_size=3), st.integers(1, 11), st.integers(0, 99)
)


@relaxed
@given(grid=grids)
def test_what_was_packed_comes_back_with_its_labels(grid: Any, tmp_path: Path) -> None:
    personas, levels, count, seed = grid
    plan, questions = make_plan(personas, levels), make_questions(count)
    dataset = make_dataset(plan, questions, seed)
    path = tmp_path / OUTCOMES
    path.write_bytes(pack_outcomes(dataset, plan["spec_hash"]))
    found = unpack_outcomes(path, plan, questions, where="here")
    assert found is not None
    assert found.identical(dataset)
    assert {name: found[name].dtype for name in found} == {name: dataset[name].dtype for name in dataset}


def test_an_unfinished_run_in_the_file_is_still_an_error_unless_asked_for(tmp_path: Path) -> None:
    plan, questions = make_plan(2, [2]), make_questions(3)
    status = np.zeros((4, 3), dtype=np.int8)
    status[3, 1] = -1
    dataset = label_outcomes(plan, questions, status == 0, status, where="", allow_incomplete=True)
    path = tmp_path / OUTCOMES
    path.write_bytes(pack_outcomes(dataset, plan["spec_hash"]))
    with pytest.raises(UserError, match="here: 1 of 4 runs are unfinished, the first: 3"):
        unpack_outcomes(path, plan, questions, where="here")
    found = unpack_outcomes(path, plan, questions, where="here", allow_incomplete=True)
    assert found is not None
    assert found.identical(dataset)


@pytest.mark.parametrize(
    ("plan", "questions"),
    [
        (make_plan(2, [3], spec_hash="abd"), make_questions(5)),
        (make_plan(3, [3]), make_questions(5)),
        (make_plan(2, [3]), make_questions(6)),
        (make_plan(2, [3]), make_questions(5)[::-1]),
    ],
    ids=["another spec hash", "other cells", "other questions", "another order of the questions"],
)
def test_a_file_of_another_plan_is_passed_over(
    plan: dict[str, Any], questions: pd.DataFrame, tmp_path: Path
) -> None:
    own = make_plan(2, [3])
    path = tmp_path / OUTCOMES
    path.write_bytes(pack_outcomes(make_dataset(own, make_questions(5)), own["spec_hash"]))
    assert unpack_outcomes(path, own, make_questions(5), where="") is not None
    assert unpack_outcomes(path, plan, questions, where="") is None


def test_a_file_with_a_right_header_over_arrays_of_another_shape_is_passed_over(tmp_path: Path) -> None:
    plan, questions = make_plan(2, [3]), make_questions(5)
    path = tmp_path / OUTCOMES
    path.write_bytes(pack_outcomes(make_dataset(plan, questions), plan["spec_hash"]))
    with np.load(path) as file:
        parts = dict(file)
    wrong: list[dict[str, Any]] = [
        {"status": parts["status"].T},
        {"status": parts["status"].astype(np.int16)},
        {"correct": parts["correct"][:-1]},
    ]
    for change in wrong:
        np.savez_compressed(path, **{**parts, **change})
        assert unpack_outcomes(path, plan, questions, where="") is None, change
    del parts["correct"]
    np.savez_compressed(path, **parts)
    assert unpack_outcomes(path, plan, questions, where="") is None


def test_a_torn_or_damaged_file_is_passed_over_or_gives_what_was_packed(tmp_path: Path) -> None:
    plan, questions = make_plan(2, [2, 2]), make_questions(7)
    dataset = make_dataset(plan, questions)
    content = pack_outcomes(dataset, plan["spec_hash"])
    path = tmp_path / OUTCOMES
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        assert unpack_outcomes(path, plan, questions, where="") is None, end
    passed_over = 0
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        found = unpack_outcomes(path, plan, questions, where="")
        passed_over += found is None
        assert found is None or found.identical(dataset), position  # a time stamp in the archive, say
    assert passed_over > len(content) / 3 / 4


@pytest.fixture(scope="module")
def finished(lettered_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The small experiment, run once: its working directory and its parent's id."""
    folder = tmp_path_factory.mktemp("compact")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        spec = write_spec(folder, lettered_model)
        assert call("run", "-e", str(spec), "--output", "out", "--model", str(lettered_model)) == 0
        client = MlflowClient(resolve_tracking_uri(None))
        (parent,) = client.search_runs(["1"], "tags.`persona_mlflow.role` = 'parent'")
    return folder, str(parent.info.run_id)


@pytest.fixture
def parent_id(finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(finished[0])
    return finished[1]


def artifacts(run_id: str) -> Path:
    uri = MlflowClient(resolve_tracking_uri(None)).get_run(run_id).info.artifact_uri
    return Path(str(uri).removeprefix("file://"))


@contextmanager
def without_the_children_s_artifacts(parent_id: str) -> Iterator[int]:
    folders = [
        artifacts(run.info.run_id)
        for run in children_of(MlflowClient(resolve_tracking_uri(None)), "1", parent_id).values()
    ]
    for folder in folders:
        folder.rename(folder.with_name("aside"))
    try:
        yield len(folders)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_name("aside").rename(folder)


@contextmanager
def changed_file(parent_id: str, content: bytes | None) -> Iterator[None]:
    path = artifacts(parent_id) / OUTCOMES
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def turned(dataset: xr.Dataset, parent_id: str) -> bytes:
    """A file that fits the plan, with every answer the other way round."""
    run = MlflowClient(resolve_tracking_uri(None)).get_run(parent_id)
    return pack_outcomes(
        dataset.assign(correct=~dataset["correct"]), run.data.tags["persona_mlflow.spec_hash"]
    )


def test_a_finished_parent_carries_its_outcomes_and_no_child_is_read(parent_id: str) -> None:
    from_ledger = load_outcomes("out")
    with without_the_children_s_artifacts(parent_id) as hidden:
        assert hidden == 12
        assert load_outcomes(parent_id).identical(from_ledger)
        assert load_outcomes("small").identical(from_ledger)
    assert (artifacts(parent_id) / OUTCOMES).read_bytes() == Path("out", OUTCOMES).read_bytes()


def test_without_a_file_that_fits_the_children_are_read(
    parent_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    from_ledger = load_outcomes("out")
    whole = (artifacts(parent_id) / OUTCOMES).read_bytes()
    for content, said in ((None, False), (whole[:100], True), (pack_outcomes(from_ledger, "other"), True)):
        caplog.clear()
        with changed_file(parent_id, content):
            assert load_outcomes(parent_id).identical(from_ledger)
            assert ("reading its children" in caplog.text) == said
            with without_the_children_s_artifacts(parent_id), pytest.raises(Exception, match=r"."):
                load_outcomes(parent_id)


def test_an_unfinished_parent_s_file_is_not_read(parent_id: str) -> None:
    from_ledger = load_outcomes("out")
    client = MlflowClient(resolve_tracking_uri(None))
    with changed_file(parent_id, turned(from_ledger, parent_id)):
        assert (load_outcomes(parent_id)["correct"] == ~from_ledger["correct"]).all()
        client.update_run(parent_id, status="RUNNING")
        try:
            assert load_outcomes(parent_id).identical(from_ledger)
        finally:
            client.update_run(parent_id, status="FINISHED")


def test_a_ledger_s_cells_are_the_truth_whatever_its_file_says(parent_id: str) -> None:
    from_ledger = load_outcomes("out")
    path = Path("out", OUTCOMES)
    before = path.read_bytes()
    path.write_bytes(turned(from_ledger, parent_id))
    try:
        assert load_outcomes("out").identical(from_ledger)
    finally:
        path.write_bytes(before)


def test_the_questions_are_read_as_they_were_asked(parent_id: str) -> None:
    found = read_questions("out")
    assert found["id"].tolist() == load_outcomes("out")["question"].values.tolist()
    assert set(found) == {"id", "category", "label", "text", "options", "answer", "source"}
    for row in found.to_dict("records"):
        assert isinstance(row["options"], list)
        assert "ABCDEFGHIJ"[: len(row["options"])].count(row["answer"]) == 1
    pd.testing.assert_frame_equal(read_questions(parent_id), found)
    pd.testing.assert_frame_equal(read_questions("small"), found)
    with pytest.raises(UserError, match="'nothing': neither a run id nor an experiment"):
        read_questions("nothing")
