"""Files to records, with errors that name the file and the line."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import LETTERS, clean


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a file.

    Attributes:
        where: ``file:line``, or ``file, row n`` where the format has no lines.
        fields: Column → value as the file holds it.
    """

    where: str
    fields: dict[str, Any]


def read_text(path: Path) -> str:
    """Read a UTF-8 file (a byte-order mark is dropped), keeping its line ends.

    Raises:
        UserError: The file cannot be read, or is in another encoding; names the first bad line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8 "
            f"(for instance `iconv -f WINDOWS-1252 -t UTF-8`)"
        ) from error


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which the row starts, fields) of a CSV file; every cell stays the text that it is.

    Cells such as ``None`` or ``NA`` are text here, never a missing value. Blank lines are skipped.

    Raises:
        UserError: The file is unreadable, or its quoting is broken.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}:{line}: not valid CSV: {error}; check the quotes of this row") from error
        if row:
            yield line, row


def csv_records(path: Path) -> list[Record]:
    """Read a CSV file with a header.

    Raises:
        UserError: No header, a column name that occurs twice, or a row with more or fewer fields.
    """
    rows = csv_rows(path)
    try:
        line, header = next(rows)
    except StopIteration:
        raise UserError(f"{path}: the file is empty; its first line must name the columns") from None
    names = [name.strip() for name in header]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise UserError(f"{path}:{line}: column {twice[0]!r} occurs twice in the header")
    records = []
    for line, row in rows:
        check_width(row, len(names), f"{path}:{line}")
        records.append(Record(f"{path}:{line}", dict(zip(names, row, strict=True))))
    return records


def check_width(row: list[str], expected: int, where: str) -> None:
    """Refuse a ragged row.

    Raises:
        UserError: The row has more or fewer fields than expected.
    """
    if len(row) != expected:
        raise UserError(
            f"{where}: {len(row)} fields where {expected} are expected; "
            f"a field that holds a comma, a quote or a line break must stand in double quotes"
        )


def jsonl_records(path: Path, text: str | None = None) -> list[Record]:
    """Read a JSONL file: one JSON object on each line, blank lines skipped.

    Args:
        path: The file, which messages name.
        text: Its content, where it was read already.

    Raises:
        UserError: Unreadable, a line that is not a JSON object, or NaN, which JSON does not have.
    """
    records = []
    for line, content in enumerate((read_text(path) if text is None else text).split("\n"), start=1):
        if content.strip():
            where = f"{path}:{line}"
            records.append(Record(where, _object(_parse(content, where), where)))
    return records


def json_records(path: Path) -> list[Record]:
    """Read a JSON file that holds one list of objects.

    Raises:
        UserError: Unreadable, not JSON, or anything but a list of objects.
    """
    rows = _parse(read_text(path), str(path))
    if not isinstance(rows, list):
        raise UserError(f"{path}: must hold a list of objects, one per question, but holds {_kind(rows)}")
    return [
        Record(f"{path}, item {n}", _object(row, f"{path}, item {n}")) for n, row in enumerate(rows, start=1)
    ]


def parquet_records(path: Path) -> list[Record]:
    """Read a Parquet file; a missing value is ``None``, and nothing else becomes one.

    Raises:
        UserError: The file is unreadable or not Parquet.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = file.read().to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a readable Parquet file: {error}") from error
    return [Record(f"{path}, row {n}", row) for n, row in enumerate(rows, start=1)]


READERS = {".csv": csv_records, ".jsonl": jsonl_records, ".json": json_records, ".parquet": parquet_records}


def records(path: Path) -> list[Record]:
    """Read a file of records by its suffix: .csv, .jsonl, .json or .parquet.

    Raises:
        UserError: Another suffix, no rows, or what the format's reader refuses.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"{path}: no reader for {path.suffix or 'a file without suffix'!r}; {choices('', READERS)}"
        )
    found = reader(path)
    if not found:
        raise UserError(f"{path}: holds no question")
    return found


def column(record: Record, name: str) -> Any:
    """The value of one column.

    Raises:
        UserError: The record has no such column; lists those it has.
    """
    try:
        return record.fields[name]
    except KeyError:
        raise UserError(
            f"{record.where}: no column {name!r}; {choices(name, (n for n in record.fields if n))}"
        ) from None


def cell(value: Any, what: str, where: str) -> str:
    """One value as cleaned text: numbers are written out, anything that would be guessed is refused.

    Args:
        value: The value as the file holds it.
        what: What it is, for messages, e.g. ``"column 'topic'"``.
        where: Where it stands.

    Raises:
        UserError: Empty, missing, not a number (NaN), a boolean, or a container.
    """
    if isinstance(value, bool):
        raise UserError(f"{where}: {what} is the boolean {value}; write it in quotes, as {bool_hint(value)}")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise UserError(f"{where}: {what} is missing (null); give it a text")
    if not isinstance(value, (str, int, float)):
        raise UserError(f"{where}: {what} must be a text, but is {_kind(value)}")
    text = clean(str(value))
    if not text:
        raise UserError(f"{where}: {what} is empty; give it a text")
    return text


def bool_hint(value: bool) -> str:
    """How to write what YAML or JSON took for a boolean."""
    return "'yes', 'on' or 'true'" if value else "'no', 'off' or 'false'"


def letter_index(value: str, count: int, what: str, where: str) -> int:
    """A letter as an index among ``count`` options.

    Raises:
        UserError: Not one of the valid letters.
    """
    letters = LETTERS[:count]
    if len(value) != 1 or value.upper() not in letters:
        refuse_answer(value, what, where, f"choose from {', '.join(letters)}")
    return letters.index(value.upper())


def refuse_answer(value: object, what: str, where: str, hint: str) -> NoReturn:
    """Raise the error for an answer that names none of the options."""
    raise UserError(f"{where}: {what} is {value!r}, which is none of the options; {hint}")


def _parse(text: str, where: str) -> Any:
    def no_constant(name: str) -> NoReturn:
        raise UserError(f"{where}: {name} is not valid JSON; use null or a text")

    try:
        return json.loads(text, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be a JSON object, but is {_kind(value)}")
    return value


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
        bool: "a boolean",
    }
    return names.get(type(value), "null" if value is None else f"a {type(value).__name__}")
