"""Social IQa (Sap et al. 2019): a context, a question about it, three options."""

from __future__ import annotations

import re
from pathlib import Path

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import SourceRow
from persona_mlflow.questions.reading import Record, cell, column, jsonl_records, parquet_records, read_text

NAME = "social_iqa"
SPLITS = {"validation": "dev", "train": "train"}
"""The hub's name of a split → the name in the published archive."""
OPTION_COLUMNS = ("answerA", "answerB", "answerC")

_TYPES = (
    ("motivations", re.compile(r"^why\b")),
    ("descriptions", re.compile(r"\bdescribe\b")),
    ("reactions", re.compile(r"\bfeel(s|ing)?\b")),
    ("wants", re.compile(r"\bwants?\b")),
    ("needs", re.compile(r"\bneeds?\b")),
    ("effects", re.compile(r"\bhappen(s|ed|ing)?\b")),
)


def question_type(question: str) -> str:
    """The type of a question by its wording (P1 Appendix D.1; the rules are ours, the first that fits wins).

    Args:
        question: The question alone, without its context.

    Returns:
        ``motivations`` (Why …), ``descriptions`` (… describe …), ``reactions`` (… feel …), ``wants``,
        ``needs``, ``effects`` (… happen …), or ``misc.``
    """
    lowered = question.strip().lower()
    return next((name for name, pattern in _TYPES if pattern.search(lowered)), "misc.")


def find_files(folder: Path, split: str = "validation") -> list[Path]:
    """The files that hold a split, in the first layout that the folder has.

    The leaderboard archive's ``dev.jsonl`` (labels in ``dev-labels.lst``), or the hub's Parquet, e.g.
    ``default/validation/0000.parquet``.

    Raises:
        UserError: No such split.
    """
    hub = hub_split(split)
    for root in (folder, folder / "socialiqa-train-dev"):
        if (file := root / f"{SPLITS[hub]}.jsonl").is_file():
            return [file]
    for pattern in (
        f"default/{hub}/*.parquet",
        f"{hub}/*.parquet",
        f"data/{hub}-*.parquet",
        f"*{hub}*.parquet",
    ):
        if files := sorted(folder.glob(pattern)):
            return files
    return sorted(folder.glob(f"default/*{hub}*.parquet"))


def hub_split(split: str) -> str:
    """The hub's name of a split; ``dev`` is ``validation``.

    Raises:
        UserError: No such split.
    """
    hub = "validation" if split == "dev" else split
    if hub not in SPLITS:
        raise UserError(f"social_iqa has no split {split!r}; {choices(split, SPLITS)}")
    return hub


def load(folder: Path, split: str = "validation") -> list[SourceRow]:
    """Read a split in its published order, labelled by `question_type`.

    Args:
        folder: A local folder in one of the layouts of `find_files`.
        split: ``validation`` (or ``dev``), ``train``.

    Raises:
        UserError: No such files, more or fewer labels than questions, a label other than 1, 2 or 3, or an
            empty option.
    """
    files = find_files(folder, split)
    if not files:
        name = SPLITS[hub_split(split)]
        raise UserError(
            f"{folder}: no Social IQa {split} split here; expected {name}.jsonl with {name}-labels.lst (the "
            f"published archive) or default/{hub_split(split)}/*.parquet (the hub's layout)"
        )
    if files[0].suffix == ".jsonl":
        return _jsonl(files[0])
    return [
        _row(record, gold_index(cell(column(record, "label"), "column 'label'", record.where), record.where))
        for file in files
        for record in parquet_records(file)
    ]


def gold_index(label: str, where: str) -> int:
    """A published label as an option's index: labels count from 1.

    Raises:
        UserError: Anything but 1, 2 or 3; a 0 shows labels that count from 0, which would shift every answer.
    """
    stripped = label.strip()
    if stripped not in ("1", "2", "3"):
        hint = "; 0 means that these labels count from 0: add 1 to all of them" if stripped == "0" else ""
        raise UserError(
            f"{where}: label {stripped!r} is not 1, 2 or 3 (Social IQa counts its options from 1){hint}"
        )
    return int(stripped) - 1


def _jsonl(file: Path) -> list[SourceRow]:
    records = jsonl_records(file)
    labels_file = file.with_name(f"{file.stem}-labels.lst")
    if not labels_file.is_file():
        raise UserError(f"{labels_file}: missing; it holds the answers to {file.name}, one number per line")
    labels = read_text(labels_file).rstrip().split("\n")
    if len(labels) != len(records):
        raise UserError(
            f"{labels_file}: {len(labels)} labels for the {len(records)} questions of {file.name}"
        )
    pairs = zip(records, labels, strict=True)
    return [
        _row(record, gold_index(label, f"{labels_file}:{n}")) for n, (record, label) in enumerate(pairs, 1)
    ]


def _row(record: Record, answer: int) -> SourceRow:
    context, question = (
        cell(column(record, c), f"column {c!r}", record.where) for c in ("context", "question")
    )
    return SourceRow(
        text=f"{context} {question}",
        options=tuple(cell(column(record, c), f"column {c!r}", record.where) for c in OPTION_COLUMNS),
        answer=answer,
        label=question_type(question),
        source=NAME,
    )
