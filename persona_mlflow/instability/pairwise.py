"""Corrected comparisons, paired by question: of settings with each other, and of personas in all settings."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.outcome import rank_personas
from persona_mlflow.instability.result import Grid

if TYPE_CHECKING:
    import xarray as xr

Correction = Literal["holm", "bonferroni", "fdr_bh"]
CORRECTIONS = ("holm", "bonferroni", "fdr_bh")


def setting_label(levels: tuple[Any, ...]) -> str:
    """Name a setting by its levels: ``youare · explain · 0.5``."""
    return " · ".join(str(level) for level in levels)


def flat_settings(correct: xr.DataArray) -> tuple[np.ndarray, list[tuple[Any, ...]], tuple[str, ...]]:
    """Lay out the settings along one axis.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.

    Returns:
        The answers (persona, setting, question), the levels of each setting, and the factors, in the order
        of ``correct``'s dims.

    Raises:
        UserError: If ``correct`` is not of that form.
    """
    grid = Grid.check(correct, None)
    answers = correct.transpose("persona", *grid.over, "question").values
    levels = [*product(*(correct.get_index(dim).tolist() for dim in grid.over))]
    return answers.reshape(len(answers), grid.settings, grid.questions), levels, grid.over


def setting_tests(correct: xr.DataArray, correction: Correction = "holm", alpha: float = 0.05) -> xr.Dataset:
    """Compare the accuracy of every two settings, averaged over personas, by a paired t-test.

    Beyond the paper. With ``d_q`` = mean over personas of correct(p, s_i, q) − correct(p, s_j, q), the
    difference is the mean of ``d_q``; its t has n − 1 degrees of freedom for n questions. So it speaks of
    these personas on further such questions.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        correction: Of the p-values over all pairs: ``holm``, ``bonferroni`` (both of the probability of any
            false finding) or ``fdr_bh`` (of the expected share of false findings).
        alpha: Level of `significant`, after correction, and of each interval, before it.

    Returns:
        Over ``pair``, labelled "a − b", with coordinates ``first`` and ``second``: ``difference`` of
        accuracy (first − second, a fraction), its ``low`` and ``high`` at 1 − alpha, ``p`` (as `paired_p`),
        ``p_adjusted`` and ``significant``.

    Raises:
        UserError: If an argument is not of that form.
        NotAllowed: With fewer than two settings or questions, or no personas.
    """
    import xarray as xr
    from scipy.special import stdtrit

    if correction not in CORRECTIONS:
        raise UserError(f"unknown correction {correction!r}: {choices(str(correction), CORRECTIONS)}")
    check_alpha(alpha)
    answers, levels, _ = flat_settings(correct)
    needs(answers, personas=1, settings=2, questions=2, what="comparing settings")
    personas, settings, n = answers.shape
    total, squares = paired_sums(answers)
    first, second = np.triu_indices(settings, k=1)
    total, squares = total[first, second], squares[first, second]
    difference = total / (personas * n)
    margin = stdtrit(n - 1, 1 - alpha / 2) * np.sqrt((n * squares - total**2) / (n - 1)) / (personas * n)
    p = paired_p(total, squares, n)
    adjusted = adjust(p, correction)
    labels = np.array([setting_label(level) for level in levels], dtype=object)
    columns = {
        "difference": difference,
        "low": difference - margin,
        "high": difference + margin,
        "p": p,
        "p_adjusted": adjusted,
        "significant": adjusted <= alpha,
    }
    return xr.Dataset(
        {name: ("pair", values) for name, values in columns.items()},
        coords={
            "pair": [f"{a} − {b}" for a, b in zip(labels[first], labels[second], strict=True)],
            "first": ("pair", labels[first].astype(str)),
            "second": ("pair", labels[second].astype(str)),
        },
        attrs={"correction": correction, "alpha": alpha, "questions": n},
    )


def persona_differences(correct: xr.DataArray, alpha: float = 0.05) -> xr.Dataset:
    """Find which persona is better than which other in every setting, and so which is best, if any.

    P1 warns against calling a persona the best on the strength of one setting. Here p is better than p'
    where, in every setting, it gets more questions right and McNemar's exact one-sided test (a binomial test
    of the questions that only one of them gets right) rejects: the pair's p-value is the largest over
    settings (an intersection–union test), corrected after Holm over all ordered pairs.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        alpha: Bound on the probability of any false finding.

    Returns:
        Over ``persona`` × ``other``: ``survives``; ``smallest`` and ``largest`` difference of accuracy over
        settings (persona − other, a fraction); ``p``, adjusted. A persona has no test against itself: p is
        NaN on the diagonal. Over ``persona``: ``accuracy`` and ``mean_rank`` over settings (1 the best),
        ``best_in`` (number of settings in which none is more accurate), ``beats`` and ``beaten_by`` (numbers
        of personas). ``attrs["best_persona"]`` names the persona that beats every other; where none does it
        is empty, and ``attrs["reason"]`` says how many are beaten by nobody.

    Raises:
        UserError: If an argument is not of that form.
        NotAllowed: With fewer than two personas, no settings or no questions.
    """
    import xarray as xr
    from scipy.special import betainc

    check_alpha(alpha)
    answers, _, _ = flat_settings(correct)
    needs(answers, personas=2, settings=1, questions=1, what="comparing personas")
    personas, settings, questions = answers.shape
    counts = answers.sum(axis=-1)
    weakest = np.zeros((personas, personas))
    for setting in range(settings):
        right = answers[:, setting].astype(np.float32)
        only = counts[:, setting, None] - np.rint(right @ right.T)
        # P(X ≥ b) of a fair binomial over b + c is the incomplete beta function at (b, c + 1).
        p = np.where(only > 0, betainc(np.maximum(only, 1), only.T + 1, 0.5), 1.0)
        np.maximum(weakest, p, out=weakest)
    gap = counts[:, None] - counts[None]
    smallest, largest = gap.min(axis=-1), gap.max(axis=-1)
    off = ~np.eye(personas, dtype=bool)
    adjusted = np.full(weakest.shape, np.nan)
    adjusted[off] = adjust(weakest[off], "holm")
    survives = off & (smallest > 0) & (np.where(off, adjusted, 1) <= alpha)
    beats, beaten_by = survives.sum(axis=1), survives.sum(axis=0)
    names = correct.get_index("persona").tolist()
    winners = np.flatnonzero(beats == personas - 1)
    attrs = {
        "alpha": alpha,
        "settings": settings,
        "best_persona": str(names[winners[0]]) if len(winners) else "",
    }
    if not len(winners):
        attrs["reason"] = (
            f"{int((beaten_by == 0).sum())} of {personas} personas are beaten by no other in all settings"
        )
    pair, single = ("persona", "other"), "persona"
    return xr.Dataset(
        {
            "survives": (pair, survives),
            "smallest": (pair, smallest / questions),
            "largest": (pair, largest / questions),
            "p": (pair, adjusted, {"reason": "a persona has no test against itself"}),
            "accuracy": (single, counts.mean(axis=1) / questions),
            "mean_rank": (single, rank_personas(counts).mean(axis=1)),
            "best_in": (single, (counts == counts.max(axis=0)).sum(axis=1)),
            "beats": (single, beats),
            "beaten_by": (single, beaten_by),
        },
        coords={"persona": names, "other": names},
        attrs=attrs,
    )


def paired_sums(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums over questions of the difference of two settings, and of its square.

    Args:
        answers: Boolean, shaped (persona, setting, question).

    Returns:
        Two exact integer arrays (setting, setting). The difference is the count of personas that are right
        in the first setting less that in the second.
    """
    right = answers.sum(axis=0, dtype=np.int64)
    totals = right.sum(axis=1)
    # Products of counts stay far below 2**53, so that the sums are exact.
    gram = np.rint(right.astype(float) @ right.T.astype(float)).astype(np.int64)
    own = gram.diagonal()
    return totals[:, None] - totals, own[:, None] + own - 2 * gram


