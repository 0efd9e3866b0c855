"""The ledger: an append-only record of every draw on local disk, and the source of resume.

A ledger is a folder. Each cell (persona × setting) has one file at a time in it:

- while it runs, ``cells/<slug>.jsonl``: one line per draw, appended and flushed batch by batch; a line that
  a crash tore off is dropped when the file is next opened;
- once every planned question is answered, ``cells/<slug>.parquet``: the same rows, parsed and compressed,
  written beside and moved into place in one step.

Where several processes share the work, no two write to one file: what a process adds to a cell is
``parts/<process>/<slug>.jsonl``, of the same form, and is read as part of the cell, in this call or a later
one. Finishing the cell takes the parts up.

A cell's name carries the hash of everything that shapes its draws, and its file carries that in clear text,
so rows of another model, template, temperature or seed are never read as this cell's.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.grid import Cell

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One draw as it was generated.

    Attributes:
        question_id: The question's id.
        text: The assistant's whole turn.
        finish_reason: ``stop`` or ``length``.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated.
        notes: Anything out of the ordinary.
        time: When it was recorded, Unix seconds.
    """

    question_id: str
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    notes: str
    time: float


class Ledger:
    """A folder of draws.

    Args:
        root: The folder; it is made where it does not exist.

    Attributes:
        id: Tells this ledger from every other, wherever its folder is moved.

    Raises:
        UserError: The folder cannot be written, or is of a later format.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cells = root / "cells"
        self.parts = root / "parts"
        header = root / "ledger.json"
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            if not header.exists():
                write_atomically(header, json.dumps({"format": FORMAT, "id": uuid.uuid4().hex}).encode())
            content = dict(json.loads(header.read_text()))
            version, self.id = content["format"], str(content.get("id", ""))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--output {root}: cannot be used as a ledger ({error}); name another") from error
        if version != FORMAT:
            raise UserError(
                f"--output {root}: ledger format {version}, this version writes {FORMAT}; name another"
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the ledger for this process alone; a killed holder lets go of it.

        Raises:
            UserError: Another process holds it.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise UserError(
                f"--output {self.root}: another process is writing here; wait for it, or name another folder"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def open(self, cell: Cell, process: str | None = None) -> CellLog:
        """The log of one cell; nothing is created until a row is appended.

        Args:
            cell: The cell.
            process: The name of one process among several, whose own part takes what is appended; without,
                this process alone is at work here.
        """
        return CellLog(self.cells / cell.slug, cell, self.parts, process)

    def drop_empty_parts(self) -> None:
        """Remove the folders of several processes' parts that hold nothing any more."""
        for folder in (*_folders(self.parts), self.parts):
            with suppress(OSError):  # it is not empty, or was never made
                folder.rmdir()


