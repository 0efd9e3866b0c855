"""The main job: generate every draw of a plan that is not on record yet, and log each finished run.

Work goes window by window (`Grid.windows`): the draws missing from the ledger become requests, one per
prompt; the engine's completions are recorded batch by batch; a cell whose last answer is in is compacted and
logged at once. Where the spec names an evaluator, the explaining runs are then scored. Whatever interrupts
it, the next call of the same command goes on from the ledger.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from persona_mlflow import outcomes
from persona_mlflow.engines.base import Completion, Draw, Engine, Request
from persona_mlflow.grid import Cell
from persona_mlflow.ledger import CellLog, Ledger, Row, write_atomically
from persona_mlflow.plan import Plan, make_request
from persona_mlflow.records import make_child, row_parser
from persona_mlflow.summary import parent_summary
from persona_mlflow.tracking import Tracker

if TYPE_CHECKING:
    import xarray as xr
    from mlflow.entities import Run

    from persona_mlflow.fidelity import Fidelity

# Draws that are planned and sorted by length together: enough for full batches, few enough to hold in memory.
WINDOW_DRAWS = 2048


class Progress(Protocol):
    """What watches a sweep."""

    def start(self, runs: int, draws: int, runs_done: int, draws_done: int) -> None:
        """The sweep is about to generate."""

    def advance(self, runs: int = 0, draws: int = 0) -> None:
        """So many more are done."""

    def message(self, text: str) -> None:
        """Something to say on a line of its own."""


@dataclass(frozen=True)
class SweepResult:
    """What a sweep leaves behind.

    Attributes:
        experiment_id: The MLflow experiment.
        parent_id: The parent run.
        output: The ledger's folder.
        generated: Draws made by this call; the others were on record.
        scored: Generations that this call scored; None where the spec names no evaluator.
        summary: As `persona_mlflow.summary.parent_summary` gives it.
    """

    experiment_id: str
    parent_id: str
    output: Path
    generated: int
    scored: int | None
    summary: Mapping[str, Any]


class Sweep:
    """One plan, one ledger, one parent run.

    Args:
        plan: What to run.
        ledger: Where draws are recorded; the caller holds its lock.
        load_engine: Loads the model; called only where a draw is missing.
        progress: Who watches.
        fidelity: Scores the generations when they are all there; nothing is scored without.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        load_engine: Callable[[], Engine],
        progress: Progress,
        fidelity: Fidelity | None = None,
    ) -> None:
        self.plan = plan
        self.ledger = ledger
        self.load_engine = load_engine
        self.progress = progress
        self.fidelity = fidelity
        self.questions = plan.questions.questions
        self.by_id = {question.id: question for question in self.questions}
        self.generated = 0
        self.engine: Engine | None = None

    def run(self, open_tracker: Callable[[], Tracker]) -> SweepResult:
        """Run to the end.

        Args:
            open_tracker: Opens the parent run; called after the model has loaded and every prompt is known to
                fit, so that a call that cannot work leaves no run behind.

        Raises:
            UserError: The plan cannot run, e.g. a prompt is longer than the model's context.
        """
        fingerprint = self.plan.questions.fingerprint
        logs = {cell.key: self.ledger.open(cell) for cell in self.plan.grid.cells}
        finished = {key for key, log in logs.items() if log.is_finished(fingerprint)}
        self._write_plan()
        if len(finished) < len(logs):
            if self.fidelity is not None:
                self.fidelity.prepare()
            self.engine = self.load_engine()
            self.progress.message("Checking that every prompt fits and holds its persona …")
            self.engine.check(self.plan.longest_requests())
        tracker = open_tracker()
        complete = tracker.was_finished and len(finished) == len(logs)
        try:
            if not complete:
                tracker.reopen()
                self._log_plan(tracker)
                self._work(tracker, logs, finished)
                summary = self._finish(tracker)
            else:
                self.progress.message("Every answer is on record and logged already.")
                summary = self._summary()
            self._close_engine()  # before another model is loaded
            if self.fidelity is not None:
                summary["warnings"] += self.fidelity.run(tracker, logs)
            if not complete:
                tracker.close("FINISHED")
        except BaseException as error:
            # Ctrl-C and SIGTERM end the run as killed, all else as failed; the ledger keeps what is done.
            # Experiments that were complete before stay so: what they lack is their scores.
            if not (complete and self.fidelity is not None):
                tracker.close("FAILED" if isinstance(error, Exception) else "KILLED")
            raise
        finally:
            self._close_engine()
            if self.fidelity is not None:
                self.fidelity.close()
        return SweepResult(
            tracker.experiment_id,
            tracker.parent_id,
            self.ledger.root,
            self.generated,
            self.fidelity.scored if self.fidelity is not None else None,
            summary,
        )

    def _close_engine(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _work(self, tracker: Tracker, logs: Mapping[str, CellLog], finished: set[str]) -> None:
        grid, count = self.plan.grid, len(self.questions)
        children = tracker.children()
        unlogged = [cell for cell in grid.cells if cell.key in finished and not _is_logged(cell, children)]
        self.progress.start(
            runs=len(grid),
            draws=self.plan.draws,
            runs_done=len(finished) - len(unlogged),
            draws_done=len(finished) * count,
        )
        for cell in unlogged:
            self._log_cell(cell, logs[cell.key], tracker, children)
        for window in grid.windows(count, WINDOW_DRAWS):
            todo = [[cell for cell in group if cell.key not in finished] for group in window]
            self._run_window([group for group in todo if group], logs, tracker, children)

    def _run_window(
        self,
        groups: list[list[Cell]],
        logs: Mapping[str, CellLog],
        tracker: Tracker,
        children: Mapping[str, Run],
    ) -> None:
        missing: dict[int, set[str]] = {}
        cells: dict[int, Cell] = {}
        for cell in (cell for group in groups for cell in group):
            on_record = logs[cell.key].rows()
            missing[cell.index] = {q.id for q in self.questions if q.id not in on_record}
            cells[cell.index] = cell
            self.progress.advance(draws=len(self.questions) - len(missing[cell.index]))
        for index in [index for index, left in missing.items() if not left]:
            self._complete(cells[index], logs, tracker, children)
        requests = [request for group in groups for request in self._requests(group, missing)]
        if not requests:
            return
        assert self.engine is not None
        for batch in self.engine.generate(requests):
            self._record(batch, cells, logs)
            self.generated += len(batch)
            self.progress.advance(draws=len(batch))
            for completion in batch:
                index, question_id = _key(completion)
                missing[index].discard(question_id)
                if not missing[index]:
                    self._complete(cells[index], logs, tracker, children)
        lost = sum(map(len, missing.values()))
        if lost:
            raise RuntimeError(f"the engine gave no answer to {lost} draws")

    def _requests(self, group: list[Cell], missing: Mapping[int, set[str]]) -> Iterable[Request]:
        for question in self.questions:
            wanted = [cell for cell in group if question.id in missing[cell.index]]
            if wanted:
                draws = tuple(
                    Draw((cell.index, question.id), cell.setting.draft.temperature, cell.seed(question))
                    for cell in wanted
                )
                yield replace(make_request(wanted[0], question), draws=draws)

    def _record(
        self, batch: list[Completion], cells: Mapping[int, Cell], logs: Mapping[str, CellLog]
    ) -> None:
        now = time.time()
        rows: dict[int, list[Row]] = defaultdict(list)
        for completion in batch:
            index, question_id = _key(completion)
            rows[index].append(
                Row(
                    question_id=question_id,
                    text=completion.text,
                    finish_reason=completion.finish_reason,
                    prompt_tokens=completion.prompt_tokens,
                    completion_tokens=completion.completion_tokens,
                    notes=completion.notes,
                    time=now,
                )
            )
        for index, new in rows.items():
            logs[cells[index].key].append(new)

    def _complete(
        self, cell: Cell, logs: Mapping[str, CellLog], tracker: Tracker, children: Mapping[str, Run]
    ) -> None:
        log = logs[cell.key]
        ids = [question.id for question in self.questions]
        log.finish(ids, self.plan.questions.fingerprint, row_parser(cell, self.by_id))
        self._log_cell(cell, log, tracker, children)

    def _log_cell(self, cell: Cell, log: CellLog, tracker: Tracker, children: Mapping[str, Run]) -> None:
        # A finished run stays as it is (pitfall M12), e.g. where a lost ledger was made again.
        if not _is_logged(cell, children):
            shared = {"model": self.plan.model.name, "dataset_fingerprint": self.plan.questions.fingerprint}
            with tempfile.TemporaryDirectory() as folder:
                child = make_child(cell, log, self.by_id, shared, Path(folder))
                tracker.log_child(child, unfinished=children.get(cell.key))
        self.progress.advance(runs=1)

    def _write_plan(self) -> None:
        """Leave what is needed to read the ledger: the plan and the questions."""
        import io

        root = self.ledger.root
        buffer = io.BytesIO()
        self.plan.questions.to_frame().to_parquet(buffer, index=False)
        write_atomically(root / outcomes.QUESTIONS, buffer.getvalue())
        text = json.dumps(self.plan.as_dict(), ensure_ascii=False, indent=1, allow_nan=False)
        write_atomically(root / outcomes.PLAN, text.encode())

    def _log_plan(self, tracker: Tracker) -> None:
        """Log what the experiment asks, and with what: before the first answer, so that a crash keeps it."""
        import yaml

        plan = self.plan
        tracker.log_dataset(
            plan.questions.name,
            plan.questions.fingerprint,
            _source_text(plan),
            plan.questions.report.to_dict(),
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for file in (outcomes.PLAN, outcomes.QUESTIONS):
                shutil.copyfile(self.ledger.root / file, folder / file)
            spec = plan.spec.model_dump(mode="json", exclude_defaults=True)
            prompts = {
                kind: {level: text for level, text in templates.items() if level in used}
                for kind, templates, used in (
                    ("ppf", plan.catalogue.ppf, {c.setting.all_levels["ppf"] for c in plan.grid.cells}),
                    ("tpf", plan.catalogue.tpf, {c.setting.all_levels["tpf"] for c in plan.grid.cells}),
                )
            }
            for file, content in (("spec.yaml", spec), ("prompts.yaml", prompts)):
                text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
                (folder / file).write_text(text, encoding="utf-8")
            report = json.dumps(
                plan.questions.report.to_dict(), ensure_ascii=False, indent=1, allow_nan=False
            )
            (folder / "data_report.json").write_text(report, encoding="utf-8")
            tracker.log_parent(tags=self._describe_engine(folder), files=folder)

    def _describe_engine(self, folder: Path) -> dict[str, Any]:
        """Write the effective settings into a folder and give them as tags, if a model was loaded."""
        if self.engine is None:
            return {}
        settings = self.engine.describe()
        (folder / "engine.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
        return {f"engine.{key}": value for key, value in settings.items()}

    def _summary(self) -> dict[str, Any]:
        return parent_summary(outcomes.load_outcomes(self.ledger.root))

    def _finish(self, tracker: Tracker) -> dict[str, Any]:
        dataset = outcomes.load_outcomes(self.ledger.root)
        logged = [run for run in tracker.children().values() if run.info.status == "FINISHED"]
        if len(logged) != len(self.plan.grid):
            raise RuntimeError(f"{len(logged)} child runs are finished, {len(self.plan.grid)} were planned")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _write_runs(logged, folder / "runs.csv")
            # Described again: by now the batch size has met the memory.
            return self._log_results(tracker, dataset, folder, self._describe_engine(folder))

    def _log_results(
        self, tracker: Tracker, dataset: xr.Dataset, folder: Path, tags: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Log what a finished parent carries: its summary, the outcomes in one file, and a folder's files."""
        summary = parent_summary(dataset)
        (folder / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False))
        packed = outcomes.pack_outcomes(dataset, self.plan.spec_hash)
        write_atomically(self.ledger.root / outcomes.OUTCOMES, packed)
        (folder / outcomes.OUTCOMES).write_bytes(packed)
        tracker.log_parent(
            metrics=summary["metrics"],
            undefined=summary["undefined"],
            tags={"persona_mlflow.children": len(self.plan.grid), **tags},
            files=folder,
        )
        return summary


def _key(completion: Completion) -> tuple[int, str]:
    """The key that `Sweep` gave the draw: the cell's index and the question's id."""
    assert isinstance(completion.key, tuple)
    return completion.key


def _is_logged(cell: Cell, children: Mapping[str, Run]) -> bool:
    return cell.key in children and children[cell.key].info.status == "FINISHED"


def _source_text(plan: Plan) -> str:
    source = plan.spec.questions
    return source if isinstance(source, str) else json.dumps(source, default=str)


def _write_runs(runs: Iterable[Run], path: Path) -> None:
    """All children in one table: the UI shows them a page at a time."""
    import pandas as pd

    records = [
        {"run_id": run.info.run_id, "name": run.info.run_name, **run.data.params, **run.data.metrics}
        for run in runs
    ]
    pd.DataFrame(records).sort_values("name").to_csv(path, index=False)
