"""Signs of life: which of the processes that share a folder are still there."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

BEAT = 5.0
"""Seconds between two signs of life."""

STALE = 300.0
"""Age in seconds from which a sign of life on another machine is a dead process's; some network file systems
show a change a minute late."""


class Presence:
    """This process's sign of life: a lock that ends with it, and a file that a thread keeps renewing.

    Args:
        folder: Where all processes leave theirs.
        name: This process's; no other, of this or an earlier call, has it.

    Attributes:
        draws: How many answers this process has put on record; told with every sign of life.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.draws = 0
        self._lock = FileLock(folder / f"{name}.lock", thread_local=False)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="presence", daemon=True)

    def start(self) -> None:
        """Appear."""
        self._lock.acquire(timeout=0)
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Leave: what this process has claimed and not done is anybody's."""
        if self._thread.is_alive():
            self._end.set()
            self._thread.join()
            self.beat()
        self._lock.release()

    def beat(self) -> None:
        """Give a sign of life now."""
        content = json.dumps({"host": socket.gethostname(), "draws": self.draws})
        partial = self.folder / f"{self.name}.beat.partial"
        # The folder goes when the work is done, and a full disk is for the one who writes answers to report.
        with suppress(OSError):
            partial.write_text(content)
            partial.replace(self.folder / f"{self.name}.beat")

    def _keep_beating(self) -> None:
        while not self._end.wait(BEAT):
            self.beat()


def is_alive(folder: Path, name: str, now: float) -> bool:
    """Whether a process is there.

    On this machine the lock tells at once; on another, the age of the last sign.

    Args:
        folder: As in `Presence`.
        name: As in `Presence`.
        now: The time by the clock of the file system, see `clock`.
    """
    sign = read_sign(folder, name)
    if sign is None:
        return False
    if sign["host"] != socket.gethostname():
        return bool(now - last_sign(folder, name) < STALE)
    lock = FileLock(folder / f"{name}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def read_sign(folder: Path, name: str) -> dict[str, Any] | None:
    """What a process's last sign of life tells: ``host`` and ``draws``."""
    try:
        return dict(json.loads((folder / f"{name}.beat").read_text()))
    except (OSError, ValueError):
        return None


def last_sign(folder: Path, name: str) -> float:
    """When that was, by the clock of the file system; 0 where there is none."""
    try:
        return (folder / f"{name}.beat").stat().st_mtime
    except OSError:
        return 0.0


def clock(folder: Path, name: str) -> float:
    """The time by the clock that stamps a folder's files: machines need not agree on theirs.

    Args:
        folder: The folder; it is made where there is none.
        name: Of this process.
    """
    path = folder / f"{name}.clock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            path.write_bytes(b"")
            return path.stat().st_mtime
        except FileNotFoundError:  # the main process has just cleared the folder
            continue
        finally:
            path.unlink(missing_ok=True)
