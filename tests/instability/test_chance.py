"""The permutation distribution against enumeration, permuted answers and its limit; the fast forms of the
metrics against the plain ones."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from instability_brute import FACTORS, grids
from scipy.stats import chisquare, ks_2samp, rankdata
from statsmodels.stats.weightstats import DescrStatsW

from persona_mlflow.errors import UserError
from persona_mlflow.instability import accuracy_instability, outcome_instability
from persona_mlflow.instability.chance import accuracy_draws, fast_weighted_std, outcome_draws
from persona_mlflow.instability.outcome import rank_personas, weighted_std
from persona_mlflow.instability.permutation import (
    NORMAL_VARIANCE,
    line_answers,
    permuted_counts,
    permuted_together,
    right_histogram,
)

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

quick = settings(max_examples=40, deadline=None)
overs = st.sampled_from([(FACTORS[0],), (FACTORS[2], FACTORS[0]), FACTORS])


def shuffled_answers(answers: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Permute the answers of persona × line × setting × question one question at a time, and count."""
    personas, lines, amount, questions = answers.shape
    counts = np.zeros((personas, lines, amount, draws), int)
    for d, p, line, q in product(range(draws), range(personas), range(lines), range(questions)):
        counts[p, line, :, d] += rng.permutation(answers[p, line, :, q])
    return counts


def every_count(rows: list[list[int]]) -> Counter:
    """Probability of each vector of counts, by going through every placement of every question's rights.

    ``rows`` has, for each question, its answers in each setting.
    """
    amount = len(rows[0])
    placements = [list(combinations(range(amount), sum(row))) for row in rows]
    total = np.prod([len(p) for p in placements])
    found: Counter = Counter()
    for chosen in product(*placements):
        found[tuple(sum(s in places for places in chosen) for s in range(amount))] += 1 / total
    return found


def assert_distribution(draws: np.ndarray, expected: Counter) -> None:
    """Chi-square of drawn vectors (row × draw) against their probabilities; no others may occur."""
    seen = Counter(map(tuple, draws.T.tolist()))
    assert set(seen) <= set(expected)
    keys = sorted(expected)
    probabilities = np.array([expected[key] for key in keys])
    result = chisquare([seen[key] for key in keys], probabilities / probabilities.sum() * draws.shape[1])
    assert result.pvalue > 1e-3


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 0]],
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]],
        [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]],
        [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]],
    ],
)
def test_exact_draws_follow_the_enumerated_distribution(rows):
    answers = np.array(rows, bool).T[None, None]
    histogram = right_histogram(answers.sum(axis=2), answers.shape[2])
    expected = every_count(rows)
    assert_distribution(permuted_counts(histogram, 20_000, 3, method="exact")[0, 0], expected)
    assert_distribution(permuted_together(answers, 20_000, 4, method="exact")[0, 0], expected)


def test_together_moves_the_personas_as_one():
    # Two personas with the same answers stay the same; one that is right where the other is wrong stays so.
    answers = np.array([[[1, 0, 0, 1], [1, 1, 0, 0]]], bool).reshape(1, 1, 2, 4).transpose(0, 1, 3, 2)
    trio = np.concatenate([answers, answers, ~answers])
    for method in ("exact", "normal"):
        counts = permuted_together(trio, 500, 1, method=method)
        assert (counts[0] == counts[1]).all()
        assert (counts[0] + counts[2] == 2).all()
    expected = every_count(answers[0, 0].T.astype(int).tolist())
    assert_distribution(permuted_together(trio, 20_000, 1, method="exact")[0, 0], expected)


def assert_same_covariance(one: np.ndarray, other: np.ndarray) -> None:
    """Compare covariances of … × draw, each entry within five of its standard errors."""
    one, other = (np.reshape(x, (-1, x.shape[-1])) for x in (one, other))
    expected, draws = np.cov(other), (one.shape[1], other.shape[1])
    variances = np.diag(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) * (1 / draws[0] + 1 / draws[1]))
    assert (np.abs(np.cov(one) - expected) < 5 * error + 1e-9).all()


