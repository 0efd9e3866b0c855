"""PRISM in the sweep: how far the texts of the explaining runs fit their persona (P2 §3, on the runs of P1).

When every answer is on record, an evaluator scores the generations of the runs whose task prompt asks for an
explanation: the run's persona is the profile, the question as the run presented it the context, the text the
response. Our convention: each run is scored on a seeded sample of the questions, balanced over the categories
and the same for all runs, so that runs are paired question by question. A text that is empty is unscored and
counted.

Scores stand in the ledger, a JSONL file per run under ``prism/<evaluator>-<hash>/``: a call that was
interrupted goes on from there, and an experiment that was run before is scored without being run again.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.fidelity_analysis import (
    FIDELITY,
    SCORES,
    fidelity_summary,
    fidelity_tables,
    label_fidelity,
    pack_fidelity,
)
from persona_mlflow.grid import Cell, slugify
from persona_mlflow.ledger import CellLog, Ledger, write_atomically
from persona_mlflow.plan import Plan
from persona_mlflow.prism.dimensions import DIMENSIONS, load_dimensions
from persona_mlflow.prompting import fill_question
from persona_mlflow.questions.base import Question
from persona_mlflow.spec import digest

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from mlflow.entities import Run

    from persona_mlflow.prism.cases import Case
    from persona_mlflow.prism.evaluators import Evaluator
    from persona_mlflow.tracking import Tracker

FOLDER = "prism"
"""In the ledger, and among a parent's artifacts."""

CASES = "prism.parquet"
"""A child's scores: a row per question and dimension."""

KEY = "persona_mlflow.prism"
"""Tag on a run: what its scores are of (evaluator, layout, seed, sample and wording)."""

REQUEST = "persona_mlflow.prism_request"
"""Tag on a parent: what was asked for, known without loading the evaluator."""

EMPTY = "the response is empty"
ENDPOINT = "openai:"


class ScoreProgress(Protocol):
    """What watches the scoring."""

    def start(self, what: str, total: int) -> None:
        """Scoring begins."""

    def advance(self, done: int) -> None:
        """So many are done."""

    def message(self, text: str) -> None:
        """Something to say on a line of its own."""


