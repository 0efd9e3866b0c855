"""Krippendorff's α: agreement between observers, with missing values (Krippendorff 2011).

α = 1 − observed / expected disagreement, both from the coincidence matrix. Where all values that can be
paired are the same, both are 0 and α is undefined: it is ``None`` with the reason, never NaN and never 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from persona_mlflow.errors import UserError, choices

LEVELS = ("nominal", "ordinal", "interval")
"""Levels of measurement, which decide how far two values disagree."""

NO_PAIRS = "no unit has two values to compare"
NO_VARIATION = "no variation: all values that can be compared are the same"

_PRESENT = 1e-9  # marginals are whole numbers up to rounding


@dataclass(frozen=True)
class Agreement:
    """Krippendorff's α and what it rests on.

    Attributes:
        alpha: 1 is perfect agreement, 0 that of chance; ``None`` where undefined.
        reason: Why it is undefined, else empty.
        units: Units with two or more values.
        values: Values in those units.
        single: Units with one value, which cannot be compared.
    """

    alpha: float | None
    reason: str
    units: int
    values: int
    single: int


def krippendorff_alpha(
    ratings: np.ndarray | Sequence[Sequence[float]], *, level: str = "ordinal"
) -> Agreement:
    """Krippendorff's α of some observers' values.

    Args:
        ratings: Shaped (observer, unit); NaN is missing. The order of the numbers is that of the values.
        level: One of `LEVELS`.

    Raises:
        UserError: An unknown level, not two axes, or an infinite value.
    """
    array = np.asarray(ratings, dtype=float)
    if array.ndim != 2:
        raise UserError(f"ratings: must be shaped (observer, unit), but have {array.ndim} axes")
    if np.isinf(array).any():
        raise UserError("ratings: an infinite value; use NaN for a missing one")
    domain = np.unique(array[~np.isnan(array)])
    found = coincidences(array, domain)
    value = alpha_of(found.sum(axis=0), domain, level=level)
    per_unit = (~np.isnan(array)).sum(axis=0)
    compared = per_unit >= 2
    reason = ""
    if np.isnan(value):
        reason = NO_VARIATION if compared.any() else NO_PAIRS
    return Agreement(
        alpha=None if reason else float(value),
        reason=reason,
        units=int(compared.sum()),
        values=int(per_unit[compared].sum()),
        single=int((per_unit == 1).sum()),
    )


def coincidences(ratings: np.ndarray, domain: np.ndarray | Sequence[float]) -> np.ndarray:
    """Each unit's coincidence matrix; their weighted sum is that of a sample in which units are repeated.

    Args:
        ratings: Shaped (observer, unit); NaN is missing.
        domain: The values, in order; shaped (value,).

    Returns:
        Shaped (unit, value, value). A unit with m ≥ 2 values adds 1 / (m − 1) for each ordered pair of them;
        one with fewer is all 0.
    """
    known = np.asarray(domain, dtype=float)
    counts = (np.asarray(ratings, dtype=float)[:, :, None] == known).sum(axis=0).astype(float)
    pairs = counts[:, :, None] * counts[:, None, :]
    diagonal = np.arange(len(known))
    pairs[:, diagonal, diagonal] -= counts
    others = counts.sum(axis=1) - 1
    return pairs / np.where(others > 0, others, 1)[:, None, None]


def alpha_of(
    coincidence: np.ndarray, domain: np.ndarray | Sequence[float], *, level: str = "ordinal"
) -> np.ndarray:
    """α of coincidence matrices.

    Args:
        coincidence: Shaped (…, value, value).
        domain: The values, in order; shaped (value,).
        level: One of `LEVELS`.

    Returns:
        Shaped (…); NaN where undefined: with fewer than two different values.

    Raises:
        UserError: An unknown level.
    """
    if level not in LEVELS:
        raise UserError(f"level: {level!r} is not valid; {choices(level, LEVELS)}")
    table = np.asarray(coincidence, dtype=float)
    marginal = table.sum(axis=-1)
    if level == "nominal":
        distance = np.broadcast_to(1.0 - np.eye(table.shape[-1]), table.shape)
    else:
        # For ranks: the values between two, each end counting half.
        place = (
            np.cumsum(marginal, axis=-1) - marginal / 2
            if level == "ordinal"
            else np.broadcast_to(np.asarray(domain, dtype=float), marginal.shape)
        )
        distance = (place[..., :, None] - place[..., None, :]) ** 2
    observed = (table * distance).sum(axis=(-2, -1))
    expected = (marginal[..., :, None] * marginal[..., None, :] * distance).sum(axis=(-2, -1))
    defined = (marginal > _PRESENT).sum(axis=-1) >= 2
    ratio = np.divide(
        (marginal.sum(axis=-1) - 1) * observed,
        expected,
        out=np.full(defined.shape, np.nan),
        where=defined,
    )
    return np.asarray(1.0 - ratio)
