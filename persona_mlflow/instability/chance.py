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

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.outcome import rank_personas
from persona_mlflow.instability.question import question_instability
from persona_mlflow.instability.result import Grid

if TYPE_CHECKING:
    import xarray as xr

Method = Literal["exact", "normal", "auto"]

EXACT_BUDGET = 10_000_000
"""Binomial draws that ``method="auto"`` spends before it turns to the normal limit: about a second."""

NORMAL_VARIANCE = 10.0
"""Variance of a permuted count from which ``method="auto"`` may use the normal limit."""

TOGETHER_BUDGET = 100_000_000
"""Answers that ``method="auto"`` moves one by one in `permuted_together`: about a second."""

_STATE_ENTRIES = 2**18  # of the exact walk, and of a block of draws: a few MiB, which a cache holds
_LATTICE_VARIANCE = 1 / 12  # that rounding to integers adds (Sheppard's correction)
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


def line_answers(correct: xr.DataArray, over: str | Sequence[str] | None = None) -> np.ndarray:
    """Lay out a grid of outcomes by line.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary; by default every dim but persona and question. Each combination of the other
            factors' levels is one line.

    Returns:
        Boolean, persona × line × setting × question.

    Raises:
        UserError: If ``correct`` or ``over`` is not of that form, or ``over`` names persona.
    """
    grid = Grid.check(correct, over)
    if not grid.unit:
        raise UserError(
            "over contains 'persona', but the levels of chance permute each persona's answers across "
            "settings: name factors alone"
        )
    values = correct.transpose("persona", *grid.kept, *grid.over, "question").values
    lines = int(np.prod([correct.sizes[dim] for dim in grid.kept], dtype=int))
    return values.reshape(correct.sizes["persona"], lines, grid.settings, grid.questions)


def right_histogram(right: np.ndarray, settings: int) -> np.ndarray:
    """Number of questions by how often each is right.

    Args:
        right: Integer, persona × line × question: in how many of the line's settings it is right.
        settings: S, the number of settings in a line.

    Returns:
        int64, persona × line × (S + 1): entry m counts the questions that are right in m settings.
    """
    personas, lines, _ = right.shape
    cells = personas * lines
    cell = np.arange(cells).reshape(personas, lines, 1) * (settings + 1)
    flat = np.bincount((cell + right).ravel(), minlength=cells * (settings + 1))
    return flat.reshape(personas, lines, settings + 1)


def permuted_counts(
    histogram: np.ndarray,
    draws: int,
    rng: np.random.Generator | int,
    *,
    method: Method = "auto",
    budget: int = EXACT_BUDGET,
    threads: int = 1,
) -> np.ndarray:
    """Counts of correct answers after correctness is permuted across settings within persona and question.

    ``exact`` draws from the permutation distribution without permuting an answer. It walks through the
    settings: of the N_r questions that are still to be right in r of the t settings left,
    Binomial(N_r, r / t) are right in this one, and have r − 1 left. That is at most S(S − 1)/2 binomials per
    persona, line and draw, however many questions there are.

    ``normal`` draws from the limit for many questions: a question right in m settings adds variance
    m(S − m)/S² to each count and covariance −m(S − m)/(S²(S − 1)) to each pair of them. The draws are
    rounded to integers, so that ties between personas are as likely as they should be.

    ``auto`` is exact within ``budget``. Beyond it, the personas and lines whose counts have a variance of at
    least `NORMAL_VARIANCE` are drawn from the limit, and the others stay exact. From there on the floor is
    within 0.5 % of the exact one, and a p-value within 0.02.

    Args:
        histogram: As `right_histogram` gives it, persona × line × (S + 1).
        draws: Number of permuted data sets, at least 1.
        rng: A generator, of which children are spawned, or a seed. The draws depend on it alone, not on
            ``threads``.
        method: ``exact``, ``normal`` or ``auto``.
        budget: Most binomials to draw with ``auto`` before the limit is used; they take about 0.1 µs each.
        threads: Threads to divide the draws among; numpy lets them run side by side.

    Returns:
        int32, persona × line × setting × draw.

    Raises:
        UserError: If ``draws`` is below 1 or ``method`` is unknown.
    """
    _check(draws, method)
    personas, lines, settings = histogram.shape[0], histogram.shape[1], histogram.shape[2] - 1
    cells = personas * lines
    state = histogram.reshape(cells, settings + 1).astype(np.int64)
    variance = _variance(state)
    if settings < 2:
        exact = np.ones(cells, bool)
    elif method == "auto":
        affordable = cells * draws * settings * (settings - 1) // 2 <= budget
        exact = np.full(cells, affordable) | (variance < NORMAL_VARIANCE)
    else:
        exact = np.full(cells, method == "exact")
    counts = np.empty((cells, settings, draws), np.int32)

    def fill(part: np.ndarray, child: np.random.Generator) -> None:
        if exact.all():
            _walk(state, child, part)
            return
        _limit(state[~exact], child, part, ~exact)
        if exact.any():
            rare = np.empty((int(exact.sum()), *part.shape[1:]), np.int32)
            _walk(state[exact], child, rare)
            part[exact] = rare

    _in_chunks(fill, counts, rng, threads)
    return counts.reshape(personas, lines, settings, draws)