class Fidelity:
    """The scoring of one plan's explaining runs.

    Args:
        plan: The plan; its spec names the evaluator.
        ledger: Where generations are, and where scores are recorded; the caller holds its lock.
        progress: Opens what watches, when scoring begins.

    Attributes:
        cells: The explaining cells, in grid order.
        questions: The sample, in the set's order.
        scored: Cases scored by this call; the others were on record.

    Raises:
        UserError: No run of the plan explains its answers, or a format or evaluator is not known.
    """

    def __init__(self, plan: Plan, ledger: Ledger, progress: Callable[[], ScoreProgress]) -> None:
        self.plan = plan
        self.ledger = ledger
        self.settings = plan.spec.prism
        self.place = f"{plan.spec.place('prism.evaluator')} {self.settings.evaluator}"
        self.cells = explaining_cells(plan)
        self.seed = plan.spec.seed if self.settings.seed is None else self.settings.seed
        self.questions = sample_questions(plan, self.settings.sample, self.seed)
        self.scored = 0
        self._open_progress = progress
        self._evaluator: Evaluator | None = None

    def prepare(self) -> None:
        """Find out whether the evaluator can be had, before anything is generated. Loads no local model.

        Raises:
            UserError: It cannot.
        """
        with self._blamed():
            if self._is_endpoint:
                self._evaluator = self._evaluator or load_evaluator(self.plan)
            else:
                self._revision  # noqa: B018

    def run(self, tracker: Tracker, logs: Mapping[str, CellLog]) -> list[str]:
        """Score what is not on record, and log the scores on the children and on the parent.

        Args:
            tracker: The parent; it may be finished, and stays so.
            logs: Finished records by cell key.

        Returns:
            Warnings about the scores.

        Raises:
            UserError: The evaluator cannot be loaded, or gives the labels next to no probability.
        """
        parent = tracker.client.get_run(tracker.parent_id)
        progress = self._open_progress()
        if parent.data.tags.get(REQUEST) == self._request:
            progress.message("Every score is on record and logged already.")
            return []
        with self._blamed():
            if self._evaluator is None:
                progress.message(f"Loading the evaluator {self.settings.evaluator} …")
                self._evaluator = load_evaluator(self.plan)
        try:
            data = self._score(tracker, logs, self._evaluator, progress)
            return self._log_parent(tracker, parent, data, self._evaluator)
        finally:
            self.close()

    def close(self) -> None:
        """Free the evaluator."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None

    @property
    def _is_endpoint(self) -> bool:
        return str(self.settings.evaluator).startswith(ENDPOINT)

    @cached_property
    def _revision(self) -> str:
        """What identifies a local evaluator's weights."""
        from persona_mlflow.engines.identity import identify
        from persona_mlflow.engines.openai_client import endpoint_model

        reference = str(self.settings.evaluator)
        if endpoint_model(reference, self.settings.base_url, "evaluator") is not None:
            return ""
        models = self.plan.catalogue.models
        model = self.plan.catalogue.model(reference)
        return identify(model.id, model.revision, known=[*models, f"{ENDPOINT}NAME"])

    @property
    def _sample(self) -> dict[str, Any]:
        return {
            "layout": self.settings.layout,
            "seed": self.seed,
            "dimensions": load_dimensions().fingerprint,
            "questions": [question.id for question in self.questions],
        }

    @cached_property
    def _request(self) -> str:
        engine = self.plan.spec.engine
        content = {
            "evaluator": self.settings.evaluator,
            "revision": self._revision,
            "base_url": self.settings.base_url,
            "dtype": "float32" if engine.deterministic else engine.dtype,
            "cells": [cell.key for cell in self.cells],
            **self._sample,
        }
        return digest(content, 32)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Say of a fault that it is the evaluator's."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.place}: {error}") from error

    # ------------------------------------------------------------------------------------------- scoring

    def _score(
        self, tracker: Tracker, logs: Mapping[str, CellLog], evaluator: Evaluator, progress: ScoreProgress
    ) -> xr.Dataset:
        from persona_mlflow.prism.scoring import LabelMassWarning

        identity = {"evaluator": evaluator.identity(), **self._sample}
        key = digest(identity, 32)
        folder = self.ledger.root / FOLDER / self._folder_name(identity)
        children = tracker.children()
        total, done = len(self.cells) * len(self.questions), 0
        e = np.full((len(self.cells), len(self.questions), len(DIMENSIONS)), np.nan)
        mass, accuracy = np.full(len(self.cells), np.nan), np.empty(len(self.cells))
        progress.start("fidelity", total)
        for i, cell in enumerate(self.cells):
            table = logs[cell.key].table(["question_id", "text", "correct"])
            accuracy[i] = np.mean(table["correct"].to_numpy(zero_copy_only=False))
            texts = dict(zip(table["question_id"].to_pylist(), table["text"].to_pylist(), strict=True))
            advance = _counter(progress, done)
            with self._blamed(), warnings.catch_warnings():
                warnings.simplefilter("ignore", LabelMassWarning)  # said once, of all runs
                frame = self._score_cell(cell, texts, evaluator, folder / f"{cell.slug}.jsonl", advance)
            e[i] = frame["e"].to_numpy().reshape(-1, len(DIMENSIONS))
            e[i][np.isnan(e[i]).any(axis=-1)] = np.nan
            masses = frame["label_mass"].dropna()
            mass[i] = masses.mean() if len(masses) else np.nan
            self._log_child(tracker, children[cell.key], frame, e[i], mass[i], key)
            done += len(self.questions)
            progress.advance(done)
        grid = self.plan.grid
        tpf = {cell.setting.all_levels["tpf"] for cell in self.cells}
        return label_fidelity(
            e,
            mass,
            accuracy,
            personas=[(p.name, p.group, p.subgroup) for p in grid.personas],
            factors={
                name: [level for level in levels if name != "tpf" or level in tpf]
                for name, levels in grid.factors.items()
            },
            questions=[(question.id, question.category) for question in self.questions],
            attrs={
                "experiment": self.plan.spec.name,
                "model": self.plan.model.name,
                "evaluator": _short_name(str(self.settings.evaluator)),
                "layout": self.settings.layout,
                "seed": self.seed,
                "tpf": sorted(map(str, tpf)),
                "key": key,
                "spec_hash": self.plan.spec_hash,
            },
        )

    def _folder_name(self, identity: Mapping[str, Any]) -> str:
        """Without the sample: a larger one takes over what a smaller one has scored."""
        shaping = {name: value for name, value in identity.items() if name != "questions"}
        return f"{slugify(_short_name(str(self.settings.evaluator)))}-{digest(shaping, 8)}"

    def _score_cell(
        self,
        cell: Cell,
        texts: Mapping[str, str],
        evaluator: Evaluator,
        output: Path,
        advance: Callable[[int, int], None],
    ) -> pd.DataFrame:
        """The scores of one run: a row per question and dimension, in order, unscored ones too."""
        import pandas as pd

        from persona_mlflow.prism.scoring import score_cases

        cases = {
            question.id: make_case(cell, question, texts[question.id])
            for question in self.questions
            if texts[question.id].strip()
        }
        on_record: list[int] = []

        def count(done: int, total: int) -> None:
            on_record.append(done)
            advance(done, total)

        frame = score_cases(
            list(cases.values()),
            evaluator,
            output=output,
            seed=self.seed,
            layout=self.settings.layout,
            progress=count,
        )
        self.scored += len(cases) - on_record[0]
        places = {case.id: question_id for question_id, case in cases.items()}
        frame.insert(0, "question_id", frame["case"].map(places).astype(object))
        categories = {question.id: question.category for question in self.questions}
        order = pd.MultiIndex.from_product([list(categories), DIMENSIONS], names=["question_id", "dimension"])
        frame = frame.set_index(["question_id", "dimension"]).reindex(order).reset_index()
        lacking = frame["case"].isna()
        texts_of = ("label_variant", "order", "reason")
        frame[list(texts_of)] = frame[list(texts_of)].astype(object).where(~lacking, "")
        frame.loc[lacking, "reason"] = EMPTY
        frame["cut_off"] = frame["cut_off"].fillna(0).astype(int)
        frame.insert(1, "category", frame["question_id"].map(categories))
        return frame.drop(columns="case")

    # ------------------------------------------------------------------------------------------- logging

    def _log_child(
        self, tracker: Tracker, run: Run, frame: pd.DataFrame, e: np.ndarray, mass: float, key: str
    ) -> None:
        if run.data.tags.get(KEY) == key:
            return
        scored = ~np.isnan(e[:, 0])
        found = {"prism/label_mass": float(mass)}
        values = [e.mean(axis=1), *e.T]
        for name, value in zip(SCORES, values, strict=True):
            found[f"prism/{name}"] = float(value[scored].mean()) if scored.any() else math.nan
        reason = f"none of {len(e)} cases is scored; {CASES} says why"
        with tempfile.TemporaryDirectory() as name:
            frame.to_parquet(Path(name) / CASES, index=False)
            tracker.log_later(
                run,
                metrics={
                    **{name: value for name, value in found.items() if math.isfinite(value)},
                    "prism/scored": float(scored.sum()),
                    "prism/unscored": float((~scored).sum()),
                },
                undefined={name: reason for name, value in found.items() if not math.isfinite(value)},
                tags={KEY: key},
                files=Path(name),
            )

    def _log_parent(self, tracker: Tracker, parent: Run, data: xr.Dataset, evaluator: Evaluator) -> list[str]:
        from persona_mlflow.prism.scoring import WARN_MASS

        summary = fidelity_summary(data)
        mass = summary["metrics"].get("prism/label_mass")
        notes = []
        if mass is not None and mass < WARN_MASS:
            notes.append(
                f"the evaluator puts {mass:.2g} of its probability on the labels: the scores say little of "
                "its answers"
            )
        facts = {
            "evaluator": str(self.settings.evaluator),
            "layout": self.settings.layout,
            "seed": self.seed,
            "questions": len(self.questions),
            "runs": len(self.cells),
        }
        packed = pack_fidelity(data)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / FOLDER
            folder.mkdir()
            for table, frame in fidelity_tables(data).items():
                frame.to_csv(folder / f"{table}.csv", index=False)
            document = {**facts, "settings": evaluator.describe(), **summary, "warnings": notes}
            text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False)
            (folder / "fidelity.json").write_text(text, encoding="utf-8")
            (folder / FIDELITY).write_bytes(packed)
            write_atomically(self.ledger.root / FOLDER / FIDELITY, packed)
            tags = {f"prism.{name}": value for name, value in {**evaluator.describe(), **facts}.items()}
            tracker.log_later(
                parent,
                metrics=summary["metrics"],
                undefined=summary["undefined"],
                tags={**tags, KEY: data.attrs["key"], REQUEST: self._request},
                files=Path(name),
            )
        return notes


