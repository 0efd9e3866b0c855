"""What the terminal shows while a sweep runs."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID


class TerminalProgress:
    """A live line on a terminal, now and then a plain line elsewhere: runs, answers per second, time left.

    Args:
        quiet: Show nothing.
    """

    LINE_EVERY = 15.0
    SURE_FROM = 50

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = self._console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._runs = self._runs_done = self._draws = self._draws_done = self._new = 0
        self._started = self._said = time.monotonic()

    def __enter__(self) -> TerminalProgress:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._draws and not self._live:
            self.message(self._text())

    def start(self, runs: int, draws: int, runs_done: int, draws_done: int) -> None:
        """Begin to count; what an earlier call has done counts as done, but not as speed."""
        self._runs, self._draws = runs, draws
        self._runs_done, self._draws_done = runs_done, draws_done
        self._started = self._said = time.monotonic()
        if self._live:
            self._task = self._progress.add_task(
                "answers", total=draws, completed=draws_done, text=self._text()
            )
        if draws_done:
            self.message(
                f"On record already: {draws_done:,} of {draws:,} answers, {runs_done} of {runs} runs logged."
            )

    def advance(self, runs: int = 0, draws: int = 0) -> None:
        """Count finished runs and answers."""
        self._runs_done += runs
        self._draws_done += draws
        self._new += draws
        if self._task is not None:
            self._progress.update(self._task, completed=self._draws_done, text=self._text())
        elif time.monotonic() - self._said > self.LINE_EVERY:
            self._said = time.monotonic()
            self.message(self._text())

    def message(self, text: str) -> None:
        """Print a line above the live one."""
        try:
            self._console.print(text, soft_wrap=True)
        except BrokenPipeError:  # nobody reads on; the work goes on all the same
            self._console.quiet = True

    def _text(self) -> str:
        elapsed = time.monotonic() - self._started
        rate = self._new / elapsed if elapsed > 0 else 0.0
        # The first answers come late and would promise a wait of hours.
        sure = self._new >= min(self.SURE_FROM, self._draws - self._draws_done + self._new)
        time_left = f"{_duration((self._draws - self._draws_done) / rate)} left" if rate and sure else "…"
        return (
            f"{self._draws_done:,}/{self._draws:,} answers · {self._runs_done:,}/{self._runs:,} runs · "
            f"{rate:.1f} answers/s · {time_left}"
        )


class CountProgress:
    """One task after the other, each a count: a live line on a terminal, now and then a plain line elsewhere.

    Args:
        quiet: Show nothing.
    """

    LINE_EVERY = 15.0

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._live = self._console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._what, self._total = "", 0
        self._said = time.monotonic()

    def __enter__(self) -> CountProgress:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, what: str, total: int) -> None:
        """Begin the next task."""
        self._what, self._total = what, total
        self._said = time.monotonic()
        if self._live:
            if self._task is not None:
                self._progress.update(self._task, visible=False)
            self._task = self._progress.add_task(what, total=total)
        else:
            self.message(f"{what}: {total:,} to score …")

    def advance(self, done: int) -> None:
        """Say how many of the task are done."""
        if self._task is not None:
            self._progress.update(self._task, completed=done)
        elif time.monotonic() - self._said > self.LINE_EVERY or done == self._total:
            self._said = time.monotonic()
            self.message(f"{self._what}: {done:,}/{self._total:,}")

    def message(self, text: str) -> None:
        """Print a line above the live one."""
        try:
            self._console.print(text, soft_wrap=True)
        except BrokenPipeError:  # nobody reads on; the work goes on all the same
            self._console.quiet = True


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
