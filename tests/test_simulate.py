"""Simulated experiments: of the right form, and with the planted effects, and no others, in plain means."""

from __future__ import annotations

import itertools
import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from mlflow import MlflowClient

from experiments import summary
from persona_mlflow.errors import UserError
from persona_mlflow.instability import summary_metrics
from persona_mlflow.outcomes import load_outcomes, read_questions
from persona_mlflow.parsing import STATUSES
from persona_mlflow.simulate import (
    PAPER_QUESTIONS,
    log_simulation,
    make_simulation,
    simulate_dataset,
    simulated_questions,
    write_simulated_ledger,
)
from persona_mlflow.store import resolve_tracking_uri

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "simulate.py"
SMALL: dict[str, Any] = {
    "personas": ["a man", "a biologist", "a chef", "a human"],
    "factors": {"ppf": ["barebones", "youare"], "tpf": ["justanswer", "explain"], "temperature": [0.0, 1.0]},
}
# Eight settings of 4 × 4,000 answers: a mean has a standard error of at most 0.004.
NEAR = 0.02


def spread(accuracies: xr.DataArray) -> float:
    return float(accuracies.max() - accuracies.min())


def disagreement(correct: xr.DataArray, dims: list[str]) -> xr.DataArray:
    """How often two settings differ on a question that both were asked, on average over the pairs."""
    stacked = correct.stack(setting=dims)
    pairs = list(itertools.combinations(range(stacked.sizes["setting"]), 2))
    differ = sum(stacked.isel(setting=a) != stacked.isel(setting=b) for a, b in pairs)
    return (differ / len(pairs)).mean("persona")


FACTORS = list(SMALL["factors"])


def by_category(values: xr.DataArray, dataset: xr.Dataset) -> dict[str, float]:
    return {
        name: float(values.isel(question=np.flatnonzero(dataset["category"] == name)).mean())
        for name in dict.fromkeys(dataset["category"].values.tolist())
    }


def test_the_paper_s_question_set_has_its_categories_and_labels() -> None:
    found = simulated_questions(PAPER_QUESTIONS)
    by_label = Counter((q.category, q.label) for q in found)
    assert len(found) == 5008
    assert set(Counter(q.category for q in found).values()) == {496, 497, 500, 525}
    assert by_label["History", "prehistory"] == 125
    assert by_label["Cultural Awareness and Understanding", "country 75"] == 7
    assert {q.answer_letter for q in found} == set("ABCD")
    tenth = Counter(q.category for q in simulated_questions(500))
    assert set(tenth.values()) <= {49, 50, 51, 52, 53}
    assert simulated_questions(30, ["Math", "EECS"]).categories == ("EECS", "Math")


def test_a_simulation_is_the_same_each_time_and_another_with_another_seed_or_model() -> None:
    first = simulate_dataset(**SMALL, questions=50)
    assert first.identical(simulate_dataset(**SMALL, questions=50))
    for change in ({"seed": 1}, {"model": "other"}):
        assert not first["correct"].equals(simulate_dataset(**SMALL, questions=50, **change)["correct"])
    assert first["complete"].all()
    assert not first["correct"].where(first["status"] != 0, False).any()
    fewer = simulate_dataset(**{**SMALL, "personas": ["a chef"]}, questions=50, effects="none")
    more = simulate_dataset(**SMALL, questions=50, effects="none")
    assert fewer["correct"].equals(more["correct"].sel(persona=["a chef"]))


def test_without_effects_nothing_differs_but_the_answers() -> None:
    found = simulate_dataset(**SMALL, questions=4000, effects="none")
    correct = found["correct"]
    assert abs(float(correct.mean()) - 0.6) < NEAR
    for dim in ("persona", *FACTORS):
        assert spread(correct.mean([d for d in correct.dims if d != dim])) < NEAR
    differ = disagreement(correct, FACTORS)
    per_category = by_category(differ, found)
    assert min(per_category.values()) > 0.1
    assert max(per_category.values()) - min(per_category.values()) < 2 * NEAR
    # Questions differ in difficulty: settings agree far more often than independent ones would.
    assert float(differ.mean()) < 0.7 * 2 * 0.6 * 0.4
    unparsed = float((found["status"] != 0).mean())
    assert abs(unparsed - 0.01) < 0.002


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_s_levels_are_shifted_and_nothing_else(factor: str) -> None:
    found = simulate_dataset(**SMALL, questions=4000, effects={"factor": factor})
    correct = found["correct"]
    for dim in ("persona", *FACTORS):
        apart = spread(correct.mean([d for d in correct.dims if d != dim]))
        # 0.6 log-odds between the two levels, at 0.6: expit(0.405 ± 0.3)
        assert apart == pytest.approx(0.669 - 0.526, abs=NEAR) if dim == factor else apart < NEAR
    per_category = by_category(correct, found)
    assert max(per_category.values()) - min(per_category.values()) < 4 * NEAR


