"""Questions from the user's own CSV, JSONL, JSON or Parquet file, and the ones that the package ships."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import LETTERS, OTHER, SourceRow
from persona_mlflow.questions.reading import (
    Record,
    bool_hint,
    cell,
    column,
    jsonl_records,
    letter_index,
    records,
    refuse_answer,
)

ANSWER_FORMS = ("letter", "index0", "index1", "text")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Which column holds what.

    Attributes:
        question: Column of the question; by default ``question``, else ``text``.
        options: Columns of the options in order, or the one column that holds them as a list (in a CSV: a
            JSON list). By default a list in ``options`` or ``choices``, else columns ``A``, ``B``, ``C`` …
        answer: Column of the answer.
        answer_as: What the answer is: a ``letter``, an index from 0 (``index0``), an index from 1
            (``index1``), or the correct option's ``text``. It is never guessed.
        category: Column of the category; by default ``category`` if there, else all are in ``Other``.
        label: Column of the label; by default ``label`` if there, else the category.
    """

    question: str | None = None
    options: str | tuple[str, ...] | None = None
    answer: str = "answer"
    answer_as: str = "letter"
    category: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.answer_as not in ANSWER_FORMS:
            raise UserError(
                f"columns: unknown answer_as {self.answer_as!r}; {choices(self.answer_as, ANSWER_FORMS)}"
            )
        if isinstance(self.options, tuple) and len(self.options) < 2:
            raise UserError("columns: options must name two columns or more, or one column that holds a list")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TableColumns:
        """Make one from an experiment's ``columns:``.

        Raises:
            UserError: An unknown key, or a value that is not a column's name.
        """
        valid = [field.name for field in fields(cls)]
        if not isinstance(mapping, Mapping):
            raise UserError(f"columns must be a mapping with the keys {', '.join(valid)}, not {mapping!r}")
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            if key not in valid:
                raise UserError(f"columns: unknown key {key!r}; {choices(str(key), valid)}")
            names = list(value) if key == "options" and isinstance(value, (list, tuple)) else [value]
            for name in names:
                if isinstance(name, bool):
                    raise UserError(
                        f"columns: {key} is the boolean {name}; write it in quotes, as {bool_hint(name)}"
                    )
                if not isinstance(name, str) or not name:
                    raise UserError(f"columns: {key} must name a column, but is {name!r}; put it in quotes")
            values[key] = value if isinstance(value, str) else tuple(names)
        return cls(**values)


def load(path: Path, columns: TableColumns | None = None, source: str | None = None) -> list[SourceRow]:
    """Read a file of questions.

    Args:
        path: A .csv (with a header), .jsonl, .json (a list of objects) or .parquet file.
        columns: Which column holds what; see `TableColumns` for the default.
        source: Name of the source; by default the file's name.

    Raises:
        UserError: Unreadable, a missing column, a ragged row, an empty option, or an answer that is none of
            the options; names the file, the line and the column.
    """
    return rows_from(records(path), columns or TableColumns(), source or path.name)


def load_builtin() -> list[SourceRow]:
    """Read the original questions that the package ships.

    Raises:
        UserError: The package was installed without them.
    """
    file = resources.files("persona_mlflow.questions") / "data" / "builtin.jsonl"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{file}: the built-in questions are missing from this installation; install the package again"
        ) from error
    return rows_from(jsonl_records(Path("builtin.jsonl"), text), TableColumns(), "builtin")


def rows_from(found: Sequence[Record], columns: TableColumns, source: str) -> list[SourceRow]:
    """Turn records into rows; see `load`."""
    return [_row(record, columns, source) for record in found]


def _row(record: Record, columns: TableColumns, source: str) -> SourceRow:
    question = columns.question or (
        "text" if _lacks(record, "question") and "text" in record.fields else "question"
    )
    options = _options(record, columns.options)
    category = _optional(record, columns.category, "category")
    label = _optional(record, columns.label, "label")
    return SourceRow(
        text=cell(column(record, question), f"column {question!r}", record.where),
        options=options,
        answer=_answer(column(record, columns.answer), options, columns, record.where),
        category=category or OTHER,
        label=label or category or OTHER,
        source=source,
    )


def _lacks(record: Record, name: str) -> bool:
    return name not in record.fields


def _optional(record: Record, named: str | None, default: str) -> str | None:
    if named is None and _lacks(record, default):
        return None
    name = named or default
    return cell(column(record, name), f"column {name!r}", record.where)


def _options(record: Record, named: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if named is None:
        lists = [name for name in ("options", "choices") if name in record.fields]
        letters = []
        for letter in LETTERS:
            if _lacks(record, letter):
                break
            letters.append(letter)
        if not lists and len(letters) < 2:
            raise UserError(
                f"{record.where}: no options: neither a column 'options' with a list nor columns 'A', 'B' …; "
                f"name them with columns: {{options: …}}; "
                f"{choices('options', (n for n in record.fields if n))}"
            )
        named = lists[0] if lists else tuple(letters)
    if isinstance(named, tuple):
        return tuple(
            cell(column(record, name), f"option {LETTERS[i]} (column {name!r})", record.where)
            for i, name in enumerate(named)
        )
    values = column(record, named)
    if isinstance(values, str):
        try:
            values = json.loads(values)
        except json.JSONDecodeError:
            values = None
    if not isinstance(values, list):
        raise UserError(
            f"{record.where}: column {named!r} must hold a list of options (in a CSV a JSON list, such as "
            f'["red", "blue"]); name several columns as options: [one, two] where each option has its own'
        )
    if not 2 <= len(values) <= len(LETTERS):
        raise UserError(
            f"{record.where}: column {named!r} holds {len(values)} options; it needs 2 to {len(LETTERS)}"
        )
    return tuple(
        cell(value, f"option {LETTERS[i]} (column {named!r})", record.where) for i, value in enumerate(values)
    )


def _answer(value: Any, options: tuple[str, ...], columns: TableColumns, where: str) -> int:
    what = f"the answer (column {columns.answer!r}, read as {columns.answer_as})"
    # Parquet files written by pandas hold whole numbers as 2.0 where a column once had a gap.
    given = str(int(value)) if isinstance(value, float) and value.is_integer() else cell(value, what, where)
    forms = f"or say what it is with columns: {{answer_as: {' | '.join(ANSWER_FORMS)}}}"
    if columns.answer_as == "letter":
        letters = LETTERS[: len(options)]
        if given.upper() not in list(letters):
            refuse_answer(given, what, where, f"choose from {', '.join(letters)}, {forms}")
        return letter_index(given, len(options), what, where)
    if columns.answer_as == "text":
        matches = [i for i, option in enumerate(options) if option == given]
        if len(matches) > 1:
            raise UserError(
                f"{where}: {what} is {given!r}, which is the text of {len(matches)} options; use letters"
            )
        if not matches:
            refuse_answer(given, what, where, f"{choices(given, options)}, {forms}")
        return matches[0]
    first = 1 if columns.answer_as == "index1" else 0
    valid = [str(i) for i in range(first, first + len(options))]
    if given not in valid:
        refuse_answer(given, what, where, f"choose from {', '.join(valid)}, {forms}")
    return valid.index(given)
