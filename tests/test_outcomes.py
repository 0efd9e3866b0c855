"""The labelled array: what is missing is said, and nothing is averaged over silently."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import persona_mlflow
from persona_mlflow.errors import UserError
from persona_mlflow.outcomes import assemble, complete_part, label_outcomes, status_rates
from persona_mlflow.parsing import STATUSES
from persona_mlflow.summary import parent_summary, run_summary, summary_table

PLAN: dict[str, Any] = {
    "name": "small",
    "model": "m",
    "personas": [
        {"name": "a chef", "group": "Work", "subgroup": "Food"},
        {"name": "a man", "group": "G", "subgroup": ""},
    ],
    "factors": {"ppf": ["youare", "barebones"], "temperature": [0.0]},
    "cells": [{"key": k, "slug": k, "name": k} for k in ("chef-y", "chef-b", "man-y", "man-b")],
}
QUESTIONS = pd.DataFrame({"id": ["q1", "q2"], "category": ["Math", "EECS"], "label": ["a", "b"]})
ANSWERS = {
    "chef-y": [("q1", True, "ok"), ("q2", True, "ok")],
    "chef-b": [("q2", False, "refusal"), ("q1", True, "ok")],
    "man-y": [("q1", False, "ok"), ("q2", False, "truncated")],
    "man-b": [("q1", False, "ok"), ("q2", True, "ok")],
}


def read_from(answers: dict[str, list[tuple[str, bool, str]]]) -> Any:
    def read(entry: Any) -> pa.Table | None:
        rows = answers.get(entry["key"])
        keys = ("question_id", "correct", "status")
        return pa.Table.from_pylist([dict(zip(keys, row, strict=True)) for row in rows]) if rows else None

    return read


def test_answers_land_at_their_labels_whatever_their_order() -> None:
    found = assemble(PLAN, QUESTIONS, read_from(ANSWERS), where="here")
    assert found["correct"].dims == ("persona", "ppf", "temperature", "question")
    at = {"persona": "a chef", "ppf": "barebones", "temperature": 0.0}
    assert found["correct"].sel({**at, "question": "q1"}).item() is True
    assert found["correct"].sel({**at, "question": "q2"}).item() is False
    assert found["status"].sel({**at, "question": "q2"}).item() == STATUSES.index("refusal")
    assert found["status"].attrs["flag_meanings"].split()[1:] == list(STATUSES)
    assert found["persona_subgroup"].sel(persona="a chef").item() == "Food"
    assert found["category"].sel(question="q2").item() == "EECS"


def test_an_unfinished_cell_is_an_error_unless_it_is_asked_for() -> None:
    answers = {**ANSWERS, "man-y": ANSWERS["man-y"][:1], "man-b": []}
    with pytest.raises(UserError, match="here: 2 of 4 runs are unfinished, the first: man-y"):
        assemble(PLAN, QUESTIONS, read_from(answers), where="here")
    found = assemble(PLAN, QUESTIONS, read_from(answers), where="here", allow_incomplete=True)
    assert found["complete"].values.ravel().tolist() == [True, True, False, False]
    assert found["status"].sel(persona="a man", ppf="barebones").values.ravel().tolist() == [-1, -1]


def test_answers_to_questions_beyond_the_plan_are_left_out() -> None:
    answers = {**ANSWERS, "man-y": [("q9", True, "ok"), *ANSWERS["man-y"]]}
    wanted = assemble(PLAN, QUESTIONS, read_from(ANSWERS), where="here")
    assert assemble(PLAN, QUESTIONS, read_from(answers), where="here").equals(wanted)


def test_P5_P16_rates_by_status_and_a_warning_where_they_differ_between_runs() -> None:
    found = assemble(PLAN, QUESTIONS, read_from(ANSWERS), where="here")
    rates = {name: float(rate) for name, rate in status_rates(found).items()}
    assert rates == {**dict.fromkeys(STATUSES, 0.0), "ok": 0.75, "refusal": 0.125, "truncated": 0.125}
    summary = parent_summary(found)
    assert summary["metrics"]["parse_errors/rate"] == 0.25
    assert summary["metrics"]["accuracy/mean"] == 0.5
    assert any("0.0% to 50.0%" in warning for warning in summary["warnings"])
    by_persona = status_rates(found, ["ppf", "temperature", "question"])["ok"]
    assert by_persona.sel(persona="a chef").item() == 0.75


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong_give_numbers_or_reasons_and_no_warning(right: bool) -> None:
    answers = {key: [(q, right, "ok") for q, _, _ in rows] for key, rows in ANSWERS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = parent_summary(assemble(PLAN, QUESTIONS, read_from(answers), where="here"))
    assert summary["metrics"]["instability/accuracy"] == 0
    assert summary["metrics"]["instability/outcome"] == 0
    if right:
        assert summary["metrics"]["instability/question"] == 0
    else:
        assert "instability/question" in summary["undefined"]


def test_a_table_shows_an_undefined_number_as_a_dash_and_an_unfinished_experiment_as_such() -> None:
    from mlflow.entities import Metric, Param, Run, RunData, RunInfo, RunTag
    from rich.console import Console

    data = RunData(
        metrics=[Metric("accuracy/mean", 0.5, 0, 0)],
        params=[Param("model", "dir/m"), Param("resolved.experiment", "small"), Param("runs", "4")],
        tags=[
            RunTag("persona_mlflow.children", "3"),
            RunTag("metric_undefined.instability/accuracy", "one setting"),
        ],
    )
    row = run_summary(Run(RunInfo("r", "1", "u", "RUNNING", 0, None, "active"), data))
    assert row["undefined"] == {"instability/accuracy": "one setting"}
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(summary_table([row]))
    text = console.export_text()
    assert "3 of 4" in text
    assert "0.5000" in text
    assert "–" in text
    assert "dir" not in text


def test_the_package_gives_its_public_names() -> None:
    for name in persona_mlflow.__all__:
        assert getattr(persona_mlflow, name) is not None
    assert set(persona_mlflow.__all__) == set(dir(persona_mlflow))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        persona_mlflow.nothing  # noqa: B018


def test_a_status_of_a_later_version_is_an_error() -> None:
    answers = {**ANSWERS, "man-y": [("q1", False, "ok"), ("q2", False, "asleep")]}
    with pytest.raises(UserError, match="here: run man-y has the status 'asleep'"):
        assemble(PLAN, QUESTIONS, read_from(answers), where="here")


def unfinished(answered: np.ndarray) -> xr.Dataset:
    """A dataset over personas × two factors × questions, of which only some draws are there."""
    personas, first, second, questions = answered.shape
    plan = {
        "name": "small",
        "model": "m",
        "personas": [{"name": f"p{i}", "group": "G", "subgroup": ""} for i in range(personas)],
        "factors": {
            "ppf": [f"level {i}" for i in range(first)],
            "temperature": [0.5 * i for i in range(second)],
        },
    }
    frame = pd.DataFrame({"id": [f"q{i}" for i in range(questions)], "category": "Math", "label": "algebra"})
    status = np.where(answered, 0, -1).astype(np.int8).reshape(-1, questions)
    correct = np.random.default_rng(0).random(status.shape) < 0.5
    return label_outcomes(plan, frame, correct & (status == 0), status, where="here", allow_incomplete=True)


def subsets(size: int) -> list[list[int]]:
    return [list(c) for n in range(1, size + 1) for c in itertools.combinations(range(size), n)]


def largest_complete_grid(answered: np.ndarray) -> int:
    """By trying every sub-grid."""
    return max(
        len(p) * len(a) * len(b) * len(q)
        for p, a, b, q in itertools.product(*map(subsets, answered.shape))
        if all(answered[cell] for cell in itertools.product(p, a, b, q))
    )


def simple_choices(answered: np.ndarray) -> list[int]:
    """Answers left where everything incomplete along one axis goes."""
    found = []
    for axis, size in enumerate(answered.shape):
        whole = sum(bool(np.take(answered, i, axis=axis).all()) for i in range(size))
        found.append(whole * answered.size // size)
    return found


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3)),
    share=st.sampled_from([0.1, 0.5, 0.8, 0.95]),
    whole_runs=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_complete_part_is_complete_and_no_smaller_than_any_simple_choice(
    shape: tuple[int, ...], share: float, whole_runs: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    answered = rng.random(shape) < share
    if whole_runs:
        answered[...] = answered[..., :1]
    dataset = unfinished(answered)
    if not answered.any():
        with pytest.raises(
            UserError, match=r"none of the .* runs has an answer yet.*persona-mlflow run command"
        ):
            complete_part(dataset)
        return
    part, said = complete_part(dataset)
    assert (part["status"] == 0).all()
    assert part["complete"].all()
    assert part.equals(dataset.sel({dim: part[dim] for dim in part.dims}).assign(complete=part["complete"]))
    size = part["status"].size
    assert max(simple_choices(answered)) <= size <= largest_complete_grid(answered)
    assert size > 0
    if answered.all():
        assert said is None
        assert part is dataset
    else:
        assert said is not None
        done = answered.all(axis=-1)
        assert said.startswith(f"{(~done).sum()} of {done.size} runs ")


def test_the_complete_part_is_the_largest_where_runs_are_left_as_an_interruption_leaves_them() -> None:
    for done in range(1, 12):
        answered = np.zeros((3, 2, 2, 2), dtype=bool)
        answered.reshape(12, 2)[:done] = True
        part, _ = complete_part(unfinished(answered))
        assert part["status"].size == largest_complete_grid(answered), done


def test_what_is_left_out_is_said_in_one_sentence() -> None:
    answered = np.ones((4, 4, 3, 5), dtype=bool)
    answered[3] = False
    answered[3, 0, 0] = True
    part, said = complete_part(unfinished(answered))
    assert dict(part.sizes) == {"persona": 3, "ppf": 4, "temperature": 3, "question": 5}
    assert said == (
        "11 of 48 runs are unfinished: the analyses use 3 of 4 personas in all 12 settings (left out: p3)"
    )
    answered = np.ones((9, 4, 3, 5), dtype=bool)
    answered[:8, :, 2] = False
    _, said = complete_part(unfinished(answered))
    assert said == (
        "32 of 108 runs are unfinished: the analyses use all 9 personas in 8 of 12 settings "
        "(left out: temperature 1.0)"
    )
    answered = np.ones((2, 1, 1, 50), dtype=bool)
    answered[1, 0, 0, 7] = False
    _, said = complete_part(unfinished(answered))
    assert said == (
        "1 of 2 runs is unfinished: the analyses use all 2 personas in the one setting on 49 of 50 questions"
    )
    answered = np.ones((9, 1, 1, 5), dtype=bool)
    answered[:6] = False
    _, said = complete_part(unfinished(answered))
    assert said is not None
    assert said.endswith("use 3 of 9 personas in the one setting (left out: p0, p1, p2 and 3 more)")


def test_parts_of_personas_settings_and_questions_are_left_out_together() -> None:
    answered = np.ones((6, 4, 2, 8), dtype=bool)
    answered[5, 1:] = False
    answered[:5, 3, :, :4] = False
    answered[:, :, 1, 7] = False
    part, said = complete_part(unfinished(answered))
    assert part["status"].size == 5 * 3 * 2 * 7
    assert said is not None
    for words in ("5 of 6 personas", "6 of 8 settings", "7 of 8 questions", "p5; ppf level 3"):
        assert words in said
