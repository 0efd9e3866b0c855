"""From generations to the labelled array that every metric and analysis reads.

The array's dimensions are ``persona``, one per factor of the experiment, and ``question``; a new factor is a
new dimension. A finished parent run carries the whole array in one compact file (`pack_outcomes`), so that no
analysis has to read the generations of its children.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError
from persona_mlflow.parsing import STATUSES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import xarray as xr

PLAN = "plan.json"
QUESTIONS = "questions.parquet"
GENERATIONS = "generations.parquet"
OUTCOMES = "outcomes.npz"
FORMAT = 1
"""Of the compact file; one of another format is passed over."""
MISSING = -1
NAMED = 3
"""How many left-out things of a kind a message names before it counts the rest."""

CellReader = Callable[[Mapping[str, Any]], "pa.Table | None"]


def load_outcomes(
    source: str | Path, *, tracking_uri: str | None = None, allow_incomplete: bool = False
) -> xr.Dataset:
    """Load an experiment's outcomes.

    Args:
        source: A ledger folder (``--output``), an MLflow parent run id, or an experiment name.
        tracking_uri: Where the run or experiment is looked up; MLflow's own default otherwise.
        allow_incomplete: Take an experiment with unfinished cells: their draws have the status ``missing``;
            `complete_part` then takes what can be analysed.

    Returns:
        A dataset over ``persona``, the factors and ``question`` with ``correct`` (bool), ``status`` (int8,
        named by its attributes ``flag_values`` and ``flag_meanings``) and ``complete`` (bool, no question
        dimension), and the coordinates ``persona_group``, ``persona_subgroup``, ``category`` and ``label``.

    Raises:
        UserError: The source is unknown, or a cell is unfinished.
    """
    from persona_mlflow import store

    folder = _ledger_folder(source)
    with _readable(source):
        if folder:
            return _from_ledger(folder, allow_incomplete)
        return store.load_run_outcomes(str(source), tracking_uri, allow_incomplete)


def read_questions(source: str | Path, tracking_uri: str | None = None) -> pd.DataFrame:
    """Read the questions of an experiment, as they were asked.

    Args:
        source: As `load_outcomes`.
        tracking_uri: As `load_outcomes`.

    Returns:
        One row per question, in the order of the outcomes' dimension: ``id``, ``category``, ``label``,
        ``text``, ``options`` (a list of texts), ``answer`` (a letter) and ``source``.

    Raises:
        UserError: The source is unknown.
    """
    from persona_mlflow import store

    folder = _ledger_folder(source)
    with _readable(source):
        frame = (
            _read_frame(folder / QUESTIONS) if folder else store.load_run_questions(str(source), tracking_uri)
        )
    frame["options"] = [list(options) for options in frame["options"]]
    return frame


@contextmanager
def _readable(source: str | Path) -> Iterator[None]:
    """Say of a damaged or missing file what can be done about it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, OSError) as error:  # pyarrow's errors are among them
        lines = str(error).splitlines() or [""]
        raise UserError(
            f"{source}: its plan, its questions or its answers are damaged or missing "
            f"({type(error).__name__}: {lines[0][:200]}); give its persona-mlflow run command again to write "
            "them anew"
        ) from error


def _ledger_folder(source: str | Path) -> Path | None:
    folder = Path(source)
    if (folder / PLAN).exists():
        return folder
    if folder.is_dir():
        raise UserError(f"{folder}: holds no {PLAN}; name the --output folder of a run")
    return None


