"""What an experiment is going to do, worked out before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from persona_mlflow.catalog import Catalogue, Model
from persona_mlflow.engines.base import Request
from persona_mlflow.factors import Draft
from persona_mlflow.grid import Cell, Grid, slugify
from persona_mlflow.prompting import fill_persona, fill_question
from persona_mlflow.questions import QuestionSet
from persona_mlflow.questions.base import Question
from persona_mlflow.spec import ExperimentSpec, digest

UNKNOWN_REVISION = "unknown"
"""The revision of a model that is not on this machine, of a plan that is only looked at."""


@dataclass(frozen=True)
class Plan:
    """A spec with everything that it names looked up.

    Attributes:
        spec: The spec.
        catalogue: Personas, prompt formats and models.
        model: The model, by its short name and by where it is loaded from.
        revision: What identifies the model's weights: a commit, or a hash of its files; behind an endpoint
            its address, or the spec's own word for them.
        questions: The question set, limit applied.
        grid: Every persona in every setting.
    """

    spec: ExperimentSpec
    catalogue: Catalogue
    model: Model
    revision: str
    questions: QuestionSet
    grid: Grid

    @cached_property
    def spec_hash(self) -> str:
        """Identifies what is measured: equal hashes mean the same runs over the same questions."""
        return digest(
            {
                "cells": [cell.key for cell in self.grid.cells],
                "groups": [[p.name, p.group, p.subgroup] for p in self.grid.personas],
                "questions": self.questions.fingerprint,
                "name": self.spec.name,
            },
            32,
        )

    @property
    def commit(self) -> str | None:
        """The hub commit to load, so that it is the one the ledger speaks of; None for local weights."""
        return None if self.revision.startswith(("sha256:", "files:", "endpoint:")) else self.revision

    @property
    def sends_top_k(self) -> bool:
        """Whether an endpoint is sent ``decoding.top_k``."""
        return _sends_top_k(self.spec)

    @property
    def draws(self) -> int:
        """How many answers there are in all."""
        return len(self.grid) * len(self.questions.questions)

    @property
    def prompts(self) -> int:
        """How many different prompts there are: settings that differ in decoding alone share theirs."""
        return len(self.grid.prompt_groups()) * len(self.questions.questions)

    @property
    def default_output(self) -> Path:
        """The ledger's folder where ``--output`` names none."""
        return Path("outputs") / f"{self.spec.name}-{slugify(self.model.name)}"

    def as_dict(self) -> dict[str, Any]:
        """What `persona_mlflow.outcomes.assemble` needs to read the results, as JSON values."""
        return {
            "name": self.spec.name,
            "model": self.model.name,
            "revision": self.revision,
            "spec_hash": self.spec_hash,
            "questions": self.questions.fingerprint,
            "personas": [
                {"name": p.name, "group": p.group, "subgroup": p.subgroup} for p in self.grid.personas
            ],
            "factors": {name: list(levels) for name, levels in self.grid.factors.items()},
            "cells": [{"key": cell.key, "slug": cell.slug, "name": cell.name} for cell in self.grid.cells],
        }

    def params(self) -> dict[str, Any]:
        """The parent run's parameters: what was asked for, and under ``resolved.*`` what it came to."""
        spec = self.spec
        return {
            "experiment": spec.name,
            "model": self.model.name,
            "personas": ", ".join(p.name for p in self.grid.personas),
            **{name: ", ".join(map(str, levels)) for name, levels in self.grid.factors.items()},
            "max_new_tokens": spec.decoding.max_new_tokens,
            "top_k": spec.decoding.top_k,
            "top_p": spec.decoding.top_p,
            "seed": spec.seed,
            **({"limit": spec.limit} if spec.limit else {}),
            **self._engine_params(),
            "questions": self.questions.name,
            "questions_count": len(self.questions.questions),
            "runs": len(self.grid),
            "dataset_fingerprint": self.questions.fingerprint,
            "resolved.experiment": spec.name,
            "resolved.model": self.model.id,
            "resolved.revision": self.revision,
        }

    def _engine_params(self) -> dict[str, Any]:
        engine = self.spec.engine
        if engine.is_endpoint:
            from persona_mlflow.engines.openai import endpoint_url

            return {"engine": engine.kind, "base_url": endpoint_url(engine.base_url)}
        return {"dtype": engine.dtype, "quantization": engine.quantization}

    def longest_requests(self) -> Iterator[Request]:
        """One request per question and prompt format, with the longest persona: what a context must hold."""
        longest: dict[object, Cell] = {}
        for cell in self.grid.cells:
            format_ = cell.setting.draft.prompt_identity
            if format_ not in longest or len(cell.persona.name) > len(longest[format_].persona.name):
                longest[format_] = cell
        for cell in longest.values():
            for question in self.questions.questions:
                yield make_request(cell, question)


