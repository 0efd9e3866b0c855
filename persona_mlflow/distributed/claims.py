"""Who does what: a chain of files, to which each process adds its claims.

The n-th claim is the file ``<n>.claim``. A process that wants the next one writes its claim beside it and
links it to that name, which the file system lets only one of several do; the others read that claim and try
for the one after. So all processes read the same chain, and no lock is held by anyone. A claim whose work is
on record has a ``<n>.done`` beside it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from persona_mlflow.distributed.units import MOST_DRAWS, Unit
from persona_mlflow.errors import UserError

SHARE = 0.5
"""Of what is left, the part that all processes together claim next: so shares get smaller to the end."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)


@dataclass(frozen=True, slots=True)
class Claim:
    """A run of units that one process has taken on.

    Attributes:
        owner: The process.
        start: Position of the first unit in the queue.
        stop: Position after the last.
        takes: Number of the claim of a process that died, in whose place this one stands.
        number: Position in the chain.
    """

    owner: str
    start: int
    stop: int
    takes: int | None = None
    number: int = -1


class Gone(Exception):
    """The folder is no more: the work is done, or was begun anew."""


class Claims:
    """The chain, as one process sees it.

    Args:
        folder: Where the files are.
        owner: This process.
        units: The queue.
        processes: How many share it.
        is_alive: Whether the process of a name is there.
    """

    def __init__(
        self,
        folder: Path,
        owner: str,
        units: Sequence[Unit],
        processes: int,
        is_alive: Callable[[str], bool],
    ) -> None:
        self.folder = folder
        self.owner = owner
        self.units = units
        self.done: set[int] = set()
        self.chain: list[Claim] = []
        self._processes = processes
        self._is_alive = is_alive
        self._replaced: set[int] = set()
        self._left = sum(unit.cost for unit in units)
        self._next = 0

    def take(self) -> Claim | None:
        """Claim some work: a dead process's first, else the next in the queue; None where nothing is free.

        Raises:
            Gone: The folder is no more.
            UserError: The file system cannot link files.
        """
        while True:
            self.refresh()
            claim = self._take_over() or self._take_next()
            if claim is None:
                return None
            if self._add(claim):
                self.refresh()
                return self.chain[claim.number]

    def finish(self, claim: Claim) -> None:
        """Say that the work of a claim is on record."""
        self.done.add(claim.number)
        try:
            (self.folder / f"{claim.number:06}.done").touch()
        except FileNotFoundError as error:
            raise Gone from error

    def refresh(self) -> list[Claim]:
        """Read what is new; returns the claims whose work is done, all of them."""
        while (claim := self._read(len(self.chain))) is not None:
            self.chain.append(claim)
            if claim.takes is None:
                self._left -= sum(unit.cost for unit in self.units[claim.start : claim.stop])
                self._next = claim.stop
            else:
                self._replaced.add(claim.takes)
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError as error:
            raise Gone from error
        self.done |= {int(name[:6]) for name in names if name.endswith(".done")}
        return [self.chain[number] for number in sorted(self.done) if number < len(self.chain)]

    def _read(self, number: int) -> Claim | None:
        try:
            return Claim(**json.loads((self.folder / f"{number:06}.claim").read_text()), number=number)
        except FileNotFoundError:
            return None

    def _take_over(self) -> Claim | None:
        known: dict[str, bool] = {self.owner: True}
        for claim in self.chain:
            if claim.number in self.done or claim.number in self._replaced:
                continue
            if claim.owner not in known:
                known[claim.owner] = self._is_alive(claim.owner)
            if not known[claim.owner]:
                return Claim(self.owner, claim.start, claim.stop, claim.number, len(self.chain))
        return None

    def _take_next(self) -> Claim | None:
        wanted = self._left * SHARE / self._processes
        stop, cost, draws = self._next, 0.0, 0
        for unit in self.units[self._next :]:
            if stop > self._next and (cost + unit.cost > wanted or draws + unit.draws > MOST_DRAWS):
                break
            stop, cost, draws = stop + 1, cost + unit.cost, draws + unit.draws
        return Claim(self.owner, self._next, stop, None, len(self.chain)) if stop > self._next else None

    def _add(self, claim: Claim) -> bool:
        """Link a claim into the chain, unless another process was faster."""
        draft = self.folder / f"{self.owner}.draft"
        content = {name: value for name, value in asdict(claim).items() if name != "number"}
        try:
            draft.write_text(json.dumps(content))
            try:
                os.link(draft, self.folder / f"{claim.number:06}.claim")
                return True
            except FileExistsError:
                # A network file system may have done it, lost its own answer, and tried again.
                return draft.stat().st_nlink > 1
            finally:
                draft.unlink()
        except FileNotFoundError as error:
            raise Gone from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise UserError(
                f"--output {self.folder}: several processes share the work through hard links, which this "
                f"file system does not make ({error.strerror}); name a folder on another, or run one process"
            ) from error