def _read_frame(path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pandas()


def _from_ledger(folder: Path, allow_incomplete: bool) -> xr.Dataset:
    import pyarrow.parquet as pq

    def read(entry: Mapping[str, Any]) -> pa.Table | None:
        path = folder / "cells" / f"{entry['slug']}.parquet"
        return pq.read_table(path, columns=["question_id", "correct", "status"]) if path.exists() else None

    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    questions = _read_frame(folder / QUESTIONS)
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

    Raises:
        UserError: A cell is unfinished, or holds a status that this version does not know.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.array(questions["id"].tolist(), pa.string())
    names = pa.array(STATUSES, pa.string())
    shape = (len(plan["cells"]), len(ids))
    correct = np.zeros(shape, dtype=bool)
    status = np.full(shape, MISSING, dtype=np.int8)
    for i, entry in enumerate(plan["cells"]):
        table = read(entry)
        if table is None:
            continue
        rows = pc.fill_null(pc.index_in(table["question_id"], ids), -1).to_numpy()
        codes = pc.fill_null(pc.index_in(table["status"], names), -1).to_numpy()
        if (codes < 0).any():
            unknown = table["status"][int(np.argmax(codes < 0))]
            raise UserError(
                f"{where}: run {entry['name']} has the status {str(unknown)!r}, which this version does not "
                "know; read it with the version that wrote it"
            )
        known = rows >= 0
        correct[i, rows[known]] = table["correct"].to_numpy()[known]
        status[i, rows[known]] = codes[known]
    return label_outcomes(plan, questions, correct, status, where=where, allow_incomplete=allow_incomplete)


def label_outcomes(
    plan: Mapping[str, Any],
    questions: pd.DataFrame,
    correct: np.ndarray,
    status: np.ndarray,
    *,
    where: str,
    allow_incomplete: bool = False,
) -> xr.Dataset:
    """Give outcomes their dimensions and coordinates.

    Args:
        plan: As `assemble`; ``cells`` is read only where one is unfinished.
        questions: As `assemble`.
        correct: Boolean, cells × questions.
        status: int8, cells × questions: an index into `persona_mlflow.parsing.STATUSES`, or -1.
        where: What messages call the source.
        allow_incomplete: As `load_outcomes`.

    Raises:
        UserError: A cell is unfinished.
    """
    import xarray as xr

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
            "correct": ((*dims, "question"), correct.reshape(*grid, len(questions))),
            "status": ((*dims, "question"), status.reshape(*grid, len(questions)), attrs),
            "complete": (dims, complete.reshape(grid)),
        },
        coords={
            "persona": [p["name"] for p in personas],
            "persona_group": ("persona", [p["group"] for p in personas]),
            "persona_subgroup": ("persona", [p["subgroup"] for p in personas]),
            **{name: list(levels) for name, levels in factors.items()},
            "question": questions["id"].tolist(),
            "category": ("question", questions["category"].tolist()),
            "label": ("question", questions["label"].tolist()),
        },
        attrs={"experiment": plan["name"], "model": plan["model"]},
    )


def pack_outcomes(dataset: xr.Dataset, spec_hash: str) -> bytes:
    """Write the outcomes of an experiment as one small file (NumPy's npz, compressed).

    It holds ``correct`` (bits of cells × questions, packed in C order), ``status`` (int8, cells × questions)
    and ``header`` (JSON: the format's version, the plan's hash, the numbers of cells and questions, what the
    status codes mean, and a hash of the questions' order).

    Args:
        dataset: As `load_outcomes` gives it, in plan order.
        spec_hash: The plan's.
    """
    status = dataset["status"].values.reshape(-1, dataset.sizes["question"])
    header = _header(spec_hash, len(status), dataset["question"].values.tolist())
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, header=np.array(header), correct=np.packbits(dataset["correct"].values), status=status
    )
    return buffer.getvalue()


