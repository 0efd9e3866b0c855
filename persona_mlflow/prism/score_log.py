"""The file of scored cases, and the source of exact resume."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError


class ScoreLog:
    """The file of scored cases: a header, then one line per case, appended as they are done.

    Args:
        path: The file; None keeps nothing.
        header: What shapes the scores; a file with another header is not touched.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        self._path = Path(path) if path is not None else None
        self._header = json.loads(json.dumps(header))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ScoreLog:
        if self._path is not None:
            from filelock import FileLock, Timeout

            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                place = self._path.with_name(f".{self._path.name}.lock")
                place.touch()  # a folder that cannot be written is no lock that another process holds
                lock = FileLock(place)
                self._stack.enter_context(lock.acquire(timeout=0))
            except Timeout as error:
                raise UserError(
                    f"{self._path}: another process is writing here; wait for it, or name another file"
                ) from error
            except OSError as error:
                raise UserError(f"{self._path}: cannot be written ({error.strerror or error})") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> Iterator[dict[str, Any]]:
        """The cases on record. A line that a crash tore off is dropped from the file.

        Raises:
            UserError: The file is of another evaluator, layout, seed or wording, or damaged.
        """
        if self._path is None or not self._path.exists():
            return
        with self._path.open("rb+") as file:
            end = 0
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    if not number:
                        self._check_torn(line)
                    break
                try:
                    record = dict(json.loads(line))
                    if number and not {"case", "content", "rows"} <= record.keys():
                        raise ValueError("not a scored case")
                except (ValueError, TypeError, KeyError) as error:
                    raise UserError(
                        f"{self._path}:{number + 1}: damaged, or not a file of PRISM scores; delete the "
                        "line, or name another file"
                    ) from error
                if number:
                    yield record
                else:
                    self._check(record)
                end += len(line)
            file.truncate(end)

    def _check_torn(self, line: bytes) -> None:
        """A crash can tear off the header, too; any other single line is somebody else's file."""
        whole = json.dumps(self._header, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if not whole.startswith(line):
            raise UserError(f"{self._path}: not a file of PRISM scores; name another")

    def _check(self, header: Mapping[str, Any]) -> None:
        differ = [key for key in self._header if header.get(key) != self._header[key]]
        if not differ:
            return
        if "prism" in differ:
            raise UserError(f"{self._path}: not a file of PRISM scores of this version; name another")
        facts = [f"{key} {header.get(key)!r}, now {self._header[key]!r}" for key in differ]
        raise UserError(
            f"{self._path}: holds scores of another setting ({'; '.join(facts)}), which are never mixed; "
            "name another --output"
        )

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add cases, and hand them to the operating system before returning."""
        if self._path is None:
            return
        lines = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in records)
        with self._path.open("a", encoding="utf-8", errors="surrogatepass") as file:
            if file.tell() == 0:
                file.write(json.dumps(self._header, ensure_ascii=False) + "\n")
            file.write(lines)
