"""What an analysis of method runs gives, and how it is laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persona_mlflow.analyses.entry import Entry, Finding
from persona_mlflow.prism.analyses.collection import Collection, NotThere

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.analyses.study import Study


@dataclass(frozen=True, eq=False)
class Result:
    """What an analysis found.

    Attributes:
        data: ``value``, ``low``, ``high`` and ``reason``, and perhaps more, over labelled dims.
        reasons: Benchmark → why its runs do not allow the analysis.
        notes: Benchmark → what a reader of its numbers must know.
    """

    data: xr.Dataset
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Analysis:
    """An analysis of method runs: its function, and its layout.

    Attributes:
        compute: Raises `NotThere` where no benchmark's runs allow it.
        entry: The layout; its own ``compute`` is of the other report, and not called.
    """

    compute: Callable[[Collection], Result]
    entry: Entry

    @classmethod
    def of(cls, compute: Callable[[Collection], Result], **layout: Any) -> Analysis:
        """An analysis with the layout that `persona_mlflow.analyses.entry.Entry` describes."""
        return cls(compute, Entry(compute=_of_a_study, **layout))

    def run(self, collection: Collection) -> Finding:
        """Run it; where the runs do not allow it, the finding says why."""
        try:
            found = self.compute(collection)
        except NotThere as error:
            return Finding(self.entry, None, error.reasons)
        return Finding(self.entry, found.data, found.reasons, found.notes)


def _of_a_study(study: Study) -> xr.Dataset:
    raise TypeError("this analysis is of method runs, and not of a study")
