"""Variance shares against statsmodels' analysis of variance, a known design, and by hand."""

import warnings
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from persona_mlflow.instability.variance import HIGHER, variance_shares, variance_undefined

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

NAMES = ("persona", "ppf", "tpf", "temperature")
accuracies = hnp.arrays(
    float,
    hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=3),
    elements=st.sampled_from(range(9)),
)


def anova_shares(accuracy: np.ndarray) -> dict[str, float]:
    """Shares of the sums of squares that statsmodels gives, named as the terms are."""
    names = NAMES[: accuracy.ndim]
    varied = [name for name, size in zip(names, accuracy.shape, strict=True) if size > 1]
    rows = [
        {"y": accuracy[levels], **{name: f"level{i}" for name, i in zip(names, levels, strict=True)}}
        for levels in product(*map(range, accuracy.shape))
    ]
    with warnings.catch_warnings():
        # A saturated model leaves no degree of freedom: F is undefined, the sums of squares are not.
        warnings.simplefilter("ignore")
        fit = ols(f"y ~ ({' + '.join(f'C({name})' for name in varied)})**2", pd.DataFrame(rows)).fit()
        squares = anova_lm(fit)["sum_sq"]
    total = ((accuracy - accuracy.mean()) ** 2).sum()
    shares = {}
    for term, value in squares.items():
        name = term.replace("C(", "").replace(")", "").replace(":", " × ")
        shares[HIGHER if name == "Residual" else name] = value / total
    if len(varied) < 3:
        assert shares.pop(HIGHER) == pytest.approx(0, abs=1e-9)
    return shares


@settings(max_examples=40, deadline=None)
@given(accuracies)
def test_shares_agree_with_statsmodels(accuracy):
    shares = variance_shares(accuracy[..., None], NAMES[: accuracy.ndim])
    if np.ptp(accuracy) == 0:
        assert np.isnan(shares.values).all()
        assert shares.attrs["reason"] == variance_undefined(accuracy[..., None])
        return
    assert "reason" not in shares.attrs
    mine = dict(zip(shares["term"].values.tolist(), shares.values[:, 0].tolist(), strict=True))
    assert mine == pytest.approx(anova_shares(accuracy), abs=1e-9)
    assert sum(mine.values()) == pytest.approx(1)


def test_by_hand():
    # Rows are personas. Grand mean 4; personas ±1, tpf ±2, and ±1 on the diagonals.
    accuracy = np.array([[4.0, 6.0], [0.0, 6.0]])
    shares = variance_shares(accuracy[..., None], ("persona", "tpf"))
    assert shares["term"].values.tolist() == ["persona", "tpf", "persona × tpf"]
    assert shares.values[:, 0] == pytest.approx([1 / 6, 4 / 6, 1 / 6])


def test_a_planted_main_effect_gets_exactly_its_share():
    persona, tpf, temperature = np.array([-1, 0, 1.0]), np.array([-2, 2.0]), np.array([-0.5, 0.5])
    accuracy = 7 + persona[:, None, None] + tpf[:, None] + temperature
    three = 0.25 * np.array([1, 0, -1.0])[:, None, None] * np.array([1, -1.0])[:, None] * np.array([1, -1.0])
    shares = variance_shares((accuracy + three)[..., None], ("persona", "tpf", "temperature")).isel(draw=0)
    planted = {"persona": 2 / 3, "tpf": 4, "temperature": 0.25, HIGHER: 0.0625 * 2 / 3}
    total = sum(planted.values())
    for term in shares["term"].values.tolist():
        assert shares.sel(term=term).item() == pytest.approx(planted.get(term, 0) / total, abs=1e-12)


def test_each_draw_is_its_own():
    rng = np.random.default_rng(1)
    accuracy = rng.integers(0, 20, (4, 2, 3, 6)) / 20
    accuracy[..., 3] = 0.1
    shares = variance_shares(accuracy, ("persona", "ppf", "tpf"))
    assert np.isnan(shares.values[:, 3]).all()
    assert "reason" not in shares.attrs
    for draw in (0, 1, 2, 4, 5):
        alone = variance_shares(accuracy[..., draw : draw + 1], ("persona", "ppf", "tpf"))
        assert shares.values[:, draw] == pytest.approx(alone.values[:, 0])


def test_counts_and_accuracies_have_the_same_shares_and_stay_as_they_are():
    counts = np.random.default_rng(2).integers(0, 50, (3, 2, 2, 4))
    before = counts.copy()
    of_counts = variance_shares(counts, ("persona", "ppf", "tpf"))
    assert of_counts.values == pytest.approx(variance_shares(counts / 50, ("persona", "ppf", "tpf")).values)
    assert (counts == before).all()


@pytest.mark.parametrize("share", [0.1, 1 / 3, 1.0])
def test_T9_equal_accuracies_have_no_shares_and_a_reason(share):
    shares = variance_shares(np.full((3, 7, 2, 1), share), ("persona", "ppf", "tpf"))
    assert shares.sizes["term"] == 7
    assert np.isnan(shares.values).all()
    assert shares.attrs["reason"] == "every run is equally accurate: there is no variance to share out"


def test_T9_one_run_and_no_runs():
    one = variance_shares(np.ones((1, 1, 2)), ("persona", "tpf"))
    assert one.shape == (0, 2)
    assert one.attrs["reason"].startswith("one run")
    assert variance_shares(np.ones((0, 2, 2)), ("persona", "tpf")).attrs["reason"].startswith("no runs")


def test_names_must_fit():
    with pytest.raises(ValueError, match="2 names for an array of 3 axes"):
        variance_shares(np.ones((2, 2, 2, 1)), ("ppf", "tpf"))
