"""Outcomes whose settings are exchangeable: right answers permuted across settings, and counted.

A *line* is a set of settings that are compared with one another: all of them, or, for a single factor
(P1 Fig. 4), those that share one combination of the other factors. If the settings of a line were
exchangeable, a question that a persona gets right in m of its S settings would be right in any m of them
alike. Counts are of correct answers, shaped persona × line × setting × draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.result import Grid

if TYPE_CHECKING:
    import xarray as xr

Method = Literal["exact", "normal", "auto"]

EXACT_BUDGET = 10_000_000
"""Binomial draws that ``method="auto"`` spends before it turns to the normal limit: about a second."""

NORMAL_VARIANCE = 10.0
"""Variance of a permuted count from which ``method="auto"`` may use the normal limit."""

TOGETHER_BUDGET = 100_000_000
"""Answers that `permuted_together` moves with ``method="auto"`` before it turns to the normal limit."""

_STATE_ENTRIES = 2**18  # of the exact walk, and of a block of draws: a few MiB, which a cache holds
_LATTICE_VARIANCE = 1 / 12  # that rounding to integers adds (Sheppard's correction)


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
    check_draws(draws, method)
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
    check_draws(draws, method)
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


def check_draws(draws: int, method: str) -> None:
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
