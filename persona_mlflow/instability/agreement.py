"""Agreement across settings: on the ranking of personas (Kendall's W), on each question (Fleiss' kappa)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from persona_mlflow.instability.outcome import rank_personas
from persona_mlflow.instability.result import Grid

if TYPE_CHECKING:
    import xarray as xr

# Below so many questions a sum over them may be far from normal, and shuffling them is cheap.
FEW_QUESTIONS = 200
# So many answers, over all draws, are shuffled in about a second.
SHUFFLED_ANSWERS = 200_000_000
_CHUNK = 20_000_000


def kendall_w(ranks: np.ndarray) -> np.ndarray:
    """Kendall's coefficient of concordance of the settings' rankings of personas, corrected for ties.

    Beyond the paper, beside I_O (P1 §3). With m settings and n personas, ``W`` = Σ_p (R_p − R̄)² /
    (m Σ_s Σ_p (R_ps − (n + 1)/2)²) where ``R_p`` = Σ_s R_ps. On average ranks Σ_p (R_ps − (n + 1)/2)² is
    (n³ − n − Σ(t³ − t))/12 over the groups of t tied personas, so this is Kendall's formula with its
    correction. W is 1 where every setting ranks alike, and near 1/m where they have nothing in common.

    Args:
        ranks: Average ranks as `rank_personas` gives them, shaped (persona, setting, draw).

    Returns:
        W in [0, 1], one per draw. NaN in a draw in which all personas tie in every setting, and everywhere
        with fewer than two personas or settings; `kendall_undefined` says why for draw 0. A setting in which
        all personas tie agrees with no other and lowers W.
    """
    personas, settings = ranks.shape[:2]
    undefined = np.full(ranks.shape[2:], np.nan)
    if personas < 2 or settings < 2:
        return undefined
    centred = ranks - (personas + 1) / 2
    between = np.square(centred.sum(axis=1)).sum(axis=0)
    within = np.einsum("ps...,ps...->...", centred, centred)
    return np.divide(between, settings * within, out=undefined, where=within > 0)


def kendall_undefined(ranks: np.ndarray) -> str | None:
    """Why W is undefined in draw 0; ``None`` if it is defined.

    Args:
        ranks: As `kendall_w`.
    """
    personas, settings = ranks.shape[:2]
    if personas < 2:
        return f"{personas or 'no'} persona{'' if personas else 's'}: a ranking needs at least two"
    if settings < 2:
        return f"{settings or 'no'} setting{'' if settings else 's'}: agreement needs at least two"
    if (ranks[..., 0] == (personas + 1) / 2).all():
        return "all personas tie in every setting: there is no ranking to agree on"
    return None


@dataclass(frozen=True)
class PersonaPermutation:
    """Kendall's W against what it would be if the personas did not differ.

    Attributes:
        value: W; ``None`` where it is undefined.
        floor: Mean of W over the draws: what W would be by chance.
        p: Share of the draws (and the experiment itself) with a W at least as high.
        method: ``permutation``, or ``normal limit`` where the draws were taken from the limit.
        reason: Why W is undefined; ``None`` where it is defined.
    """

    value: float | None
    floor: float | None
    p: float | None
    method: Literal["permutation", "normal limit"]
    reason: str | None = None


def persona_permutation_p(
    correct: xr.DataArray,
    draws: int,
    rng: np.random.Generator,
    method: Literal["permutation", "normal limit"] | None = None,
) -> PersonaPermutation:
    """Test whether the settings agree on a ranking of personas more than chance makes them.

    Under the null hypothesis personas are exchangeable within each question: a draw permutes the persona
    labels of each question, in all of its settings at once. Friedman's chi-square test takes settings to be
    independent, which settings that share their questions are not: it finds agreement where there is none.

    A draw's counts of correct answers, persona × setting, are then a sum over questions of independent
    matrices with exchangeable rows, and by the central limit theorem normal with ``E N_ps`` = Σ_q x̄_qs and
    ``cov(N_ps, N_p's')`` = (δ_pp' − 1/n) Σ_q Σ_i (x_qis − x̄_qs)(x_qis' − x̄_qs') / (n − 1) for n personas.
    Draws from that limit, rounded to whole counts so that ties occur as often, cost nothing that grows with
    the questions. They are used from `FEW_QUESTIONS` questions and more than `SHUFFLED_ANSWERS` answers over
    all draws.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        draws: Number of permutations.
        rng: Source of randomness.
        method: How to draw, for a comparison of both; chosen by size by default.

    Returns:
        W, its value by chance and the p-value. A draw in which all personas tie throughout counts as one
        with a W at least as high, and not towards the floor.

    Raises:
        UserError: If ``correct`` is not of that form.
    """
    grid = Grid.check(correct, None)
    personas, questions = correct.sizes["persona"], grid.questions
    if method is None:
        work = draws * correct.size
        exact = questions < FEW_QUESTIONS or work <= SHUFFLED_ANSWERS
        method = "permutation" if exact else "normal limit"
    answers = (
        correct.transpose("question", "persona", *grid.over)
        .values.reshape(questions, personas, grid.settings)
        .view(np.uint8)
    )
    ranks = rank_personas(answers.sum(axis=0, dtype=np.int64)[..., None])
    if reason := kendall_undefined(ranks):
        return PersonaPermutation(None, None, None, method, reason)
    value = float(kendall_w(ranks)[0])
    sample = _shuffled_counts if method == "permutation" else _normal_counts
    by_chance = kendall_w(rank_personas(sample(answers, draws, rng)))
    defined = by_chance[~np.isnan(by_chance)]
    at_least = np.isnan(by_chance) | (by_chance >= value)
    floor = float(defined.mean()) if defined.size else None
    return PersonaPermutation(value, floor, float((1 + at_least.sum()) / (1 + draws)), method)


def _shuffled_counts(answers: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Counts (persona, setting, draw) with each question's personas permuted; answers are (q, p, s)."""
    questions, personas, settings = answers.shape
    counts = np.empty((draws, personas, settings), dtype=np.int64)
    step = max(1, _CHUNK // answers.size)
    row = np.arange(questions)[None, :, None]
    for start in range(0, draws, step):
        part = counts[start : start + step]
        order = rng.random((len(part), questions, personas), dtype=np.float32).argsort(axis=-1)
        answers[row, order].sum(axis=1, dtype=np.int64, out=part)
    return np.moveaxis(counts, 0, -1)


def _normal_counts(answers: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Counts (persona, setting, draw) from the normal limit of `_shuffled_counts`."""
    personas = answers.shape[1]
    mean, covariance = null_moments(answers)
    variances, axes = np.linalg.eigh(covariance)
    noise = rng.standard_normal((draws * personas, len(mean))) @ (axes * np.sqrt(variances.clip(0))).T
    noise = noise.reshape(draws, personas, -1)
    noise -= noise.mean(axis=1, keepdims=True)
    return np.rint(np.moveaxis(noise, 0, -1) + mean[:, None]).astype(np.int64)


def null_moments(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Moments of the counts of correct answers when each question's personas are permuted.

    Args:
        answers: 0 or 1, shaped (question, persona, setting), with at least two personas.

    Returns:
        The mean per setting, and the settings' covariance Σ, of which ``cov(N_ps, N_p's')`` is
        ``(δ_pp' − 1/n) Σ_ss'`` for n personas.
    """
    personas, settings = answers.shape[1:]
    rows = answers.reshape(-1, settings)
    right = answers.sum(axis=1, dtype=np.float64)
    gram = np.zeros((settings, settings))
    # Sums of 0 and 1 below 2**24 are exact in single precision.
    step = 1 << 20
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float32)
        gram += part.T @ part
    return right.sum(axis=0) / personas, (gram - right.T @ right / personas) / (personas - 1)


def fleiss_kappa(counts_right: np.ndarray, raters: int) -> np.ndarray:
    """Fleiss' kappa of raters who each call a question right or wrong (P1 Table 8).

    P1 takes the questions as subjects and the settings as raters, per persona. With two categories, N
    questions, r raters, ``c_q`` of which say right, and ``C`` = Σ c_q, kappa comes down to
    1 − N r Σ_q c_q (r − c_q) / ((r − 1) C (N r − C)).

    Args:
        counts_right: Integer number of raters that say right, shaped (…, question).
        raters: Number of raters of each question.

    Returns:
        Kappa, shaped as ``counts_right`` without its last axis: 1 for full agreement, 0 for what the share
        of right answers alone gives. NaN where all ratings are alike, and with fewer than two raters;
        `kappa_undefined` says which.
    """
    counts = np.asarray(counts_right, dtype=np.int64)
    ratings = counts.shape[-1] * raters
    right = counts.sum(axis=-1)
    split = (counts * (raters - counts)).sum(axis=-1)
    expected = (raters - 1) * right * (ratings - right)
    ratio = np.divide(split * ratings, expected, out=np.full(right.shape, np.nan), where=expected > 0)
    return np.asarray(1 - ratio)


def kappa_undefined(counts_right: np.ndarray, raters: int) -> np.ndarray:
    """Why each kappa is undefined, the empty string where it is defined.

    Args:
        counts_right: As `fleiss_kappa`.
        raters: As `fleiss_kappa`.

    Returns:
        Text, shaped as `fleiss_kappa`'s result.
    """
    right = np.asarray(counts_right).sum(axis=-1)
    ratings = np.shape(counts_right)[-1] * raters
    if raters < 2:
        return np.full(right.shape, f"{raters or 'no'} setting{'' if raters else 's'}: agreement needs two")
    if not ratings:
        return np.full(right.shape, "no questions")
    return np.where(
        right == 0,
        "no variation: every answer is wrong",
        np.where(right == ratings, "no variation: every answer is right", ""),
    )
