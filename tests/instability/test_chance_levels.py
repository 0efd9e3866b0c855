"""Values beside what they would be by chance: p-values under the null, planted effects, every edge."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instability_brute import FACTORS, entries, grid, grids
from scipy.stats import kstest

from persona_mlflow.errors import UserError
from persona_mlflow.instability import (
    accuracy_instability,
    outcome_instability,
    question_instability,
)
from persona_mlflow.instability.chance import (
    chance_levels,
    floor,
    independent_draws,
    independent_question_instability,
)
from persona_mlflow.instability.permutation import permuted_counts, permuted_together, right_histogram

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

quick = settings(max_examples=40, deadline=None)
overs = st.sampled_from([None, FACTORS[:1], FACTORS[1:]])


def rows(levels) -> dict[str, dict]:
    """Metric → number → float, or None where it is NaN."""
    numbers = {
        metric: {name: levels[name].sel(metric=metric).item() for name in levels.data_vars}
        for metric in levels["metric"].values
    }
    return {
        metric: {k: None if v != v else v for k, v in values.items()} for metric, values in numbers.items()
    }


def exchangeable(
    rng: np.random.Generator, personas: int, amount: int, questions: int, shared: float
) -> np.ndarray:
    """Answers, persona × 1 × setting × question, that no setting sways; ``shared``: what personas share."""
    difficulty = rng.normal(size=(1, 1, 1, questions)) + 0.3 * rng.normal(size=(personas, 1, 1, questions))
    noise = np.sqrt(shared) * rng.normal(size=(1, 1, amount, questions))
    noise = noise + np.sqrt(1 - shared) * rng.normal(size=(personas, 1, amount, questions))
    return difficulty + noise > 0


@pytest.mark.parametrize(("together", "shared"), [(False, 0.0), (True, 0.0), (True, 0.8)])
def test_p_is_uniform_where_settings_are_exchangeable(together, shared):
    rng = np.random.default_rng(20)
    draws, sets = 99, 300
    found = {"accuracy": [], "outcome": []}
    for seed in range(sets):
        answers = exchangeable(rng, 4, 4, 40, shared)
        if together:
            permuted = permuted_together(answers, draws, seed, method="exact")
        else:
            permuted = permuted_counts(right_histogram(answers.sum(axis=2), 4), draws, seed, method="exact")
        for metric, values in found.items():
            values.append(floor(answers.sum(axis=3), permuted, 40, metric).p)
    for values in found.values():
        p = np.array(values)
        assert p.min() >= 1 / (draws + 1)
        # p takes the values i / 100, and ties with the observed value only raise it. Spreading it evenly
        # over the step below makes it uniform but for those ties, which are few.
        spread = p - rng.random(sets) / (draws + 1)
        assert kstest(spread, "uniform").pvalue > 0.01
        for level in (0.05, 0.1, 0.5):
            assert (p <= level).mean() < level + 3 * np.sqrt(level * (1 - level) / sets)


def test_apart_is_misled_where_personas_change_together():
    rng = np.random.default_rng(21)
    apart, together, ratio = [], [], []
    for seed in range(60):
        answers = exchangeable(rng, 8, 5, 80, 0.9)
        counts = answers.sum(axis=3)
        histogram = right_histogram(answers.sum(axis=2), 5)
        one = permuted_counts(histogram, 99, seed, method="exact")
        both = permuted_together(answers, 99, seed, method="exact")
        apart.append(floor(counts, one, 80, "accuracy").p <= 0.05)
        together.append(floor(counts, both, 80, "accuracy").p <= 0.05)
        levels = [floor(counts, null, 80, "outcome") for null in (one, both)]
        ratio.append([level.value / level.floor for level in levels])
    assert np.mean(apart) > 0.12
    assert np.mean(together) < 0.12
    assert np.mean(ratio, axis=0)[0] < 0.8
    assert np.mean(ratio, axis=0)[1] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("together", [False, True])
def test_planted_effects_reach_the_least_p(together):
    rng = np.random.default_rng(5)
    difficulty = rng.normal(size=(5, 1, 1, 200))
    noise = rng.normal(size=(5, 2, 3, 200))
    # A format that costs every persona the same moves accuracy, within tpf alone.
    shift = np.array([0, 0.2, -0.9])[None, None, :, None]
    moved = grid(difficulty + noise + shift > 0, "ppf", "tpf")
    options = {"draws": 199, "together": together}
    assert rows(chance_levels(moved, **options))["accuracy"]["p"] == 1 / 200
    found = rows(chance_levels(moved, "tpf", **options))["accuracy"]
    assert found["p"] == 1 / 200
    assert found["excess"] > found["floor"]
    assert rows(chance_levels(moved, "ppf", **options))["accuracy"]["p"] > 0.05
    # Formats that favour other personas move their ranks.
    favour = np.linspace(-1, 1, 5)[:, None, None, None] * np.array([-1, 0, 1])[None, None, :, None]
    turned = grid(difficulty + noise + favour > 0, "ppf", "tpf")
    assert rows(chance_levels(turned, "tpf", **options))["outcome"]["p"] == 1 / 200
    assert rows(chance_levels(turned, "ppf", **options))["outcome"]["p"] > 0.05


def test_repeats_differ_by_sampling_alone():
    rng = np.random.default_rng(8)
    ability = rng.normal(size=(5, 3, 1, 150))
    greedy = grid(np.repeat(ability > 0, 4, axis=2), "ppf", "repeat")
    for metric, row in rows(chance_levels(greedy, "repeat", draws=99)).items():
        assert row["value"] == 0
        if metric != "question":
            assert (row["floor"], row["excess"], row["p"]) == (0, 0, 1)
    sampled = grid(ability + rng.normal(size=(5, 3, 4, 150)) > 0, "ppf", "repeat")
    for metric, row in rows(chance_levels(sampled, "repeat", draws=499)).items():
        assert row["value"] > 0
        if metric != "question":
            assert 0.025 < row["p"] < 0.975
            assert abs(row["excess"]) < 0.5 * row["floor"]


@given(grids(), overs, st.booleans())
@quick
def test_levels_of_any_grid_are_defined_or_say_why(correct, over, together):
    levels = chance_levels(correct, over, draws=9, seed=1, together=together)
    found = rows(levels)
    expected = {
        "accuracy": accuracy_instability(correct, over),
        "outcome": outcome_instability(correct, over),
        "question": question_instability(correct, over),
    }
    for metric, row in found.items():
        assert row["reason"]
        value = expected[metric].average
        assert row["value"] == (None if value is None else pytest.approx(value, abs=1e-12))
        if value is None:
            assert {k: v for k, v in row.items() if v is not None and k != "reason"} == {}
        elif metric != "question":
            assert row["floor"] >= 0
            assert row["excess"] == pytest.approx(row["value"] - row["floor"])
            assert 0.1 <= row["p"] <= 1
    assert found["question"]["floor"] is None
    assert "no floor" in found["question"]["reason"] or found["question"]["value"] is None


@given(grids(), overs)
@quick
def test_independent_value_is_the_formula(correct, over):
    factors = tuple(d for d in correct.dims if d not in ("persona", "question"))
    lines = []
    for _, personas, amount, answers in entries(correct, over or factors):
        if len(amount) < 2:
            continue
        values = []
        for p in personas:
            both, none = Fraction(1), Fraction(1)
            for s in amount:
                share = Fraction(sum(answers[p, s]), len(answers[p, s]))
                both, none = both * share, none * (1 - share)
            if none < 1:
                values.append(1 - both / (1 - none))
        if values:
            lines.append(sum(values, Fraction(0)) / len(values))
    result = independent_question_instability(correct, over)
    observed = question_instability(correct, over).average
    assert result.observed == observed
    if not lines:
        assert (result.value, result.share) == (None, None)
        assert result.reason
        return
    value = sum(lines, Fraction(0)) / len(lines)
    assert result.value == pytest.approx(float(value), abs=1e-12)
    if value == 0:
        assert result.share is None
        assert "independence gives 0" in result.reason
    else:
        assert result.share == pytest.approx(observed / float(value))
        assert result.reason is None


def test_independent_answers_have_a_share_of_one_and_equal_settings_of_zero():
    rng = np.random.default_rng(3)
    # Independent between settings: every question is equally hard.
    free = independent_question_instability(grid(rng.random((4, 3, 4000)) < 0.6, "ppf"))
    assert free.share == pytest.approx(1, abs=0.02)
    same = np.repeat(rng.random((4, 1, 50)) < 0.6, 3, axis=1)
    tied = independent_question_instability(grid(same, "ppf"))
    assert (tied.observed, tied.share) == (0, 0)


def test_independent_value_by_hand():
    # Accuracies 1/2 and 1/2: overlap (1/4) / (3/4); a persona that is never right is left out.
    counts = np.array([[1, 1], [0, 0], [2, 2]])[:, None, :, None]
    assert independent_draws(counts, 2) == pytest.approx([(2 / 3 + 0) / 2])
    assert np.isnan(independent_draws(counts[1:2], 2)).all()


@pytest.mark.parametrize("move", ["apart", "together"])
def test_question_instability_does_not_change_under_the_permutation(move):
    rng = np.random.default_rng(2)
    answers = rng.random((4, 5, 30)) < rng.random((4, 1, 30))
    before = question_instability(grid(answers, "ppf"))
    for _ in range(5):
        shuffled = rng.permuted(answers, axis=1)
        if move == "together":
            order = rng.random((1, 5, 30)).argsort(axis=1)
            shuffled = np.take_along_axis(answers, order, axis=1)
        assert (shuffled != answers).any()
        after = question_instability(grid(shuffled, "ppf"))
        assert after.value == before.value
        np.testing.assert_array_equal(after.per_persona, before.per_persona)
    reason = rows(chance_levels(grid(answers, "ppf"), draws=9))["question"]["reason"]
    assert "leaves question instability as it is" in reason


def test_edges_are_named():
    right, wrong = np.ones((3, 2, 2, 5), bool), np.zeros((3, 2, 2, 5), bool)
    for values in (right, wrong, right[:1]):
        found = rows(chance_levels(grid(values, "ppf", "tpf"), draws=19))
        for metric in ("accuracy", "outcome"):
            assert [found[metric][k] for k in ("value", "floor", "excess", "p")] == [0, 0, 0, 1]
    assert found["question"]["share"] is None
    assert "independence gives 0 too" in found["question"]["reason"]
    never = rows(chance_levels(grid(wrong, "ppf", "tpf"), draws=19))["question"]
    assert never["value"] is None
    assert "union is empty" in never["reason"]
    empty = {
        "one setting": grid(right[:, :1, :1], "ppf", "tpf"),
        "no questions": grid(right[..., :0], "ppf", "tpf"),
        "no personas": grid(right[:0], "ppf", "tpf"),
        "no settings": grid(right[:, :0], "ppf", "tpf"),
    }
    for reason, correct in empty.items():
        for row in rows(chance_levels(correct, draws=19)).values():
            assert reason in row.pop("reason")
            assert set(row.values()) == {None}


def test_floor_of_no_answers_says_why():
    counts, null = np.zeros((3, 1, 2), int), np.zeros((3, 1, 2, 9), int)
    assert "questions" in floor(counts, null, 0, "accuracy").reason
    assert "personas" in floor(counts, null, 5, "accuracy", personas=[]).reason
    one = floor(counts[..., :1], null[..., :1, :], 5, "outcome")
    assert "one setting" in one.reason
    assert (one.value, one.floor, one.excess, one.p) == (None, None, None, None)
    with pytest.raises(UserError, match="unknown metric 'question'"):
        floor(counts, null, 5, "question")


def test_a_group_is_ranked_alone():
    rng = np.random.default_rng(6)
    correct = grid(rng.random((6, 4, 60)) < 0.5, "ppf")
    answers = correct.values[:, None]
    permuted = permuted_counts(right_histogram(answers.sum(axis=2), 4), 200, 1)
    group = [1, 2, 5]
    for metric in ("accuracy", "outcome"):
        level = floor(answers.sum(axis=3), permuted, 60, metric, personas=group)
        alone = floor(answers[group].sum(axis=3), permuted[group], 60, metric)
        assert level == alone
        expected = (accuracy_instability if metric == "accuracy" else outcome_instability)(
            correct.isel(persona=group)
        )
        assert level.value == pytest.approx(expected.value, abs=1e-12)


def test_p_counts_a_draw_that_ties_with_the_observed_value():
    # With one question every permutation gives the observed value, in one order of summation or another.
    values = np.zeros((3, 4, 1), bool)
    values[:, 1] = True
    found = rows(chance_levels(grid(values, "ppf"), draws=50))
    assert found["accuracy"]["p"] == 1
    assert found["accuracy"]["excess"] == pytest.approx(0, abs=1e-15)


def test_levels_are_the_same_from_run_to_run_and_refuse_bad_calls():
    correct = grid(np.random.default_rng(1).random((3, 4, 20)) < 0.5, "ppf")
    for together in (False, True):
        one = chance_levels(correct, draws=20, together=together)
        assert one.identical(chance_levels(correct, draws=20, together=together, threads=2))
    with pytest.raises(UserError, match="over contains 'persona'"):
        chance_levels(correct, "persona")
    with pytest.raises(UserError, match="draws must be at least 1"):
        chance_levels(correct, draws=0)
    with pytest.raises(UserError, match="unknown method"):
        chance_levels(correct, method="fast")
