"""What recording and logging a run costs: a few are logged for a try, to a store that is thrown away."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from persona_mlflow.engines.base import Completion

if TYPE_CHECKING:
    from persona_mlflow.plan import Plan

LOGGED_RUNS, LOGGED_ANSWERS = 3, 400
"""How many runs are logged, and the most answers that each has."""


def measure_logging(
    plan: Plan, completions: Sequence[Completion], tracking_uri: str | None
) -> tuple[float, float]:
    """Record and log a few runs for a try, in a folder that is removed.

    Args:
        plan: The experiment.
        completions: Answers to take texts from.
        tracking_uri: The store of the real run: one that does not exist yet takes its time to be made.

    Returns:
        Seconds to open the store, and seconds per run.
    """
    from persona_mlflow.ledger import Ledger, Row
    from persona_mlflow.records import make_child, row_parser
    from persona_mlflow.store import resolve_tracking_uri, sqlite_path
    from persona_mlflow.tracking import Tracker

    by_id = {question.id: question for question in plan.questions.questions}
    ids = list(by_id)[:LOGGED_ANSWERS]
    shared = {"model": plan.model.name, "dataset_fingerprint": plan.questions.fingerprint}
    with tempfile.TemporaryDirectory() as name, _without_run():
        folder = Path(name)

        def open_tracker(spec_hash: str) -> Tracker:
            return Tracker.open(
                f"sqlite:///{folder}/mlflow.db",
                "calibration",
                run_name="calibration",
                spec_hash=spec_hash,
                params=plan.params(),
                ledger="calibration",
            )

        begin = time.perf_counter()
        import mlflow  # noqa: F401

        importing = time.perf_counter() - begin
        tracker = open_tracker("first")
        creating = time.perf_counter() - begin
        begin = time.perf_counter()
        open_tracker("second")
        reopening = importing + time.perf_counter() - begin
        cells = plan.grid.cells[:LOGGED_RUNS]
        ledger = Ledger(folder / "ledger")
        begin = time.perf_counter()
        for cell in cells:
            log = ledger.open(cell)
            rows = []
            for place, question_id in enumerate(ids):
                c = completions[(cell.index + place) % len(completions)]
                tokens = c.prompt_tokens, c.completion_tokens
                rows.append(Row(question_id, c.text, c.finish_reason, *tokens, c.notes, time.time()))
            log.append(rows)
            log.finish(ids, "calibration", row_parser(cell, by_id))
            target = folder / cell.key
            target.mkdir()
            tracker.log_child(make_child(cell, log, by_id, shared, target))
        per_run = (time.perf_counter() - begin) / len(cells)
    database = sqlite_path(resolve_tracking_uri(tracking_uri))
    opening = creating if database is not None and not database.exists() else reopening
    return opening, per_run * max(1.0, len(by_id) / len(ids))


@contextmanager
def _without_run() -> Iterator[None]:
    """Keep a run that the environment names out of a try at logging."""
    run_id = os.environ.pop("MLFLOW_RUN_ID", None)
    try:
        yield
    finally:
        if run_id is not None:
            os.environ["MLFLOW_RUN_ID"] = run_id
