"""The ranking metrics of a method run: the mean over its seeds, with bootstrap intervals over groups (P2 §4).

Convention of ours, where P2 leaves it open: with several seeds a metric is computed for each seed by itself,
and their mean is reported. The bootstrap draws groups, the same ones in every seed, so that the interval is
about the benchmark's groups; how far the seeds differ is told by their standard deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.pairwise import check_alpha
from persona_mlflow.prism.ranking import (
    METRICS,
    RankingMetrics,
    Scored,
    group_draws,
    percentile_interval,
    ranking_metrics,
    read_columns,
)

if TYPE_CHECKING:
    import pandas as pd

    from persona_mlflow.prism.results import MethodRun


@dataclass(frozen=True)
class MethodMetrics:
    """The ranking metrics of one method run; also by name, as in ``metrics["auc"]``.

    Attributes:
        auc: P2 eq. 4 and 5, mean over seeds; ``None`` where it is undefined in a seed.
        pair_auc: P2 eq. 6, likewise.
        group_accuracy: P2 eq. 7, likewise.
        intervals: Metric → percentile bootstrap interval over groups, or ``None``.
        reasons: Metric → why it, or else its interval, is ``None``.
        sd: Metric → standard deviation over seeds (n − 1); ``None`` with a single seed.
        by_seed: Metric → its value in each seed, in the order of `seeds`.
        seeds: The seeds.
        examples: Examples of the benchmark.
        groups: Groups of the benchmark.
        groups_used: Metric → the groups that bear on it; the others have no scored positive or negative.
        unscored: Scores that are missing, over all seeds.
        unscored_share: Of examples × seeds.
        draws: Bootstrap draws.
        alpha: The intervals cover the share 1 − alpha of the draws.
    """

    auc: float | None
    pair_auc: float | None
    group_accuracy: float | None
    intervals: Mapping[str, tuple[float, float] | None]
    reasons: Mapping[str, str]
    sd: Mapping[str, float | None]
    by_seed: Mapping[str, tuple[float | None, ...]]
    seeds: tuple[int, ...]
    examples: int
    groups: int
    groups_used: Mapping[str, int]
    unscored: int
    unscored_share: float
    draws: int
    alpha: float

    def __getitem__(self, name: str) -> float | None:
        if name not in METRICS:
            raise KeyError(f"no ranking metric {name!r}; {choices(str(name), METRICS)}")
        value: float | None = getattr(self, name)
        return value

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {name: dict(v) if isinstance(v, Mapping) else v for name, v in plain.items()}
        return {**plain, "seeds": list(self.seeds)}


@dataclass(frozen=True, eq=False)
class Measured:
    """The three metrics of frames of scores, one frame per seed, with their bootstrap draws.

    Attributes:
        value: Shaped (metric), NaN where undefined.
        low: Lower bound, likewise.
        high: Upper bound, likewise.
        reasons: Metric → why it, or else its interval, is undefined.
        by_seed: Shaped (seed, metric).
        sampled: Mean over seeds in each draw, shaped (draw, metric).
        used: Shaped (metric): the groups that bear on it.
        of_seeds: The metrics of each seed, without draws.
        alpha: The intervals cover the share 1 − alpha of the draws.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    reasons: Mapping[str, str]
    by_seed: np.ndarray
    sampled: np.ndarray
    used: np.ndarray
    of_seeds: Sequence[RankingMetrics]
    alpha: float

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation over seeds (n − 1), shaped (metric); NaN with a single seed."""
        if len(self.by_seed) < 2:
            return np.full(len(METRICS), np.nan)
        return np.asarray(self.by_seed.std(axis=0, ddof=1))


def method_metrics(run: MethodRun, draws: int = 1000, seed: int = 0, alpha: float = 0.05) -> MethodMetrics:
    """The ranking metrics of a method run (P2 eq. 4–7).

    With a single seed they are those of `persona_mlflow.prism.ranking.ranking_metrics`.

    Args:
        run: The method run.
        draws: Bootstrap draws over groups; 0 gives no intervals.
        seed: Seed of the draws.
        alpha: The intervals cover the share 1 − alpha of the draws.

    Raises:
        UserError: The run has no rows, or what `ranking_metrics` refuses.
    """
    found = measure(seed_frames(run), comparable=run.comparable, draws=draws, seed=seed, alpha=alpha)
    return as_method_metrics(run, found, draws)


def as_method_metrics(run: MethodRun, found: Measured, draws: int) -> MethodMetrics:
    """What was measured of a method run's scores, in plain numbers.

    Args:
        run: The method run.
        found: Its metrics.
        draws: The bootstrap draws that they have.
    """
    values = dict(zip(METRICS, _plain(found.value), strict=True))
    bounds = [
        None if np.isnan(low) else (float(low), float(high))
        for low, high in zip(found.low, found.high, strict=True)
    ]
    unscored = sum(metrics.unscored for metrics in found.of_seeds)
    return MethodMetrics(
        **values,
        intervals=dict(zip(METRICS, bounds, strict=True)),
        reasons=found.reasons,
        sd=dict(zip(METRICS, _plain(found.sd), strict=True)),
        by_seed={name: tuple(_plain(found.by_seed[:, i])) for i, name in enumerate(METRICS)},
        seeds=tuple(run.seeds),
        examples=found.of_seeds[0].examples,
        groups=found.of_seeds[0].groups,
        groups_used={name: int(n) for name, n in zip(METRICS, found.used, strict=True)},
        unscored=unscored,
        unscored_share=unscored / len(run.frame),
        draws=draws,
        alpha=found.alpha,
    )


def seed_frames(run: MethodRun) -> list[pd.DataFrame]:
    """The scores of each seed of a method run, one row per example.

    Raises:
        UserError: The run has no rows.
    """
    if not len(run.frame):
        raise UserError(f"{run.benchmark}, {run.evaluator}, {run.label}: holds no scores")
    return [run.of_seed(seed) for seed in run.seeds]


def measure(
    frames: Sequence[pd.DataFrame],
    *,
    comparable: bool = True,
    draws: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
) -> Measured:
    """The three metrics, as the mean over several seeds' frames.

    Args:
        frames: The scores of each seed, as `ranking_metrics` takes them: of the same examples in the same
            order.
        comparable: Whether scores of different groups can be compared; where not, the AUC is undefined.
        draws: Bootstrap draws over groups.
        seed: Seed of the draws. Frames whose groups are equally many and come in the same order get the
            same draws of groups, also in several calls.
        alpha: The intervals cover the share 1 − alpha of the draws.

    Raises:
        UserError: What `ranking_metrics` refuses.
    """
    check_alpha(alpha)
    of_seeds = [ranking_metrics(f, draws=0, alpha=alpha, comparable=comparable) for f in frames]
    by_seed = np.array(
        [[np.nan if m[name] is None else m[name] for name in METRICS] for m in of_seeds], dtype=float
    )
    sampled = _sampled(frames, draws, seed)
    if not comparable:
        sampled[:, 0] = np.nan
    value, low, high = by_seed.mean(axis=0), np.full(3, np.nan), np.full(3, np.nan)
    used = np.array([min(_used(m, name) for m in of_seeds) for name in METRICS])
    reasons: dict[str, str] = {}
    for i, name in enumerate(METRICS):
        if np.isnan(value[i]):
            reasons[name] = _why(name, of_seeds)
            continue
        bounds, reason = percentile_interval(sampled[:, i], int(used[i]), alpha)
        if bounds is not None:
            low[i], high[i] = bounds
        if reason:
            reasons[name] = reason
    return Measured(value, low, high, reasons, by_seed, sampled, used, of_seeds, alpha)


def _sampled(frames: Sequence[pd.DataFrame], draws: int, seed: int) -> np.ndarray:
    """The metrics in each draw, mean over seeds; NaN where a seed has none."""
    total = np.zeros((draws, len(METRICS)))
    for frame in frames if draws else ():
        names, group, positive, score = read_columns(frame)
        ok = ~np.isnan(score)
        weights = _group_draws(len(names), draws, seed)
        total += Scored(group[ok], positive[ok], score[ok], len(names)).statistics(weights)
    return total / len(frames)


@lru_cache(maxsize=8)
def _group_draws(groups: int, draws: int, seed: int) -> np.ndarray:
    found = group_draws(groups, draws, seed)
    found.flags.writeable = False  # many method runs share it
    return found


def _used(metrics: RankingMetrics, name: str) -> int:
    if name == "auc":
        return metrics.groups - metrics.undefined.get("no scored example", 0)
    return metrics.groups - metrics.groups_undefined


def _why(name: str, of_seeds: Sequence[RankingMetrics]) -> str:
    undefined = [metrics.reasons[name] for metrics in of_seeds if metrics[name] is None]
    if len(undefined) == len(of_seeds):
        return undefined[0]
    return f"in {len(undefined)} of {len(of_seeds)} seeds: {undefined[0]}"


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
