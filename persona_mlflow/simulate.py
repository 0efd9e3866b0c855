"""Simulated experiments with planted effects: what an analysis finds can be held against what is there.

The model. Persona p in setting s answers a question of category c rightly with probability
``expit(η[p,s,c])``; every effect on accuracy is a shift of η, in log-odds. Which questions are right comes
from a latent difficulty, standard normal for every draw and the sum of

- the question's own, shared by all personas and settings, and the persona's, shared by all settings;
- an instability part of variance share ``i[s,c]``, which settings share only in part: the larger, the more
  do settings disagree about the same question, at the same accuracy.

A draw is right where its difficulty is below the quantile that leaves ``expit(η)`` of the draws right, so
accuracy and agreement are set apart from each other.

With the effects ``paper``, which plant the trends of P1 §5, the instability part of a draw is that of its
prompt, made of a part per prompt factor; above temperature 0 a share of τ/(1 + τ) is drawn anew, so that
instability grows with temperature, and repeats differ above temperature 0 alone. With any other effects all
of it is drawn anew: settings, personas and categories are exchangeable but for what is planted.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow import outcomes
from persona_mlflow.catalog import Catalogue, Model, Persona, load_catalogue
from persona_mlflow.errors import UserError, choices
from persona_mlflow.parsing import STATUSES

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.plan import Plan
    from persona_mlflow.questions import QuestionSet
    from persona_mlflow.sweep import Sweep

SIMULATED = "persona_mlflow.simulated"
"""Tag on the parent run: no model has answered."""

PAPER_FACTORS: Mapping[str, tuple[Any, ...]] = {
    "ppf": ("barebones", "youare", "youareknowledge", "identitynature"),
    "tpf": ("justanswer", "justanswer-persona", "explain", "explain-persona"),
    "temperature": (0.0, 0.5, 1.0),
}
PAPER_QUESTIONS = 5008
EFFECTS = ("factor", "domain", "persona")
"""What can be planted by itself; see `simulate_dataset`."""

Effects = str | Mapping[str, str]

# The effects `paper`. A level's instability, relative to 1, and its shift of accuracy in log-odds.
_INSTABILITY = {
    "ppf": {"barebones": 0.75, "youare": 0.95, "youareknowledge": 1.1, "identitynature": 1.2},
    "tpf": {"justanswer": 0.7, "justanswer-persona": 0.85, "explain": 1.25, "explain-persona": 1.4},
}
_BY_TEMPERATURE = 0.8  # added to the relative instability per unit of temperature
_BY_CATEGORY = {
    "History": 0.65,
    "Cultural Awareness and Understanding": 0.65,
    "Math": 1.5,
    "Commonsense Reasoning/Social Awareness": 1.5,
}
_SHIFT = {"justanswer-persona": -0.1, "explain": -0.2, "explain-persona": -0.3}
_LOSS = 0.12  # log-odds of accuracy lost per unit of relative instability
_PART = {"tpf": 0.6, "ppf": 0.3}  # of the instability, by prompt factor; others have `_OTHER_PART`
_OTHER_PART = 0.2
_COMMON_PART = 0.1  # shared by all prompts
_CATEGORY_SD = 0.1  # of the categories' accuracies, log-odds
_PERSONA_SD = 0.06  # of the personas' accuracies, log-odds
_TASTE_SD = 0.06  # of persona × level, log-odds per unit of relative instability
_PERSONA_SHARE = 0.25  # of what settings share, the part that is the persona's own
_BASE_SHARE = 0.08  # the instability part of the variance at relative instability 1

# The other effects.
_PLAIN_SHARE, _DOMAIN_SHARE = 0.25, 0.65
_FACTOR_SHIFT, _PERSONA_SHIFT = 0.3, 0.5
_PLAIN_UNPARSED = 0.01


@dataclass(frozen=True)
class Simulation:
    """What is simulated; made by `make_simulation`.

    Attributes:
        name: Of the experiment.
        model: What the model is called.
        personas: The personas.
        factors: Factor → levels.
        questions: The questions; their texts say nothing.
        effects: ``paper``, ``none``, or kind → what it is planted in.
        accuracy: Accuracy without any effect, a fraction.
        instability: Factor on the instability part of the variance and, under ``paper``, on all that
            settings do to accuracy.
        seed: Equal seeds give the same questions the same difficulties, for every model.
    """

    name: str
    model: str
    personas: tuple[Persona, ...]
    factors: Mapping[str, tuple[Any, ...]]
    questions: QuestionSet
    effects: Effects
    accuracy: float
    instability: float
    seed: int

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The outcomes, in the form of `persona_mlflow.outcomes.load_outcomes`."""
        correct, status = _draw(self)
        plan = {
            "name": self.name,
            "model": self.model,
            "personas": [{"name": p.name, "group": p.group, "subgroup": p.subgroup} for p in self.personas],
            "factors": self.factors,
        }
        return outcomes.label_outcomes(plan, self.questions.to_frame(), correct, status, where=self.name)

    @cached_property
    def plan(self) -> Plan:
        """The plan of a sweep that would have given these outcomes.

        Raises:
            UserError: A factor or a level that the platform does not have.
        """
        from persona_mlflow.grid import Grid
        from persona_mlflow.plan import Plan
        from persona_mlflow.spec import digest, parse_spec

        content = {
            "name": self.name,
            "description": "Simulated: no model has answered. Effects: " + _say_effects(self.effects),
            "model": self.model,
            "questions": "simulated",
            "personas": [p.name for p in self.personas],
            "factors": {name: list(levels) for name, levels in self.factors.items()},
            "seed": self.seed,
        }
        spec = parse_spec(content, source="simulation")
        catalogue = load_catalogue()
        planted = self.effects if isinstance(self.effects, str) else dict(self.effects)
        generation: dict[str, Any] = {
            "model": self.model,
            "revision": "simulated:" + digest([planted, self.accuracy, self.instability]),
            "decoding": spec.decoding.model_dump(),
            "seed": self.seed,
        }
        grid = Grid(self.personas, spec.select_factors(catalogue), catalogue, generation)
        model = Model(self.model, self.model)
        return Plan(spec, catalogue, model, generation["revision"], self.questions, grid)


