"""I_A and I_O (P1 §3) of any score in place of accuracy: a value per persona and setting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from persona_mlflow.instability.accuracy import mean_pairwise_difference
from persona_mlflow.instability.outcome import rank_personas, weighted_std


@dataclass(frozen=True, eq=False)
class LevelInstability:
    """The two instabilities of a score.

    Attributes:
        differences: I_A(p): mean over pairs of settings of the absolute difference; persona × further axes.
        spreads: I_O(p), in ranks: weighted standard deviation of R(p;·); persona × further axes.
        normaliser: Mean over settings of w(s); the further axes.
    """

    differences: np.ndarray
    spreads: np.ndarray
    normaliser: np.ndarray

    @property
    def accuracy(self) -> np.ndarray:
        """I_A: the further axes."""
        return np.asarray(self.differences.mean(axis=0))

    @property
    def outcome(self) -> np.ndarray:
        """I_O: the further axes."""
        return np.asarray(self.spreads.mean(axis=0) * self.normaliser)


def level_instability(levels: np.ndarray) -> LevelInstability:
    """I_A and I_O with a score in place of accuracy (P1 §3).

    As `accuracy_instability` and `outcome_instability`, with their conventions: every ddof is 0, ties take
    the average rank, and where all weights are zero I_O is 0. Two personas tie where their scores are the
    same float.

    Args:
        levels: Not negative; persona × further axes × setting, such as persona × draw × setting, with one
            persona and two settings at least. Where a score is NaN, so is all that depends on it.

    Raises:
        ValueError: A negative score, no persona, or fewer than two settings.
    """
    if levels.shape[0] < 1 or levels.shape[-1] < 2:
        raise ValueError(f"levels of shape {levels.shape}: takes one persona and two settings at least")
    undefined = np.isnan(levels).any(axis=(0, -1))
    # 0.0, since it is larger than −0.0 in what follows.
    values = np.where(np.isnan(levels), 0.0, levels) + 0.0
    if (values < 0).any():
        raise ValueError("negative levels")
    # Shifted by a level that is among them, equal levels become 0 and stay so, free of rounding.
    differences = mean_pairwise_difference(values - values.min(axis=-1, keepdims=True))
    weights = (values - values[:1]).std(axis=0)
    # The bits of floats that are not negative, read as whole numbers, are in the order of the floats.
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    spreads = weighted_std(rank_personas(bits), weights)
    normaliser = weights.mean(axis=-1)
    return LevelInstability(
        np.where(undefined, np.nan, differences),
        np.where(undefined, np.nan, spreads),
        np.where(undefined, np.nan, normaliser),
    )