def small_answers() -> np.ndarray:
    """3 personas × 2 lines × 4 settings × 12 questions of unlike difficulty."""
    rng = np.random.default_rng(11)
    difficulty = rng.random((3, 1, 1, 12))
    return rng.random((3, 2, 4, 12)) < difficulty


def test_exact_draws_have_the_metrics_of_permuted_answers():
    answers = small_answers()
    drawn = permuted_counts(right_histogram(answers.sum(axis=2), 4), 4000, 5, method="exact")
    shuffled = shuffled_answers(answers, 3000, np.random.default_rng(6))
    assert (drawn.sum(axis=2) == answers.sum(axis=(2, 3))[..., None]).all()
    flat, brute = drawn.reshape(-1, drawn.shape[3]), shuffled.reshape(-1, shuffled.shape[3])
    error = flat.std(axis=1) * np.sqrt(1 / 4000 + 1 / 3000)
    assert (np.abs(flat.mean(axis=1) - brute.mean(axis=1)) < 4 * error).all()
    assert_same_covariance(drawn, shuffled)
    for metric in (accuracy_draws, outcome_draws):
        assert ks_2samp(metric(drawn, 12), metric(shuffled, 12)).pvalue > 1e-3


def test_together_has_the_moments_of_questions_moved_at_once():
    answers = small_answers()
    answers[1] = answers[0] ^ (np.random.default_rng(2).random(answers[0].shape) < 0.1)
    rng = np.random.default_rng(7)
    brute = np.zeros((3, 2, 4, 3000), int)
    for d, line, q in product(range(3000), range(2), range(12)):
        brute[:, line, :, d] += answers[:, line, rng.permutation(4), q]
    drawn = permuted_together(answers, 4000, 5, method="exact")
    assert_same_covariance(drawn, brute)
    for metric in (accuracy_draws, outcome_draws):
        assert ks_2samp(metric(drawn, 12), metric(brute, 12)).pvalue > 1e-3


def test_limit_has_the_covariance_of_independent_uniform_subsets():
    amount, histogram = 5, np.array([3, 40, 70, 30, 55, 9])
    counts = permuted_counts(histogram[None, None], 40_000, 1, method="normal")[0, 0]
    variance = sum(n * m * (amount - m) / amount**2 for m, n in enumerate(histogram))
    expected = np.full((amount, amount), -variance / (amount - 1))
    np.fill_diagonal(expected, variance)
    np.testing.assert_allclose(np.cov(counts), expected, atol=0.03 * variance)
    mean = sum(n * m for m, n in enumerate(histogram)) / amount
    np.testing.assert_allclose(counts.mean(axis=1), mean, atol=5 * np.sqrt(variance / 40_000))
    assert counts.min() >= 9
    assert counts.max() <= histogram[1:].sum()


def at_threshold(amount: int, shape: np.ndarray, variance: float, personas: int) -> np.ndarray:
    """Histograms whose counts have just that variance, with a few questions that are always right."""
    m = np.arange(amount + 1)
    rng = np.random.default_rng(3)
    histogram = np.zeros((personas, 1, amount + 1), int)
    for row in histogram[:, 0]:
        while row @ (m * (amount - m)) / amount**2 < variance:
            row[rng.choice(m, p=shape / shape.sum())] += 1
        row[-1] = rng.integers(5)
    return histogram