def test_in_a_noisier_domain_settings_agree_less_at_the_same_accuracy() -> None:
    found = simulate_dataset(**SMALL, questions=4000, effects={"domain": "Math"})
    differ = by_category(disagreement(found["correct"], FACTORS), found)
    noisy = differ.pop("Math")
    assert noisy > 1.4 * max(differ.values())
    assert max(differ.values()) - min(differ.values()) < 2 * NEAR
    for dim in ("persona", *FACTORS):
        assert spread(found["correct"].mean([d for d in found["correct"].dims if d != dim])) < NEAR
    accuracy = by_category(found["correct"], found)
    others = simulate_dataset(**SMALL, questions=4000, effects="none")
    assert accuracy["Math"] == pytest.approx(by_category(others["correct"], others)["Math"], abs=2 * NEAR)


def test_a_better_persona_is_better_in_every_setting_and_the_others_are_alike() -> None:
    found = simulate_dataset(**SMALL, questions=4000, effects={"persona": "a biologist"})
    accuracy = found["correct"].mean("question").stack(setting=FACTORS)
    assert set(accuracy["persona"].values[accuracy.argmax("persona")].tolist()) == {"a biologist"}
    means = accuracy.mean("setting")
    # 0.5 log-odds above 0.6: expit(0.905)
    assert means.sel(persona="a biologist").item() == pytest.approx(0.712, abs=NEAR)
    assert spread(means.drop_sel(persona="a biologist")) < NEAR


def test_several_effects_are_planted_together() -> None:
    effects = {"factor": "tpf", "domain": "Math", "persona": "a chef"}
    found = simulate_dataset(**SMALL, questions=4000, effects=effects)
    means = {dim: found["correct"].mean([d for d in found["correct"].dims if d != dim]) for dim in FACTORS}
    assert spread(means["tpf"]) > 0.1
    assert spread(means["ppf"]) < NEAR
    assert found["correct"].mean([*FACTORS, "question"]).idxmax().item() == "a chef"
    differ = by_category(disagreement(found["correct"], FACTORS), found)
    assert max(differ, key=lambda name: differ[name]) == "Math"


def test_at_temperature_0_repeats_are_equal_and_above_they_differ_the_more() -> None:
    factors = {"tpf": ["justanswer", "explain"], "temperature": [0.0, 0.5, 1.0], "repeat": [0, 1]}
    found = simulate_dataset(["a man", "a chef"], factors, questions=2000)
    differ = found["correct"].isel(repeat=0) != found["correct"].isel(repeat=1)
    cold, warm, hot = differ.mean(["persona", "tpf", "question"]).values.tolist()
    assert cold == 0
    assert 0 < warm < hot
    same = found["status"].isel(repeat=0) == found["status"].isel(repeat=1)
    assert same.sel(temperature=0.0).all()


def test_the_paper_s_trends_are_planted() -> None:
    found = simulate_dataset(personas=20, questions=2500)
    assert found["correct"].shape == (20, 4, 4, 3, 2500)

    def instabilities(part: xr.Dataset, over: list[str] | None = None) -> np.ndarray:
        metrics = summary_metrics(part["correct"], over)["metrics"]
        return np.array([metrics[f"instability/{name}"] for name in ("accuracy", "outcome", "question")])

    temperature = [instabilities(found.sel(temperature=t)) for t in (0.0, 0.5, 1.0)]
    assert (np.diff(temperature, axis=0) > 0).all()
    ppf = {level: instabilities(found.sel(ppf=level)) for level in found["ppf"].values.tolist()}
    assert all((ppf["barebones"] < values).all() for level, values in ppf.items() if level != "barebones")
    tpf = {level: instabilities(found.sel(tpf=level)) for level in found["tpf"].values.tolist()}
    for explaining, plain in itertools.product(
        ("explain", "explain-persona"), ("justanswer", "justanswer-persona")
    ):
        assert (tpf[explaining] > tpf[plain]).all()
    alone = {name: instabilities(found, [name]) for name in ("ppf", "tpf", "temperature")}
    assert (alone["tpf"] > np.maximum(alone["ppf"], alone["temperature"])).all()
    domains = {
        name: instabilities(found.isel(question=np.flatnonzero(found["category"] == name)))[[0, 2]]
        for name in dict.fromkeys(found["category"].values.tolist())
    }
    least = ("Math", "Commonsense Reasoning/Social Awareness")
    most = ("History", "Cultural Awareness and Understanding")
    for name, values in domains.items():
        assert name in least or all((values < domains[bad]).all() for bad in least)
        assert name in most or all((values > domains[good]).all() for good in most)
    stable = {"tpf": ["justanswer", "justanswer-persona"], "ppf": ["barebones", "youare"]}
    cold, hot = (found["correct"].sel(stable).sel(temperature=t) for t in (0.0, 1.0))
    assert float(cold.mean()) > float(hot.mean())
    unparsed = (found["status"] != 0).mean(["persona", "ppf", "temperature", "question"])
    assert unparsed.sel(tpf="explain") > 4 * unparsed.sel(tpf="justanswer") > 0
    assert {STATUSES[code] for code in np.unique(found["status"])} == {
        "ok",
        "refusal",
        "truncated",
        "no_answer",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"effects": "all"}, "no effect 'all'; choose from paper, none"),
        ({"effects": {"model": "x"}}, "no effect 'model'; choose from factor, domain, persona"),
        ({"effects": {"factor": "tfp"}}, "no factor 'tfp' here; did you mean 'tpf'"),
        ({"effects": {"persona": "a lawyer"}}, "no persona 'a lawyer' here"),
        ({"effects": {"domain": "Music"}}, "no domain 'Music' here"),
        ({"personas": 42}, "42 is not from 1 to 41"),
        ({"questions": 0}, "is empty"),
    ],
)
def test_what_cannot_be_simulated_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate_dataset(**{**SMALL, "questions": 20, **changes})


