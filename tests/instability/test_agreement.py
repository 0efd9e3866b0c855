"""Kendall's W and Fleiss' kappa against loops, other libraries and by hand; the permutation p-value."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from instability_brute import grid
from scipy import stats
from statsmodels.stats.inter_rater import fleiss_kappa as statsmodels_kappa

from persona_mlflow.instability.agreement import (
    _normal_counts,
    _shuffled_counts,
    fleiss_kappa,
    kappa_undefined,
    kendall_undefined,
    kendall_w,
    null_moments,
    persona_permutation_p,
)
from persona_mlflow.instability.outcome import rank_personas

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

quick = settings(max_examples=60, deadline=None)


def w_by_loops(counts) -> float | None:
    """Kendall's formula with its correction for ties, from counts[p][s]."""
    n, m = len(counts), len(counts[0])
    if n < 2 or m < 2:
        return None
    sums, ties = [0.0] * n, 0
    for s in range(m):
        column = [counts[p][s] for p in range(n)]
        for p in range(n):
            sums[p] += 1 + sum(c > column[p] for c in column) + (column.count(column[p]) - 1) / 2
        ties += sum(column.count(c) ** 3 - column.count(c) for c in set(column))
    above = 12 * sum(r * r for r in sums) - 3 * m * m * n * (n + 1) ** 2
    below = m * m * n * (n * n - 1) - m * ties
    return above / below if below else None


@quick
@given(hnp.arrays(int, hnp.array_shapes(min_dims=3, max_dims=3, max_side=5), elements=st.integers(0, 3)))
def test_T5_kendall_agrees_with_loops_and_is_nan_exactly_where_undefined(counts):
    ranks = rank_personas(counts)
    mine = kendall_w(ranks)
    expected = [w_by_loops(counts[..., draw].tolist()) for draw in range(counts.shape[-1])]
    assert mine == pytest.approx([np.nan if w is None else w for w in expected], nan_ok=True)
    assert (kendall_undefined(ranks) is None) == (expected[0] is not None)


@quick
@given(
    hnp.arrays(
        int, hnp.array_shapes(min_dims=2, max_dims=2, min_side=3, max_side=6), elements=st.integers(0, 4)
    )
)
def test_kendall_agrees_with_friedman(counts):
    n, m = counts.shape
    if all(len(set(column)) == 1 for column in counts.T.tolist()):
        return
    chi2 = stats.friedmanchisquare(*counts).statistic
    assert kendall_w(rank_personas(counts[..., None])) == pytest.approx([chi2 / (m * (n - 1))])


def test_kendall_by_hand():
    alike = np.array([[1, 1], [2, 2], [3, 3.0]])
    opposed = np.array([[1, 3], [2, 2], [3, 1.0]])
    # Sums 2, 4.5, 5.5 deviate by −2, .5, 1.5: 6.5; the settings' own squares are 2 and 1.5: 6.5 / (2 · 3.5).
    tied = np.array([[1, 1], [2, 2.5], [3, 2.5]])
    assert kendall_w(np.stack([alike, opposed, tied], axis=-1)) == pytest.approx([1, 0, 6.5 / 7])


def test_T5_kendall_reasons():
    assert kendall_undefined(np.full((3, 2, 1), 2.0)) == (
        "all personas tie in every setting: there is no ranking to agree on"
    )
    assert kendall_undefined(np.ones((1, 2, 1))) == "1 persona: a ranking needs at least two"
    assert kendall_undefined(np.array([[[1.0]], [[2.0]]])) == "1 setting: agreement needs at least two"
    assert kendall_undefined(np.ones((0, 2, 1))) == "no personas: a ranking needs at least two"
    all_tie = persona_permutation_p(grid(np.ones((3, 2, 4)), "tpf"), 20, np.random.default_rng(0))
    assert (all_tie.value, all_tie.floor, all_tie.p) == (None, None, None)
    assert all_tie.reason.startswith("all personas tie")


