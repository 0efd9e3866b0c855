"""Resamples, subsets and counts against plain loops; the interval by hand."""

import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from persona_mlflow.instability.resampling import (
    bootstrap_weights,
    interval,
    subset_weights,
    weighted_counts,
)

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


@st.composite
def strata(draw) -> list[np.ndarray]:
    """Up to three strata of up to nine questions, mixed."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    order = np.array(draw(st.permutations(range(sum(sizes)))), dtype=np.intp)
    return np.split(order, np.cumsum(sizes)[:-1])


def resamples(*rows: list[float]) -> xr.DataArray:
    return xr.DataArray(np.array(rows, dtype=float), {"row": list(range(len(rows)))}, ("row", "draw"))


@given(strata(), st.integers(0, 6), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_resample_has_as_many_questions_of_each_stratum(parts, draws, seed):
    weights = bootstrap_weights(parts, draws, seed)
    assert weights.shape == (sum(map(len, parts)), 1 + draws)
    assert (weights[:, 0] == 1).all()
    assert (weights >= 0).all()
    assert (weights == np.rint(weights)).all()
    for positions in parts:
        assert (weights[positions].sum(axis=0) == len(positions)).all()


def test_resamples_are_drawn_with_replacement():
    # A question's count in a resample of n is Binomial(n, 1/n): mean 1, variance 1 − 1/n.
    weights = bootstrap_weights([np.arange(0, 20, 2), np.arange(1, 20, 2)], 4000, 0)[:, 1:]
    assert weights.mean(axis=1) == pytest.approx(1, abs=0.08)
    assert weights.var() == pytest.approx(0.9, abs=0.03)
    # Within a stratum the counts sum to n: their correlation is −1/(n − 1). Between strata there is none.
    assert np.corrcoef(weights[0], weights[2])[0, 1] == pytest.approx(-1 / 9, abs=0.06)
    assert np.corrcoef(weights[0], weights[1])[0, 1] == pytest.approx(0, abs=0.06)


def test_resamples_depend_on_the_seed_alone():
    parts = [np.arange(5), np.arange(5, 12)]
    assert (bootstrap_weights(parts, 9, 3) == bootstrap_weights(parts, 9, 3)).all()
    assert (bootstrap_weights(parts, 9, 3) != bootstrap_weights(parts, 9, 4)).any()
    # A stratum's resamples do not depend on what follows it, nor on how many are drawn after.
    assert (bootstrap_weights(parts[:1], 4, 3) == bootstrap_weights(parts, 9, 3)[:5, :5]).all()
    # Strata of one size are not resampled alike.
    twins = bootstrap_weights([np.arange(6), np.arange(6, 12)], 9, 3)
    assert (twins[:6] != twins[6:]).any()


@given(strata(), st.sampled_from([0.01, 0.25, 0.5, 0.75, 1.0]), st.integers(0, 4), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_subset_has_the_same_share_of_each_stratum(parts, share, draws, seed):
    weights = subset_weights(parts, share, draws, seed)
    assert weights.shape == (sum(map(len, parts)), draws)
    assert set(np.unique(weights)) <= {0, 1}
    for positions in parts:
        assert (weights[positions].sum(axis=0) == max(1, round(share * len(positions)))).all()
    assert (weights == subset_weights(parts, share, draws, seed)).all()


def test_subsets_take_every_question_alike():
    weights = subset_weights([np.arange(8)], 0.25, 4000, 1)
    assert weights.mean(axis=1) == pytest.approx(0.25, abs=0.03)


@given(st.integers(0, 2**16), st.integers(0, 3), st.integers(1, 7), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_counts_equal_plain_sums(seed, rows, questions, draws):
    rng = np.random.default_rng(seed)
    right = rng.random((rows, 2, questions)) < 0.5
    weights = rng.integers(0, 5, (questions, draws)).astype(np.float32)
    found = weighted_counts(right, weights)
    assert found.shape == (rows, 2, draws)
    assert found.dtype == np.int32
    for i in range(rows):
        for j in range(2):
            for d in range(draws):
                expected = sum(int(weights[q, d]) for q in range(questions) if right[i, j, q])
                assert found[i, j, d] == expected


def test_counts_of_many_rows_and_large_weights_are_exact():
    # More rows than one block, and sums near the largest whole number that a float32 holds without a gap.
    right = np.ones((2500, 3), dtype=bool)
    right[::2, 0] = False
    weights = np.array([[1, 5], [2**22, 0], [2**23, 7]], dtype=np.float32)
    found = weighted_counts(right, weights)
    assert (found[::2] == [2**22 + 2**23, 7]).all()
    assert (found[1::2] == [2**22 + 2**23 + 1, 12]).all()


# The interval.


def test_interval_by_hand():
    # Resamples 10 … 50: mean 30, 10 % and 90 % percentiles 14 and 46. The value is 25, so both move by −5.
    found = interval(resamples([25, 50, 10, 30, 20, 40]), level=0.8)
    assert found["value"].item() == 25
    assert found["low"].item() == pytest.approx(9)
    assert found["high"].item() == pytest.approx(41)
    assert found["value"].dims == ("row",)


def test_interval_is_cut_to_the_metric_s_range():
    found = interval(resamples([25, 50, 10, 30, 20, 40]), level=0.8, bounds=(15.0, 40.0))
    assert (found["low"].item(), found["high"].item()) == (15, 40)


def test_interval_of_a_constant_is_the_constant():
    # 0.1 + 0.2 has no exact mean over seven draws: rounding must not move the bounds.
    found = interval(resamples([0.1 + 0.2] * 8, [0.0] * 8))
    for name in ("value", "low", "high"):
        assert found[name].values.tolist() == [0.1 + 0.2, 0.0]


def test_T7_undefined_resamples_are_left_out_up_to_a_tenth():
    nan = math.nan
    ten = [float(v) for v in range(10)]
    found = interval(
        resamples(
            [4.5, *ten],
            [4.5, *ten[:9], nan],  # one of ten: the mean of the others is 4
            [4.5, *ten[:8], nan, nan],  # two of ten: too many
            [nan, *ten],
            [nan] * 11,
            [3.0, *[3.0] * 9, nan],
        ),
        level=0.5,
    )
    assert found["value"].values.tolist()[:3] == [4.5] * 3
    assert found["low"].values[0] == pytest.approx(2.25)
    assert found["high"].values[0] == pytest.approx(6.75)
    assert found["low"].values[1] == pytest.approx(2.5)
    assert found["high"].values[1] == pytest.approx(6.5)
    assert np.isnan(found["low"].values[2:5]).all()
    assert np.isnan(found["high"].values[2:5]).all()
    assert np.isnan(found["value"].values[3:5]).all()
    assert (found["low"].values[5], found["high"].values[5]) == (3, 3)


def test_without_resamples_there_are_no_bounds():
    found = interval(resamples([1.0], [math.nan]))
    assert found["value"].values.tolist()[0] == 1
    assert np.isnan(found["low"]).all()
    assert np.isnan(found["high"]).all()


def test_interval_keeps_dims_in_order_wherever_draw_stands():
    values = xr.DataArray(
        np.arange(24.0).reshape(3, 4, 2), {"a": [1, 2, 3], "b": ["x", "y"]}, ("a", "draw", "b")
    )
    found = interval(values)
    assert found["low"].dims == ("a", "b")
    assert found["value"].values.tolist() == values.values[:, 0].tolist()
    assert found["b"].values.tolist() == ["x", "y"]