def simulate_dataset(
    personas: int | Sequence[str] | None = None,
    factors: Mapping[str, Sequence[Any]] | None = None,
    questions: int = PAPER_QUESTIONS,
    categories: Sequence[str] | None = None,
    effects: Effects = "paper",
    seed: int = 0,
    **options: Any,
) -> xr.Dataset:
    """Simulate an experiment's outcomes.

    Args:
        personas: How many of the catalogue's, evenly spread over it, or their names; all by default.
        factors: Factor → levels, of any names; the paper's 48 settings by default.
        questions: How many; 5,008 are the paper's, other numbers are in proportion.
        categories: Only of these question categories.
        effects: ``paper``: the trends that P1 states. ``none``: no effect at all; settings, personas and
            categories are exchangeable. Or a mapping of one or several of

            - ``factor`` → a factor, whose levels are shifted in accuracy, evenly from -0.3 to 0.3 log-odds;
            - ``domain`` → a category, in which settings agree less, at the same accuracy;
            - ``persona`` → a persona, better by 0.5 log-odds in every setting and category.
        seed: Of everything.
        **options: ``model``, ``name``, ``accuracy`` and ``instability`` of `Simulation`.

    Returns:
        The dataset, as `persona_mlflow.outcomes.load_outcomes` gives it, all complete. Without effects one
        draw in a hundred is unparsed; under ``paper`` more are where the format explains.

    Raises:
        UserError: An effect in something that is not there, or no questions.
    """
    return make_simulation(personas, factors, questions, categories, effects, seed, **options).dataset


def make_simulation(
    personas: int | Sequence[str] | None = None,
    factors: Mapping[str, Sequence[Any]] | None = None,
    questions: int = PAPER_QUESTIONS,
    categories: Sequence[str] | None = None,
    effects: Effects = "paper",
    seed: int = 0,
    *,
    model: str = "simulated",
    name: str = "simulated",
    accuracy: float = 0.6,
    instability: float = 1.0,
) -> Simulation:
    """Say what to simulate; the arguments are those of `simulate_dataset` and `Simulation`."""
    levels = {key: tuple(value) for key, value in (PAPER_FACTORS if factors is None else factors).items()}
    simulation = Simulation(
        name=name,
        model=model,
        personas=_choose_personas(load_catalogue(), personas),
        factors=levels,
        questions=simulated_questions(questions, categories),
        effects=effects,
        accuracy=accuracy,
        instability=instability,
        seed=seed,
    )
    _check_effects(simulation)
    return simulation


