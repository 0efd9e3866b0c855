"""AUC, Pair-AUC and strict group accuracy (P2 eq. 4–7), with bootstrap intervals over groups.

Conventions of ours, where P2 leaves them open: Pair-AUC is the mean over all positive–negative pairs within
groups, so that a group counts by its number of pairs; with several positives, a group counts as right where
each of them is above every negative; an example without a score (NaN) is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.pairwise import check_alpha

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("auc", "pair_auc", "group_accuracy")
"""The ranking metrics, in the order of P2 Table 2."""

NOT_COMPARABLE = "scores of different groups are not on one scale"

_STATE_ENTRIES = 2**20  # weights of a block of draws: a few MiB, which a cache holds
_UNDEFINED_DRAWS = 0.1  # the share of undefined draws above which there is no interval


@dataclass(frozen=True)
class RankingMetrics:
    """The three ranking metrics of one method on one benchmark; also by name, as in ``metrics["auc"]``.

    Attributes:
        auc: Chance that a random positive scores above a random negative, a tie counting half (P2 eq. 4, 5);
            ``None`` where undefined.
        pair_auc: The same over the pairs within groups (P2 eq. 6); ``None`` where undefined.
        group_accuracy: Share of groups whose positives all score above all their negatives, a tie being a
            loss (P2 eq. 7); ``None`` where undefined.
        intervals: Metric → percentile bootstrap interval over groups, or ``None``.
        reasons: Metric → why it, or else its interval, is ``None``.
        examples: Rows of the frame.
        positives: Scored positives.
        negatives: Scored negatives.
        unscored: Rows whose score is NaN: left out.
        pairs: Positive–negative pairs within groups.
        groups: Groups of the frame.
        undefined: Why a group has no pair → number of such groups; they are in neither `pair_auc` nor
            `group_accuracy`.
        partial: Groups that are judged on fewer examples than they have.
        draws: Bootstrap draws.
        alpha: The intervals cover the share 1 − alpha of the draws.
    """

    auc: float | None
    pair_auc: float | None
    group_accuracy: float | None
    intervals: Mapping[str, tuple[float, float] | None]
    reasons: Mapping[str, str]
    examples: int
    positives: int
    negatives: int
    unscored: int
    pairs: int
    groups: int
    undefined: Mapping[str, int]
    partial: int
    draws: int
    alpha: float

    def __getitem__(self, name: str) -> float | None:
        if name not in METRICS:
            raise KeyError(f"no ranking metric {name!r}; {choices(str(name), METRICS)}")
        value: float | None = getattr(self, name)
        return value

    @property
    def groups_undefined(self) -> int:
        """Groups without a scored positive or without a scored negative."""
        return sum(self.undefined.values())

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in plain.items()}


@dataclass(frozen=True, eq=False)
class Scored:
    """The scored examples of a frame.

    Attributes:
        group: Position of each example's group, below `groups`.
        positive: Whether the example is one.
        score: Its score, finite.
        groups: Number of groups, those without a scored example included.
    """

    group: np.ndarray
    positive: np.ndarray
    score: np.ndarray
    groups: int

    def per_group(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each group: pairs won (a tie is half of one), pairs, and whether the group is right."""
        order = np.lexsort((self.score, self.group))
        group, score, positive = self.group[order], self.score[order], self.positive[order]
        lower, upper = _negatives_around(score, positive, np.ones((1, len(order))), group)
        won = np.bincount(group[positive], ((lower + upper) / 2)[0], minlength=self.groups)
        positives = np.bincount(group[positive], minlength=self.groups)
        negatives = np.bincount(group[~positive], minlength=self.groups)
        worst = np.full(self.groups, np.inf)
        best = np.full(self.groups, -np.inf)
        np.minimum.at(worst, group[positive], score[positive])
        np.maximum.at(best, group[~positive], score[~positive])
        return won, positives * negatives, worst > best

    def statistics(self, weights: np.ndarray) -> np.ndarray:
        """The three metrics with groups counted ``weights`` times.

        Args:
            weights: Shaped (draw, group), whole numbers.

        Returns:
            Shaped (draw, metric); NaN where a draw has no pair.
        """
        out = np.empty((len(weights), len(METRICS)))
        order = np.argsort(self.score, kind="stable")
        group, score, positive = self.group[order], self.score[order], self.positive[order]
        step = max(1, _STATE_ENTRIES // max(1, len(order)))
        for start in range(0, len(weights), step):
            drawn = weights[start : start + step].astype(float)[:, group]
            lower, upper = _negatives_around(score, positive, drawn)
            of_positives = drawn[:, positive]
            won = (of_positives * (lower + upper)).sum(axis=1) / 2
            out[start : start + step, 0] = _ratio(
                won, of_positives.sum(axis=1) * drawn[:, ~positive].sum(axis=1)
            )
        won, pairs, right = self.per_group()
        defined = pairs > 0
        out[:, 1] = _ratio(weights @ won, weights @ pairs)
        out[:, 2] = _ratio(weights @ (right & defined).astype(float), weights @ defined.astype(float))
        return out


def ranking_metrics(
    frame: pd.DataFrame, *, draws: int = 1000, seed: int = 0, alpha: float = 0.05, comparable: bool = True
) -> RankingMetrics:
    """Rank positives against negatives (P2 eq. 4–7).

    Args:
        frame: One row per example, with the columns ``group``, ``positive`` (boolean) and ``score`` (higher
            fits better; NaN is unscored).
        draws: Bootstrap draws over groups; 0 gives no intervals.
        seed: Seed of the draws.
        alpha: The intervals cover the share 1 − alpha of the draws.
        comparable: Whether scores of different groups can be compared. Where not, as for pairwise judges,
            the AUC is undefined.

    Raises:
        UserError: A missing column, a group that is null, ``positive`` not boolean, or scores that are no
            finite numbers or NaN.
    """
    check_alpha(alpha)
    names, group, positive, score = read_columns(frame)
    ok = ~np.isnan(score)
    scored = Scored(group[ok], positive[ok], score[ok], len(names))
    values = scored.statistics(np.ones((1, len(names))))[0]
    sampled = scored.statistics(group_draws(len(names), draws, seed))
    if not comparable:
        values[0] = np.nan
        sampled[:, 0] = np.nan
    _, pairs, _ = scored.per_group()
    positives = np.bincount(scored.group[scored.positive], minlength=len(names))
    negatives = np.bincount(scored.group[~scored.positive], minlength=len(names))
    undefined = Counter(_missing_side(p, n) for p, n in zip(positives, negatives, strict=True) if p * n == 0)
    whole = np.bincount(group, minlength=len(names))
    reasons: dict[str, str] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    for column, metric in enumerate(METRICS):
        intervals[metric] = None
        used = int((pairs > 0).sum() if column else (positives + negatives > 0).sum())
        if metric == "auc" and not comparable:
            reasons[metric] = NOT_COMPARABLE
        elif np.isnan(values[column]):
            reasons[metric] = (
                "there is no example"
                if not len(score)
                else "no group has both a scored positive and a scored negative"
                if column
                else _missing_side(int(positives.sum()), int(negatives.sum()))
            )
        else:
            bounds, reason = percentile_interval(sampled[:, column], used, alpha)
            intervals[metric] = bounds
            if reason:
                reasons[metric] = reason
    auc, pair_auc, group_accuracy = (None if np.isnan(v) else float(v) for v in values)
    return RankingMetrics(
        auc=auc,
        pair_auc=pair_auc,
        group_accuracy=group_accuracy,
        intervals=intervals,
        reasons=reasons,
        examples=len(score),
        positives=int(positives.sum()),
        negatives=int(negatives.sum()),
        unscored=int((~ok).sum()),
        pairs=int(pairs.sum()),
        groups=len(names),
        undefined=dict(undefined),
        partial=int(((pairs > 0) & (positives + negatives < whole)).sum()),
        draws=draws,
        alpha=alpha,
    )


def read_columns(frame: pd.DataFrame) -> tuple[list[Any], np.ndarray, np.ndarray, np.ndarray]:
    """The checked columns of a frame of results.

    Returns:
        The groups in order of appearance; per row the group's position, positive, and score (NaN: unscored).

    Raises:
        UserError: As `ranking_metrics`.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise UserError(f"the results must be a pandas DataFrame, got {type(frame).__name__}")
    for name in ("group", "positive", "score"):
        if name not in frame.columns:
            raise UserError(f"the results have no column {name!r}; {choices(name, frame.columns)}")
    if frame["group"].isna().any():
        raise UserError(f"the results have {int(frame['group'].isna().sum())} rows without a group")
    positive = frame["positive"]
    if len(frame) and not positive.map(lambda value: isinstance(value, (bool, np.bool_))).all():
        raise UserError(f"the results' column 'positive' must be boolean, but is {positive.dtype}")
    try:
        score = pd.to_numeric(frame["score"]).to_numpy(float, na_value=np.nan)
    except (ValueError, TypeError) as error:
        raise UserError(f"the results' column 'score' must hold numbers or NaN: {error}") from error
    if np.isinf(score).any():
        raise UserError(
            f"the results have {int(np.isinf(score).sum())} infinite scores; "
            "a score is a finite number, or NaN for unscored"
        )
    codes, names = pd.factorize(frame["group"])
    return list(names), codes.astype(np.intp), positive.to_numpy(bool), score


def group_draws(groups: int, draws: int, seed: int) -> np.ndarray:
    """How often each group counts in each bootstrap draw.

    Returns:
        Shaped (draw, group); each draw sums to ``groups``.
    """
    if isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 0:
        raise UserError(f"draws must be a whole number from 0 up, but is {draws!r}")
    if not groups or not draws:
        return np.zeros((draws, groups), dtype=np.int32)
    drawn = np.random.default_rng(seed).integers(groups, size=(draws, groups))
    drawn += np.arange(draws)[:, None] * groups
    counts = np.bincount(drawn.ravel(), minlength=draws * groups)
    return counts.reshape(draws, groups).astype(np.int32)


def percentile_interval(
    sampled: np.ndarray, used: int, alpha: float
) -> tuple[tuple[float, float] | None, str]:
    """The percentile bootstrap interval of one metric.

    Args:
        sampled: Its value in each draw; NaN where undefined.
        used: Groups that bear on the metric.
        alpha: The interval covers the share 1 − alpha of the draws.

    Returns:
        The bounds and an empty reason, or ``None`` and why there are none.
    """
    if not len(sampled):
        return None, "no interval: there are no bootstrap draws"
    if used < 2:
        return None, f"no interval: {used or 'no'} group; resampling groups needs at least 2"
    defined = sampled[~np.isnan(sampled)]
    if 1 - len(defined) / len(sampled) > _UNDEFINED_DRAWS:
        return None, (
            f"no interval: undefined in {len(sampled) - len(defined)} of {len(sampled)} bootstrap draws; "
            "too few groups have both a scored positive and a scored negative"
        )
    low, high = np.quantile(defined, [alpha / 2, 1 - alpha / 2])
    return (float(low), float(high)), ""


def _negatives_around(
    score: np.ndarray, positive: np.ndarray, weights: np.ndarray, group: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weight of the negatives below each positive, and of those at or below it.

    Args:
        score: In increasing order, within each group where ``group`` is given.
        positive: Which examples are positives.
        weights: Shaped (draw, example).
        group: Groups in increasing order, within which alone examples are compared; ``None`` for all.

    Returns:
        Two arrays shaped (draw, positive).
    """
    n = len(score)
    first = np.ones(n, dtype=bool)
    first[1:] = score[1:] != score[:-1]
    base = np.zeros(n, dtype=np.intp)
    if group is not None:
        turn = np.ones(n, dtype=bool)
        turn[1:] = group[1:] != group[:-1]
        first |= turn
        base = np.flatnonzero(turn)[np.cumsum(turn) - 1]
    run = np.cumsum(first) - 1
    starts = np.append(np.flatnonzero(first), n)
    below = np.zeros((len(weights), n + 1))
    np.cumsum(np.where(positive, 0.0, weights), axis=1, out=below[:, 1:])
    offset = below[:, base[positive]] if group is not None else 0.0
    here = run[positive]
    return below[:, starts[here]] - offset, below[:, starts[here + 1]] - offset


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _missing_side(positives: int, negatives: int) -> str:
    if not positives and not negatives:
        return "no scored example"
    return "no scored negative" if positives else "no scored positive"
