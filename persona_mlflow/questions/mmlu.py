"""MMLU (Hendrycks et al. 2020): 57 subjects, four options each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import SourceRow
from persona_mlflow.questions.reading import (
    Record,
    cell,
    check_width,
    column,
    csv_rows,
    letter_index,
    parquet_records,
    refuse_answer,
)

NAME = "mmlu"
SPLITS = {"test": "test", "validation": "val", "dev": "dev"}
"""The hub's name of a split → the name in the published CSV archive."""
OPTIONS = 4


def find_files(folder: Path, split: str = "test") -> list[Path]:
    """The files that hold a split, in the first layout that the folder has.

    The published archive's ``{split}/{subject}_{split}.csv`` (also below ``data/``), or the hub's Parquet:
    ``all/{split}-*.parquet``, else one folder per subject.

    Raises:
        UserError: No such split.
    """
    hub = hub_split(split)
    csv_split = SPLITS[hub]
    for root in (folder, folder / "data"):
        if files := sorted((root / csv_split).glob(f"*_{csv_split}.csv")):
            return files
    for pattern in (f"all/{hub}-*.parquet", f"all/{hub}/*.parquet"):
        if files := sorted(folder.glob(pattern)):
            return files
    found = [*folder.glob(f"*/{hub}-*.parquet"), *folder.glob(f"*/{hub}/*.parquet")]
    # `data` and `default` are the folders of data sets without subjects, Social IQa's among them.
    return sorted(
        f for f in found if f.relative_to(folder).parts[0] not in ("auxiliary_train", "data", "default")
    )


def hub_split(split: str) -> str:
    """The hub's name of a split; ``val`` is ``validation``.

    Raises:
        UserError: No such split.
    """
    hub = "validation" if split == "val" else split
    if hub not in SPLITS:
        raise UserError(f"mmlu has no split {split!r}; {choices(split, SPLITS)}")
    return hub


def load(folder: Path, split: str = "test") -> list[SourceRow]:
    """Read a split, ordered by subject and, within it, as published.

    Args:
        folder: A local folder in one of the layouts of `find_files`.
        split: ``test``, ``validation`` (or ``val``), ``dev``.

    Raises:
        UserError: No such files, a ragged row, an empty option, or an answer that is no option.
    """
    files = find_files(folder, split)
    if not files:
        csv_split = SPLITS[hub_split(split)]
        raise UserError(
            f"{folder}: no MMLU {split} split here; expected {csv_split}/{{subject}}_{csv_split}.csv (the "
            f"published archive) or {{subject}}/{hub_split(split)}-*.parquet (the hub's layout)"
        )
    rows = [
        row for file in files for row in (_csv(file) if file.suffix == ".csv" else _parquet(file, folder))
    ]
    return sorted(rows, key=lambda row: row.label)


def _csv(file: Path) -> list[SourceRow]:
    subject = file.stem.rpartition("_")[0]
    rows = []
    for line, fields in csv_rows(file):
        where = f"{file}:{line}"
        check_width(fields, OPTIONS + 2, where)
        options = tuple(cell(v, f"option {n}", where) for n, v in zip("ABCD", fields[1:-1], strict=True))
        answer = letter_index(fields[-1].strip(), OPTIONS, "the answer (column 6)", where)
        rows.append(SourceRow(cell(fields[0], "the question", where), options, answer, subject, NAME))
    return rows


def _parquet(file: Path, folder: Path) -> list[SourceRow]:
    top = file.relative_to(folder).parts[0]
    return [_record(record, "" if top == "all" else top) for record in parquet_records(file)]


def _record(record: Record, subject: str) -> SourceRow:
    where = record.where
    values: Any = column(record, "choices")
    if not isinstance(values, list) or len(values) != OPTIONS:
        raise UserError(f"{where}: column 'choices' must be a list of {OPTIONS} options, but is {values!r}")
    answer = column(record, "answer")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < OPTIONS:
        refuse_answer(answer, "column 'answer'", where, f"it must be a number from 0 to {OPTIONS - 1}")
    return SourceRow(
        text=cell(column(record, "question"), "column 'question'", where),
        options=tuple(cell(v, f"option {n}", where) for n, v in zip("ABCD", values, strict=True)),
        answer=answer,
        label=subject or cell(column(record, "subject"), "column 'subject'", where),
        source=NAME,
    )
