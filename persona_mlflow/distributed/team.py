"""The processes of one call, as the main process and as the others see them.

Below ``claims`` in the ledger, ``session.json`` says which call is at work, in which folder beside it, and
how far it is: ``preparing`` (claims can be made, a model loaded), ``working`` (answers can be generated), or
how it ended: ``done``, ``failed`` or ``killed``. Only the main process writes it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from persona_mlflow.distributed.claims import Claim, Claims, Gone
from persona_mlflow.distributed.place import Place
from persona_mlflow.distributed.presence import Presence, clock, is_alive, last_sign, read_sign
from persona_mlflow.distributed.units import Unit
from persona_mlflow.errors import UserError
from persona_mlflow.ledger import write_atomically

FOLDER = "claims"
SESSION, QUEUE = "session.json", "queue.json"
LOOK_EVERY = 1.0
"""Seconds after which a process that is at work looks what the others have done."""

WAIT_EVERY = 0.25
"""The same for one that only waits."""

PATIENCE = 600.0
"""How many seconds a process waits for the main one to begin."""

# What decides about a draw apart from its prompt and seed, and "auto" leaves to the machine.
_MUST_AGREE = ("dtype", "quantization")


class Stopped(Exception):
    """The main process has ended, or wants the others to.

    Attributes:
        code: What to exit with.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Member:
    """What the main process and the others have in common."""

    def __init__(self, root: Path, place: Place) -> None:
        self.root = root / FOLDER
        self.place = place
        self.owner = f"{place.rank}-{uuid.uuid4().hex[:8]}"
        self._looked = 0.0

    def _join(self, session: str, units: Sequence[Unit]) -> None:
        self.folder = self.root / session
        self.presence = Presence(self.folder, self.owner)
        self.presence.start()
        self.claims = Claims(self.folder, self.owner, units, self.place.world, self.is_alive)

    def is_alive(self, owner: str) -> bool:
        """Whether a process is there."""
        return is_alive(self.folder, owner, last_sign(self.folder, self.owner))

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return False
        self._looked = now
        return True


class Team(_Member):
    """The main process's side.

    As a context manager it tells the others how the call ended.

    Args:
        root: The ledger's folder; the caller holds its lock.
        place: This process's.
        spec_hash: Of the plan.
    """

    def __init__(self, root: Path, place: Place, spec_hash: str) -> None:
        super().__init__(root, place)
        self._spec_hash = spec_hash
        self._session = ""
        self._first: Claim | None = None
        self._finished: set[int] = set()
        self._drawn: dict[str, int] = {}
        self._told: set[int] = set()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not self._session:
            return
        self.presence.stop()
        if error is None:
            forget_team(self.root.parent)
            return
        with suppress(OSError):  # such as a full disk: the others see that this process is gone
            if isinstance(error, Exception):
                self._say("failed", code=1)
            else:
                self._say("killed", code=130 if isinstance(error, KeyboardInterrupt) else 143)

    def begin(self, units: Sequence[Unit]) -> None:
        """Write the queue, and let the others claim from it; the first claim is this process's own."""
        forget_team(self.root.parent)
        session = uuid.uuid4().hex[:8]
        (self.root / session).mkdir(parents=True)
        self._join(session, units)
        write_atomically(self.folder / QUEUE, json.dumps([astuple(unit) for unit in units]).encode())
        self._first = self.claims.take()
        self._session = session
        self._say("preparing")

    def start(self, engine: Mapping[str, Any]) -> None:
        """Let the others generate.

        Args:
            engine: This process's settings, with which theirs must agree.
        """
        self._say("working", engine={name: engine.get(name) for name in _MUST_AGREE})

    def take(self) -> Claim | None:
        """Claim some work; None where nothing is free."""
        claim, self._first = self._first, None
        return claim or self.claims.take()

    def finish(self, claim: Claim) -> None:
        """Say that the work of a claim is on record."""
        self.claims.finish(claim)

    def end(self) -> None:
        """Say that every answer is on record: the others can go home."""
        self._say("done", code=0)

    def is_time(self) -> bool:
        """Whether it is time to look again what the others have done."""
        return self._is_time()

    def look(self) -> tuple[list[Unit], int, list[str]]:
        """What has happened since the last look.

        Returns:
            The units whose answers are on record now, how many answers the other processes have added, and
            which processes' work others have taken over.
        """
        units = []
        for claim in self.claims.refresh():
            for position in range(claim.start, claim.stop):
                if position not in self._finished:
                    self._finished.add(position)
                    units.append(self.claims.units[position])
        drawn = 0
        for owner in {claim.owner for claim in self.claims.chain} - {self.owner}:
            sign = read_sign(self.folder, owner)
            if sign is not None:
                drawn += sign["draws"] - self._drawn.get(owner, 0)
                self._drawn[owner] = sign["draws"]
        lost = []
        for claim in self.claims.chain:
            if claim.takes is not None and claim.number not in self._told:
                self._told.add(claim.number)
                lost.append(self.claims.chain[claim.takes].owner.partition("-")[0])
        return units, drawn, lost

    def _say(self, status: str, **facts: Any) -> None:
        content = {
            "session": self._session,
            "main": self.owner,
            "spec_hash": self._spec_hash,
            "status": status,
            **facts,
        }
        write_atomically(self.root / SESSION, json.dumps(content).encode())


