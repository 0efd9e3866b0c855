"""Every metric against plain loops over random grids, and its parts against other libraries."""

from itertools import chain, combinations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from instability_brute import FACTORS, accuracy, entries, grid, grids, outcome, question
from scipy.stats import rankdata
from statsmodels.stats.weightstats import DescrStatsW

from persona_mlflow.instability import (
    accuracy_instability,
    outcome_instability,
    question_instability,
    summary_metrics,
)
from persona_mlflow.instability.accuracy import mean_pairwise_difference
from persona_mlflow.instability.outcome import rank_personas, weighted_std

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

quick = settings(max_examples=40, deadline=None)
overs = st.sampled_from(list(chain.from_iterable(combinations(FACTORS, n) for n in (1, 2, 3))))
ALL_RIGHT = grid(np.ones((2, 2, 2, 2, 3)), *FACTORS)
ALL_WRONG = grid(np.zeros((2, 2, 2, 2, 3)), *FACTORS)


def at(array: xr.DataArray, correct: xr.DataArray, labels: tuple, over: tuple) -> xr.DataArray:
    kept = [d for d in correct.dims if d not in ("persona", "question", *over)]
    return array.sel(dict(zip(kept, labels, strict=True)))


def agrees(result, correct, over, expected) -> None:
    """Check value, per_persona and reasons at each kept level; expected maps a level's loops to both."""
    kept = [d for d in correct.dims if d not in ("persona", "question", *over)]
    assert set(result.per_persona.dims) == {"persona", *kept}
    if kept:
        assert list(result.value.dims) == kept
    one_setting = np.prod([correct.sizes[d] for d in over]) == 1
    undefined, defined = set(), []
    for labels, *loops in entries(correct, over):
        value, per_persona = (None, [None] * len(loops[0])) if one_setting else expected(*loops)
        mine = at(result.value, correct, labels, over).item() if kept else result.value
        if value is None:
            assert np.isnan(mine) if kept else mine is None
            undefined.add(labels)
        else:
            assert mine == pytest.approx(float(value), abs=1e-12)
            defined.append(float(value))
        column = at(result.per_persona, correct, labels, over).values
        assert column == pytest.approx(
            [np.nan if v is None else float(v) for v in per_persona], nan_ok=True, abs=1e-12
        )
    assert set(result.reasons) == (undefined if kept else set())
    assert (result.reason is None) == (not undefined)
    assert result.average == (pytest.approx(np.mean(defined), abs=1e-12) if defined else None)


@quick
@given(grids(), overs)
@example(ALL_RIGHT, FACTORS)
@example(ALL_WRONG, ("tpf",))
def test_accuracy_agrees_with_loops(correct, over):
    agrees(accuracy_instability(correct, over=over), correct, over, accuracy)


@quick
@given(grids(), overs, st.sampled_from(["average", "ordinal"]), st.booleans(), st.booleans())
@example(ALL_RIGHT, FACTORS, "ordinal", False, False)
@example(ALL_WRONG, ("tpf",), "average", True, True)
def test_outcome_agrees_with_loops(correct, over, ties, weighted, normalized):
    result = outcome_instability(correct, over, ties=ties, weighted=weighted, normalized=normalized)
    agrees(result, correct, over, lambda *loops: outcome(*loops, ties, weighted, normalized)[:2])


@quick
@given(grids(), overs)
@example(ALL_RIGHT, FACTORS)
@example(ALL_WRONG, ("tpf",))
@example(ALL_WRONG, FACTORS)
def test_question_agrees_with_loops(correct, over):
    result = question_instability(correct, over=over)
    agrees(result, correct, over, question)
    if result.reason is None:
        count = sum(v is None for _, *loops in entries(correct, over) for v in question(*loops)[1])
        assert result.left_out_count == count


@quick
@given(grids(factors=("tpf", "temperature"), min_side=2))
def test_persona_varied_is_the_metric_with_persona_and_a_factor_swapped(correct):
    # Per setting, personas are compared as settings are for one persona: rename the dims and average.
    stacked = correct.stack(setting=("tpf", "temperature"), create_index=False)
    swapped = stacked.rename(persona="setting", setting="persona")
    for metric in (accuracy_instability, question_instability):
        result, mirror = metric(correct, over="persona"), metric(swapped, over="setting")
        assert set(result.value.dims) == {"tpf", "temperature"}
        across = result.value.stack(persona=("tpf", "temperature"), create_index=False).values
        np.testing.assert_allclose(across, mirror.per_persona.values, atol=1e-12)
        assert (result.average is None) == (mirror.value is None)
        assert result.average is None or result.average == pytest.approx(mirror.value)


