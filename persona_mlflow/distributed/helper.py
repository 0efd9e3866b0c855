"""What a process does that is not the main one: it generates what it claims, and says nothing."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
import psutil

from persona_mlflow.distributed.claims import Gone
from persona_mlflow.distributed.place import Place
from persona_mlflow.distributed.team import Helper, Stopped, joined
from persona_mlflow.engines.base import Engine
from persona_mlflow.errors import UserError
from persona_mlflow.ledger import Ledger
from persona_mlflow.plan import Plan


def help_out(plan: Plan, root: Path, place: Place, load_engine: Callable[[], Engine]) -> int:
    """Share the work of the main process until nothing is left to claim.

    Args:
        plan: The main process's plan too.
        root: The ledger's folder.
        place: This process's.
        load_engine: Loads the model; called only where something was claimed.

    Returns:
        The code to exit with: 0, or the main process's where that has ended early.

    Raises:
        UserError: This process cannot do its part.
    """

    def is_complete() -> bool:
        if not (root / "ledger.json").exists():
            return False
        ledger, fingerprint = Ledger(root), plan.questions.fingerprint
        return all(ledger.open(cell).is_finished(fingerprint) for cell in plan.grid.cells)

    engine = _Lazy(load_engine)
    try:
        while True:
            began = time.time() - psutil.Process().create_time()
            try:
                with joined(root, place, plan.spec_hash, is_complete, began) as helper:
                    if helper is not None:
                        _work(plan, Ledger(root), helper, engine)
                    return 0
            except Gone:
                continue  # done, or another call has begun
            except Stopped as stopped:
                return stopped.code
    finally:
        engine.close()


class _Lazy:
    """An engine that is loaded when it is needed, and once."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        self._load = load
        self._engine: Engine | None = None

    def get(self) -> Engine:
        if self._engine is None:
            self._engine = self._load()
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _work(plan: Plan, ledger: Ledger, helper: Helper, lazy: _Lazy) -> None:
    from persona_mlflow.sweep import generate, missing_draws

    claim = helper.claims.take()
    while claim is not None:
        engine = lazy.get()
        helper.wait_for_start(engine.describe())
        units = helper.claims.units[claim.start : claim.stop]
        cells = {index: plan.grid.cells[index] for unit in units for index in unit.cells}
        logs = {index: ledger.open(cell, helper.owner) for index, cell in cells.items()}
        missing = missing_draws(plan, units, logs, again=claim.takes is not None)
        for batch in generate(engine, plan, missing, logs):
            helper.presence.draws += len(batch)
            helper.check()
        helper.claims.finish(claim)
        helper.presence.beat()
        claim = helper.claims.take()


@contextmanager
def quiet_process(place: Place) -> Iterator[None]:
    """Turn signals and failures of a process that is not the main one into exit codes.

    What concerns the whole experiment is for the main process to say; what is this process's own fault is
    said with its number.
    """
    from persona_mlflow.cli.interruption import Terminated

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 143)
    except UserError as error:
        raise UserError(f"process {place.rank}: {error}") from error
    except Exception as error:
        traceback.print_exc()
        click.echo(f"\nError: process {place.rank} failed ({type(error).__name__}: {error})", err=True)
        sys.exit(1)