def test_null_moments_are_those_of_every_permutation():
    answers = np.random.default_rng(4).integers(0, 2, (3, 3, 2)).astype(np.uint8)
    orders = [list(order) for order in permutations(range(3))]
    counts = np.array(
        [
            sum(answers[q][order] for q, order in enumerate(chosen)).ravel()
            for chosen in product(orders, repeat=3)
        ]
    )
    mean, covariance = null_moments(answers)
    assert counts.mean(axis=0) == pytest.approx(np.tile(mean, 3))
    expected = np.kron(np.eye(3) - 1 / 3, covariance)
    assert np.cov(counts.T.astype(float), bias=True) == pytest.approx(expected)


def dependent_answers(rng, questions: int, personas: int, per_group: int, better: float = 0.0) -> np.ndarray:
    """Answers (question, persona, setting): settings in two groups share most of their answers.

    Personas are exchangeable within each question unless each is better than the one before.
    """
    base = rng.random((questions, 1, 1)) * 0.5 + 0.2
    chance = base + better * np.arange(personas)[:, None]
    groups = [rng.random((questions, personas, 1)) < chance for _ in range(2)]
    shared = np.concatenate([np.repeat(group, per_group, axis=-1) for group in groups], axis=-1)
    fresh = rng.random(shared.shape) < chance
    return np.where(rng.random(shared.shape) < 0.1, fresh, shared)


def labelled(answers: np.ndarray):
    return grid(np.moveaxis(answers, 0, -1), "tpf")


@pytest.mark.parametrize("sample", [_shuffled_counts, _normal_counts])
def test_draws_have_the_moments_of_the_null(sample):
    rng = np.random.default_rng(5)
    answers = dependent_answers(rng, 60, 4, 2).astype(np.uint8)
    counts = sample(answers, 4000, rng)
    assert counts.dtype == np.int64
    mean, covariance = null_moments(answers)
    assert counts.mean(axis=-1) == pytest.approx(np.tile(mean, (4, 1)), abs=0.25)
    expected = np.kron(np.eye(4) - 1 / 4, covariance)
    assert np.cov(counts.reshape(16, -1)) == pytest.approx(expected, abs=0.08 * covariance.max())


def test_shuffling_keeps_each_question_and_its_settings_together():
    rng = np.random.default_rng(5)
    answers = dependent_answers(rng, 30, 4, 2).astype(np.uint8)
    counts = _shuffled_counts(answers, 50, rng)
    assert (counts.sum(axis=0) == answers.sum(axis=(0, 1))[:, None]).all()
    one = _shuffled_counts(answers[:1], 50, rng)
    rows = sorted(answers[0].tolist())
    assert all(sorted(one[..., draw].tolist()) == rows for draw in range(50))


def test_draws_that_equal_the_experiment_count():
    # Whoever is right is right in both settings: every permutation has W = 1.
    certain = persona_permutation_p(grid([[[1], [1]], [[0], [0]]], "tpf"), 30, np.random.default_rng(0))
    assert (certain.value, certain.floor, certain.p) == (1, 1, 1)
    # In two such questions the personas tie in half of the permutations: W is undefined there, else 1.
    half = persona_permutation_p(grid([[[1, 1]] * 2, [[0, 0]] * 2], "tpf"), 30, np.random.default_rng(0))
    assert (half.value, half.floor, half.p) == (1, 1, 1)


def test_normal_limit_agrees_with_the_permutation():
    rng = np.random.default_rng(6)
    answers = dependent_answers(rng, 400, 6, 3).astype(np.uint8)
    exact = kendall_w(rank_personas(_shuffled_counts(answers, 3000, rng)))
    limit = kendall_w(rank_personas(_normal_counts(answers, 3000, rng)))
    assert stats.ks_2samp(exact, limit).pvalue > 0.01
    error = np.sqrt((exact.var() + limit.var()) / 3000)
    assert abs(limit.mean() - exact.mean()) < 3 * error
    assert limit.std() == pytest.approx(exact.std(), rel=0.05)
    ties = [
        np.mean(counts[0] == counts[1])
        for counts in (_shuffled_counts(answers, 3000, rng), _normal_counts(answers, 3000, rng))
    ]
    assert ties[0] == pytest.approx(ties[1], abs=0.01)