def permuted_together(
    answers: np.ndarray,
    draws: int,
    rng: np.random.Generator | int,
    *,
    method: Method = "auto",
    budget: int = TOGETHER_BUDGET,
    threads: int = 1,
) -> np.ndarray:
    """As `permuted_counts`, but within question alone: all personas' answers to it move together.

    What personas share within a setting is kept, so that the p-value is right whether or not their answers
    are independent of one another. ``exact`` permutes the answers themselves. ``normal`` draws from the limit
    for many questions: with C the covariance of two personas' answers over the settings of a question, summed
    over questions, counts of one setting have covariance C and of two settings −C / (S − 1).

    Args:
        answers: As `line_answers` gives them: boolean, persona × line × setting × question.
        draws: Number of permuted data sets, at least 1.
        rng: As in `permuted_counts`.
        method: ``exact``, ``normal``, or ``auto``, which is exact for each line that its part of ``budget``
            allows. Where the variance of a count is 5 or more, the limit's floor is within 1 % of the exact
            one.
        budget: Most answers to move with ``auto``: personas × settings × draws × the questions that are not
            alike in every setting.
        threads: As in `permuted_counts`.

    Returns:
        int32, persona × line × setting × draw.

    Raises:
        UserError: If ``draws`` is below 1 or ``method`` is unknown.
    """
    _check(draws, method)
    personas, lines, settings, _ = answers.shape
    counts = np.empty((personas, lines, settings, draws), np.int32)
    for line, parent in enumerate(np.random.default_rng(rng).spawn(lines)):
        values = answers[:, line]
        moving = (values != values[:, :1]).any(axis=(0, 1))
        active = values[:, :, moving]
        affordable = active.size * draws * lines <= budget
        exact = method == "exact" or settings < 2 or (method == "auto" and affordable)
        fill = _shuffler(active) if exact else _joint_limit(active)
        _in_chunks(fill, counts[:, line], parent, threads)
        counts[:, line] += np.count_nonzero(values[:, :, ~moving], axis=2)[:, :, None].astype(np.int32)
    return counts


def _in_chunks(
    fill: Callable[[np.ndarray, np.random.Generator], None],
    out: np.ndarray,
    rng: np.random.Generator | int,
    threads: int,
) -> None:
    """Fill ``out``, … × draw, chunk by chunk.

    Each chunk has a generator of its own, so that no thread's progress shifts another's numbers.
    """
    draws = out.shape[-1]
    size = max(1, _STATE_ENTRIES // max(1, out.size // draws))
    parts = [out[..., start : start + size] for start in range(0, draws, size)]
    children = np.random.default_rng(rng).spawn(len(parts))
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, parts, children))
    else:
        for part, child in zip(parts, children, strict=True):
            fill(part, child)


def _shuffler(answers: np.ndarray) -> Callable[[np.ndarray, np.random.Generator], None]:
    """Permute ``answers``, persona × setting × question, within each question."""
    _, settings, questions = answers.shape
    # Persona last: each move copies a run of bytes.
    rows = np.ascontiguousarray(answers.transpose(2, 1, 0)).view(np.int8)
    first = np.arange(questions)[:, None]

    def fill(out: np.ndarray, rng: np.random.Generator) -> None:
        for draw in range(out.shape[-1]):
            order = rng.random((questions, settings)).argsort(axis=1)
            out[..., draw] = rows[first, order].sum(axis=0, dtype=np.int32).T

    return fill


def _joint_limit(answers: np.ndarray) -> Callable[[np.ndarray, np.random.Generator], None]:
    """Draw counts of ``answers``, persona × setting × question, from the joint normal limit."""
    personas, settings, _ = answers.shape
    right = answers.sum(axis=1, dtype=float)
    flat = answers.reshape(personas, -1).astype(float)
    covariance = (flat @ flat.T - right @ right.T / settings) / (settings - 1)
    values, vectors = np.linalg.eigh(covariance - _LATTICE_VARIANCE * np.eye(personas))
    root = vectors * np.sqrt(np.maximum(values, 0))
    mean = right.sum(axis=1)[:, None, None] / settings
    always = (right == settings).sum(axis=1)[:, None, None]
    sometimes = (right > 0).sum(axis=1)[:, None, None]

    def fill(out: np.ndarray, rng: np.random.Generator) -> None:
        noise = rng.standard_normal(out.shape)
        noise -= noise.mean(axis=1, keepdims=True)
        out[...] = np.clip(np.rint(np.tensordot(root, noise, axes=1) + mean), always, sometimes)

    return fill