SHAPES = {
    "right once": lambda m, n: (m == 1) * 1.0,
    "right in half": lambda m, n: (m == n // 2) * 1.0,
    "mostly alike": lambda m, n: np.where((m > 0) & (m < n), 1 / (m + 0.5) + 1 / (n - m + 0.5), 0),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("amount", [3, 12])
@pytest.mark.parametrize("times", [1, 3])
def test_limit_agrees_with_the_exact_distribution_from_the_threshold_on(amount, shape, times):
    draws = 6000
    histogram = at_threshold(
        amount, SHAPES[shape](np.arange(amount + 1), amount), NORMAL_VARIANCE * times, personas=7
    )
    exact = permuted_counts(histogram, draws, 1, method="exact")
    normal = permuted_counts(histogram, draws, 2, method="normal")
    for metric in (accuracy_draws, outcome_draws):
        a, b = metric(exact, 1), metric(normal, 1)
        assert abs(a.mean() - b.mean()) < 4 * a.std() * np.sqrt(2 / draws)
        assert abs(b.mean() / a.mean() - 1) < 0.01
        assert b.std() / a.std() == pytest.approx(1, abs=0.05)
        for level in (0.05, 0.5, 0.9, 0.95, 0.99):
            at = np.quantile(a, level)
            error = 4 * np.sqrt(2 * level * (1 - level) / draws)
            assert abs((a >= at).mean() - (b >= at).mean()) < 0.01 + error


def test_limit_is_told_apart_below_the_threshold():
    histogram = at_threshold(12, SHAPES["right once"](np.arange(13), 12), 1.0, personas=7)
    exact = accuracy_draws(permuted_counts(histogram, 6000, 1, method="exact"), 1)
    normal = accuracy_draws(permuted_counts(histogram, 6000, 2, method="normal"), 1)
    assert abs(exact.mean() - normal.mean()) > 4 * exact.std() * np.sqrt(2 / 6000)


def test_joint_limit_agrees_with_the_exact_joint_permutation():
    rng = np.random.default_rng(4)
    shared = rng.normal(size=(1, 1, 4, 150))
    answers = rng.normal(size=(6, 1, 1, 150)) + shared + 0.4 * rng.normal(size=(6, 1, 4, 150)) > 0
    exact = permuted_together(answers, 4000, 1, method="exact")
    normal = permuted_together(answers, 4000, 2, method="normal")
    assert_same_covariance(normal, exact)
    for metric in (accuracy_draws, outcome_draws):
        a, b = metric(exact, 150), metric(normal, 150)
        assert abs(a.mean() - b.mean()) < 4 * a.std() * np.sqrt(2 / 4000)
        assert b.std() / a.std() == pytest.approx(1, abs=0.06)


def test_auto_keeps_exact_what_the_limit_does_not_fit():
    # One persona never varies, one hardly, one a lot: past the budget only the last is drawn from the limit.
    histogram = np.array([[[5, 0, 0, 7]], [[5, 2, 0, 7]], [[50, 90, 60, 70]]])
    auto = permuted_counts(histogram, 3000, 1, method="auto", budget=0)
    assert (auto[0] == 7).all()
    assert (auto[1].sum(axis=1) == 23).all()  # an exact draw keeps the sum over settings
    assert len(np.unique(auto[2].sum(axis=1))) > 1  # a rounded one does not quite
    exact = permuted_counts(histogram, 3000, 1, method="exact")
    np.testing.assert_array_equal(
        permuted_counts(histogram, 3000, 1, method="auto"), exact, "within the budget auto is exact"
    )


@pytest.mark.parametrize("method", ["exact", "normal"])
def test_draws_depend_on_the_seed_alone(method):
    histogram = np.array([[[200, 300, 100, 400]] * 30] * 40)
    answers = np.random.default_rng(0).random((9, 2, 4, 50)) < 0.5
    one = permuted_counts(histogram, 150, 8, method=method)
    np.testing.assert_array_equal(one, permuted_counts(histogram, 150, 8, method=method, threads=2))
    assert (one != permuted_counts(histogram, 150, 9, method=method)).any()
    together = permuted_together(answers, 150, np.random.default_rng(8), method=method)
    np.testing.assert_array_equal(together, permuted_together(answers, 150, 8, method=method, threads=2))
    assert one.dtype == together.dtype == np.int32


@pytest.mark.parametrize("permuted", [permuted_counts, permuted_together])
def test_bad_calls_are_refused(permuted):
    data = np.zeros((1, 1, 3, 2), bool) if permuted is permuted_together else np.ones((1, 1, 3), int)
    with pytest.raises(UserError, match="draws must be at least 1, got 0"):
        permuted(data, 0, 1)
    with pytest.raises(UserError, match="did you mean 'exact'"):
        permuted(data, 5, 1, method="exat")


@given(grids(), overs)
@quick
def test_value_of_the_counts_is_the_metric(correct, over):
    answers = line_answers(correct, over)
    if answers.shape[2] < 2:
        return
    counts, questions = answers.sum(axis=3)[..., None], answers.shape[3]
    assert accuracy_draws(counts, questions) == pytest.approx(
        [accuracy_instability(correct, over).average], abs=1e-12
    )
    assert outcome_draws(counts, questions) == pytest.approx(
        [outcome_instability(correct, over).average], abs=1e-12
    )


def test_values_of_many_settings_and_personas_are_the_metrics():
    rng = np.random.default_rng(1)
    # Past the sizes at which sorting settings, and ranking by a library, take over.
    counts = rng.integers(0, 40, (130, 2, 11, 3))
    for personas in (counts, counts[:9]):
        gaps = [np.abs(personas[:, :, a] - personas[:, :, b]) for a, b in combinations(range(11), 2)]
        np.testing.assert_allclose(
            accuracy_draws(personas, 50, per_persona=True), np.mean(gaps, axis=(0, 2)) / 50, rtol=1e-12
        )
        np.testing.assert_allclose(accuracy_draws(personas, 50), np.mean(gaps, axis=(0, 1, 2)) / 50)
        expected = []
        for d in range(3):
            lines = []
            for line in range(2):
                part = personas[:, line, :, d]
                weights = part.std(axis=0) / 50
                ranks = rank_personas(part)
                spread = [DescrStatsW(row, weights=weights).std for row in ranks]
                lines.append(np.mean(spread) * weights.mean())
            expected.append(np.mean(lines))
        np.testing.assert_allclose(outcome_draws(personas, 50), expected, rtol=1e-12)


@given(
    hnp.arrays(
        np.int32,
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=6),
        elements=st.integers(0, 3) | st.integers(0, 100_000),
    )
)
@quick
def test_ranks_are_scipys(counts):
    np.testing.assert_array_equal(rank_personas(counts), rankdata(-counts.astype(np.int64), axis=0))


@pytest.mark.parametrize("personas", [0, 1, 41, 127, 128])
def test_ranks_of_many_personas_are_scipys(personas):
    counts = np.random.default_rng(0).integers(0, 60, (personas, 7, 1100))
    ranks = rank_personas(counts)
    np.testing.assert_array_equal(ranks, rankdata(-counts, axis=0))
    assert ranks.dtype == float


@given(
    hnp.arrays(np.int8, (2, 4, 3), elements=st.integers(-40, 40)),
    hnp.arrays(float, (4, 3), elements=st.sampled_from([0.0, 1e-9, 0.1, 1.0, 7.0])),
)
@quick
def test_T4_fast_weighted_std_is_the_weighted_std(values, weights):
    fast = fast_weighted_std(values, weights)
    plain = weighted_std(np.moveaxis(values, 1, -1).astype(float), np.moveaxis(weights, 0, -1))
    np.testing.assert_allclose(fast, plain, rtol=1e-9)
    np.testing.assert_array_equal(fast == 0, plain == 0)


def test_right_histogram_counts_questions():
    right = np.array([[[0, 2, 2, 1], [3, 3, 3, 3]], [[0, 0, 0, 0], [1, 2, 3, 0]]])
    assert right_histogram(right, 3).tolist() == [
        [[1, 1, 2, 0], [0, 0, 0, 4]],
        [[4, 0, 0, 0], [1, 1, 1, 1]],
    ]
    assert right_histogram(np.zeros((2, 1, 0), int), 2).tolist() == [[[0, 0, 0]], [[0, 0, 0]]]
