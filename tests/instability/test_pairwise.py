"""Comparisons of settings and of personas against scipy's tests one by one, and planted differences."""

import gc
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instability_brute import grid, grids
from scipy import stats
from statsmodels.stats.multitest import multipletests

from persona_mlflow.analyses.study import NotAllowed
from persona_mlflow.errors import UserError
from persona_mlflow.instability.pairwise import (
    adjust,
    paired_p,
    persona_differences,
    setting_label,
    setting_tests,
)

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _little_garbage():
    """statsmodels collects garbage in each correction; what is already there need not be searched again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


quick = settings(max_examples=40, deadline=None)


def each_setting(correct):
    """Label → (persona, question) answers, with the factors in the order of the grid."""
    factors = [d for d in correct.dims if d not in ("persona", "question")]
    for place in product(*(range(correct.sizes[d]) for d in factors)):
        cell = correct.isel(dict(zip(factors, place, strict=True)))
        label = " · ".join(str(correct[d].values[i]) for d, i in zip(factors, place, strict=True))
        yield label, cell.transpose("persona", "question").values


@quick
@given(grids(), st.sampled_from(["holm", "bonferroni", "fdr_bh"]))
def test_setting_tests_agree_with_scipy(correct, correction):
    cells = dict(each_setting(correct))
    n = correct.sizes["question"]
    if len(cells) < 2 or n < 2:
        with pytest.raises(NotAllowed, match="needs at least 2"):
            setting_tests(correct, correction)
        return
    result = setting_tests(correct, correction)
    rows = []
    for a, b in combinations(cells, 2):
        x, y = (cells[s].sum(axis=0) for s in (a, b))
        d = [int(i - j) for i, j in zip(x, y, strict=True)]
        mean = sum(d) / n / correct.sizes["persona"]
        if len(set(d)) == 1:
            rows.append((mean, mean, mean, 1.0 if d[0] == 0 else 2 * 0.5**n))
        else:
            test = stats.ttest_rel(x / correct.sizes["persona"], y / correct.sizes["persona"])
            rows.append((mean, *test.confidence_interval(0.95), test.pvalue))
    assert result["first"].values.tolist() == [a for a, _ in combinations(cells, 2)]
    assert result["second"].values.tolist() == [b for _, b in combinations(cells, 2)]
    assert result["pair"].values.tolist() == [f"{a} − {b}" for a, b in combinations(cells, 2)]
    for name, column in zip(("difference", "low", "high", "p"), zip(*rows, strict=True), strict=True):
        assert result[name].values == pytest.approx(column, abs=1e-9), name
    reject, adjusted, *_ = multipletests(result["p"].values, 0.05, method=correction)
    assert result["p_adjusted"].values == pytest.approx(adjusted)
    assert (result["significant"].values == reject).all()


def test_setting_tests_by_hand():
    # Differences 1, 1, 0: mean 2/3, sd √(1/3), t = 2 with 2 degrees of freedom.
    correct = grid([[[1, 1, 0], [0, 0, 0]]], "tpf")
    result = setting_tests(correct)
    assert result["difference"].values == pytest.approx([2 / 3])
    assert result["p"].values == pytest.approx([0.1835034])
    assert result["pair"].values.tolist() == ["tpf0 − tpf1"]


def test_T9_differences_without_variance():
    right = np.ones((2, 5), bool)
    result = setting_tests(grid([[row, row, ~row] for row in right], "tpf"))
    assert result["p"].values.tolist() == [1.0, 2.0**-4, 2.0**-4]
    assert result["difference"].values.tolist() == [0, 1, 1]
    assert paired_p(np.array([0, 7, -7]), np.array([0, 7, 7]), 7).tolist() == [1.0, 2.0**-6, 2.0**-6]


def test_setting_tests_find_the_planted_level_and_no_other():
    rng = np.random.default_rng(0)
    chance = rng.random((1, 1, 1, 800)) * 0.6 + 0.3 - np.array([0, 0, 0.1])[:, None, None]
    correct = grid(rng.random((4, 3, 2, 800)) < chance, "tpf", "temperature")
    result = setting_tests(correct)
    planted = [
        ("tpf2" in a) != ("tpf2" in b)
        for a, b in zip(result["first"].values, result["second"].values, strict=True)
    ]
    assert result["significant"].values.tolist() == planted


def test_setting_label():
    assert setting_label(("youare", "explain", 0.5)) == "youare · explain · 0.5"


def test_bad_arguments_and_grids():
    correct = grid(np.ones((2, 2, 3)), "tpf")
    with pytest.raises(UserError, match=r"unknown correction 'holms'.*did you mean 'holm'"):
        setting_tests(correct, "holms")
    for function in (setting_tests, persona_differences):
        with pytest.raises(UserError, match="alpha must be between 0 and 1"):
            function(correct, alpha=1.0)
        with pytest.raises(UserError, match="must be boolean"):
            function(correct.astype(int))
    with pytest.raises(NotAllowed, match="1 setting: comparing settings needs at least 2"):
        setting_tests(correct.isel(tpf=[0]))
    with pytest.raises(NotAllowed, match="1 setting"):
        setting_tests(correct.isel(tpf=0))
    with pytest.raises(NotAllowed, match="no personas"):
        setting_tests(correct.isel(persona=[]))
    with pytest.raises(NotAllowed, match="1 persona: comparing personas needs at least 2"):
        persona_differences(correct.isel(persona=[0]))
    assert adjust(np.array([]), "holm").size == 0


def holm(values: dict) -> dict:
    """Holm's step-down correction, from its definition."""
    adjusted, running = {}, 0.0
    for step, key in enumerate(sorted(values, key=values.__getitem__)):
        running = max(running, min(1.0, (len(values) - step) * values[key]))
        adjusted[key] = running
    return adjusted


