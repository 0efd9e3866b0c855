"""What an instability metric takes (a checked grid of outcomes) and what it gives back.

The three metrics share one shape. ``correct`` is boolean over persona × question × factors. The dims
named by ``over`` are varied: each combination of their levels is one setting. Persona, unless it is
varied itself, is averaged over; any further dim is kept, and the result has it (P1 §3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False, kw_only=True)
class Instability:
    """One instability metric over one grid.

    An undefined value is never a number. Without kept dims it is ``None`` and `reason` says why. An array
    cannot hold ``None``, so an undefined entry of a DataArray is NaN there, and `reasons` has it.

    Attributes:
        metric: ``accuracy``, ``outcome`` or ``question``.
        over: The varied dims, in the order of the grid.
        value: The metric, a float in the metric's unit; ``None`` where it is undefined; a DataArray over
            the kept dims where there are any.
        per_persona: The metric of each persona before it is averaged, over persona and the kept dims.
            NaN for a persona that was left out, or where the metric is undefined. Where persona is
            varied it has the kept dims alone, so one value per setting.
        reason: ``None`` where every entry of `value` is defined, else why the value is not, or how many
            entries are not and why.
        reasons: With kept dims, the reason of each undefined entry by its labels, in the order of
            ``value.dims``; empty otherwise.
    """

    metric: str
    over: tuple[str, ...]
    value: float | xr.DataArray | None
    per_persona: xr.DataArray
    reason: str | None = None
    reasons: Mapping[tuple[Any, ...], str] = field(default_factory=dict)

    @property
    def average(self) -> float | None:
        """Mean of `value` over the kept dims, undefined entries left out; ``None`` if none is defined.

        P1's single-factor instability (Fig. 4: vary one factor, average over the fixed combinations of
        the others) and its instability across personas (Fig. 7: per setting, averaged over settings).
        """
        if self.value is None or isinstance(self.value, float):
            return self.value
        entries = self.value.values
        defined = entries[~np.isnan(entries)]
        return float(defined.mean()) if defined.size else None


@dataclass(frozen=True, eq=False)
class Grid:
    """A checked grid of outcomes with its dims sorted by the part they play.

    Attributes:
        correct: Boolean, over persona × question × factors in any order.
        over: The varied dims.
        unit: ``("persona",)``, the dim that a metric averages over; empty where persona is varied.
        kept: The other dims.
        settings: Number of combinations of the varied levels.
    """

    correct: xr.DataArray
    over: tuple[str, ...]
    unit: tuple[str, ...]
    kept: tuple[str, ...]
    settings: int

    @classmethod
    def check(cls, correct: xr.DataArray, over: str | Sequence[str] | None) -> Grid:
        """Check a metric's arguments.

        Args:
            correct: Boolean, with dims ``persona``, ``question`` and one per factor.
            over: The dims to vary; ``None`` is every dim but persona and question.

        Raises:
            UserError: If ``correct`` or ``over`` is not of that form.
        """
        import xarray as xr

        if not isinstance(correct, xr.DataArray):
            hint = ' (pass dataset["correct"])' if isinstance(correct, xr.Dataset) else ""
            raise UserError(f"correct must be an xarray.DataArray, got {type(correct).__name__}{hint}")
        dims = tuple(str(dim) for dim in correct.dims)
        for dim in ("persona", "question"):
            if dim not in dims:
                raise UserError(
                    f"correct has no dim {dim!r}: its dims are {', '.join(dims) or 'none'}; "
                    "it needs persona, question and one per factor"
                )
        if correct.dtype != np.bool_:
            raise UserError(
                f"correct must be boolean, got dtype {correct.dtype}: "
                "use correct.astype(bool) where it holds only 0 and 1; fill or drop missing answers first"
            )
        varied = _varied_dims(dims, over)
        return cls(
            correct=correct,
            over=varied,
            unit=() if "persona" in varied else ("persona",),
            kept=tuple(dim for dim in dims if dim not in {"persona", "question", *varied}),
            settings=prod(correct.sizes[dim] for dim in varied),
        )

    @property
    def questions(self) -> int:
        """Number of questions."""
        return self.correct.sizes["question"]

    @property
    def noun(self) -> str:
        """What the varied levels are, in a message: a setting, or a persona where persona alone is varied."""
        return "persona" if self.over == ("persona",) else "setting"

    def undefined(self) -> str | None:
        """Why no instability can be computed from a grid of this shape; ``None`` if it can."""
        sizes = self.correct.sizes
        if not self.questions:
            return "no questions: accuracy is undefined"
        if self.unit and not sizes["persona"]:
            return "no personas: there is nothing to average over"
        for dim in self.kept:
            if not sizes[dim]:
                return f"no entries: dim {dim!r} is empty"
        if self.settings == 0:
            return f"no {self.noun}s: nothing was varied over {_listed(self.over)}"
        if self.settings == 1:
            return f"one {self.noun} gives no pairs: instability needs at least two over {_listed(self.over)}"
        return None

    def counts(self) -> xr.DataArray:
        """Integer count of correct answers, over every dim but question."""
        return self.correct.sum("question")

    def flat(self, counts: xr.DataArray) -> np.ndarray:
        """Values of ``counts`` as (persona, *kept, settings); (*kept, settings) where persona is varied."""
        lead = (*self.unit, *self.kept)
        shape = [counts.sizes[dim] for dim in lead]
        return counts.transpose(*lead, *self.over).values.reshape(*shape, self.settings)

    def array(self, values: np.ndarray | float, dims: tuple[str, ...], name: str) -> xr.DataArray:
        """Label ``values``, which has ``dims`` in that order, with the grid's coordinates.

        A single number fills the whole array.
        """
        import xarray as xr

        dropped = [dim for dim in self.correct.dims if dim not in dims]
        # The first level stands for each dropped dim (none, if it is empty): only the labels are wanted.
        like = self.correct.isel({dim: slice(0, 1) for dim in dropped}).any(dropped).transpose(*dims)
        return xr.DataArray(np.broadcast_to(values, like.shape).copy(), like.coords, like.dims, name=name)

    def shaped(self, values: np.ndarray, name: str) -> float | xr.DataArray:
        """A float from ``values`` over the kept dims where none is kept, else a DataArray."""
        return self.array(values, self.kept, name) if self.kept else float(values)

    def blank(self, name: str) -> xr.DataArray | None:
        """What `shaped` gives where nothing is defined: ``None``, or an array of NaN."""
        return self.array(np.nan, self.kept, name) if self.kept else None

    def labels(self, mask: np.ndarray) -> list[tuple[Any, ...]]:
        """Labels of the entries over the kept dims at which ``mask`` is true."""
        entries = product(*(self.correct.get_index(dim).tolist() for dim in self.kept))
        return list(compress(entries, np.ravel(mask)))

    def undefined_result(self, metric: str, reason: str) -> dict[str, Any]:
        """Fields of an `Instability` whose every entry is undefined for one reason."""
        every = np.ones([self.correct.sizes[dim] for dim in self.kept], bool)
        return {
            "metric": metric,
            "over": self.over,
            "value": self.blank(metric),
            "per_persona": self.array(np.nan, (*self.unit, *self.kept), metric),
            "reason": reason,
            "reasons": dict.fromkeys(self.labels(every), reason) if self.kept else {},
        }


def _varied_dims(dims: tuple[str, ...], over: str | Sequence[str] | None) -> tuple[str, ...]:
    """Resolve ``over`` to dims of the grid, in the grid's order."""
    if over is None:
        return tuple(dim for dim in dims if dim not in {"persona", "question"})
    names = [over] if isinstance(over, str) else over
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UserError(f"over must be the name of a dim or a sequence of names, got {over!r}")
    valid = [dim for dim in dims if dim != "question"]
    for name in names:
        if name == "question":
            raise UserError(
                "over contains 'question', which cannot be varied: every metric counts over the questions; "
                + choices(name, valid)
            )
        if name not in valid:
            raise UserError(f"over names {name!r}, which is no dim of correct: {choices(name, valid)}")
    return tuple(dim for dim in dims if dim in names)


def _listed(dims: tuple[str, ...]) -> str:
    return ", ".join(dims) or "no dim"
