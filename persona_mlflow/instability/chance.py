"""What the instabilities would be by chance: permuted settings, and independent settings.

A *line* is a set of settings that are compared with one another: all of them, or, for a single factor
(P1 Fig. 4), those that share one combination of the other factors. If the settings of a line were
exchangeable, a question that a persona gets right in m of its S settings would be right in any m of them
alike. Permuting correctness across the settings, within persona and question, gives the distribution of
I_A and I_O under that hypothesis: its mean is the *floor*, what sampling alone shows.

Permuting each persona apart (`permuted_counts`) takes the personas to be independent given the question.
Where their answers change together, as they do if a prompt format breaks the same questions for all, the
floor of I_O is then too high, and the p-value of I_A too often small. `permuted_together` moves all
personas' answers to a question at once: it needs no such assumption, and its floor of I_A has the same
expectation.

The permutation leaves every intersection and union over settings as it is, so I_Q has no such floor. Its two
ends are 0 and the value that it would have if which questions are right were independent between settings.

Both are beyond the paper. Counts are of correct answers, shaped persona × line × setting × draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.outcome import doubled_ranks, rank_personas
from persona_mlflow.instability.permutation import (
    Method,
    check_draws,
    line_answers,
    permuted_counts,
    permuted_together,
    right_histogram,
)
from persona_mlflow.instability.question import question_instability
from persona_mlflow.instability.result import Grid

if TYPE_CHECKING:
    import xarray as xr

_STATE_ENTRIES = 2**18  # of a block of draws: a few MiB, which a cache holds
_EXACT_FLOAT = 2**26  # the square of an integer below it is exact in a float


@dataclass(frozen=True, kw_only=True)
class ChanceLevel:
    """A metric beside what exchangeable settings would show.

    Attributes:
        metric: ``accuracy`` or ``outcome``.
        value: The metric, averaged over lines; a fraction. ``None`` where it is undefined.
        floor: Mean of the metric over the permuted draws.
        excess: ``value − floor``.
        p: One-sided: (1 + number of draws at or above ``value``) / (1 + number of draws).
        reason: Why the numbers are ``None``; ``None`` where they are defined.
    """

    metric: str
    value: float | None = None
    floor: float | None = None
    excess: float | None = None
    p: float | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class IndependentInstability:
    """I_Q beside its value if which questions are right were independent between settings.

    Attributes:
        observed: I_Q, averaged over lines; ``None`` where it is undefined.
        value: The value under independence; ``None`` where it is undefined.
        share: ``observed / value``, 0 where the settings agree on every question. It may exceed 1.
        reason: Why a number is ``None``; ``None`` where all are defined.
    """

    observed: float | None = None
    value: float | None = None
    share: float | None = None
    reason: str | None = None


def fast_weighted_std(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`weighted_std` along the last axis but one, for many draws on the last.

    Args:
        values: … × setting × draw.
        weights: Not negative; broadcasts against ``values``.

    Returns:
        The standard deviations, … × draw. Exactly 0 where the values of positive weight are equal, and
        where all weights are 0.
    """
    total = weights.sum(axis=-2, keepdims=True)
    share = np.divide(weights, total, out=np.zeros(weights.shape), where=total > 0)
    heaviest = np.broadcast_to(
        weights.argmax(axis=-2)[..., None, :], (*values.shape[:-2], 1, values.shape[-1])
    )
    # After the shift the mean square is at most S times the variance, so their difference loses nothing.
    shifted = values - np.take_along_axis(values, heaviest, axis=-2).astype(float)
    weighted = share * shifted
    mean = weighted.sum(axis=-2)
    weighted *= shifted
    return np.sqrt(np.maximum(weighted.sum(axis=-2) - mean**2, 0))


