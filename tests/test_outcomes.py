"""The labelled array: what is missing is said, and nothing is averaged over silently."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import persona_mlflow
from persona_mlflow.errors import UserError
from persona_mlflow.outcomes import assemble, status_rates
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
