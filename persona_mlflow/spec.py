"""The experiment's specification: one YAML file, validated before anything is loaded."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from persona_mlflow.catalog import Catalogue, Persona, load_catalogue, read_yaml
from persona_mlflow.errors import UserError, choices
from persona_mlflow.factors import FACTORS, Level
from persona_mlflow.spec_sections import (
    CatalogueFiles,
    DecodingSpec,
    EngineSpec,
    LocalEngineSpec,
    PrismSpec,
    Section,
    Whole,
)

if TYPE_CHECKING:
    from persona_mlflow.questions import QuestionSet


FACTOR_OPTIONS = ("ppf", "tpf", "temperature", "repeat")
"""The factors that the command line has an option for; any other comes by ``--factor``."""

# Keys whose option is not called as the key is.
_OPTIONS = {
    "prism.evaluator": "prism",
    "prism.sample": "prism-sample",
    "prism.base_url": "prism-base-url",
    "engine.kind": "engine",
}


class ExperimentSpec(Section):
    """What an experiment runs: every persona in every setting, on every question.

    Attributes:
        name: Names the MLflow experiment and the output folder.
        description: Stands on the parent run.
        model: A short name, hub id, local folder or GGUF file.
        revision: A hub commit or tag of the model. Behind an endpoint, your own name for the weights that it
            serves: they are then known by that, and no longer by the endpoint's address.
        questions: What `persona_mlflow.questions.load_questions` takes as its source.
        categories: Restrict to these question categories.
        limit: This many questions in all, balanced over the categories.
        drop: What to leave out of the set: ``duplicates``, ``equal_options``.
        personas: ``all``, or persona names out of the catalogue.
        factors: Factor → its levels; a factor that is not named stays at its default.
        decoding: Limits and truncation, the same for every draw.
        seed: Seeds every draw and every sample of questions.
        engine: Where and how the model runs.
        prism: Whether and how the generations are scored for how far they fit the persona.
        catalog: The user's own personas, prompts, models and categories.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    model: str = "smollm2"
    revision: str | None = None
    questions: str | dict[str, Any] = "builtin"
    categories: list[str] | None = None
    limit: Whole | None = Field(default=None, ge=1, lt=2**31)
    drop: list[Literal["duplicates", "equal_options"]] = Field(default=[])
    personas: Literal["all"] | list[str] = "all"
    factors: dict[str, list[Any]] = Field(default={})
    decoding: DecodingSpec = DecodingSpec()
    seed: Whole = Field(default=0, ge=0, lt=2**63)
    engine: EngineSpec = EngineSpec()
    prism: PrismSpec = PrismSpec()
    catalog: CatalogueFiles = CatalogueFiles()

    _source: str = PrivateAttr(default="the spec")
    _overridden: frozenset[str] = PrivateAttr(default=frozenset())

    @property
    def source(self) -> str:
        """The file that the spec was read from, for messages."""
        return self._source

    def place(self, key: str) -> str:
        """Where a key was set, for messages: in the file, or by an option of the command line."""
        return _place(key, self._source, self._overridden)

    def load_catalogue(self) -> Catalogue:
        """Read the catalogue that this spec's names are looked up in."""
        files = self.catalog
        try:
            return load_catalogue(files.personas, files.prompts, files.models)
        except UserError as error:
            raise UserError(f"{self.source}: catalog: {error}") from error

    def load_questions(self) -> QuestionSet:
        """Read the experiment's question set."""
        from persona_mlflow.questions import load_questions

        try:
            return load_questions(
                self.questions,
                seed=self.seed,
                limit=self.limit,
                categories=self.categories,
                drop=tuple(self.drop),
                categories_file=self.catalog.categories,
            )
        except UserError as error:
            key = "categories" if "categories" in self._overridden else "questions"
            raise UserError(f"{self.place(key)}: {error}") from error

    def select_personas(self, catalogue: Catalogue) -> tuple[Persona, ...]:
        """The experiment's personas, in the catalogue's order."""
        names = catalogue.personas if self.personas == "all" else self.personas
        return catalogue.select_personas(names, self.place("personas"))

    def select_factors(self, catalogue: Catalogue) -> dict[str, tuple[Level, ...]]:
        """The factors that the experiment names, in its order, with validated levels.

        Raises:
            UserError: An unknown factor or level, a repeated one, or none at all.
        """
        selected: dict[str, tuple[Level, ...]] = {}
        for name, levels in self.factors.items():
            where = self.place(f"factors.{name}")
            if name not in FACTORS:
                raise UserError(f"{where}: no such factor; {choices(name, FACTORS)}")
            if not levels:
                raise UserError(f"{where}: has no levels; give at least one, or leave the factor out")
            parsed: list[Level] = []
            for level in levels:
                try:
                    parsed.append(FACTORS[name].parse(level, catalogue))
                except UserError as error:
                    raise UserError(f"{where}: {error}") from error
                if parsed[-1] in parsed[:-1]:
                    raise UserError(f"{where}: level {level!r} stands there twice; remove one")
            selected[name] = tuple(parsed)
        return selected


def load_spec(path: Path, overrides: Mapping[str, Any] | None = None) -> ExperimentSpec:
    """Read a spec and change single keys of it.

    Args:
        path: The YAML file.
        overrides: Dotted key → value, e.g. ``{"decoding.max_new_tokens": 48, "factors.ppf": ["youare"]}``.
            Values of None are passed over.

    Raises:
        UserError: The file cannot be read, or a key or value is wrong; the message names both, and the
            valid choices.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys, such as name and factors")
    given = {key for key, value in (overrides or {}).items() if value is not None}
    content = with_overrides(content, overrides or {}, str(path))
    return parse_spec(content, source=str(path), folder=path.parent, overridden=given)


def with_overrides(content: Mapping[str, Any], overrides: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Change single keys of a spec's content; see `load_spec`."""
    changed = dict(content)
    for key, value in overrides.items():
        if value is None:
            continue
        *sections, last = key.split(".")
        section = changed
        for name in sections:
            inner = section.get(name) or {}
            if not isinstance(inner, Mapping):
                raise UserError(f"{source}: {name}: expected a mapping, got {inner!r}")
            section[name] = section = dict(inner)
        section[last] = value
    return changed


