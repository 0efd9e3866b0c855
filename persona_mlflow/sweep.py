"""The main job: generate every draw of a plan that is not on record yet, and log each finished run.

Work goes window by window (`Grid.windows`): the draws missing from the ledger become requests, one per
prompt; the engine's completions are recorded batch by batch; a cell whose last answer is in is compacted and
logged at once. Several processes claim their windows from a queue instead (`persona_mlflow.distributed`).
Where the spec names an evaluator, the explaining runs are then scored. Whatever interrupts it, the next call
of the same command goes on from the ledger.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from persona_mlflow import outcomes
from persona_mlflow.engines.base import Completion, Draw, Engine, Request
from persona_mlflow.grid import Cell
from persona_mlflow.ledger import CellLog, Ledger, Row, write_atomically
from persona_mlflow.plan import Plan, make_request
from persona_mlflow.questions.base import Question
from persona_mlflow.records import make_child, row_parser
from persona_mlflow.summary import parent_summary
from persona_mlflow.tracking import Tracker

if TYPE_CHECKING:
    import xarray as xr
    from mlflow.entities import Run

    from persona_mlflow.distributed.team import Team
    from persona_mlflow.distributed.units import Unit
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
        generated: Draws made by this call, by all of its processes; the others were on record.
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
        team: The processes that share the work, this one being the main one; without, it is alone.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        load_engine: Callable[[], Engine],
        progress: Progress,
        fidelity: Fidelity | None = None,
        team: Team | None = None,
    ) -> None:
        self.plan = plan
        self.ledger = ledger
        self.load_engine = load_engine
        self.progress = progress
        self.fidelity = fidelity
        self.team = team
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
            if self.team is not None:
                logs = self._share(logs, finished, self.team)
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
                if self.team is not None and self.engine is not None:
                    self.team.start(self.engine.describe())
                self._work(tracker, logs, finished)
                self.ledger.drop_empty_parts()
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
        if self.team is not None and len(finished) < len(grid):
            self._work_together(tracker, logs, finished, children, self.team)
            return
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
        if not any(missing.values()):
            return
        assert self.engine is not None
        for batch in generate(self.engine, self.plan, missing, {i: logs[cells[i].key] for i in cells}):
            self.generated += len(batch)
            self.progress.advance(draws=len(batch))
            for index in {index for index, _ in batch}:
                if not missing[index]:
                    self._complete(cells[index], logs, tracker, children)

    # --------------------------------------------------------------------------------- several processes

    def _share(self, logs: Mapping[str, CellLog], finished: set[str], team: Team) -> dict[str, CellLog]:
        """Write the queue of what is missing; returns the logs to which this process may add."""
        from persona_mlflow.distributed.units import Lengths, cut

        everything = frozenset(self.by_id)
        missing: dict[int, frozenset[str]] = {}
        new: set[int] = set()
        lengths = Lengths(self.plan)
        for cell in self.plan.grid.cells:
            log = logs[cell.key]
            if cell.key in finished:
                continue
            log.gather()
            if log.is_new():
                new.add(cell.index)
                missing[cell.index] = everything  # one set for all, as there may be thousands of cells
            else:
                rows = log.rows()
                lengths.count(cell, rows.values())
                missing[cell.index] = everything - rows.keys()
        team.begin(cut(self.plan, missing, new, lengths, team.place.world))
        return {cell.key: self.ledger.open(cell, team.owner) for cell in self.plan.grid.cells}

    def _work_together(
        self,
        tracker: Tracker,
        logs: Mapping[str, CellLog],
        finished: set[str],
        children: Mapping[str, Run],
        team: Team,
    ) -> None:
        """Generate what this process claims, and log the cells that it or another completes."""
        from persona_mlflow.distributed.team import WAIT_EVERY

        cells, units = self.plan.grid.cells, team.claims.units
        left = Counter(index for unit in units for index in unit.cells)  # units of each cell
        draws = sum(unit.draws for unit in units)
        self.progress.advance(draws=(len(cells) - len(finished)) * len(self.questions) - draws)
        for cell in cells:
            if cell.key not in finished and not left[cell.index]:
                self._complete(cell, logs, tracker, children)

        def count(drawn: int) -> None:
            self.generated += drawn
            self.progress.advance(draws=drawn)

        def look() -> None:
            done, drawn, lost = team.look()
            count(drawn)
            for name in lost:
                self.progress.message(f"Process {name} is gone: what it had claimed is taken over.")
            for unit in done:
                for index in unit.cells:
                    left[index] -= 1
                    if not left[index]:
                        self._complete(cells[index], logs, tracker, children)

        while left.total():
            claim = team.take()
            if claim is None:
                time.sleep(WAIT_EVERY)
                look()
                continue
            mine = units[claim.start : claim.stop]
            own = {index: logs[cells[index].key] for unit in mine for index in unit.cells}
            missing = missing_draws(self.plan, mine, own, again=claim.takes is not None)
            assert self.engine is not None
            for batch in generate(self.engine, self.plan, missing, own):
                count(len(batch))
                if team.is_time():
                    look()
            team.finish(claim)
            look()
        count(draws - self.generated)  # what a process that died did not come to tell
        team.end()

    # ------------------------------------------------------------------------------------------ the runs

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


def missing_draws(
    plan: Plan, units: Sequence[Unit], logs: Mapping[int, CellLog], again: bool
) -> dict[int, set[str]]:
    """What is to be generated for some units of the queue.

    Args:
        plan: The plan.
        units: The units.
        logs: Cell index → log.
        again: Whether a process that died may have begun with them.

    Returns:
        Cell index → ids of the questions.
    """
    missing: dict[int, set[str]] = defaultdict(set)
    on_record: dict[int, frozenset[str]] = {}
    for unit in units:
        ids = [question.id for question in plan.questions.questions[unit.start : unit.stop]]
        for index in unit.cells:
            if unit.new and not again:
                missing[index].update(ids)
                continue
            if index not in on_record:
                on_record[index] = frozenset(logs[index].rows(parts=again))
            missing[index].update(set(ids) - on_record[index])
    return missing


def generate(
    engine: Engine, plan: Plan, missing: Mapping[int, set[str]], logs: Mapping[int, CellLog]
) -> Iterator[list[tuple[int, str]]]:
    """Generate what is missing, and put it on record batch by batch.

    Args:
        engine: Generates.
        plan: What the draws are of.
        missing: Cell index → ids of the questions; an answer that is on record is taken out.
        logs: Cell index → log.

    Yields:
        Cell index and question id of each draw of a batch, when it is on record.

    Raises:
        RuntimeError: The engine lost a draw.
    """
    groups: dict[object, list[Cell]] = {}
    for index in sorted(index for index, ids in missing.items() if ids):
        cell = plan.grid.cells[index]
        groups.setdefault((cell.persona, cell.setting.draft.prompt_identity), []).append(cell)
    requests = [
        request
        for group in groups.values()
        for request in _requests(group, plan.questions.questions, missing)
    ]
    if not requests:
        return
    for batch in engine.generate(requests):
        _record(batch, logs)
        keys = [_key(completion) for completion in batch]
        for index, question_id in keys:
            missing[index].discard(question_id)
        yield keys
    lost = sum(map(len, missing.values()))
    if lost:
        raise RuntimeError(f"the engine gave no answer to {lost} draws")


def _requests(
    group: list[Cell], questions: Iterable[Question], missing: Mapping[int, set[str]]
) -> Iterator[Request]:
    """The prompts of a prompt group, each with the draws that are missing."""
    for question in questions:
        wanted = [cell for cell in group if question.id in missing[cell.index]]
        if wanted:
            draws = tuple(
                Draw((cell.index, question.id), cell.setting.draft.temperature, cell.seed(question))
                for cell in wanted
            )
            yield replace(make_request(wanted[0], question), draws=draws)


def _record(batch: list[Completion], logs: Mapping[int, CellLog]) -> None:
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
        logs[index].append(new)


def _key(completion: Completion) -> tuple[int, str]:
    """The key that `_requests` gave the draw: the cell's index and the question's id."""
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