def make_request(cell: Cell, question: Question) -> Request:
    """The prompt of a cell's question, with no draws yet."""
    draft: Draft = cell.setting.draft
    presented = draft.arrange(question)
    return Request(
        system=fill_persona(draft.persona_template, cell.persona.name),
        user=fill_question(draft.task_template, presented.text, presented.options),
        draws=(),
    )


def make_plan(spec: ExperimentSpec, needs_weights: bool = True) -> Plan:
    """Look up everything that a spec names, and validate it.

    Args:
        spec: The experiment.
        needs_weights: Whether a catalogue's model that is not on this machine has to be reached. Otherwise
            its revision stays open (`UNKNOWN_REVISION`), and the plan can be looked at, but not run.

    Raises:
        UserError: Something is missing or wrong; the message says what, where, and the valid choices.
    """
    catalogue = spec.load_catalogue()
    personas = spec.select_personas(catalogue)
    factors = spec.select_factors(catalogue)
    questions = spec.load_questions()
    model = catalogue.model(spec.model)
    if spec.engine.is_endpoint:
        revision = _endpoint_identity(spec)
    else:
        revision = _local_identity(spec, model, catalogue, needs_weights)
    grid = Grid(personas, factors, catalogue, _generation(spec, model, revision))
    return Plan(spec, catalogue, model, revision, questions, grid)


def _local_identity(spec: ExperimentSpec, model: Model, catalogue: Catalogue, needs_weights: bool) -> str:
    from persona_mlflow.engines.identity import identify, local_path

    if not needs_weights and model.id != model.name and local_path(model.id) is None:
        from huggingface_hub import try_to_load_from_cache

        # Not from the hub: a plan is looked at without a network, too.
        config = try_to_load_from_cache(model.id, "config.json", revision=spec.revision or model.revision)
        return Path(config).parent.name if isinstance(config, str) else UNKNOWN_REVISION
    return identify(model.id, spec.revision or model.revision, known=catalogue.models)


def _endpoint_identity(spec: ExperimentSpec) -> str:
    """Nobody sees the weights behind an endpoint: they are known by its address, or by the user's word."""
    from persona_mlflow.engines.openai import endpoint_url

    return f"endpoint:{spec.revision or endpoint_url(spec.engine.base_url)}"


def _sends_top_k(spec: ExperimentSpec) -> bool:
    from persona_mlflow.engines.openai import takes_top_k

    asked = spec.engine.send_top_k
    return takes_top_k(spec.engine.base_url) if asked is None else asked


def _generation(spec: ExperimentSpec, model: Model, revision: str) -> Mapping[str, Any]:
    """What shapes a draw beside its persona, setting and question; part of every cell's identity."""
    engine = spec.engine
    shared = {
        "model": model.id,
        "revision": revision,
        "decoding": spec.decoding.model_dump(),
        "seed": spec.seed,
    }
    if engine.is_endpoint:
        extra = {"extra_body": engine.extra_body} if engine.extra_body else {}
        return {**shared, "engine": engine.kind, "send_top_k": _sends_top_k(spec), **extra}
    return {
        **shared,
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "deterministic": engine.deterministic,
    }