def paired_p(total: np.ndarray, squares: np.ndarray, n: int) -> np.ndarray:
    """Two-sided p-value of the paired t-test, from exact sums.

    Differences that are all alike have no variance and no t: their p-value is 1 if they are 0, otherwise
    that of the sign test, 2^(1 − n).

    Args:
        total: Integer sum of the n differences.
        squares: Integer sum of their squares.
        n: Number of differences, at least 2.
    """
    from scipy.special import stdtr

    spread = n * squares - total**2
    t = np.divide(np.abs(total), np.sqrt(spread / (n - 1)), out=np.zeros(total.shape), where=spread > 0)
    return np.where(spread > 0, 2 * stdtr(n - 1, -t), np.where(total == 0, 1.0, 2.0 ** (1 - n)))


def adjust(p: np.ndarray, correction: Correction) -> np.ndarray:
    """p-values corrected for their number, by statsmodels; none give none."""
    from statsmodels.stats.multitest import multipletests

    return np.asarray(multipletests(p, method=correction)[1]) if p.size else p


def needs(answers: np.ndarray, *, personas: int, settings: int, questions: int, what: str) -> None:
    """Check that a grid is large enough.

    Args:
        answers: Shaped (persona, setting, question).
        personas: The least number that is needed.
        settings: The least number that is needed.
        questions: The least number that is needed.
        what: What needs them, for the message.

    Raises:
        NotAllowed: If the grid has fewer.
    """
    from persona_mlflow.analyses.study import NotAllowed

    least = {"persona": personas, "setting": settings, "question": questions}
    for (noun, needed), there in zip(least.items(), answers.shape, strict=True):
        if there < needed:
            have = f"{there or 'no'} {noun}{'' if there == 1 else 's'}"
            raise NotAllowed(f"{have}: {what} needs at least {needed}")


def check_alpha(alpha: float) -> None:
    """Raise `UserError` unless ``alpha`` is a level of a test."""
    if not 0 < alpha < 1:
        raise UserError(f"alpha must be between 0 and 1, got {alpha!r}")