@pytest.mark.parametrize("method", ["permutation", "normal limit"])
def test_permutation_p_is_uniform_under_the_null_where_friedmans_is_not(method):
    rng = np.random.default_rng(7)
    found, friedman = [], []
    for _ in range(200):
        correct = labelled(dependent_answers(rng, 60, 5, 3))
        found.append(persona_permutation_p(correct, 199, rng, method).p)
        friedman.append(stats.friedmanchisquare(*correct.sum("question").values).pvalue)
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert np.mean(np.array(found) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean(np.array(friedman) <= 0.05) > 0.2


@pytest.mark.parametrize("method", ["permutation", "normal limit"])
def test_permutation_finds_a_planted_ranking(method):
    rng = np.random.default_rng(8)
    result = persona_permutation_p(labelled(dependent_answers(rng, 300, 5, 3, better=0.06)), 499, rng, method)
    assert result.p == pytest.approx(1 / 500)
    assert result.value > result.floor


def test_permutation_method_follows_the_size_and_the_seed():
    answers = dependent_answers(np.random.default_rng(9), 250, 4, 2)
    runs = [persona_permutation_p(labelled(answers), 50, np.random.default_rng(1)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].method == "permutation"
    assert runs[0].value == pytest.approx(w_by_loops(answers.sum(axis=0).tolist()))
    wide = labelled(np.tile(answers, 25))
    assert persona_permutation_p(wide, 2_001, np.random.default_rng(1)).method == "normal limit"


tables = st.integers(2, 6).flatmap(
    lambda raters: st.tuples(
        hnp.arrays(int, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.integers(0, raters)),
        st.just(raters),
    )
)


@quick
@given(tables)
def test_kappa_agrees_with_statsmodels(table):
    counts, raters = table
    mine, reasons = fleiss_kappa(counts, raters), kappa_undefined(counts, raters)
    for row, kappa, reason in zip(counts, mine, reasons, strict=True):
        if row.sum() in (0, row.size * raters):
            assert np.isnan(kappa)
            assert reason.startswith("no variation")
        else:
            assert reason == ""
            expected = statsmodels_kappa(np.stack([row, raters - row], axis=-1))
            assert kappa == pytest.approx(expected, abs=1e-12)


def test_kappa_by_hand():
    # 3 raters, 2 questions: 2 and 3 say right. P̄ = (1/3 + 1)/2 = 2/3, P_e = (5² + 1)/36 = 26/36.
    assert fleiss_kappa(np.array([2, 3]), 3) == pytest.approx((24 / 36 - 26 / 36) / (10 / 36))
    assert fleiss_kappa(np.array([0, 3]), 3) == pytest.approx(1)


def test_T1_kappa_at_perfect_agreement_is_undefined_with_a_reason():
    counts = np.array([[4, 4], [0, 0], [4, 0]])
    assert fleiss_kappa(counts, 4) == pytest.approx([np.nan, np.nan, 1], nan_ok=True)
    assert kappa_undefined(counts, 4).tolist() == [
        "no variation: every answer is right",
        "no variation: every answer is wrong",
        "",
    ]
    assert np.isnan(fleiss_kappa(np.array([1, 0]), 1))
    assert kappa_undefined(np.array([1, 0]), 1).item() == "1 setting: agreement needs two"
    assert kappa_undefined(np.zeros((2, 0), int), 3).tolist() == ["no questions"] * 2
    assert np.isnan(fleiss_kappa(np.zeros((2, 0), int), 3)).all()
