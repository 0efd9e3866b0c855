"""`summarize` with its options: numbers against brute force, its JSON against the documented schema."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xarray as xr

from brute_force import metrics as brute_metrics
from experiments import call, read_ledger, summary, write_spec
from persona_mlflow.outcomes import load_outcomes
from persona_mlflow.simulate import log_simulation, make_simulation
from persona_mlflow.summary import parent_labels

FACTORS = {"ppf": ["barebones", "youare"], "tpf": ["justanswer", "explain"], "temperature": [0.0, 1.0]}
QUANTITIES = ("accuracy/mean", "accuracy/std", "instability/accuracy", "instability/outcome")


@pytest.fixture
def store(workdir: Path) -> str:
    """A store with two simulated models of one experiment."""
    uri = f"sqlite:///{workdir / 'mlflow.db'}"
    for seed, model in enumerate(("simulated-1b", "simulated-7b")):
        made = make_simulation(personas=5, factors=FACTORS, questions=60, seed=seed, model=model, name="made")
        log_simulation(made, uri)
    return uri


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert call("summarize", *arguments) == 0
    return capsys.readouterr().out


def schema(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found = json.loads(printed(capsys, "--schema"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def brute(correct: xr.DataArray, where: dict[str, Any]) -> dict[str, float]:
    """The numbers by tests/brute_force.py from a part of the outcomes."""
    part = correct.sel(where)
    factors = [dim for dim in part.dims if dim not in ("persona", "question")]
    flat = part.stack(setting=factors).transpose("persona", "setting", "question")
    right = {
        str(persona): {
            setting: {str(q) for q, yes in zip(flat["question"].values, row, strict=True) if yes}
            for setting, row in enumerate(rows)
        }
        for persona, rows in zip(flat["persona"].values, flat.values, strict=True)
    }
    return brute_metrics({"right": right, "n": part.sizes["question"], "unparsed": 0, "runs": 1})


OPTIONS = [
    (),
    ("--by", "tpf"),
    ("--by", "category", "--intervals", "--draws", "20"),
    ("--by", "persona-group", "--over", "tpf"),
    ("--over", "persona"),
    ("--claims", "--draws", "20"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_the_json_fits_its_schema_and_is_the_same_each_time(
    store: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    first = printed(capsys, "--json", *options)
    assert printed(capsys, "--format", "json", *options) == first
    jsonschema.validate(json.loads(first), schema(capsys))


def test_a_result_with_another_key_does_not_fit_the_schema(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(printed(capsys, "--json", "--by", "tpf"))
    rows[0]["breakdown"]["parts"][0]["surplus"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(rows, schema(capsys))


@pytest.mark.parametrize("by", ["ppf", "tpf", "temperature", "category", "persona-group"])
def test_each_breakdown_equals_brute_force(store: str, capsys: pytest.CaptureFixture[str], by: str) -> None:
    for row in summary(capsys, "--by", by):
        outcomes = load_outcomes(row["run_id"], tracking_uri=store)
        correct = outcomes["correct"]
        parts = {part["level"]: part for part in row["breakdown"]["parts"]}
        if by == "category":
            values = {name: {"question": outcomes["category"] == name} for name in parts}
        elif by == "persona-group":
            # A group with its sub-group is written "group · sub-group".
            whole = outcomes["persona_group"].str.cat(outcomes["persona_subgroup"], sep=" · ")
            values = {
                name: {"persona": (whole if " · " in name else outcomes["persona_group"]) == name}
                for name in parts
            }
        else:
            values = {
                f"{by} {level:g}" if isinstance(level, float) else f"{by} {level}": {by: [level]}
                for level in FACTORS[by]
            }
        assert list(parts) == list(values)
        for name, where in values.items():
            expected = brute(correct, where)
            for quantity in QUANTITIES:
                assert parts[name]["metrics"][quantity] == pytest.approx(expected[quantity], abs=1e-12)


def test_over_averages_over_the_combinations_of_what_is_fixed(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, _) = summary(capsys, "--over", "tpf")
    correct = load_outcomes(row["run_id"], tracking_uri=store)["correct"]
    lines = [
        brute(correct, {"ppf": [ppf], "temperature": [temperature]})
        for ppf in FACTORS["ppf"]
        for temperature in FACTORS["temperature"]
    ]
    (part,) = row["breakdown"]["parts"]
    for quantity in ("instability/accuracy", "instability/outcome", "instability/question"):
        expected = sum(line[quantity] for line in lines) / len(lines)
        assert part["metrics"][quantity] == pytest.approx(expected, abs=1e-12)


def test_across_personas_there_is_no_outcome_instability(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, _) = summary(capsys, "--over", "persona")
    (part,) = row["breakdown"]["parts"]
    assert part["metrics"]["instability/outcome"] is None
    assert "ranks" in part["undefined"]["instability/outcome"]
    assert part["metrics"]["instability/accuracy"] > 0


def test_an_interval_holds_its_value_and_another_seed_gives_another(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        summary(capsys, "--intervals", "--draws", "50", "--seed", seed)[0]["breakdown"]["parts"][0]
        for seed in ("0", "1")
    ]
    for name, (low, high) in parts[0]["intervals"].items():
        assert low <= parts[0]["metrics"][name] <= high
    assert parts[0]["metrics"] == parts[1]["metrics"]
    assert parts[0]["intervals"] != parts[1]["intervals"]


def test_csv_holds_what_json_holds(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "--format", "csv", "--by", "tpf"))))
    found = {(r["model"], r["level"], r["quantity"]): float(r["value"]) for r in rows if r["value"]}
    expected = {
        (row["label"], part["level"], name): value
        for row in summary(capsys, "--by", "tpf")
        for part in row["breakdown"]["parts"]
        for name, value in part["metrics"].items()
        if value is not None
    }
    assert found == expected


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_the_other_formats_show_both_models(
    store: str, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    for options in ((), ("--by", "tpf"), ("--claims", "--draws", "20")):
        text = printed(capsys, "--format", form, *options)
        assert "1b" in text
        assert "7b" in text


def test_the_claims_of_the_paper_come_with_a_verdict_and_a_figure(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, _) = summary(capsys, "--claims", "--draws", "50")
    claims = {claim["claim"]: claim for claim in row["claims"]}
    for start in (
        "Temperature 0 is",
        "barebones is",
        "Explaining task",
        "The task prompt format is",
        "Larger models",
        "Math and commonsense",
        "History and culture",
        "Persona group",
        "Stable settings",
    ):
        assert [name for name in claims if name.startswith(start)]
    larger = claims["Larger models are more stable (I_A, per tenfold size)"]
    assert larger["margin"] is not None
    for claim in claims.values():
        low, high = claim["low"], claim["high"]
        if low is not None:
            expected = "holds" if low > 0 else "fails" if high < 0 else "undecided"
            assert claim["verdict"] == expected
        else:
            assert claim["verdict"] == "undecided"
            assert claim["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "flavour"), ["--by flavour", "ppf", "category", "persona-group"]),
        (("--by", "tpf", "--over", "tpf"), ["--over tpf", "held fixed"]),
        (("--over", "tff"), ["did you mean 'tpf'?"]),
        (("--over", ","), ["--over", "empty"]),
    ],
)
def test_a_wrong_option_says_what_there_is(
    store: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: list[str]
) -> None:
    assert call("summarize", *arguments) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error


def test_an_unfinished_experiment_is_said_and_only_its_complete_part_is_averaged(
    lettered_model: Path, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    assert call("run", "-e", str(write_spec(workdir, lettered_model)), "-o", "out") == 0
    (row,) = summary(capsys)
    client = MlflowClient(f"sqlite:///{workdir / 'mlflow.db'}")
    experiment = client.get_run(row["run_id"]).info.experiment_id
    query = "params.persona = 'a chef' and params.temperature = '1.0' and params.ppf = 'youare'"
    (child,) = client.search_runs([experiment], query)
    client.set_terminated(child.info.run_id, "KILLED")
    client.set_terminated(row["run_id"], "KILLED")
    (row,) = summary(capsys, "--by", "ppf")
    assert "1 of 12 runs" in row["incomplete"]
    assert sum(part["runs"] for part in row["breakdown"]["parts"]) == 8
    assert "1 of 12 runs" in printed(capsys, "--by", "ppf")
    assert len(read_ledger(workdir / "out")) == 12


def test_labels_tell_runs_apart() -> None:
    rows = [
        {"experiment": "a", "model": "x/m", "run_id": "0123456789"},
        {"experiment": "a", "model": "y/m", "run_id": "9876543210"},
        {"experiment": "a", "model": "k", "run_id": "5"},
    ]
    assert parent_labels(rows) == ["m (01234567)", "m (98765432)", "k"]
    assert parent_labels([rows[0], {**rows[2], "experiment": "b"}]) == ["a · m", "b · k"]
