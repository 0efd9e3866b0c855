"""What an interrupted or failed command says, and the code it exits with."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from persona_mlflow.errors import UserError


class Terminated(BaseException):
    """SIGTERM came; like Ctrl-C, it must pass every ``except Exception``."""


@contextmanager
def interruptible(folder: Path, tracking_uri: str | None) -> Iterator[None]:
    """Turn signals and failures into exit codes, each with the command that goes on."""
    from persona_mlflow.ledger import is_disk_full
    from persona_mlflow.mlflow_project import close_adopted

    def on_signal(number: int, frame: FrameType | None) -> None:
        # On Ctrl-C, `mlflow run` sends SIGTERM on top, which must not cut short what SIGINT began.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:  # as in a script's background job, which Ctrl-C is not meant for
            signal.signal(number, on_signal)
    again = f"Everything answered so far is in {folder}. To go on: {_this_command()}"
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        close_adopted(tracking_uri)
        click.echo(f"\nInterrupted. {again}", err=True)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 143)
    except (UserError, click.ClickException):
        raise
    except Exception as error:
        if is_disk_full(error):
            click.echo(f"\nError: the disk is full. {again}", err=True)
        else:
            import traceback

            traceback.print_exc()
            click.echo(f"\nError: the run failed ({type(error).__name__}: {error}). {again}", err=True)
        sys.exit(1)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _this_command() -> str:
    return shlex.join(["persona-mlflow", *sys.argv[1:]])