@quick
@given(grids(), st.sampled_from([0.05, 0.5, 0.99]))
def test_persona_differences_agree_with_loops(correct, alpha):
    cells = list(dict(each_setting(correct)).values())
    n, questions = correct.sizes["persona"], correct.sizes["question"]
    if n < 2:
        with pytest.raises(NotAllowed):
            persona_differences(correct, alpha)
        return
    result = persona_differences(correct, alpha)
    weakest, gaps = {}, {}
    for p, o in permutations(range(n), 2):
        found = []
        for cell in cells:
            only_p = sum(a and not b for a, b in zip(cell[p], cell[o], strict=True))
            only_o = sum(b and not a for a, b in zip(cell[p], cell[o], strict=True))
            split = only_p + only_o
            found.append(stats.binomtest(only_p, split, 0.5, "greater").pvalue if split else 1.0)
        weakest[p, o] = max(found)
        gaps[p, o] = [(int(cell[p].sum()) - int(cell[o].sum())) / questions for cell in cells]
    adjusted = holm(weakest)
    beats, beaten_by = [0] * n, [0] * n
    for (p, o), value in adjusted.items():
        at = {"persona": p, "other": o}
        assert result["p"].isel(at).item() == pytest.approx(value)
        assert result["smallest"].isel(at).item() == pytest.approx(min(gaps[p, o]))
        assert result["largest"].isel(at).item() == pytest.approx(max(gaps[p, o]))
        survives = min(gaps[p, o]) > 0 and value <= alpha
        assert result["survives"].isel(at).item() == survives
        beats[p] += survives
        beaten_by[o] += survives
    assert result["beats"].values.tolist() == beats
    assert result["beaten_by"].values.tolist() == beaten_by
    for p in range(n):
        mine = [int(cell[p].sum()) for cell in cells]
        best = [max(int(cell[o].sum()) for o in range(n)) for cell in cells]
        ranks = [stats.rankdata([-int(cell[o].sum()) for o in range(n)])[p] for cell in cells]
        row = result.isel(persona=p)
        assert row["best_in"].item() == sum(a == b for a, b in zip(mine, best, strict=True))
        assert row["accuracy"].item() == pytest.approx(sum(mine) / len(mine) / questions)
        assert row["mean_rank"].item() == pytest.approx(sum(ranks) / len(ranks))
        assert not result["survives"].values[p, p]
        assert np.isnan(result["p"].values[p, p])
    winners = [p for p in range(n) if beats[p] == n - 1]
    assert result.attrs["best_persona"] == (f"persona{winners[0]}" if winners else "")
    assert ("reason" in result.attrs) == (not winners)


def test_a_planted_better_persona_is_named():
    rng = np.random.default_rng(3)
    chance = np.full((5, 1, 1, 1), 0.5)
    chance[3] = 0.8
    result = persona_differences(grid(rng.random((5, 2, 2, 300)) < chance, "tpf", "temperature"))
    assert result.attrs["best_persona"] == "persona3"
    assert result["best_in"].values.tolist() == [0, 0, 0, 4, 0]
    assert int(result["survives"].sum()) == 4


def test_a_persona_that_fails_in_one_setting_is_not_named():
    rng = np.random.default_rng(3)
    chance = np.full((5, 4, 1), 0.5)
    chance[3, :3] = 0.8
    result = persona_differences(grid(rng.random((5, 4, 300)) < chance, "tpf"))
    assert result.attrs["best_persona"] == ""
    assert result.attrs["reason"] == "5 of 5 personas are beaten by no other in all settings"


@pytest.mark.parametrize("repeated", [False, True])
def test_without_differences_none_survives_more_often_than_alpha(repeated):
    """Repeated settings give the same answers: the intersection of their tests is then no help."""
    rng = np.random.default_rng(11)
    false = 0
    for _ in range(200):
        answers = rng.random((4, 1 if repeated else 3, 80)) < rng.random((1, 1, 80))
        correct = grid(np.repeat(answers, 3, axis=1) if repeated else answers, "tpf")
        false += bool(persona_differences(correct)["survives"].any())
    assert false / 200 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 200)


def test_one_setting():
    right = np.zeros((2, 1, 8), bool)
    right[0] = True
    result = persona_differences(grid(right, "tpf").isel(tpf=0))
    # One-sided 2⁻⁸, times the two ordered pairs.
    assert result["p"].values[0, 1] == pytest.approx(2 / 256)
    assert result.attrs["best_persona"] == "persona0"