def test_factors_of_any_name_and_none_at_all_can_be_simulated() -> None:
    found = simulate_dataset(2, {"language": ["en", "fr"]}, 20, effects={"factor": "language"})
    assert dict(found.sizes) == {"persona": 2, "language": 2, "question": 20}
    assert dict(simulate_dataset(2, {}, 20).sizes) == {"persona": 2, "question": 20}


def test_a_simulated_parent_is_shown_and_read_like_a_real_one(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation = make_simulation(**SMALL, questions=40, model="simulated-7b", name="tiny")
    run_id = log_simulation(simulation)
    assert load_outcomes(run_id).identical(simulation.dataset)
    assert load_outcomes("tiny").identical(simulation.dataset)
    assert read_questions(run_id)["id"].tolist() == simulation.dataset["question"].values.tolist()
    (row,) = summary(capsys, run_id)
    assert (row["experiment"], row["model"], row["status"]) == ("tiny", "simulated-7b", "FINISHED")
    assert row["runs"] == row["runs_planned"] == 32
    assert row["questions"] == 40
    expected = summary_metrics(simulation.dataset["correct"])["metrics"]
    for name, value in expected.items():
        assert row[name] == pytest.approx(value)
    client = MlflowClient(resolve_tracking_uri(None))
    run = client.get_run(run_id)
    assert run.data.tags["persona_mlflow.simulated"] == "true"
    assert run.data.tags["mlflow.note.content"].startswith("Simulated: no model has answered")
    assert run.data.params["temperature"] == "0.0, 1.0"
    assert len(client.search_runs(["1"])) == 1
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert names >= {"plan.json", "questions.parquet", "summary.json", "outcomes.npz", "spec.yaml"}
    other = make_simulation(**SMALL, questions=40, model="simulated-7b", name="tiny", effects="none")
    assert other.plan.spec_hash != simulation.plan.spec_hash


def test_a_simulated_ledger_is_read_like_a_real_one(tmp_path: Path) -> None:
    simulation = make_simulation(**SMALL, questions=40)
    write_simulated_ledger(simulation, tmp_path / "out")
    assert load_outcomes(tmp_path / "out").identical(simulation.dataset)
    assert len(list((tmp_path / "out" / "cells").glob("*.parquet"))) == 32


def test_the_script_logs_what_its_options_ask_for(workdir: Path) -> None:
    options = ["--personas", "3", "--questions", "30", "--models", "2", "--name", "tiny", "--seed", "5"]
    settings = ["--settings", "ppf=youare,barebones temperature=0,0.7", "--effect", "factor=ppf"]
    uri = ["--tracking-uri", "sqlite:///mlflow.db"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, *settings, *uri], cwd=workdir, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    small, large = (load_outcomes(run_id) for run_id in done.stdout.split())
    assert (small.attrs["model"], large.attrs["model"]) == ("simulated-1b", "simulated-7b")
    assert dict(large.sizes) == {"persona": 3, "ppf": 2, "temperature": 2, "question": 30}
    assert large["temperature"].values.tolist() == [0.0, 0.7]
    expected = simulate_dataset(
        3,
        {"ppf": ["youare", "barebones"], "temperature": [0.0, 0.7]},
        30,
        effects={"factor": "ppf"},
        seed=5,
        model="simulated-7b",
        name="tiny",
    )
    assert large.identical(expected)


def test_the_script_s_larger_models_are_the_more_stable() -> None:
    simulate_models = runpy.run_path(str(SCRIPT))["simulate_models"]
    found = [
        summary_metrics(simulation.dataset["correct"])["metrics"]
        for simulation in simulate_models(3, personas=10, questions=1500)
    ]
    for name in ("accuracy", "outcome", "question"):
        values = [metrics[f"instability/{name}"] for metrics in found]
        assert values == sorted(values, reverse=True), name


@pytest.mark.parametrize(
    "options",
    [
        ["--effect", "tpf"],
        ["--none", "--effect", "factor=tpf"],
        ["--settings", "tfp=explain"],
        ["--models", "6"],
    ],
)
def test_the_script_refuses_what_it_cannot_do_in_one_line(options: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_plan_s_file_holds_what_reading_needs(tmp_path: Path) -> None:
    simulation = make_simulation(**SMALL, questions=12)
    write_simulated_ledger(simulation, tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["model"] == "simulated"
    assert plan["revision"].startswith("simulated:")
    assert plan["factors"] == SMALL["factors"]
