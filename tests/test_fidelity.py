"""Fidelity's numbers against the formulas in plain loops."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr

from persona_mlflow.analyses import NotAllowed, Study
from persona_mlflow.analyses.fidelity import ALL, CORRELATIONS, fidelity, fidelity_instability
from persona_mlflow.fidelity_analysis import (
    SCORES,
    correlation,
    fidelity_summary,
    fidelity_tables,
    instability,
    label_fidelity,
    pack_fidelity,
    run_scores,
    unpack_fidelity,
)
from persona_mlflow.instability import accuracy_instability, outcome_instability
from persona_mlflow.instability.levels import level_instability

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

PERSONAS = [
    ("a man", "Gender", ""),
    ("a chef", "Work", "Misc."),
    ("a lawyer", "Work", "Law"),
    ("I", "Self", ""),
]
FACTORS: dict[str, list[Any]] = {
    "ppf": ["barebones", "youare"],
    "tpf": ["explain"],
    "temperature": [0.0, 0.5, 1.0],
}
QUESTIONS = [(f"q{i}", "Math" if i % 3 else "History") for i in range(24)]
RUNS = 24


def brute_spread(values: list[float], weights: list[float]) -> float:
    total = sum(weights)
    if not total:
        return 0.0
    centre = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    return math.sqrt(sum(w * (v - centre) ** 2 for w, v in zip(weights, values, strict=True)) / total)


def brute_i_a(levels: np.ndarray) -> list[float]:
    """I_A(p): persona × setting → a number for each persona."""
    pairs = list(itertools.combinations(range(levels.shape[1]), 2))
    return [sum(abs(row[a] - row[b]) for a, b in pairs) / len(pairs) for row in levels.tolist()]


def brute_i_o(levels: np.ndarray) -> tuple[list[float], float]:
    """I_O(p), and the mean of w(s)."""
    columns = [list(column) for column in levels.T.tolist()]
    w = [statistics.pstdev(column) for column in columns]  # in fractions: equal values give 0
    ranks = [[1 + sum(x > v for x in c) + (sum(x == v for x in c) - 1) / 2 for v in c] for c in columns]
    by_persona = [brute_spread([r[p] for r in ranks], w) for p in range(len(levels))]
    return by_persona, sum(w) / len(w)


SHAPES = st.tuples(st.integers(1, 5), st.integers(2, 5))
# Few values, so that many tie; also some of any size.
LEVELS = SHAPES.flatmap(
    lambda shape: (
        arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.1, 0.30000000000000004, 0.3, 1.0]))
        | arrays(np.float64, shape, elements=st.floats(0, 1))
    )
)


@settings(max_examples=150, deadline=None)
@given(LEVELS)
def test_both_instabilities_are_the_formulas(levels: np.ndarray) -> None:
    found = level_instability(levels)
    spreads, normaliser = brute_i_o(levels)
    assert found.differences == pytest.approx(brute_i_a(levels), abs=1e-12)
    assert found.accuracy == pytest.approx(sum(brute_i_a(levels)) / len(levels), abs=1e-12)
    assert found.normaliser == pytest.approx(normaliser, abs=1e-12)
    # A root makes 1e-8 of a rounding error of 1e-16.
    assert found.spreads == pytest.approx(spreads, abs=1e-7)
    assert found.outcome == pytest.approx(sum(spreads) / len(spreads) * normaliser, abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_of_accuracies_they_are_those_of_the_answers(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(2, 5), st.integers(1, 7)))
    correct = xr.DataArray(data.draw(arrays(np.bool_, shape)), dims=("persona", "setting", "question"))
    found = level_instability(correct.mean("question").values)
    assert found.accuracy == pytest.approx(accuracy_instability(correct).value, abs=1e-12)
    expected = outcome_instability(correct)
    assert found.outcome == pytest.approx(expected.value, abs=1e-12)
    assert found.spreads == pytest.approx(expected.per_persona.values, abs=1e-12)


def test_draws_are_computed_each_by_itself_and_a_missing_level_spoils_only_its_own() -> None:
    rng = np.random.default_rng(0)
    levels = rng.random((4, 7, 5)).round(1)
    levels[2, 3, 1] = np.nan
    found = level_instability(levels)
    for draw in range(7):
        if draw == 3:
            assert np.isnan([found.accuracy[3], found.outcome[3], found.normaliser[3]]).all()
            continue
        alone = level_instability(levels[:, draw])
        assert found.accuracy[draw] == alone.accuracy
        assert found.outcome[draw] == pytest.approx(alone.outcome, abs=1e-15)


def test_equal_levels_are_exactly_stable() -> None:
    found = level_instability(np.full((3, 7), 0.1 + 0.2))
    assert (found.accuracy, found.outcome) == (0.0, 0.0)
    # Each persona the same in all settings: no rank ever changes.
    found = level_instability(np.repeat([[0.1], [0.7], [1 / 3]], 6, axis=1))
    assert (found.accuracy, found.outcome) == (0.0, 0.0)


@pytest.mark.parametrize("levels", [np.zeros((0, 3)), np.zeros((2, 1)), np.array([[0.5, -0.1]])])
def test_levels_of_another_form_are_refused(levels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="levels"):
        level_instability(levels)


# ------------------------------------------------------------------------------------------ labelled scores


def made(seed: int = 0, unscored: float = 0.1, **changes: Any) -> xr.Dataset:
    """Scores of 4 personas × 6 settings × 24 questions."""
    rng = np.random.default_rng(seed)
    e = rng.random((RUNS, len(QUESTIONS), 3)) * rng.uniform(0.5, 1, (RUNS, 1, 1))
    e[rng.random(e.shape[:2]) < unscored] = np.nan
    return label_fidelity(
        changes.get("e", e),
        rng.uniform(0.5, 1, RUNS),
        changes.get("accuracy", rng.random(RUNS).round(1)),
        personas=PERSONAS,
        factors=FACTORS,
        questions=QUESTIONS,
        attrs={"experiment": "x", "evaluator": "tiny", "layout": "labels-last", "tpf": ["explain"]},
    )


def brute_means(data: xr.Dataset) -> dict[str, np.ndarray]:
    """Means of each run over the cases whose three dimensions are all there."""
    found = {name: np.full((4, 6), np.nan) for name in SCORES}
    e = data["e"].values.reshape(4, 6, -1, 3)
    for p, s in itertools.product(range(4), range(6)):
        rows = [row for row in e[p, s].tolist() if not any(math.isnan(value) for value in row)]
        if rows:
            found["fidelity"][p, s] = sum(sum(row) / 3 for row in rows) / len(rows)
            for d, name in enumerate(SCORES[1:]):
                found[name][p, s] = sum(row[d] for row in rows) / len(rows)
    return found


def test_a_run_s_mean_is_over_its_scored_cases_and_weights_repeat_questions() -> None:
    data = made()
    for name, values in run_scores(data).items():
        assert values == pytest.approx(brute_means(data)[name], abs=1e-12)
    times = np.random.default_rng(1).integers(0, 3, len(QUESTIONS))
    repeated = data.isel(question=np.repeat(np.arange(len(QUESTIONS)), times))
    weighted = run_scores(data, times[:, None])
    for name, values in brute_means(repeated).items():
        assert weighted[name][..., 0] == pytest.approx(values, abs=1e-12)


def test_the_parent_s_numbers_are_the_formulas() -> None:
    data = made()
    found = fidelity_summary(data)
    assert found["undefined"] == {}
    means = brute_means(data)
    accuracy = data["accuracy"].values.reshape(4, 6)
    expected = {f"prism/{name}": values.mean() for name, values in means.items()}
    expected |= {
        "prism/fidelity/Gender": means["fidelity"][0].mean(),
        "prism/fidelity/Work": means["fidelity"][1:3].mean(),
        "prism/fidelity/Self": means["fidelity"][3].mean(),
        "prism/label_mass": data["label_mass"].values.mean(),
        "prism/unscored_rate": np.isnan(data["e"].values[..., 0]).mean(),
        "prism/correlation/runs": pearsonr(accuracy.ravel(), means["fidelity"].ravel()).statistic,
    }
    for place, levels in (("instability", means["fidelity"]), ("reference", accuracy)):
        spreads, normaliser = brute_i_o(levels)
        expected[f"prism/{place}/accuracy"] = sum(brute_i_a(levels)) / 4
        expected[f"prism/{place}/outcome"] = sum(spreads) / 4 * normaliser
    for name, of in (("accuracy", brute_i_a), ("outcome", lambda levels: brute_i_o(levels)[0])):
        r = pearsonr(of(accuracy), of(means["fidelity"])).statistic
        expected[f"prism/correlation/{name}"] = r
    assert found["metrics"] == pytest.approx(expected, abs=1e-9)


def test_M5_T5_what_is_undefined_has_its_reason_and_no_number() -> None:
    alike = fidelity_summary(made(accuracy=np.full(RUNS, 0.5)))
    assert set(alike["undefined"]) == {
        f"prism/correlation/{name}" for name in ("accuracy", "outcome", "runs")
    }
    assert "is the same for all personas" in alike["undefined"]["prism/correlation/accuracy"]
    e = made()["e"].values.reshape(RUNS, -1, 3).copy()
    e[5] = np.nan
    lacking = fidelity_summary(made(e=e))
    assert lacking["undefined"]["prism/instability/accuracy"] == "1 of 24 runs has no score"
    assert {"prism/fidelity", "prism/reference/outcome", "prism/correlation/runs"} <= set(lacking["metrics"])
    nothing = fidelity_summary(made(unscored=1.0))
    assert nothing["metrics"]["prism/unscored_rate"] == 1.0
    assert nothing["undefined"]["prism/fidelity"] == "no case is scored"
    for summary in (alike, lacking, nothing):
        assert all(math.isfinite(value) for value in summary["metrics"].values())
        assert not set(summary["metrics"]) & set(summary["undefined"])
    one = made().isel(ppf=[0], temperature=[0])
    assert "one setting" in fidelity_summary(one)["undefined"]["prism/instability/outcome"]
    two = fidelity_summary(made().isel(persona=[0, 1]))["undefined"]
    assert two["prism/correlation/accuracy"] == "takes at least three personas; here: 2"
    assert correlation(np.array([1.0, 2.0]), np.array([2.0, 1.0]), "runs")[0] is None
    assert instability(np.array([[0.1, 0.2]]))[1] == ""


def test_the_tables_are_means_of_their_parts() -> None:
    data = made()
    means = brute_means(data)["fidelity"]
    tables = fidelity_tables(data)
    assert tables["by_persona"]["persona"].tolist() == [p[0] for p in PERSONAS]
    assert tables["by_persona"]["fidelity"].tolist() == pytest.approx(means.mean(axis=1).tolist())
    assert tables["by_persona"]["scored"].tolist() == (
        np.isfinite(data["e"].values[..., 0]).reshape(4, -1).sum(axis=1).tolist()
    )
    groups = tables["by_group"]
    labels = list(zip(groups["persona_group"], groups["persona_subgroup"], strict=True))
    assert labels == [("Gender", ""), ("Work", ""), ("Work", "Misc."), ("Work", "Law"), ("Self", "")]
    assert groups["fidelity"].tolist() == pytest.approx(
        [means[rows].mean() for rows in ([0], [1, 2], [1], [2], [3])]
    )
    assert groups["runs"].tolist() == [6, 12, 6, 6, 6]
    by_setting = tables["by_setting"]
    assert list(by_setting.columns[:4]) == ["ppf", "tpf", "temperature", "runs"]
    assert by_setting["fidelity"].tolist() == pytest.approx(means.mean(axis=0).tolist())
    assert by_setting["temperature"].tolist() == [0.0, 0.5, 1.0] * 2


def test_scores_survive_their_file_and_a_torn_one_is_passed_over(tmp_path: Path) -> None:
    data = made()
    path = tmp_path / "fidelity.npz"
    path.write_bytes(pack_fidelity(data))
    read = unpack_fidelity(path)
    assert read is not None
    assert read.identical(data)
    path.write_bytes(path.read_bytes()[:-200])
    assert unpack_fidelity(path) is None
    assert unpack_fidelity(tmp_path / "none.npz") is None


# ---------------------------------------------------------------------------------------- the report's part


def study(
    data: xr.Dataset | None, seed: int = 3, draws: int = 60, tpf: tuple[str, ...] = ("justanswer", "explain")
) -> Study:
    """An experiment of which only the explaining half is scored, on 24 of its 40 questions."""
    rng = np.random.default_rng(seed)
    ids = [f"q{i}" for i in range(40)]
    correct = rng.random((4, 2, len(tpf), 3, 40)) < rng.uniform(0.2, 0.8, (4, 2, len(tpf), 3, 1))
    dims = ("persona", "ppf", "tpf", "temperature")
    dataset = xr.Dataset(
        {
            "correct": ((*dims, "question"), correct),
            "status": ((*dims, "question"), np.zeros(correct.shape, np.int8)),
            "complete": (dims, np.ones(correct.shape[:-1], bool)),
        },
        coords={
            "persona": [p[0] for p in PERSONAS],
            "persona_group": ("persona", [p[1] for p in PERSONAS]),
            "persona_subgroup": ("persona", [p[2] for p in PERSONAS]),
            "ppf": FACTORS["ppf"],
            "tpf": list(tpf),
            "temperature": FACTORS["temperature"],
            "question": ids,
            "category": ("question", ["Math" if i % 3 else "History" for i in range(40)]),
            "label": ("question", ["x"] * 40),
        },
    )
    return Study(dataset, draws=draws, permutations=0, fidelity=data)


def test_the_report_s_values_are_the_parent_s() -> None:
    made_study = study(None)
    accuracy = made_study.correct.sel(tpf="explain").mean("question").values.ravel()
    data = made(accuracy=accuracy)
    made_study.fidelity = data
    summary = fidelity_summary(data)["metrics"]
    table = fidelity(made_study)
    for name in SCORES:
        value = table["value"].sel(part=ALL, quantity=name.replace("_", " "))
        assert value.item() == pytest.approx(summary[f"prism/{name}"])
    assert table["value"].sel(part="Work", quantity="fidelity").item() == pytest.approx(
        summary["prism/fidelity/Work"]
    )
    assert table["part"].values.tolist() == [
        *(ALL, "Gender", "Work", "Work · Misc.", "Work · Law", "Self", "ppf barebones", "ppf youare"),
        *(f"temperature {level}" for level in ("0", "0.5", "1")),
    ]
    inside = (table["low"] <= table["value"]) & (table["value"] <= table["high"])
    assert inside.all()
    assert "tiny" in table.attrs["note"]
    unstable = fidelity_instability(made_study)
    names = {"fidelity": "instability", "accuracy": "reference"}
    for (what, place), (symbol, metric) in itertools.product(
        names.items(), (("I_A", "accuracy"), ("I_O", "outcome"))
    ):
        row = unstable.sel(part=ALL, quantity=f"{symbol} of {what}")
        assert row["value"].item() == pytest.approx(summary[f"prism/{place}/{metric}"])
        assert 0 <= row["low"].item() <= row["value"].item() <= row["high"].item()
    for name, text in CORRELATIONS.items():
        row = unstable.sel(part=ALL, quantity=text)
        assert row["value"].item() == pytest.approx(summary[f"prism/correlation/{name}"])
        assert np.isnan(row["low"].item())
    undefined = unstable["value"].isnull()
    assert (unstable["reason"] != "").equals(undefined)
    assert undefined.sel(part="Gender", quantity=CORRELATIONS["accuracy"]).item()


def test_a_part_is_recomputed_from_its_own_runs_and_the_sample_from_its_own_questions() -> None:
    made_study = study(made())
    unstable = fidelity_instability(made_study)
    means = brute_means(made())["fidelity"]
    part = unstable.sel(part="ppf youare", quantity="I_O of fidelity")
    spreads, normaliser = brute_i_o(means[:, 3:])
    assert part["value"].item() == pytest.approx(sum(spreads) / 4 * normaliser)
    spreads, normaliser = brute_i_o(means[1:3])
    part = unstable.sel(part="Work", quantity="I_O of fidelity")
    assert part["value"].item() == pytest.approx(sum(spreads) / 2 * normaliser)
    sampled = made_study.correct.sel(tpf="explain", question=[q[0] for q in QUESTIONS]).mean("question")
    expected = sum(brute_i_a(sampled.values.reshape(4, -1))) / 4
    row = unstable.sel(part=ALL, quantity="I_A of accuracy on the scored questions")
    assert row["value"].item() == pytest.approx(expected)


def test_without_scores_the_report_says_how_to_get_them() -> None:
    for analysis in (fidelity, fidelity_instability):
        with pytest.raises(NotAllowed, match="--prism EVALUATOR"):
            analysis(study(None))


def test_few_questions_have_no_interval_and_no_draws_are_needed() -> None:
    few = made().isel(question=slice(0, 6))
    table = fidelity(study(few))
    assert table["low"].isnull().all()
    assert table["value"].notnull().all()
    plain = fidelity_instability(study(made(), draws=0))
    assert plain["low"].isnull().all()
    assert plain["value"].sel(part=ALL).notnull().all()