def unpack_outcomes(
    path: Path,
    plan: Mapping[str, Any],
    questions: pd.DataFrame,
    *,
    where: str,
    allow_incomplete: bool = False,
) -> xr.Dataset | None:
    """Read a file of `pack_outcomes`.

    Args:
        path: The file.
        plan: As `assemble`, with its ``spec_hash``.
        questions: As `assemble`.
        where: What messages call the source.
        allow_incomplete: As `load_outcomes`.

    Returns:
        The dataset; None where the file is torn, of another version, or of another plan.

    Raises:
        UserError: A cell is unfinished.
    """
    ids = questions["id"].tolist()
    shape = (len(plan["cells"]), len(ids))
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():
                return None
        with np.load(path, allow_pickle=False) as file:
            if str(file["header"]) != _header(plan["spec_hash"], shape[0], ids):
                return None
            packed, status = file["correct"], file["status"]
    except Exception:  # whatever is wrong with the file, the children hold the same answers
        return None
    if status.shape != shape or status.dtype != np.int8 or packed.shape != (-(-status.size // 8),):
        return None
    correct = np.unpackbits(packed, count=status.size).view(bool).reshape(shape)
    return label_outcomes(plan, questions, correct, status, where=where, allow_incomplete=allow_incomplete)


def _header(spec_hash: str, cells: int, ids: Sequence[str]) -> str:
    from persona_mlflow.spec import digest

    header = {
        "format": FORMAT,
        "spec_hash": spec_hash,
        "cells": cells,
        "questions": len(ids),
        "statuses": STATUSES,
        "order": digest(list(ids)),
    }
    return json.dumps(header)


def status_rates(dataset: xr.Dataset, dims: Sequence[str] | None = None) -> dict[str, xr.DataArray]:
    """The share of draws with each status, in [0, 1].

    Args:
        dataset: As `load_outcomes` gives it.
        dims: Average over these dimensions; all of them by default.
    """
    over = list(dims) if dims is not None else list(dataset["status"].dims)
    return {name: (dataset["status"] == i).mean(over) for i, name in enumerate(STATUSES)}


def complete_part(dataset: xr.Dataset) -> tuple[xr.Dataset, str | None]:
    """The largest part of an experiment in which every persona has every answer in every setting.

    The part is a grid again: some of the personas, of each factor's levels, and of the questions. It is the
    largest, by answers, of: leaving out whatever is incomplete along one dimension alone, and leaving out
    one slice after the other, of whichever dimension, that has the greatest share of missing answers.

    Args:
        dataset: As `load_outcomes` gives it with ``allow_incomplete``.

    Returns:
        The part, all ``complete``, and a sentence that says what was left out; the dataset as it is and None
        where nothing is missing.

    Raises:
        UserError: There is no answer at all.
    """
    dims = [str(dim) for dim in dataset["status"].dims]
    answered = dataset["status"].values != MISSING
    if answered.all():
        return dataset, None
    runs = answered.all(axis=dims.index("question"))
    if not answered.any():
        raise UserError(
            f"none of the {runs.size:,} runs has an answer yet: there is nothing to analyse; give its "
            "persona-mlflow run command again to finish them"
        )
    candidates = [_drop_along(answered, axis) for axis in range(answered.ndim)]
    kept = max([*candidates, _drop_densest(answered)], key=_answers)
    part = dataset.isel({dim: np.flatnonzero(keep) for dim, keep in zip(dims, kept, strict=True)})
    part["complete"] = part["complete"] | True
    return part, _say_left_out(dataset, dict(zip(dims, kept, strict=True)), runs)


def _answers(kept: Sequence[np.ndarray]) -> int:
    return int(np.prod([keep.sum() for keep in kept], dtype=np.int64))


def _drop_along(answered: np.ndarray, axis: int) -> list[np.ndarray]:
    """Keep everything but what is incomplete along one axis."""
    kept: list[np.ndarray] = [np.ones(size, dtype=bool) for size in answered.shape]
    kept[axis] = np.asarray(answered.all(axis=_but(axis, answered.ndim)))
    return kept


def _drop_densest(answered: np.ndarray) -> list[np.ndarray]:
    """Drop the slice with the most missing answers per answer, again and again, until none is missing.

    Then take back what turned out to be complete. With one answer or more to begin with, some are left: what
    remains without its worst slice is never worse than the whole, and the last slice of an axis stays.
    """
    missing = ~answered
    axes = range(answered.ndim)
    kept: list[np.ndarray] = [np.ones(size, dtype=bool) for size in answered.shape]
    counts = [missing.sum(axis=_but(axis, answered.ndim)) for axis in axes]
    while counts[0].any():
        # Missing answers × slices: divided by all answers that are left, the share of the slice.
        several = [a for a in axes if kept[a].sum() > 1]
        axis = max(several, key=lambda a: int(counts[a].max()) * int(kept[a].sum()))
        index = int(counts[axis].argmax())
        dropped = missing[(slice(None),) * axis + (index,)]
        for other in axes:
            if other != axis:
                position = other - (other > axis)
                counts[other] -= dropped.sum(axis=_but(position, dropped.ndim))
        dropped[...] = False
        counts[axis][index] = 0
        kept[axis][index] = False
    for axis in axes:
        others = [np.ones_like(keep) if a == axis else keep for a, keep in enumerate(kept)]
        kept[axis] = np.asarray(answered[np.ix_(*others)].all(axis=_but(axis, answered.ndim)))
    return kept


def _but(axis: int, ndim: int) -> tuple[int, ...]:
    return tuple(a for a in range(ndim) if a != axis)


def _say_left_out(dataset: xr.Dataset, kept: Mapping[str, np.ndarray], runs: np.ndarray) -> str:
    unfinished = int((~runs).sum())
    factors = [dim for dim in kept if dim not in ("persona", "question")]
    settings = _some_of(
        int(np.prod([kept[f].sum() for f in factors])),
        int(np.prod([kept[f].size for f in factors])),
        "setting",
    )
    used = f"{_some_of(int(kept['persona'].sum()), kept['persona'].size, 'persona')} in {settings}"
    if not kept["question"].all():
        used += f" on {_some_of(int(kept['question'].sum()), kept['question'].size, 'question')}"
    left_out = []
    for dim in ("persona", *factors):
        names = [str(name) for name in dataset[dim].values[~kept[dim]]]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            prefix = "" if dim == "persona" else f"{dim} "
            left_out.append(prefix + ", ".join(names[:NAMED]) + more)
    named = f" (left out: {'; '.join(left_out)})" if left_out else ""
    verb = "is" if unfinished == 1 else "are"
    return f"{unfinished:,} of {runs.size:,} runs {verb} unfinished: the analyses use {used}{named}"


def _some_of(some: int, all_: int, noun: str) -> str:
    plural = noun if all_ == 1 else f"{noun}s"
    if some < all_:
        return f"{some:,} of {all_:,} {plural}"
    return f"the one {noun}" if all_ == 1 else f"all {all_:,} {plural}"
