"""What validation reads: filled annotation sheets, and what methods gave the same items.

Sheets are read as strictly as they can be and as leniently as spreadsheets need.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.annotation import FIDELITY, LABELLING, SCALE, SHEETS, Key, unguard
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.prompt import LABELS

if TYPE_CHECKING:
    import pandas as pd

PROBABILITIES = "probabilities.parquet"
SCORE_LOG = "scores.jsonl"
"""Where a PRISM run keeps its probabilities: the table, or what was logged as it was made."""

_DELIMITERS = (",", ";", "\t")
_READ = {FIDELITY: ("item", "rating"), LABELLING: ("item", "dimension", "choice")}
_OPTIONAL = {FIDELITY: (), LABELLING: ("second_choice",)}
_ANSWERS = ("rating", "choice", "second_choice")
_OTHER_FORMATS = (".xlsx", ".xls", ".ods", ".numbers")
_WHOLE = re.compile(r"([+-]?\d+)(?:[.,]0+)?", re.ASCII)


@dataclass(frozen=True)
class Progress:
    """How far an annotator is with a sheet.

    Attributes:
        annotator: Who.
        sheet: One of `persona_mlflow.prism.annotation.SHEETS`.
        rows: Rows that the sheet should have.
        filled: Rows with an answer.
        blank: Rows without one.
        missing: Rows that are not there, which is all of them where the file is not.
    """

    annotator: str
    sheet: str
    rows: int
    filled: int
    blank: int
    missing: int

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, eq=False)
class Annotations:
    """What the annotators answered.

    Attributes:
        key: The key of the sheets.
        ratings: One row per answer: annotator, item, rating.
        labels: One row per answer: annotator, item, dimension, state, second (a state, or empty).
        progress: Each annotator's two sheets.
    """

    key: Key
    ratings: pd.DataFrame
    labels: pd.DataFrame
    progress: tuple[Progress, ...]

    def filled(self, sheet: str) -> tuple[int, int]:
        """Answers, and rows that there should be, of one kind of sheet over all annotators."""
        parts = [p for p in self.progress if p.sheet == sheet]
        return sum(p.filled for p in parts), sum(p.rows for p in parts)


def read_annotations(folder: Path) -> Annotations:
    """Read the key and every sheet of a folder.

    Columns may be in any order and further ones may have been added; texts other than ``item``,
    ``dimension`` and the answers are not looked at. Comma, semicolon and tab separate columns, in UTF-8, or
    in UTF-16 with a byte-order mark.

    Raises:
        UserError: What `Key.load` refuses, or a sheet with an unknown or repeated item, an answer that is
            none, a column missing, or another format; names file and line.
    """
    import pandas as pd

    key = Key.load(folder)
    ratings: list[tuple[Any, ...]] = []
    labels: list[tuple[Any, ...]] = []
    progress = []
    for annotator in key.annotators:
        for sheet in SHEETS:
            read = _ratings if sheet == FIDELITY else _labels
            rows, answers = read(folder / annotator / sheet, key, annotator)
            expected = len(key.items) * (1 if sheet == FIDELITY else len(DIMENSIONS))
            progress.append(
                Progress(
                    *(annotator, sheet, expected),
                    filled=len(answers),
                    blank=rows - len(answers),
                    missing=expected - rows,
                )
            )
            (ratings if sheet == FIDELITY else labels).extend((annotator, *answer) for answer in answers)
    return Annotations(
        key=key,
        ratings=pd.DataFrame(ratings, columns=["annotator", "item", "rating"]),
        labels=pd.DataFrame(labels, columns=["annotator", "item", "dimension", "state", "second"]),
        progress=tuple(progress),
    )


def holds_answers(path: Path) -> bool:
    """Whether a sheet holds anything in an answer column; a file that cannot be read is taken to.

    Args:
        path: A file that exists.
    """
    try:
        header, rows = _table(path)
    except UserError:
        return True
    columns = [header.index(name) for name in _ANSWERS if name in header]
    if not columns:
        return True
    return any(row[column].strip() for _, row in rows for column in columns)


@dataclass(frozen=True, eq=False)
class MethodScores:
    """What one method gave.

    Attributes:
        evaluator: The model's short name, or the file that the scores came from.
        method: What a table calls the method.
        scores: Example's id → score, NaN where it has none.
        comparable: Whether scores of different groups are on one scale.
        probabilities: For PRISM, a row per case × dimension, with the columns case, dimension and ``q_`` of
            each state; ``None`` for a judge.
    """

    evaluator: str
    method: str
    scores: Mapping[str, float]
    comparable: bool = True
    probabilities: pd.DataFrame | None = None


def read_methods(paths: Sequence[Path], key: Key) -> tuple[list[MethodScores], list[str]]:
    """Read method runs, leaving those out that are of other examples.

    Args:
        paths: Folders with method runs at any depth (as `prism bench` leaves them), and files of PRISM
            scores: a table (Parquet) or a log (JSONL).
        key: Says which examples are meant.

    Returns:
        The method runs, and what a reader must know of those that were left out or are incomplete.

    Raises:
        UserError: Nothing there, unreadable, or none of the runs scored an item of the key.
    """
    from persona_mlflow.prism.results import MethodRun, find_method_runs

    found: list[MethodScores] = []
    notes: list[str] = []
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; give what `persona-mlflow prism bench` wrote")
        if path.is_file():
            table = read_probabilities(path)
            found.append(MethodScores(str(path), "PRISM", _mean_aligned(table), probabilities=table))
            continue
        below = find_method_runs(path)
        if not below:
            raise UserError(f"{path}: holds no method run; give the folder that `prism bench` wrote")
        folders |= {folder.resolve(): folder for folder in below if folder.resolve() not in folders}
    for folder in folders.values():
        run = MethodRun.load(folder)
        if run.benchmark != key.benchmark:
            notes.append(
                f"{folder}: left out, since it is of {run.benchmark}, and the sheets of {key.benchmark}"
            )
            continue
        frame = run.averaged()
        scores = dict(zip(frame["id"].astype(str), frame["score"].astype(float), strict=True))
        probabilities = _probabilities_of(folder) if run.method == "prism" else None
        if run.method == "prism" and probabilities is None:
            notes.append(f"{folder}: has no {PROBABILITIES}, and so no dimension diagnostics")
        found.append(MethodScores(run.evaluator, run.label, scores, run.comparable, probabilities))
    ids = {item.id for item in key.items}
    kept = []
    for method in found:
        known = sum(case in ids for case in method.scores)
        if known == len(ids):
            kept.append(method)
        elif known:
            kept.append(method)
            notes.append(
                f"{method.evaluator}, {method.method}: has {known} of the {len(ids)} annotated items"
            )
        else:
            notes.append(f"{method.evaluator}, {method.method}: left out, since it has no annotated item")
    if paths and not kept:
        raise UserError(
            f"{', '.join(map(str, paths))}: no method scored an item of these sheets; draw the sheets from "
            "the benchmark of the run: the same data, --size, --seed, --swap and --keep"
            + "".join(f" ({note})" for note in notes[:1])
        )
    return kept, notes


def read_probabilities(path: Path) -> pd.DataFrame:
    """Read PRISM's probabilities.

    Args:
        path: A table as `persona_mlflow.prism.scoring.score_cases` gives it, as a Parquet file, or the JSONL
            log that it keeps; a last line that is not complete is left alone.

    Returns:
        One row per case × dimension, at least: case, dimension, ``q_`` of each state (NaN where unscored).

    Raises:
        UserError: Unreadable, or not such a file.
    """
    import pandas as pd

    columns = ["case", "dimension", *(f"q_{state}" for state in STATES)]
    try:
        if path.suffix == ".jsonl":
            *lines, _ = path.read_text(encoding="utf-8", errors="surrogatepass").split("\n")
            if not lines or "prism" not in json.loads(lines[0]):
                raise ValueError("its first line is no header of PRISM scores")
            rows = [row for line in lines[1:] for row in json.loads(line)["rows"]]
            frame = pd.DataFrame(rows, columns=None if rows else columns)
        else:
            frame = pd.read_parquet(path)
        missing = [name for name in columns if name not in frame.columns]
        if missing:
            raise ValueError(f"no column {missing[0]}")
        odd = set(frame["dimension"]) - set(DIMENSIONS)
        if odd:
            raise ValueError(f"unknown dimension {min(map(str, odd))}")
        frame = frame.astype({"case": str, **dict.fromkeys(columns[2:], float)})
        twice = frame.duplicated(["case", "dimension"])
        if twice.any():
            raise ValueError(f"case {frame.loc[twice, 'case'].iloc[0]} stands twice")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a readable file of PRISM scores ({error}); give a {PROBABILITIES} or {SCORE_LOG}"
        ) from error
    return frame


def _probabilities_of(folder: Path) -> pd.DataFrame | None:
    for name in (PROBABILITIES, SCORE_LOG):
        if (folder / name).exists():
            return read_probabilities(folder / name)
    return None


def _mean_aligned(frame: pd.DataFrame) -> dict[str, float]:
    """S of each case: NaN where a dimension is unscored or not there."""
    wide = frame.pivot(index="case", columns="dimension", values="q_aligned").reindex(
        columns=list(DIMENSIONS)
    )
    means = wide.mean(axis=1, skipna=False)
    return {str(case): float(value) for case, value in means.items()}


def _ratings(path: Path, key: Key, annotator: str) -> tuple[int, list[tuple[str, int]]]:
    """Rows that are there, and the answers among them: item, rating."""

    def answer(cells: dict[str, str], where: str) -> tuple[int] | None:
        text = cells["rating"]
        if not text:
            return None
        found = _WHOLE.fullmatch(text)
        low, high = SCALE
        if not found or not low <= int(found[1]) <= high:
            raise UserError(
                f"{where}: rating {text!r} is off the scale; write a whole number from {low} to {high}, "
                "or leave the cell empty"
            )
        return (int(found[1]),)

    return _rows(path, key, ("item",), answer)


def _labels(path: Path, key: Key, annotator: str) -> tuple[int, list[tuple[str, str, str, str]]]:
    """Rows that are there, and the answers among them: item, dimension, state, second."""

    def letter(cells: dict[str, str], column: str, where: str) -> str:
        text = cells.get(column, "").upper()
        if text and text not in LABELS:
            raise UserError(
                f"{where}: {column} {cells[column]!r} is no option; write {', '.join(LABELS[:-1])} or "
                f"{LABELS[-1]}, or leave the cell empty"
            )
        return text

    def answer(cells: dict[str, str], where: str) -> tuple[str, str] | None:
        first, second = (letter(cells, column, where) for column in ("choice", "second_choice"))
        if second and not first:
            raise UserError(f"{where}: second_choice {second}, but no choice; write the first choice too")
        if not first:
            return None
        if first == second:
            raise UserError(
                f"{where}: choice and second_choice are both {first}; leave second_choice empty, or write "
                "another letter"
            )
        states = dict(zip(LABELS, key.options[annotator][cells["item"]][cells["dimension"]], strict=True))
        return states[first], states[second] if second else ""

    return _rows(path, key, ("item", "dimension"), answer)


def _rows(
    path: Path,
    key: Key,
    names: Sequence[str],
    answer: Callable[[dict[str, str], str], tuple[Any, ...] | None],
) -> tuple[int, list[tuple[Any, ...]]]:
    """Check a sheet's rows against the key.

    Args:
        path: The sheet; where there is none, it has no row.
        key: The key.
        names: The columns that say which row it is.
        answer: Reads a row's answer; ``None`` where it has none.
    """
    other = [path.with_suffix(suffix) for suffix in _OTHER_FORMATS if path.with_suffix(suffix).exists()]
    if other and (not path.exists() or not holds_answers(path)):
        raise UserError(f"{other[0]}: is not read; save it as CSV (UTF-8) under the name {path.name}")
    if not path.exists():
        return 0, []
    header, rows = _table(path)
    columns = _columns(path, header)
    known = {"item": [item.item for item in key.items], "dimension": list(DIMENSIONS)}
    seen: dict[tuple[str, ...], int] = {}
    answers = []
    for line, row in rows:
        where = f"{path}:{line}"
        cells = {name: unguard(row[column].strip()) for name, column in columns.items()}
        for name in names:
            if cells[name] not in known[name]:
                raise UserError(f"{where}: {_unknown(name, cells[name], known[name])}")
        identity = tuple(cells[name] for name in names)
        if identity in seen:
            raise UserError(
                f"{where}: {', '.join(identity)} stands in line {seen[identity]} already; keep one of the two"
            )
        seen[identity] = line
        found = answer(cells, where)
        if found is not None:
            answers.append((*identity, *found))
    return len(seen), answers


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    """Column → its position, for the columns that are read."""
    wanted, optional = _READ[path.name], _OPTIONAL[path.name]
    missing = [name for name in wanted if name not in header]
    if missing:
        raise UserError(
            f"{path}:1: no column {', '.join(map(repr, missing))} in {', '.join(header)!r}; keep the first "
            "line as it was written, with columns separated by comma, semicolon or tab"
        )
    for name in (*wanted, *optional):
        if header.count(name) > 1:
            raise UserError(f"{path}:1: column {name!r} occurs twice; keep one of them")
    return {name: header.index(name) for name in (*wanted, *optional) if name in header}


def _unknown(name: str, text: str, known: Sequence[str]) -> str:
    if not text:
        return f"the {name} is empty; restore it, or delete the whole row"
    if name == "dimension":
        return f"unknown dimension {text!r}; {choices(text, known)}"
    code = known[0].rpartition("-")[0]
    if text.rpartition("-")[0] != code:
        return (
            f"unknown item {text!r}: the items of this folder's key begin with {code}-; the sheet may belong "
            "to another folder"
        )
    return f"unknown item {text!r}; the key has {known[0]} to {known[-1]}: restore what the sheet had"


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header (lower-case), and line and cells of each row that is not blank, all as long as the header."""
    text = _text(path)
    # Whatever separates the columns makes the most of the first line.
    first = text.lstrip().partition("\n")[0]
    header, rows = _parse(path, text, max(_DELIMITERS, key=first.count))
    if not header:
        raise UserError(f"{path}: is empty; its first line must name the columns")
    return header, rows


def _parse(path: Path, text: str, delimiter: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    rows = []
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise UserError(f"{path}:{line}: not valid CSV: {error}; check the quotes of this row") from error
        if not any(cell.strip() for cell in row):
            continue
        if header is None:
            header = [cell.strip().lower() for cell in row]
            continue
        beyond = [cell for cell in row[len(header) :] if cell.strip()]
        if beyond:
            raise UserError(
                f"{path}:{line}: {len(row)} cells under {len(header)} columns; a cell that holds a comma, a "
                "quote or a line break must stand in double quotes"
            )
        # Spreadsheets leave out empty cells at the end of a row.
        rows.append((line, [*row, *[""] * (len(header) - len(row))][: len(header)]))
    return header or [], rows


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: is not {'UTF-16' if wide else 'UTF-8'}; save the sheet as CSV (UTF-8)"
        ) from error
    # A first line for Excel that names the separator; the empty line keeps the count of lines.
    return re.sub(r"\Asep=.\r?\n", "\n", text, flags=re.IGNORECASE)