def parse_spec(
    content: Mapping[str, Any],
    source: str,
    folder: Path | None = None,
    overridden: Collection[str] = (),
) -> ExperimentSpec:
    """Validate a spec's content.

    Args:
        content: The keys of `ExperimentSpec`.
        source: What messages call the place.
        folder: Where relative paths are looked up first.
        overridden: Dotted keys that options of the command line have set.

    Raises:
        UserError: As `load_spec`.
    """
    try:
        spec = ExperimentSpec.model_validate(_resolve_paths(content, folder))
    except ValidationError as error:
        raise UserError(explain(error.errors(), ExperimentSpec, source, frozenset(overridden))) from error
    spec._source, spec._overridden = source, frozenset(overridden)
    _check_engine(spec)
    return spec


def _check_engine(spec: ExperimentSpec) -> None:
    """Refuse settings of the engine that is not used: they would change nothing without a word."""
    engine = spec.engine
    local = frozenset(LocalEngineSpec.model_fields)
    if engine.is_endpoint:
        # An evaluator that is loaded here takes the local settings.
        scored_here = spec.prism.evaluator is not None and not spec.prism.evaluator.startswith("openai:")
        wrong = frozenset() if scored_here else local
        why = (
            "goes with a model that is loaded here; behind an endpoint its server decides that: leave it out"
        )
    else:
        wrong = frozenset(EngineSpec.model_fields) - local - {"kind"}
        why = "goes with a model behind an endpoint: add --engine openai (engine.kind), or leave it out"
    for key in EngineSpec.model_fields:
        if key in wrong and key in engine.model_fields_set:
            raise UserError(f"{spec.place(f'engine.{key}')}: {why}")
    if engine.cost_cap is not None and None in (engine.price_prompt, engine.price_completion):
        raise UserError(
            f"{spec.place('engine.cost_cap')}: takes engine.price_prompt and engine.price_completion, per "
            "million tokens"
        )


def _resolve_paths(content: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    def beside(value: Any) -> Any:
        if folder is None or not isinstance(value, str) or Path(value).is_absolute():
            return value
        near = folder / value
        return str(near) if near.exists() and not Path(value).exists() else value

    resolved = dict(content)
    if isinstance(resolved.get("catalog"), Mapping):
        resolved["catalog"] = {key: beside(value) for key, value in resolved["catalog"].items()}
    questions = resolved.get("questions")
    if isinstance(questions, Mapping):
        resolved["questions"] = {key: beside(value) for key, value in questions.items()}
    elif questions is not None:
        resolved["questions"] = beside(questions)
    return resolved


# Parts of pydantic's locations that name the form it tried, not a place in the file.
_FORM = re.compile(r"str|int|float|bool|dict\[.*|list\[.*|literal\[.*|constrained-.*|function-.*|\[key\]")


def explain(errors: Sequence[Any], root: type[BaseModel], source: str, overridden: frozenset[str]) -> str:
    """One line per wrong key: pydantic reports each form that a value could have had by itself.

    Args:
        errors: As `pydantic.ValidationError.errors` gives them.
        root: The spec's class.
        source: What messages call the place.
        overridden: Dotted keys that options of the command line have set.
    """
    lines: dict[str, list[str]] = {}
    for item in errors:
        place = [str(part) for part in item["loc"] if not _FORM.fullmatch(str(part))]
        lines.setdefault(".".join(place), []).append(_problem(item, place, root))
    return "\n".join(
        f"{_place(where, source, overridden)}: {', or '.join(found)}" for where, found in lines.items()
    )


def _place(key: str, source: str, overridden: frozenset[str]) -> str:
    given = next((k for k in overridden if key == k or key.startswith(f"{k}.")), None)
    if given is None:
        return f"{source}: {key}"
    if given in _OPTIONS:
        return f"--{_OPTIONS[given]}"
    section, _, name = given.rpartition(".")
    # Factors without an option of their own come by --factor.
    option = "factor " + name if section == "factors" and name not in FACTOR_OPTIONS else name
    return f"--{option.replace('_', '-') if section != 'factors' else option}"


def _problem(item: Any, place: list[str], root: type[BaseModel]) -> str:
    if item["type"] == "extra_forbidden":
        section = root
        for part in place[:-1]:
            section = type(getattr(section.model_construct(), part))
        return f"no such key; {choices(place[-1], section.model_fields)}"
    if item["type"] == "missing":
        return "missing; it is required"
    if item["type"] == "string_pattern_mismatch":
        return f"{item['input']!r} must be letters, digits, '.', '_' and '-' only"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    for term, plain in (("valid dictionary", "mapping"), ("valid string", "text"), ("valid list", "list")):
        message = re.sub(
            f"(a )?{term}( or instance of \\w+)?", f"a {plain}" if plain != "text" else plain, message
        )
    return f"{item['input']!r} {message}"


def canonical_json(value: Any) -> str:
    """Serialise for hashing: sorted keys, no spaces, no NaN (pitfall S9)."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def digest(value: Any, length: int = 16) -> str:
    """Hash a JSON value to hex digits, the same on every machine."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def is_finite(value: float | None) -> bool:
    """Whether a value is a number that can be logged."""
    return value is not None and math.isfinite(value)
