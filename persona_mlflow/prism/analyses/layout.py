"""Results over two dims besides the metric, some combinations of which were not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.prism.ranking import METRICS

if TYPE_CHECKING:
    import xarray as xr


def spread_out(
    cells: Sequence[Mapping[Any, Mapping[str, Any]]],
    labels: Sequence[Any],
    dim: str,
    nothing: Mapping[str, Any],
    *,
    rows: str = "run",
) -> xr.Dataset:
    """Results of rows × metric × a further dim.

    Args:
        cells: For each row, label → variable → numbers or texts, each shaped (metric).
        labels: The labels of the further dim.
        dim: Its name.
        nothing: The variables where a row lacks a label.
        rows: The name of the rows' dim; its labels are the caller's to add.
    """
    import xarray as xr

    variables = {}
    for name, like in nothing.items():
        dtype = object if isinstance(like[0], str) else float
        table = [[row.get(label, nothing)[name] for label in labels] for row in cells]
        shape = len(cells), len(labels), len(METRICS)
        values = np.array(table, dtype=dtype).reshape(shape).transpose(0, 2, 1)
        variables[name] = ((rows, "metric", dim), values)
    return xr.Dataset(variables, coords={"metric": list(METRICS), dim: list(labels)})
