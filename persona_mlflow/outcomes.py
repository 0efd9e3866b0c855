"""From generations to the labelled array that every metric and analysis reads.

The array's dimensions are ``persona``, one per factor of the experiment, and ``question``; a new factor is a
new dimension.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.parsing import STATUSES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import xarray as xr

PLAN = "plan.json"
QUESTIONS = "questions.parquet"
GENERATIONS = "generations.parquet"
MISSING = -1

CellReader = Callable[[Mapping[str, Any]], "pa.Table | None"]


def load_outcomes(
    source: str | Path, *, tracking_uri: str | None = None, allow_incomplete: bool = False
) -> xr.Dataset:
    """Load an experiment's outcomes.

    Args:
        source: A ledger folder (``--output``), an MLflow parent run id, or an experiment name.
        tracking_uri: Where the run or experiment is looked up; MLflow's own default otherwise.
        allow_incomplete: Take an experiment with unfinished cells: their draws have the status ``missing``.

    Returns:
        A dataset over ``persona``, the factors and ``question`` with ``correct`` (bool), ``status`` (int8,
        named by its attributes ``flag_values`` and ``flag_meanings``) and ``complete`` (bool, no question
        dimension), and the coordinates ``persona_group``, ``persona_subgroup``, ``category`` and ``label``.

    Raises:
        UserError: The source is unknown, or a cell is unfinished.
    """
    folder = Path(source)
    if (folder / PLAN).exists():
        return _from_ledger(folder, allow_incomplete)
    if folder.is_dir():
        raise UserError(f"{folder}: holds no {PLAN}; name the --output folder of a run")
    from persona_mlflow import store

    return store.load_run_outcomes(str(source), tracking_uri, allow_incomplete)


def _from_ledger(folder: Path, allow_incomplete: bool) -> xr.Dataset:
    import pyarrow.parquet as pq

    def read(entry: Mapping[str, Any]) -> pa.Table | None:
        path = folder / "cells" / f"{entry['slug']}.parquet"
        return pq.read_table(path, columns=["question_id", "correct", "status"]) if path.exists() else None

    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    questions = pq.read_table(folder / QUESTIONS).to_pandas()
    return assemble(plan, questions, read, where=str(folder), allow_incomplete=allow_incomplete)


def assemble(
    plan: Mapping[str, Any],
    questions: pd.DataFrame,
    read: CellReader,
    *,
    where: str,
    allow_incomplete: bool = False,
) -> xr.Dataset:
    """Build the dataset of an experiment out of its cells.

    Args:
        plan: ``personas`` (name, group, subgroup), ``factors`` (name → levels) and ``cells`` in grid order.
        questions: One row per question: id, category, label.
        read: A cell's entry in the plan → its table of question_id, correct and status, or None.
        where: What messages call the source.
        allow_incomplete: As `load_outcomes`.
    """
    import numpy as np
    import xarray as xr

    ids = questions["id"].tolist()
    position = {question: i for i, question in enumerate(ids)}
    code = {name: np.int8(i) for i, name in enumerate(STATUSES)}
    shape = (len(plan["cells"]), len(ids))
    correct = np.zeros(shape, dtype=bool)
    status = np.full(shape, MISSING, dtype=np.int8)
    for i, entry in enumerate(plan["cells"]):
        table = read(entry)
        if table is None:
            continue
        rows = np.array([position.get(q, -1) for q in table["question_id"].to_pylist()], dtype=np.intp)
        known = rows >= 0
        correct[i, rows[known]] = table["correct"].to_numpy()[known]
        status[i, rows[known]] = [
            code[name] for name, keep in zip(table["status"].to_pylist(), known, strict=True) if keep
        ]
    complete = (status != MISSING).all(axis=1)
    if not allow_incomplete and not complete.all():
        unfinished = [entry["name"] for entry, done in zip(plan["cells"], complete, strict=True) if not done]
        raise UserError(
            f"{where}: {len(unfinished)} of {len(complete)} runs are unfinished, the first: {unfinished[0]}; "
            "run the same command again to finish them"
        )
    personas, factors = plan["personas"], plan["factors"]
    grid = (len(personas), *(len(levels) for levels in factors.values()))
    dims = ("persona", *factors)
    attrs = {
        "flag_values": [MISSING, *range(len(STATUSES))],
        "flag_meanings": " ".join(("missing", *STATUSES)),
    }
    return xr.Dataset(
        {
            "correct": ((*dims, "question"), correct.reshape(*grid, len(ids))),
            "status": ((*dims, "question"), status.reshape(*grid, len(ids)), attrs),
            "complete": (dims, complete.reshape(grid)),
        },
        coords={
            "persona": [p["name"] for p in personas],
            "persona_group": ("persona", [p["group"] for p in personas]),
            "persona_subgroup": ("persona", [p["subgroup"] for p in personas]),
            **{name: list(levels) for name, levels in factors.items()},
            "question": ids,
            "category": ("question", questions["category"].tolist()),
            "label": ("question", questions["label"].tolist()),
        },
        attrs={"experiment": plan["name"], "model": plan["model"]},
    )


def status_rates(dataset: xr.Dataset, dims: Sequence[str] | None = None) -> dict[str, xr.DataArray]:
    """The share of draws with each status, in [0, 1].

    Args:
        dataset: As `load_outcomes` gives it.
        dims: Average over these dimensions; all of them by default.
    """
    over = list(dims) if dims is not None else list(dataset["status"].dims)
    return {name: (dataset["status"] == i).mean(over) for i, name in enumerate(STATUSES)}