def forget_team(root: Path) -> None:
    """Remove what the processes of an earlier call told each other; the caller holds the ledger's lock."""
    shutil.rmtree(root / FOLDER, ignore_errors=True)


class Helper(_Member):
    """Any other process's side; made by `joined`."""

    def __init__(self, root: Path, place: Place, session: Mapping[str, Any]) -> None:
        super().__init__(root, place)
        self._session = session
        try:
            queue = json.loads((self.root / session["session"] / QUEUE).read_text())
            self._join(session["session"], [Unit.of(values) for values in queue])
        except FileNotFoundError as error:
            raise Gone from error

    def check(self) -> None:
        """Look whether the others still want this process's work; does nothing most of the time.

        Raises:
            Stopped: They do not.
            Gone: Another call is at work.
        """
        if self._is_time():
            self._status()

    def wait_for_start(self, engine: Mapping[str, Any]) -> None:
        """Wait until answers can be generated.

        Args:
            engine: This process's settings.

        Raises:
            UserError: This machine's differ from the main process's, so that the answers would.
            Stopped: As `check`.
            Gone: As `check`.
        """
        while (session := self._status())["status"] != "working":
            time.sleep(WAIT_EVERY)
        for name, value in session["engine"].items():
            if engine.get(name) != value:
                raise UserError(
                    f"{name}: auto is {engine.get(name)} here, and {value} in process 0, whose answers would "
                    f"differ; name one for all (--{name})"
                )

    def _status(self) -> Mapping[str, Any]:
        session = _read_session(self.root)
        if session is None or session["session"] != self._session["session"]:
            raise Gone
        if "code" in session:
            raise Stopped(session["code"])
        if not self.is_alive(session["main"]):
            raise Stopped(1)
        return session


@contextmanager
def joined(
    root: Path, place: Place, spec_hash: str, is_complete: Callable[[], bool], began: float
) -> Iterator[Helper | None]:
    """Wait for the main process of this call, and join it.

    Args:
        root: The ledger's folder.
        place: This process's.
        spec_hash: Of the plan.
        is_complete: Whether every answer is on record, in compact form.
        began: How many seconds ago this process began.

    Yields:
        This process's side; None where nothing is to be done.

    Raises:
        Stopped: The main process was there and has ended.
        UserError: It does not come, or does something else.
    """
    session = _find_session(root, place, is_complete, began)
    if session is None:
        yield None
        return
    if session["spec_hash"] != spec_hash:
        raise UserError(
            "process 0 runs another experiment in this folder: give all processes the same command, model "
            "and data files"
        )
    helper = Helper(root, place, session)
    try:
        yield helper
    finally:
        helper.presence.stop()


def _find_session(
    root: Path, place: Place, is_complete: Callable[[], bool], began: float
) -> Mapping[str, Any] | None:
    folder = root / FOLDER
    name = f"{place.rank}-{os.getpid()}"
    started = clock(folder, name) - began
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        session = _read_session(folder)
        if session is None:
            # A main process that is done leaves nothing behind but what it was to do.
            if is_complete():
                return None
        elif "code" in session:
            if _written(folder / SESSION) >= started:  # else an earlier call's
                raise Stopped(session["code"])
        elif is_alive(folder / session["session"], session["main"], clock(folder, name)):
            return session
        elif last_sign(folder / session["session"], session["main"]) >= started:
            raise Stopped(1)
        time.sleep(WAIT_EVERY)
    raise UserError(f"process 0 has not begun within {PATIENCE / 60:.0f} minutes; look at what it says")


def _read_session(folder: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads((folder / SESSION).read_text()))
    except (FileNotFoundError, ValueError):
        return None


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