def explaining_cells(plan: Plan) -> tuple[Cell, ...]:
    """The cells whose task prompt asks for an explanation, as the spec's ``prism.tpf`` names the formats.

    Raises:
        UserError: There is no such format, or no cell has one.
    """
    wanted = plan.spec.prism.tpf
    for name in wanted:
        if name not in plan.catalogue.tpf:
            where = plan.spec.place("prism.tpf")
            raise UserError(f"{where}: no task prompt format {name!r}; {choices(name, plan.catalogue.tpf)}")
    cells = tuple(cell for cell in plan.grid.cells if cell.setting.all_levels["tpf"] in wanted)
    if not cells:
        used = dict.fromkeys(str(cell.setting.all_levels["tpf"]) for cell in plan.grid.cells)
        raise UserError(
            f"{plan.spec.place('prism.evaluator')} {plan.spec.prism.evaluator}: no run explains its answers, "
            f"so there is no text to score: the tpf is {', '.join(used)}; add {' or '.join(wanted)} to it "
            "(--tpf), or name a format of your own that asks for an explanation under prism.tpf in the spec"
        )
    return cells


def sample_questions(plan: Plan, sample: int | str, seed: int) -> tuple[Question, ...]:
    """The questions on which every run is scored: balanced over the categories, and the same for all runs.

    Args:
        plan: Its question set is sampled.
        sample: How many; 0 or ``all`` for every question. A smaller sample is part of a larger.
        seed: Of the choice.
    """
    whole = plan.questions
    if sample in (0, "all"):
        return tuple(whole.questions)
    return tuple(whole.limit(int(sample), seed).questions)