def accuracy_draws(counts: np.ndarray, questions: int, *, per_persona: bool = False) -> np.ndarray:
    """I_A of each draw (P1 §3), averaged over lines (P1 Fig. 4).

    Args:
        counts: Correct answers, persona × line × setting × draw, with at least two settings.
        questions: Number of questions.
        per_persona: Do not average over personas.

    Returns:
        Fractions, draw, or persona × draw.
    """
    personas, lines, settings, draws = counts.shape
    total = np.zeros((personas, draws))
    if settings <= 8:  # comparing all pairs is then faster than sorting
        for a, b in combinations(range(settings), 2):
            total += np.abs(counts[:, :, a] - counts[:, :, b]).sum(axis=1)
    else:
        size = max(1, _STATE_ENTRIES // (personas * lines * settings))
        coefficients = np.arange(1 - settings, settings, 2, dtype=float)
        for start in range(0, draws, size):
            # The sums are of integers, and exact.
            ordered = np.sort(counts[..., start : start + size].swapaxes(2, 3), axis=3) @ coefficients
            total[:, start : start + size] = ordered.sum(axis=1)
    scale = lines * settings * (settings - 1) / 2 * questions
    return total / scale if per_persona else total.sum(axis=0) / (personas * scale)


def outcome_draws(counts: np.ndarray, questions: int) -> np.ndarray:
    """I_O of each draw (P1 §3), averaged over lines (P1 Fig. 4). Pass some personas to rank them alone.

    Args:
        counts: Correct answers, persona × line × setting × draw, with at least two settings.
        questions: Number of questions.

    Returns:
        The metric as `outcome_instability` gives it, draw.
    """
    personas, lines, settings, draws = counts.shape
    values = np.empty(draws)
    size = max(1, _STATE_ENTRIES // (personas * lines * settings))
    for start in range(0, draws, size):
        part = counts[..., start : start + size]
        if personas <= 127:
            spread = fast_weighted_std(doubled_ranks(part), weights := _spread(part)) / 2
        else:
            spread = fast_weighted_std(rank_personas(part), weights := _spread(part))
        by_line = spread.mean(axis=0) * weights.mean(axis=1)
        values[start : start + size] = by_line.mean(axis=0) / questions
    return values


def _spread(counts: np.ndarray) -> np.ndarray:
    """Standard deviation over the first axis, exactly 0 where all are equal."""
    n = len(counts)
    values = counts.astype(float)
    if not values.size or n * values.max() >= _EXACT_FLOAT:
        return values.std(axis=0)
    squares = np.einsum("p...,p...->...", values, values)
    return np.sqrt(n * squares - values.sum(axis=0) ** 2) / n


def independent_draws(counts: np.ndarray, questions: int) -> np.ndarray:
    """I_Q of each draw if which questions are right were independent between settings.

    Per persona 1 − E|∩| / E|∪| with E|∩| / Q = Π_s Acc(p;s) and E|∪| / Q = 1 − Π_s (1 − Acc(p;s)). As in
    I_Q a persona that is never right is left out of the mean over personas.

    Args:
        counts: Correct answers, persona × line × setting × draw.
        questions: Number of questions, at least 1.

    Returns:
        Fractions, draw: the mean over the lines where some persona is ever right; NaN where none is.
    """
    accuracy = counts / questions
    always = accuracy.prod(axis=2)
    ever = 1 - (1 - accuracy).prod(axis=2)
    overlap = np.divide(always, ever, out=np.zeros(ever.shape), where=ever > 0)
    return _mean_defined(1 - _mean_defined(overlap, ever > 0), (ever > 0).any(axis=0))


def _mean_defined(values: np.ndarray, defined: np.ndarray) -> np.ndarray:
    """Mean along the first axis of the defined entries; NaN without any."""
    members = defined.sum(axis=0)
    total = np.where(defined, values, 0).sum(axis=0)
    return np.divide(total, members, out=np.full(members.shape, np.nan), where=members > 0)


def independent_question_instability(
    correct: xr.DataArray, over: str | Sequence[str] | None = None
) -> IndependentInstability:
    """I_Q beside its value under independence, and as a share of it, as kappa does with agreement.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary; by default every dim but persona and question. Over the others is averaged.

    Raises:
        UserError: As `line_answers`.
    """
    answers = line_answers(correct, over)
    if reason := Grid.check(correct, over).undefined():
        return IndependentInstability(reason=reason)
    result = question_instability(correct, over)
    if (observed := result.average) is None:
        return IndependentInstability(reason="no question is ever right: the union is empty")
    counts = np.count_nonzero(answers, axis=3)[..., None]
    value = float(independent_draws(counts, answers.shape[3])[0])
    if value == 0:
        reason = "every persona that is ever right is right on every question: independence gives 0 too"
        return IndependentInstability(observed=observed, value=value, reason=reason)
    return IndependentInstability(observed=observed, value=value, share=observed / value)


def floor(
    observed: np.ndarray,
    permuted: np.ndarray,
    questions: int,
    metric: Literal["accuracy", "outcome"],
    personas: np.ndarray | Sequence[int] | None = None,
) -> ChanceLevel:
    """Compare a metric with its distribution under exchangeable settings.

    Args:
        observed: Correct answers, persona × line × setting.
        permuted: As `permuted_counts` or `permuted_together` gives them from the same answers, persona ×
            line × setting × draw.
        questions: Number of questions.
        metric: ``accuracy`` or ``outcome``.
        personas: Positions of the personas to keep, e.g. a group's; ranks are taken among them.

    Returns:
        Value, floor, excess and p; all ``None``, with the reason, without two settings, questions, personas
        or lines.

    Raises:
        UserError: If ``metric`` is unknown.
    """
    if metric not in ("accuracy", "outcome"):
        raise UserError(f"unknown metric {metric!r}: {choices(str(metric), ('accuracy', 'outcome'))}")
    if personas is not None:
        observed, permuted = observed[personas], permuted[personas]
    if not questions:
        return ChanceLevel(metric=metric, reason="no questions: accuracy is undefined")
    if not observed.shape[0] or not observed.shape[1]:
        return ChanceLevel(metric=metric, reason="no personas: there is nothing to average over")
    if observed.shape[2] < 2:
        return ChanceLevel(metric=metric, reason="one setting gives no pairs: instability needs at least two")
    draws = accuracy_draws if metric == "accuracy" else outcome_draws
    value = float(draws(observed[..., None], questions)[0])
    null = draws(permuted, questions)
    # Equal values may differ in their last digits, since the order of a sum is not the same.
    reached = int(np.count_nonzero(null >= value * (1 - 1e-12)))
    level = float(null.mean())
    return ChanceLevel(
        metric=metric, value=value, floor=level, excess=value - level, p=(1 + reached) / (1 + len(null))
    )


def chance_levels(
    correct: xr.DataArray,
    over: str | Sequence[str] | None = None,
    draws: int = 1000,
    seed: int = 0,
    method: Method = "auto",
    threads: int = 1,
    together: bool = False,
) -> xr.Dataset:
    """Each instability metric beside what it would be by chance.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary; by default every dim but persona and question. The metrics are averaged over
            the levels of the others, and correctness is permuted within them.
        draws: Number of permuted data sets, at least 1.
        seed: Of the permutations.
        method: As in `permuted_counts`.
        threads: As in `permuted_counts`; the result does not depend on it.
        together: Move all personas' answers to a question at once (`permuted_together`) rather than each
            persona's apart.

    Returns:
        Over ``metric`` (accuracy, outcome, question): ``value``; ``floor``, ``excess`` and ``p`` of
        exchangeable settings, for accuracy and outcome; ``independent`` and ``share``, for question;
        ``reason``, why a number is NaN. Fractions.

    Raises:
        UserError: If ``correct`` or ``over`` is not of that form, ``over`` names persona, ``draws`` is below
            1, or ``method`` is unknown.
    """
    import xarray as xr

    check_draws(draws, method)
    answers = line_answers(correct, over)
    _, _, settings, questions = answers.shape
    undefined = Grid.check(correct, over).undefined()
    levels = [ChanceLevel(metric=metric, reason=undefined) for metric in ("accuracy", "outcome")]
    if undefined is None:
        if together:
            permuted = permuted_together(answers, draws, seed, method=method, threads=threads)
        else:
            histogram = right_histogram(np.count_nonzero(answers, axis=2), settings)
            permuted = permuted_counts(histogram, draws, seed, method=method, threads=threads)
        observed = np.count_nonzero(answers, axis=3)
        levels = [
            floor(observed, permuted, questions, "accuracy"),
            floor(observed, permuted, questions, "outcome"),
        ]
    ends = independent_question_instability(correct, over)
    numbers = {
        "value": [*(level.value for level in levels), ends.observed],
        "floor": [*(level.floor for level in levels), None],
        "excess": [*(level.excess for level in levels), None],
        "p": [*(level.p for level in levels), None],
        "independent": [None, None, ends.value],
        "share": [None, None, ends.share],
    }
    reasons = [level.reason or "independent and share are of question instability alone" for level in levels]
    fixed = "permuting correctness across settings leaves question instability as it is: it has no floor"
    reasons.append(undefined or "; ".join(filter(None, (ends.reason, fixed))))
    return xr.Dataset(
        {name: ("metric", np.array(values, dtype=float)) for name, values in numbers.items()}
        | {"reason": ("metric", reasons)},
        coords={"metric": ["accuracy", "outcome", "question"]},
        attrs={"draws": draws, "seed": seed, "method": method, "together": int(together)},
    )
