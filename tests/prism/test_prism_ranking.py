"""Ranking metrics against loops over pairs, scikit-learn and expanded bootstrap samples; and edge cases."""

import gc
import math
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from persona_mlflow.errors import UserError
from persona_mlflow.prism.ranking import (
    METRICS,
    NOT_COMPARABLE,
    Scored,
    group_draws,
    percentile_interval,
    ranking_metrics,
)
from persona_mlflow.prism.ranking_comparison import bootstrap_p, compare_methods, mcnemar_p

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
quick = settings(max_examples=60, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def _little_garbage():
    """statsmodels collects garbage in each correction; what is already there need not be searched again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def frame(*rows):
    """(group, positive, score) rows."""
    return pd.DataFrame(rows, columns=["group", "positive", "score"])


@st.composite
def results(draw, unscored=True):
    """Up to six groups of up to five examples; few distinct scores, so that ties are common."""
    values = [0.0, 0.25, 0.5, 0.75, 1.0, *([math.nan] if unscored else [])]
    row = st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from(values))
    return frame(*draw(st.lists(row, max_size=24)))


def brute(table):
    """The three metrics by loops; None where there is nothing to compare."""
    rows = [(g, p, s) for g, p, s in table.itertuples(index=False) if not math.isnan(s)]

    def share(pairs):
        wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
        return sum(wins) / len(wins) if wins else None

    everywhere = [(a, b) for _, p, a in rows for _, q, b in rows if p and not q]
    within = [(a, b) for g, p, a in rows for h, q, b in rows if p and not q and g == h]
    right = []
    for group in {g for g, _, _ in rows}:
        good = [s for g, p, s in rows if g == group and p]
        bad = [s for g, p, s in rows if g == group and not p]
        if good and bad:
            right.append(all(a > b for a in good for b in bad))
    return share(everywhere), share(within), sum(right) / len(right) if right else None


@quick
@given(results())
def test_metrics_are_those_of_loops_over_pairs(table):
    got = ranking_metrics(table, draws=0)
    for metric, expected in zip(METRICS, brute(table), strict=True):
        assert got[metric] == (None if expected is None else pytest.approx(expected, abs=1e-12)), metric
        assert (got[metric] is None) <= (metric in got.reasons)
    assert got.unscored == sum(math.isnan(s) for s in table["score"])
    assert got.positives + got.negatives + got.unscored == got.examples == len(table)


@quick
@given(results(unscored=False))
def test_auc_is_that_of_scikit_learn(table):
    if table["positive"].nunique() == 2:
        expected = roc_auc_score(table["positive"], table["score"])
        assert ranking_metrics(table, draws=0).auc == pytest.approx(expected, abs=1e-12)
        one_group = table.assign(group="all")
        assert ranking_metrics(one_group, draws=0).pair_auc == pytest.approx(expected, abs=1e-12)


def test_metrics_by_hand():
    table = frame(
        ("a", True, 0.9), ("a", False, 0.1), ("a", False, 0.9),  # a tie and a win: 1.5 of 2, not right
        ("b", True, 0.5), ("b", False, 0.4),  # right
        ("c", True, 0.3), ("c", False, 0.6),  # wrong
    )  # fmt: skip
    got = ranking_metrics(table, draws=0)
    # Over all groups: 0.9 beats 0.1, 0.4, 0.6 and ties 0.9; 0.5 beats two; 0.3 beats one.
    assert got.auc == pytest.approx((3.5 + 2 + 1) / 12)
    assert got.pair_auc == pytest.approx(2.5 / 4)
    assert got.group_accuracy == pytest.approx(1 / 3)
    assert (got.pairs, got.groups, got.groups_undefined, got.partial) == (4, 3, 0, 0)


def test_a_group_of_several_positives_is_right_if_each_is_above_every_negative():
    table = frame(("a", True, 0.9), ("a", True, 0.2), ("a", False, 0.5))
    assert ranking_metrics(table, draws=0).group_accuracy == 0.0
    assert ranking_metrics(table.assign(score=[0.9, 0.6, 0.5]), draws=0).group_accuracy == 1.0


def test_ties_are_half_in_auc_and_pair_auc_and_a_loss_in_group_accuracy():
    got = ranking_metrics(frame(("a", True, 0.5), ("a", False, 0.5), ("b", True, 0.5), ("b", False, 0.5)))
    assert (got.auc, got.pair_auc, got.group_accuracy) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "there is no example"),
        ([("a", True, 0.5), ("b", True, 0.1)], "no scored negative"),
        ([("a", False, 0.5)], "no scored positive"),
        ([("a", True, math.nan), ("a", False, 0.5)], "no scored positive"),
        ([("a", True, math.nan), ("a", False, math.nan)], "no scored example"),
    ],
)
def test_T3_one_class_gives_none_with_a_reason(rows, reason):
    got = ranking_metrics(frame(*rows).astype({"positive": bool, "score": float}), draws=50)
    assert (got.auc, got.pair_auc, got.group_accuracy) == (None, None, None)
    assert got.reasons["auc"] == reason
    assert set(got.intervals.values()) == {None}
    assert got.groups_undefined == got.groups == len({g for g, _, _ in rows})
    assert "NaN" not in str(got.as_dict())
    assert "nan" not in str(got.as_dict())


def test_T3_a_group_of_one_class_is_counted_and_left_out_of_the_group_metrics():
    table = frame(
        ("a", True, 0.9), ("a", False, 0.1),
        ("b", True, 0.2),
        ("c", True, math.nan), ("c", False, 0.5),
        ("d", True, 0.8), ("d", False, 0.3), ("d", False, math.nan),
        ("e", True, math.nan),
    )  # fmt: skip
    got = ranking_metrics(table, draws=0)
    assert got.undefined == {"no scored negative": 1, "no scored positive": 1, "no scored example": 1}
    assert (got.group_accuracy, got.pair_auc, got.partial, got.unscored) == (1.0, 1.0, 1, 3)
    # The examples of b and c count in the AUC, which compares across groups.
    assert got.auc == pytest.approx(7 / 9)


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_T3_T9_few_groups(groups):
    rows = [(g, side, 0.9 if side else 0.1) for g in range(groups) for side in (True, False)]
    got = ranking_metrics(frame(*rows).astype({"positive": bool, "score": float}), draws=100)
    assert got.auc == (1.0 if groups else None)
    assert got.intervals["auc"] == ((1.0, 1.0) if groups == 2 else None)
    if groups == 1:
        assert got.reasons["group_accuracy"] == "no interval: 1 group; resampling groups needs at least 2"


def test_T3_too_many_undefined_draws_give_no_interval():
    rows = [("a", True, 0.9), ("a", False, 0.1), ("b", True, 0.7), ("b", False, 0.2)]
    rows += [(f"only {n}", True, 0.5) for n in range(6)]
    got = ranking_metrics(frame(*rows), draws=400)
    assert got.pair_auc == 1.0
    assert got.intervals["pair_auc"] is None
    assert "undefined in" in got.reasons["pair_auc"]


@quick
@given(results(), st.integers(0, 3))
def test_a_bootstrap_draw_is_the_metric_of_the_expanded_sample(table, seed):
    table = table[table["score"].notna()]
    if not len(table):
        return
    codes, names = pd.factorize(table["group"])
    scored = Scored(codes, table["positive"].to_numpy(), table["score"].to_numpy(), len(names))
    weights = group_draws(len(names), 4, seed)
    assert (weights.sum(axis=1) == len(names)).all()
    for got, weight in zip(scored.statistics(weights), weights, strict=True):
        copies = [
            table[codes == g].assign(group=f"{g}-{n}") for g, times in enumerate(weight) for n in range(times)
        ]
        for value, expected in zip(got, brute(pd.concat(copies)), strict=True):
            assert np.isnan(value) if expected is None else value == pytest.approx(expected, abs=1e-12)


def test_draws_in_blocks_are_those_of_one_block(monkeypatch):
    rng = np.random.default_rng(0)
    scored = Scored(np.repeat(np.arange(50), 3), np.tile([True, False, False], 50), rng.random(150), 50)
    weights = group_draws(50, 30, 1)
    whole = scored.statistics(weights)
    monkeypatch.setattr("persona_mlflow.prism.ranking._STATE_ENTRIES", 1000)
    assert np.array_equal(scored.statistics(weights), whole)


def simulated(groups, shift, seed, negatives=2):
    """Scores whose positives lie ``shift`` standard deviations above the negatives, with ids."""
    rng = np.random.default_rng(seed)
    positive = np.tile([True] + [False] * negatives, groups)
    table = pd.DataFrame({"group": np.repeat(np.arange(groups), negatives + 1), "positive": positive})
    table["score"] = rng.normal(size=len(table)) + shift * positive
    return table.assign(id=[f"{g}/{n}" for g in range(groups) for n in range(negatives + 1)])


def test_intervals_cover_the_truth_as_often_as_they_say():
    truth = 0.5 * math.erfc(-1 / 2)  # P(N(1, 1) > N(0, 1))
    hits = dict.fromkeys(("auc", "pair_auc"), 0)
    for seed in range(200):
        got = ranking_metrics(simulated(60, 1.0, seed), draws=200, seed=seed)
        for metric in hits:
            low, high = got.intervals[metric]
            hits[metric] += low <= truth <= high
    assert all(180 <= n <= 199 for n in hits.values()), hits


def test_intervals_depend_on_the_seed_alone():
    table = simulated(40, 0.5, 0)
    first = ranking_metrics(table, draws=100, seed=3)
    assert ranking_metrics(table, draws=100, seed=3) == first
    assert ranking_metrics(table, draws=100, seed=4).intervals != first.intervals
    wide = ranking_metrics(table, draws=100, seed=3, alpha=0.01)
    assert wide.intervals["auc"][0] < first.intervals["auc"][0]


def test_without_a_common_scale_there_is_no_auc():
    got = ranking_metrics(simulated(20, 1.0, 0), draws=50, comparable=False)
    assert got.auc is None
    assert got.reasons["auc"] == NOT_COMPARABLE
    assert got.intervals["auc"] is None
    assert got.pair_auc is not None
    assert got.intervals["pair_auc"] is not None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (frame(("a", True, 0.5)).drop(columns="score"), "no column 'score'"),
        (frame(("a", "yes", 0.5)), "'positive' must be boolean"),
        (frame(("a", 1, 0.5)), "'positive' must be boolean"),
        (frame(("a", True, "high")), "'score' must hold numbers"),
        (frame(("a", True, math.inf)), "1 infinite scores"),
        (frame((None, True, 0.5)), "1 rows without a group"),
        ([1, 2], "must be a pandas DataFrame, got list"),
    ],
)
def test_unusable_results_are_refused(table, message):
    with pytest.raises(UserError, match=message):
        ranking_metrics(table)


def test_metrics_are_reached_by_name_too():
    got = ranking_metrics(simulated(5, 1.0, 0), draws=0)
    assert got["auc"] == got.auc
    with pytest.raises(KeyError, match="did you mean 'pair_auc'"):
        got["pairauc"]


# Tests between methods


def test_equal_methods_do_not_differ():
    table = simulated(30, 1.0, 0)
    got = compare_methods({"one": table, "two": table}, draws=200)
    assert list(got["metric"]) == ["auc", "pair_auc", "group_accuracy", "group_accuracy"]
    assert (got["difference"] == 0).all()
    assert (got["p"] == 1).all()
    assert (got["reason"] == "").all()


def test_a_better_method_is_found_and_the_differences_are_those_of_the_metrics():
    results = {"good": simulated(150, 2.0, 0), "bad": simulated(150, 0.2, 1), "idle": simulated(150, 0.2, 2)}
    got = compare_methods(results, draws=400, seed=1).set_index(["metric", "test", "first", "second"])
    for first, second in combinations(results, 2):
        for metric in METRICS:
            row = got.loc[(metric, "bootstrap", first, second)]
            a, b = (ranking_metrics(results[name], draws=0)[metric] for name in (first, second))
            assert row["difference"] == pytest.approx(a - b, abs=1e-12)
            assert row["low"] < row["difference"] < row["high"]
    assert (got.xs("good", level="first")["p_adjusted"] < 0.05).all()
    assert (got.xs("bad", level="first")["p_adjusted"] > 0.05).all()


@pytest.mark.parametrize("correction", ["holm", "bonferroni", "fdr_bh"])
def test_p_values_are_corrected_within_metric_and_test(correction):
    results = {f"m{n}": simulated(40, 0.4 * n, n) for n in range(4)}
    got = compare_methods(results, draws=100, correction=correction)
    for _, part in got.groupby(["metric", "test"]):
        assert len(part) == 6
        expected = multipletests(part["p"], method=correction)[1]
        np.testing.assert_allclose(part["p_adjusted"], expected)


@quick
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=25))
def test_mcnemar_is_that_of_statsmodels(pairs):
    first, second = (np.array(column) for column in zip(*pairs, strict=True))
    counts = [[(first & second).sum(), (first & ~second).sum()]]
    counts += [[(second & ~first).sum(), (~first & ~second).sum()]]
    expected = mcnemar(counts, exact=True).pvalue if (first != second).any() else 1.0
    assert mcnemar_p(first, second) == pytest.approx(expected)


def test_bootstrap_p_counts_draws_on_the_other_side():
    assert bootstrap_p(np.array([0.1] * 97 + [-0.1, 0.0, np.nan])) == pytest.approx(2 * 3 / 100)
    assert bootstrap_p(np.zeros(9)) == 1.0
    assert bootstrap_p(np.full(999, 0.2)) == pytest.approx(0.002)


def test_bootstrap_p_is_uniform_enough_where_nothing_differs():
    found = 0
    for seed in range(150):
        a, b = simulated(60, 0.5, 2 * seed), simulated(60, 0.5, 2 * seed + 1)
        got = compare_methods({"a": a, "b": b}, draws=200, seed=seed)
        found += got.set_index("metric").loc["auc", "p"] <= 0.1
    assert 5 <= found <= 28  # 15 expected


def test_methods_are_compared_on_what_both_scored_whatever_the_order_of_rows():
    first, second = simulated(30, 1.0, 0), simulated(30, 1.0, 1)
    first.loc[[0, 4], "score"] = math.nan
    second.loc[[4, 7], "score"] = math.nan
    got = compare_methods({"a": first, "b": second}, draws=100).iloc[1]
    both = first["score"].notna() & second["score"].notna()
    a, b = (ranking_metrics(t[both], draws=0).pair_auc for t in (first, second))
    assert got["difference"] == pytest.approx(a - b)
    assert got["unpaired"] == 2
    shuffled = second.sample(frac=1, random_state=0)
    again = compare_methods({"a": first, "b": shuffled}, draws=100)
    pd.testing.assert_series_equal(again.iloc[1], got)
    fewer = compare_methods({"a": first, "b": shuffled[shuffled["id"] != "29/0"]}, draws=100)
    assert set(fewer["unpaired"]) == {3}
    assert fewer["groups"].tolist() == [30, 28, 28, 28]


def test_T3_methods_with_nothing_in_common_are_undefined_with_a_reason():
    first, second = simulated(4, 1.0, 0), simulated(4, 1.0, 1)
    first.loc[first["group"] < 2, "score"] = math.nan
    second.loc[second["group"] >= 2, "score"] = math.nan
    got = compare_methods({"a": first, "b": second}, draws=20)
    assert got["p"].isna().all()
    assert got["p_adjusted"].isna().all()
    assert (got["reason"] != "").all()


def test_T9_one_group_has_a_mcnemar_test_but_no_bootstrap():
    table = simulated(1, 5.0, 0)
    got = compare_methods({"a": table, "b": table.assign(score=-table["score"])}, draws=20)
    assert got["p"].isna().tolist() == [True, True, True, False]
    assert got["p"].iloc[3] == 1.0  # one discordant group proves nothing
    assert got["reason"].iloc[0].startswith("no interval: 1 group")


def test_a_method_without_a_common_scale_is_compared_in_the_group_metrics():
    table = simulated(20, 1.0, 0)
    pairwise = simulated(20, 1.0, 1)
    pairwise.attrs["comparable"] = False
    got = compare_methods({"score": table, "pairwise": pairwise}, draws=50).set_index(["metric", "test"])
    assert got.loc[("auc", "bootstrap"), "reason"] == f"pairwise: {NOT_COMPARABLE}"
    assert got.loc["auc", ["value_first", "difference", "p"]].isna().all(axis=None)
    assert got.loc["pair_auc", "p"].notna().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="id"), "b: the results have no column 'id'"),
        (lambda t: t.assign(id="same"), "b: the id 'same' occurs more than once"),
        (lambda t: t.assign(positive=~t["positive"]), "in different groups, or on different sides"),
        (lambda t: t.assign(group=t["group"] + 1), "in different groups, or on different sides"),
    ],
)
def test_methods_that_cannot_be_paired_are_refused(change, message):
    table = simulated(3, 1.0, 0)
    with pytest.raises(UserError, match=message):
        compare_methods({"a": table, "b": change(table)})


def test_a_comparison_needs_two_methods_draws_and_a_known_correction():
    table = simulated(3, 1.0, 0)
    with pytest.raises(UserError, match="needs at least 2, but there is 1"):
        compare_methods({"a": table})
    with pytest.raises(UserError, match="at least 1 bootstrap draw"):
        compare_methods({"a": table, "b": table}, draws=0)
    with pytest.raises(UserError, match="did you mean 'holm'"):
        compare_methods({"a": table, "b": table}, correction="holms")


def test_percentile_interval_by_hand():
    bounds, reason = percentile_interval(np.arange(101) / 100, 5, 0.1)
    assert bounds == pytest.approx((0.05, 0.95))
    assert reason == ""
    assert percentile_interval(np.zeros(0), 5, 0.1)[1] == "no interval: there are no bootstrap draws"