def make_case(cell: Cell, question: Question, text: str) -> Case:
    """What is scored of one generation: persona, question as the run presented it, and the text (P2 §3).

    Raises:
        UserError: The text is empty.
    """
    from persona_mlflow.prism.cases import Case, Profile

    presented = cell.setting.draft.arrange(question)
    context = fill_question("{question}", presented.text, presented.options)
    profile = Profile(kind="persona", name=cell.persona.name)
    return Case(f"{cell.key}/{question.id}", profile, context, text)


def load_evaluator(plan: Plan) -> Evaluator:
    """Load the evaluator that a plan's spec names: a model of the plan's catalogue, or an endpoint's.

    Raises:
        UserError: It cannot be had.
    """
    from persona_mlflow.prism import evaluators

    settings, engine = plan.spec.prism, plan.spec.engine
    reference, revision = str(settings.evaluator), None
    if not reference.startswith(ENDPOINT):
        model = plan.catalogue.model(reference)
        reference, revision = model.id, model.revision
    return evaluators.load_evaluator(
        reference,
        base_url=settings.base_url,
        api_key_env=settings.api_key_env,
        dtype="float32" if engine.deterministic else engine.dtype,
        device=engine.device,
        revision=revision,
    )


def _short_name(reference: str) -> str:
    # A model by its path would fill the line.
    return reference.rstrip("/").rpartition("/")[2] if Path(reference).is_absolute() else reference


def _counter(progress: ScoreProgress, before: int) -> Callable[[int, int], None]:
    return lambda done, total: progress.advance(before + done)
