"""What a benchmark run compares (P2 §4): evaluators, methods, rubrics and temperatures; YAML or options."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from persona_mlflow.catalog import read_yaml
from persona_mlflow.errors import UserError
from persona_mlflow.spec import explain, with_overrides
from persona_mlflow.spec_sections import EndpointSpec, LocalEngineSpec, Section, Whole

METHODS = ("prism", "vanilla", "cot", "selene", "pandalm", "alignscore")
"""What can be compared: PRISM and the judges of P2 §4."""

OWN_MODEL = ("selene", "pandalm", "alignscore")
"""Judges that are a model of their own, whichever evaluators are compared."""


class JudgeEndpointSpec(EndpointSpec):
    """The OpenAI-compatible endpoint of evaluators named ``openai:MODEL``; a cost cap is one method's.

    Attributes:
        votes: Sampled one-token answers per prompt for PRISM where the endpoint gives no log-probabilities;
            0 asks for log-probabilities alone.
    """

    votes: Whole = Field(default=0, ge=0, le=1000)


class JudgeFiles(Section):
    """Where the judges with models of their own are loaded from: hub id or local folder.

    Attributes:
        selene: Selene-1-Mini.
        pandalm: PandaLM-7B.
        alignscore: The AlignScore checkpoint, a local file or its folder.
        alignscore_tokenizer: Tokenizer of its encoder; a folder with the checkpoint may hold it.
    """

    selene: str = "AtlaAI/Selene-1-Mini-Llama-3.1-8B"
    pandalm: str = "WeOpenML/PandaLM-7B-v1"
    alignscore: str | None = None
    alignscore_tokenizer: str = "roberta-large"


class BenchSpec(Section):
    """One benchmark and the methods that are compared on it.

    Attributes:
        name: Names the MLflow experiment and the output folder; ``prism-<benchmark>`` by default.
        description: Stands on the parent run.
        benchmark: ``big5-easy``, ``big5-hard`` or ``social``.
        data: File, folder or hub id of its data.
        swap: What makes a negative of ``big5-easy``: the profile (P2's text) or the response (its data).
        keep: Kinds of doubtful rows to keep.
        size: Groups to draw; all by default. P2 draws 2,000 and 3,000.
        seed: Of the draw of groups, of the order of the labels, and of sampled judging.
        evaluators: Models as the sweep takes them, or ``openai:MODEL``.
        methods: Out of `METHODS`.
        points: Rubrics of direct judging, 5 or 7 points.
        temperatures: Of direct judging; 0 is greedy.
        seeds: Draws of each reply at a temperature above 0.
        layouts: PRISM's prompt layouts.
        order_cases: Cases that PRISM asks in all six orders of the labels, to tell how far the order decides;
            0 leaves that out.
        max_new_tokens: Limit of a judge's reply; each method's own by default.
        engine: Where and how local models run.
        endpoint: The endpoint of evaluators named ``openai:MODEL``.
        judges: Where the judges with models of their own are.
    """

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")
    description: str = ""
    benchmark: Literal["big5-easy", "big5-hard", "social"] = "big5-easy"
    data: str | None = None
    swap: Literal["profile", "response"] = "profile"
    keep: list[str] = Field(default=[])
    size: Whole | None = Field(default=None, ge=1, lt=2**31)
    seed: Whole = Field(default=0, ge=0, lt=2**31)
    evaluators: list[str] = Field(default=["smollm2"], min_length=1)
    methods: list[Literal["prism", "vanilla", "cot", "selene", "pandalm", "alignscore"]] = Field(
        default=["prism", "vanilla", "cot"], min_length=1
    )
    points: list[Literal[5, 7]] = Field(default=[5], min_length=1)
    temperatures: list[float] = Field(default=[0.0], min_length=1)
    seeds: Whole = Field(default=3, ge=1, le=1000)
    layouts: list[Literal["labels-last", "labels-first"]] = Field(default=["labels-last"], min_length=1)
    order_cases: Whole = Field(default=24, ge=0, le=100_000)
    max_new_tokens: Whole | None = Field(default=None, ge=1, le=100_000)
    engine: LocalEngineSpec = LocalEngineSpec()
    endpoint: JudgeEndpointSpec = JudgeEndpointSpec()
    judges: JudgeFiles = JudgeFiles()

    @field_validator("temperatures")
    @classmethod
    def _valid_temperatures(cls, values: list[float]) -> list[float]:
        if any(not 0 <= value <= 2 for value in values):
            raise ValueError("must be numbers from 0 (greedy) to 2")
        return values

    @field_validator("evaluators", "methods", "points", "temperatures", "layouts")
    @classmethod
    def _different(cls, values: list[Any]) -> list[Any]:
        for place, value in enumerate(values):
            if value in values[:place]:
                raise ValueError(f"names {value!r} twice")
            if value == "":
                raise ValueError("holds an empty name")
        return values

    @property
    def title(self) -> str:
        """The name, or what stands for it."""
        swapped = "-response" if self.benchmark == "big5-easy" and self.swap == "response" else ""
        return self.name or f"prism-{self.benchmark}{swapped}"


@dataclass(frozen=True)
class MethodPlan:
    """One method run that a spec asks for.

    Attributes:
        evaluator: The model; for judges that are a model of their own, that model.
        method: Out of `METHODS`.
        points: The rubric's maximum, for direct judging.
        temperature: 0 is greedy.
        layout: PRISM's prompt layout; empty for judges.
    """

    evaluator: str
    method: str
    points: int | None = None
    temperature: float = 0.0
    layout: str = ""


def plan_methods(spec: BenchSpec) -> list[MethodPlan]:
    """Every method run of a spec, those of one model side by side.

    Raises:
        UserError: AlignScore is asked for and its checkpoint is not named.
    """
    plans = [plan for evaluator in spec.evaluators for plan in _of_evaluator(spec, evaluator)]
    for method in spec.methods:
        if method == "alignscore" and spec.judges.alignscore is None:
            raise UserError(
                "judges.alignscore: names no checkpoint; download AlignScore-large.ckpt and give its path "
                "(--alignscore), or leave alignscore out of the methods"
            )
        if method in OWN_MODEL:
            plans.append(MethodPlan(str(getattr(spec.judges, method)), method))
    return plans


def _of_evaluator(spec: BenchSpec, evaluator: str) -> Iterator[MethodPlan]:
    for method in spec.methods:
        if method == "prism":
            for layout in spec.layouts:
                yield MethodPlan(evaluator, method, layout=layout)
        elif method not in OWN_MODEL:
            for points in spec.points:
                for temperature in spec.temperatures:
                    yield MethodPlan(evaluator, method, points, temperature)


def load_bench_spec(path: Path | None, overrides: Mapping[str, Any]) -> BenchSpec:
    """Read a spec and lay options over it.

    Args:
        path: The YAML file; None starts from the defaults.
        overrides: Dotted key → value; None is passed over.

    Raises:
        UserError: The file cannot be read, or a key or value is wrong; names it, and the valid choices.
    """
    content = read_yaml(path) if path else {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys, such as benchmark and methods")
    source = str(path or "options")
    given = {key for key, value in overrides.items() if value is not None}
    changed = with_overrides(content, overrides, source)
    data = changed.get("data")
    if path and isinstance(data, str) and "data" not in given and not Path(data).exists():
        beside = path.parent / data
        changed["data"] = str(beside) if beside.exists() else data
    return _parse(changed, source, given)


def _parse(content: Mapping[str, Any], source: str, given: Collection[str]) -> BenchSpec:
    try:
        return BenchSpec.model_validate(content)
    except ValidationError as error:
        raise UserError(explain(error.errors(), BenchSpec, source, frozenset(given))) from error