@quick
@given(grids(min_side=2))
def test_outcome_spread_is_statsmodels_weighted_std(correct):
    result = outcome_instability(correct)
    weights = result.weights.transpose(*FACTORS).values.ravel()
    reference = correct.astype(float).mean("question").std("persona").transpose(*FACTORS).values.ravel()
    np.testing.assert_allclose(weights, reference, atol=1e-12)
    if not weights.any():
        assert result.value == 0
        return
    for p in correct.persona.values:
        ranks = result.ranks.sel(persona=p).transpose(*FACTORS).values.ravel()
        reference = DescrStatsW(ranks, weights=weights, ddof=0).std
        assert float(result.per_persona.sel(persona=p)) == pytest.approx(float(reference), abs=1e-9)


@quick
@given(grids())
def test_ranks_agree_with_scipy_and_pandas(correct):
    counts = (
        correct.sum("question").stack(cell=FACTORS, create_index=False).transpose("persona", "cell").values
    )
    for ties, pandas_name in (("average", "average"), ("ordinal", "first")):
        ranks = rank_personas(counts, ties)
        np.testing.assert_array_equal(ranks, pd.DataFrame(counts).rank(ascending=False, method=pandas_name))
        for column in range(counts.shape[1]):
            np.testing.assert_array_equal(ranks[:, column], rankdata(-counts[:, column], method=ties))


@quick
@given(st.lists(st.integers(0, 5008), min_size=2, max_size=30))
def test_mean_pairwise_difference_is_the_mean_over_pairs(counts):
    pairs = [abs(a - b) for a, b in combinations(counts, 2)]
    assert mean_pairwise_difference(np.array(counts)) == sum(pairs) / len(pairs)


@quick
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0.001, 1)), min_size=1, max_size=20))
def test_weighted_std_agrees_with_statsmodels(pairs):
    values, weights = np.array(pairs).T
    expected = DescrStatsW(values, weights=weights, ddof=0).std
    assert weighted_std(values, weights) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@quick
@given(grids(min_side=2), st.randoms(use_true_random=False))
def test_order_of_personas_settings_and_questions_does_not_matter(correct, random):
    order = {d: random.sample(range(n), n) for d, n in correct.sizes.items()}
    shuffled = correct.isel(order)
    for metric in (accuracy_instability, outcome_instability, question_instability):
        result, other = metric(correct), metric(shuffled)
        assert other.value == (None if result.value is None else pytest.approx(result.value, abs=1e-12))
        xr.testing.assert_allclose(
            other.per_persona.sortby("persona"), result.per_persona.sortby("persona"), atol=1e-12
        )


@quick
@given(grids(min_side=2), overs, st.integers(2, 3))
def test_repeating_every_question_changes_nothing(correct, over, times):
    repeated = xr.concat([correct.drop_vars("question")] * times, "question")
    for metric in (accuracy_instability, outcome_instability, question_instability):
        result, other = metric(correct, over), metric(repeated, over)
        assert other.reasons == result.reasons
        if isinstance(result.value, xr.DataArray):
            xr.testing.assert_allclose(other.value, result.value, atol=1e-12)
        else:
            assert other.value == (None if result.value is None else pytest.approx(result.value, abs=1e-12))


@quick
@given(grids(), overs)
def test_summary_agrees_with_loops(correct, over):
    summary = summary_metrics(correct, over)
    runs = [np.mean(row) for *_, answers in entries(correct, over) for row in answers.values()]
    metrics = summary["metrics"]
    assert metrics["accuracy/mean"] == pytest.approx(np.mean(runs))
    assert metrics["accuracy/std"] == pytest.approx(np.std(runs), abs=1e-9)
    assert metrics["instability/accuracy"] == accuracy_instability(correct, over).average
    assert metrics["instability/outcome"] == outcome_instability(correct, over).average
    assert metrics["instability/question"] == question_instability(correct, over).average
    assert set(summary["reasons"]) == {name for name, value in metrics.items() if value is None}