def _check(draws: int, method: str) -> None:
    """Refuse what no permutation can be drawn with."""
    if draws < 1:
        raise UserError(f"draws must be at least 1, got {draws}: without draws there is no level of chance")
    if method not in ("exact", "normal", "auto"):
        raise UserError(f"unknown method {method!r}: {choices(str(method), ('exact', 'normal', 'auto'))}")


def _variance(state: np.ndarray) -> np.ndarray:
    """Variance of one setting's permuted count: cell × (S + 1) → cell."""
    settings = state.shape[1] - 1
    m = np.arange(settings + 1)
    return state @ (m * (settings - m)) / max(1, settings) ** 2


def _walk(state: np.ndarray, rng: np.random.Generator, out: np.ndarray) -> None:
    """Fill ``out``, cell × setting × draw, from the exact permutation distribution."""
    _, settings, draws = out.shape
    # First the axis that is walked: each slice is contiguous.
    left = np.repeat(state.T, draws, axis=1)
    occupied = state.sum(axis=0) > 0
    for setting in range(settings):
        remaining = settings - setting
        right = left[remaining].copy()
        for r in range(1, remaining):
            if not occupied[r]:
                continue
            moved = rng.binomial(left[r], r / remaining)
            right += moved
            left[r] -= moved
            left[r - 1] += moved
            occupied[r - 1] = True
        # A question with as many rights left as settings is right in all of them.
        left[remaining - 1] += left[remaining]
        occupied[remaining - 1] |= occupied[remaining]
        out[:, setting] = right.reshape(-1, draws)


def _limit(state: np.ndarray, rng: np.random.Generator, out: np.ndarray, where: np.ndarray) -> None:
    """Fill the cells ``where`` of ``out``, cell × setting × draw, from the exchangeable normal limit."""
    _, settings, draws = out.shape
    m = np.arange(settings + 1)
    # The covariance is v S/(S − 1) times (identity − 1/S): that of noise less its mean over settings.
    scale = _variance(state) * settings / (settings - 1) - _LATTICE_VARIANCE
    noise = rng.standard_normal((len(state), settings, draws))
    noise -= noise.mean(axis=1, keepdims=True)
    noise *= np.sqrt(np.maximum(scale, 0))[:, None, None]
    noise += (state @ m / settings)[:, None, None]
    always, sometimes = state[:, -1], state[:, 1:].sum(axis=1)
    np.rint(noise, out=noise)
    np.clip(noise, always[:, None, None], sometimes[:, None, None], out=noise)
    out[where] = noise


def fast_ranks(counts: np.ndarray) -> np.ndarray:
    """Rank along the first axis, 1 for the highest count, ties the average: `rank_personas`, for many draws.

    Args:
        counts: Integer counts of correct answers, the first axis being persona.

    Returns:
        Ranks as floats, in the shape of ``counts``.
    """
    personas = len(counts)
    if not 0 < personas <= 127:
        return rank_personas(counts)
    flat = counts.reshape(personas, -1)
    ranks = np.empty(flat.shape)
    size = _STATE_ENTRIES // personas
    for start in range(0, flat.shape[1], size):
        part = ranks[:, start : start + size]
        np.multiply(_doubled_ranks(flat[:, start : start + size]), 0.5, out=part)
        part += (personas + 1) / 2
    return ranks.reshape(counts.shape)


def _doubled_ranks(counts: np.ndarray) -> np.ndarray:
    """Twice the rank, less persona count + 1: how many personas are better minus how many are worse.

    For at most 127 personas, so that int8 holds it: comparing all pairs is then faster than sorting.
    """
    narrow = counts.astype(np.int16) if counts.size and counts.max() < 2**15 else counts
    doubled = np.zeros(counts.shape, np.int8)
    for i in range(len(counts) - 1):
        better = np.greater(narrow[i], narrow[i + 1 :]).view(np.int8)
        better -= np.less(narrow[i], narrow[i + 1 :]).view(np.int8)
        doubled[i + 1 :] += better
        doubled[i] -= better.sum(axis=0, dtype=np.int8)
    return doubled


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
            spread = fast_weighted_std(_doubled_ranks(part), weights := _spread(part)) / 2
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

    _check(draws, method)
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