class CellLog:
    """The record of one cell's draws; see the module's text for its states."""

    def __init__(self, stem: Path, cell: Cell, parts: Path, process: str | None = None) -> None:
        self.parquet = stem.with_name(stem.name + ".parquet")
        self.jsonl = stem.with_name(stem.name + ".jsonl")
        self.cell = cell
        self._parts = parts
        self._alone = process is None
        self._own = parts / process / self.jsonl.name if process else self.jsonl

    def is_finished(self, fingerprint: str) -> bool:
        """Whether the compact file holds the question set of this fingerprint; reads its footer only."""
        return self._metadata().get("questions") == fingerprint

    def rows(self, parts: bool = True) -> dict[str, Row]:
        """Every draw on record, by question id. Drops a torn last line from the file, if it is ours alone.

        Args:
            parts: With what several processes have added, each to its own file.
        """
        found = {row.question_id: row for row in self._compact_rows()}
        for path in (self.jsonl, *(self._part_files() if parts else ())):
            found.update((row.question_id, row) for row in self._open_rows(path))
        return found

    def is_new(self) -> bool:
        """Whether nothing is on record, the parts of several processes aside."""
        return not self.jsonl.exists() and not self.parquet.exists()

    def gather(self) -> None:
        """Take up what several processes left of this cell; only for who is alone at work here."""
        files = self._part_files()
        if files:
            rows = {row.question_id: row for path in (self.jsonl, *files) for row in self._open_rows(path)}
            self._rewrite_open(list(rows.values()))

    def append(self, rows: Iterable[Row]) -> None:
        """Add draws, and hand them to the operating system before returning: ``kill -9`` loses none.

        Raises:
            OSError: The disk is full, or not writable; what stood there before stays readable.
        """
        lines = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
        new = not self._own.exists()
        if new and not self._alone:
            self._own.parent.mkdir(parents=True, exist_ok=True)
        with self._own.open("a", encoding="utf-8") as file:
            if new:
                file.write(json.dumps({"identity": self.cell.identity}, ensure_ascii=False) + "\n")
            file.write(lines)

    def finish(
        self, question_ids: Sequence[str], fingerprint: str, parse: Callable[[Row], Mapping[str, Any]]
    ) -> None:
        """Compact the cell: all planned rows in the set's order, parsed, as Parquet.

        Args:
            question_ids: The planned questions, in order.
            fingerprint: The question set's.
            parse: Row → further columns (letter, status, correct …).

        Raises:
            RuntimeError: A planned question has no draw.
        """
        import pyarrow.parquet as pq

        rows = self.rows()
        missing = [q for q in question_ids if q not in rows]
        if missing:
            raise RuntimeError(f"{self.cell.name}: {len(missing)} of {len(question_ids)} draws are missing")
        table = _table([rows[q] for q in question_ids], parse).replace_schema_metadata(
            {"questions": fingerprint, "identity": json.dumps(self.cell.identity, ensure_ascii=False)}
        )
        partial = self.parquet.with_name(self.parquet.name + ".partial")
        pq.write_table(table, partial, compression="zstd")
        replace_atomically(partial, self.parquet)
        # Rows beyond this plan (a larger limit of an earlier run) stay on record for a later one.
        beyond = [row for q, row in rows.items() if q not in set(question_ids)]
        self._rewrite_open(beyond)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The compact rows of a finished cell."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(self.parquet, columns=list(columns) if columns else None)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(self.parquet, error) from error

    def _metadata(self) -> dict[str, str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.parquet.exists():
            return {}
        try:
            raw = pq.read_schema(self.parquet).metadata or {}
        except (pa.ArrowException, OSError) as error:
            raise _damaged(self.parquet, error) from error
        metadata = {key.decode(): value.decode() for key, value in raw.items()}
        self._check_identity(json.loads(metadata["identity"]), self.parquet)
        return metadata

    def _check_identity(self, identity: Any, path: Path) -> None:
        if identity != json.loads(json.dumps(self.cell.identity)):
            raise UserError(f"{path}: holds draws of another experiment; name another --output")

    def _compact_rows(self) -> Iterator[Row]:
        if self._metadata():
            names = [field.name for field in fields(Row)]
            for record in self.table(names).to_pylist():
                yield Row(**record)

    def _part_files(self) -> list[Path]:
        files = [folder / self.jsonl.name for folder in _folders(self._parts)]
        return [file for file in files if file.exists()]

    def _open_rows(self, path: Path) -> Iterator[Row]:
        try:
            file = path.open("rb+" if self._alone else "rb")
        except FileNotFoundError:
            return
        with file:
            end = 0
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                try:
                    record = dict(json.loads(line))
                    row = Row(**record) if number else None
                except (ValueError, TypeError) as error:
                    raise UserError(
                        f"{path}:{number + 1}: damaged; delete the line, its draw is made again"
                    ) from error
                if row is None:
                    self._check_identity(record.get("identity"), path)
                else:
                    yield row
            if self._alone:  # else it may be a line that its process is just writing
                file.truncate(end)
        if end == 0 and self._alone:
            path.unlink()

    def _rewrite_open(self, rows: list[Row]) -> None:
        """Make one file of these rows, in place of it and of all parts."""
        parts = self._part_files()
        if rows:
            lines = [{"identity": self.cell.identity}, *map(asdict, rows)]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            write_atomically(self.jsonl, text.encode())
        else:
            self.jsonl.unlink(missing_ok=True)
        for path in parts:
            path.unlink(missing_ok=True)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _damaged(path: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0]
    return UserError(f"{path}: damaged ({reason}); delete the file, its draws are made again")


def _table(rows: Sequence[Row], parse: Callable[[Row], Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    records = [asdict(row) | dict(parse(row)) for row in rows]
    return pa.Table.from_pylist(records, schema=_schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("question_id", pa.string()),
            ("category", pa.string()),
            ("label", pa.string()),
            ("gold", pa.string()),
            ("letter", pa.string()),
            ("status", pa.string()),
            ("correct", pa.bool_()),
            ("text", pa.string()),
            ("finish_reason", pa.string()),
            ("prompt_tokens", pa.int32()),
            ("completion_tokens", pa.int32()),
            ("notes", pa.string()),
            ("time", pa.float64()),
        ]
    )


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    replace_atomically(partial, path)


def replace_atomically(partial: Path, path: Path) -> None:
    """Bring a written file to disk and move it into place."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that there is no space left."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