def simulated_questions(count: int, categories: Sequence[str] | None = None) -> QuestionSet:
    """Questions without content, over the paper's categories and labels in its proportions (P1 App. D.1).

    Args:
        count: How many.
        categories: Only of these.
    """
    from persona_mlflow.questions import QuestionSet
    from persona_mlflow.questions.base import SourceRow, number
    from persona_mlflow.questions.categories import load_categories
    from persona_mlflow.questions.composite import PER_CATEGORY, per_label

    places: list[tuple[str, str]] = []
    for category in load_categories().only(categories).categories:
        labels = category.labels or tuple(f"country {i:02}" for i in range(1, 76))
        asked = per_label(PER_CATEGORY, len(labels))
        places += [(category.name, label) for label in labels for _ in range(asked)]
    rows = []
    for i in range(count):
        category_name, label = places[i * len(places) // count]
        text = f"Simulated question {i + 1} of {count} ({label})"
        answer = hashlib.sha256(text.encode()).digest()[0] % 4
        options = ("the first", "the second", "the third", "the fourth")
        rows.append(SourceRow(text, options, answer, label, "simulated", category_name))
    return QuestionSet.of("simulated", number(rows, lambda source, label: label))


def log_simulation(simulation: Simulation, tracking_uri: str | None = None) -> str:
    """Log a simulation as a finished parent run of MLflow, and give the run's id.

    The parent carries what a sweep's does: parameters, metrics, plan, questions and the compact outcomes. It
    has no children, though it counts as many as planned, and a tag says that it is simulated.
    """
    from persona_mlflow.tracking import Tracker

    plan = simulation.plan
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as files:
        sweep = _prepare_ledger(simulation, Path(name))
        tracker = Tracker.open(
            tracking_uri,
            plan.spec.name,
            run_name=f"{plan.spec.name} · {plan.model.name}",
            spec_hash=plan.spec_hash,
            params=plan.params(),
            ledger=sweep.ledger.id,
            description=plan.spec.description,
        )
        sweep._log_plan(tracker)
        sweep._log_results(tracker, simulation.dataset, Path(files), {SIMULATED: "true"})
    tracker.close("FINISHED")
    return tracker.parent_id


def write_simulated_ledger(simulation: Simulation, folder: Path) -> None:
    """Write a simulation as a ledger's folder, which every analysis reads like any other.

    Its cells hold ids, outcomes and statuses, but no texts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sweep = _prepare_ledger(simulation, folder)
    dataset = simulation.dataset
    ids = pa.array(dataset["question"].values.tolist())
    names = pa.array(STATUSES)
    shape = (len(simulation.plan.grid), len(ids))
    correct, status = (dataset[key].values.reshape(shape) for key in ("correct", "status"))
    for i, cell in enumerate(simulation.plan.grid.cells):
        columns = {
            "question_id": ids,
            "correct": correct[i],
            "status": pa.DictionaryArray.from_arrays(status[i], names).dictionary_decode(),
        }
        pq.write_table(pa.table(columns), sweep.ledger.cells / f"{cell.slug}.parquet")


def _prepare_ledger(simulation: Simulation, folder: Path) -> Sweep:
    """A sweep over a new ledger that holds the plan and the questions; it is never run."""
    from persona_mlflow.ledger import Ledger
    from persona_mlflow.sweep import Sweep

    def refuse() -> Any:
        raise AssertionError("a simulation has no engine")

    sweep = Sweep(simulation.plan, Ledger(folder), refuse, progress=None)  # type: ignore[arg-type]
    sweep._write_plan()
    return sweep


def _choose_personas(catalogue: Catalogue, wanted: int | Sequence[str] | None) -> tuple[Persona, ...]:
    everyone = tuple(catalogue.personas.values())
    if wanted is None:
        return everyone
    if not isinstance(wanted, int):
        return catalogue.select_personas(wanted, "personas")
    if not 1 <= wanted <= len(everyone):
        raise UserError(f"personas: {wanted} is not from 1 to {len(everyone)}, the catalogue's number")
    return tuple(everyone[i * len(everyone) // wanted] for i in range(wanted))


def _check_effects(simulation: Simulation) -> None:
    effects = simulation.effects
    if isinstance(effects, str):
        if effects not in ("paper", "none"):
            raise UserError(f"effects: no effect {effects!r}; {choices(effects, ('paper', 'none'))}")
        return
    there: dict[str, Sequence[str]] = {
        "factor": list(simulation.factors),
        "domain": simulation.questions.categories,
        "persona": [p.name for p in simulation.personas],
    }
    for kind, target in effects.items():
        if kind not in there:
            raise UserError(f"effects: no effect {kind!r}; {choices(kind, EFFECTS)}")
        if target not in there[kind]:
            raise UserError(f"effects: no {kind} {target!r} here; {choices(target, there[kind])}")


def _say_effects(effects: Effects) -> str:
    if isinstance(effects, str):
        return effects
    return ", ".join(f"{kind} {target}" for kind, target in effects.items())


@dataclass(frozen=True)
class _Design:
    """The numbers behind the draws; P personas, S settings, C categories.

    Attributes:
        logit: Log-odds of a right answer, P × S × C.
        share: The instability part of the variance, S × C.
        fresh: The part of that which is drawn anew in each setting, S.
        parts: Prompt factor → its part of the rest; a level's is the same in all settings that have it.
        unparsed: The share of draws without a letter, S.
        why: The status of most of them, an index into `STATUSES`, S.
    """

    logit: np.ndarray
    share: np.ndarray
    fresh: np.ndarray
    parts: Mapping[str, float]
    unparsed: np.ndarray
    why: np.ndarray


def _stream(simulation: Simulation, *path: Any) -> np.random.Generator:
    """Random numbers of one purpose, whatever else is drawn."""
    text = repr((simulation.seed, *path))
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16]))


def _level_indices(factors: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    """Factor → the index of its level in each setting, in grid order."""
    grid = np.indices([len(levels) for levels in factors.values()])
    return {name: grid[i].ravel() for i, name in enumerate(factors)}


def _plain_design(simulation: Simulation, levels: Mapping[str, np.ndarray], settings: int) -> _Design:
    effects = {} if isinstance(simulation.effects, str) else simulation.effects
    categories = simulation.questions.categories
    accuracy = simulation.accuracy
    logit = np.full((len(simulation.personas), settings, len(categories)), np.log(accuracy / (1 - accuracy)))
    share = np.full((settings, len(categories)), min(0.95, _PLAIN_SHARE * simulation.instability))
    if "factor" in effects:
        count = len(simulation.factors[effects["factor"]])
        shifts = np.linspace(-_FACTOR_SHIFT, _FACTOR_SHIFT, count) if count > 1 else np.zeros(1)
        logit += shifts[levels[effects["factor"]]][:, None]
    if "persona" in effects:
        logit[[p.name for p in simulation.personas].index(effects["persona"])] += _PERSONA_SHIFT
    if "domain" in effects:
        share[:, categories.index(effects["domain"])] = _DOMAIN_SHARE
    unparsed = np.full(settings, _PLAIN_UNPARSED)
    return _Design(
        logit, share, np.ones(settings), {}, unparsed, np.full(settings, STATUSES.index("no_answer"))
    )


def _paper_design(simulation: Simulation, levels: Mapping[str, np.ndarray], settings: int) -> _Design:
    rng = _stream(simulation, "effects", simulation.model)
    factors, categories, personas = simulation.factors, simulation.questions.categories, simulation.personas
    temperature = np.zeros(settings)
    if "temperature" in factors:
        temperature = np.array(factors["temperature"], dtype=float)[levels["temperature"]]
    relative = 1 + _BY_TEMPERATURE * temperature
    shift = np.zeros(settings)
    explains = np.zeros(settings, dtype=bool)
    taste = np.zeros((len(personas), settings))
    parts = {}
    for name, names in factors.items():
        if name == "repeat":
            continue
        part = _PART.get(name, _OTHER_PART)
        known = _INSTABILITY.get(name, {})
        relative = relative * np.array([known.get(str(level), 1.0) for level in names])[levels[name]]
        taste += np.sqrt(part) * rng.standard_normal((len(personas), len(names)))[:, levels[name]]
        if name != "temperature":
            parts[name] = part
        if name == "tpf":
            tpf = np.array([str(level) for level in names])[levels[name]]
            shift = np.array([_SHIFT.get(level, 0.0) for level in tpf])
            shift *= relative / np.array([known.get(level, 1.0) for level in tpf])
            explains = np.char.startswith(tpf, "explain")
    by_category = np.array([_BY_CATEGORY.get(name, 1.0) for name in categories])
    unstable = relative[:, None] * by_category
    strength = simulation.instability
    base = np.log(simulation.accuracy / (1 - simulation.accuracy)) + rng.normal(
        0, _CATEGORY_SD, len(categories)
    )
    of_persona = rng.normal(0, _PERSONA_SD, len(personas))[:, None, None]
    moved = shift[:, None] * by_category - _LOSS * (unstable - 1)
    logit = base + of_persona + strength * (moved + _TASTE_SD * taste[:, :, None] * unstable)
    total = sum(parts.values()) + _COMMON_PART
    return _Design(
        logit=logit,
        share=np.clip(_BASE_SHARE * strength * unstable, 0.01, 0.95),
        fresh=temperature / (1 + temperature),
        parts={name: part / total for name, part in parts.items()},
        unparsed=np.where(explains, 0.03 * (1 + temperature), 0.005),
        why=np.where(explains, STATUSES.index("truncated"), STATUSES.index("no_answer")),
    )


def _draw(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Correct (bool) and status (int8), both cells × questions."""
    from scipy.special import expit, ndtri

    categories = simulation.questions.categories
    of_question = np.array([categories.index(q.category) for q in simulation.questions])
    levels = _level_indices(simulation.factors)
    settings = int(np.prod([len(names) for names in simulation.factors.values()], dtype=int))
    make = _paper_design if simulation.effects == "paper" else _plain_design
    design = make(simulation, levels, settings)
    single = np.float32
    shared_size = np.sqrt(1 - design.share).astype(single)[:, of_question]
    own_size = np.sqrt(design.share).astype(single)[:, of_question]
    fresh = np.sqrt(design.fresh).astype(single)[:, None]
    kept = np.sqrt(1 - design.fresh).astype(single)[:, None]
    threshold = ndtri(expit(design.logit)).astype(single)
    unparsed_above = ndtri(1 - design.unparsed).astype(single)[:, None]
    refused_above = ndtri(1 - design.unparsed / 4).astype(single)[:, None]
    count = len(of_question)
    difficulty = _stream(simulation, "questions").standard_normal(count, dtype=single)
    correct = np.empty((len(simulation.personas), settings, count), dtype=bool)
    status = np.empty(correct.shape, dtype=np.int8)
    for i, persona in enumerate(simulation.personas):
        rng = _stream(simulation, "draws", simulation.model, persona.name)
        own = rng.standard_normal(count, dtype=single)
        shared = np.sqrt(single(1 - _PERSONA_SHARE)) * difficulty + np.sqrt(single(_PERSONA_SHARE)) * own
        latent = rng.standard_normal((settings, count), dtype=single)
        if not design.fresh.all():
            common = 1 - sum(design.parts.values())
            prompt = np.sqrt(single(common)) * rng.standard_normal(count, dtype=single)
            for name, part in design.parts.items():
                of_level = rng.standard_normal((len(simulation.factors[name]), count), dtype=single)
                prompt = prompt + (np.sqrt(single(part)) * of_level)[levels[name]]
            latent = kept * prompt + fresh * latent
        latent *= own_size
        latent += shared_size * shared
        status[i] = np.where(latent > unparsed_above, design.why[:, None], 0)
        status[i][latent > refused_above] = STATUSES.index("refusal")
        correct[i] = (latent < threshold[i][:, of_question]) & (status[i] == 0)
    return correct.reshape(-1, count), status.reshape(-1, count)
