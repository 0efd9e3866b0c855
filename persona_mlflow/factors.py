"""The factors of a setting: what an experiment varies about a prompt and its decoding.

A factor is one entry of `FACTORS`, and the only place that knows what its levels do. The grid, the ledger,
the tracking and every analysis take factors as they come: adding one means adding it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from persona_mlflow.catalog import Catalogue
from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import Question

Level = str | float | int


@dataclass(frozen=True)
class Draft:
    """One setting's prompt and decoding in the making; each factor in turn changes its part.

    Attributes:
        persona_template: The system message, with ``{persona}``.
        task_template: The user message, with ``{question}``.
        temperature: Softmax temperature, 0 for greedy decoding.
        arrange: The question as it is presented, e.g. with its options in another order.
        arrangement: Names the arrangement: drafts with equal templates and arrangement share prompts.
    """

    persona_template: str = "{persona}"
    task_template: str = "{question}"
    temperature: float = 0.0
    arrange: Callable[[Question], Question] = field(default=lambda question: question, compare=False)
    arrangement: str = ""

    @property
    def prompt_identity(self) -> tuple[str, str, str]:
        """What two drafts must share to give the same prompt for the same persona and question."""
        return self.persona_template, self.task_template, self.arrangement


@dataclass(frozen=True)
class Factor:
    """One thing that is varied.

    Attributes:
        name: The dimension's name, as in a spec and in every result.
        default: The level where a spec does not vary the factor.
        parse: Validate one level as it stands in a spec; raises `UserError` without saying where.
        apply: Change the draft as the level asks.
        content: The text that the level's name stands for: a changed template under an old name is another
            draw. Empty where the level says it all.
    """

    name: str
    default: Level
    parse: Callable[[object, Catalogue], Level]
    apply: Callable[[Draft, Level, Catalogue], Draft]
    content: Callable[[Level, Catalogue], str] = lambda level, catalogue: ""


def _one_of(value: object, valid: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{value!r} is not text; put it in quotes")
    if value not in valid:  # type: ignore[operator]
        raise UserError(f"no level {value!r}; {choices(value, valid)}")
    return value


def _parse_temperature(value: object, catalogue: Catalogue) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise UserError(f"{value!r} is not a temperature; give a number, 0 or more")
    if number < 0:
        raise UserError(f"{value!r} is negative; give 0 for greedy decoding or a number above it")
    return number + 0.0  # -0.0 becomes 0.0


def _parse_repeat(value: object, catalogue: Catalogue) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{value!r} is not a repeat; give whole numbers from 0, such as [0, 1, 2]")
    return value


def _reverse_options(question: Question) -> Question:
    options = question.options[::-1]
    return replace(question, options=options, answer=len(options) - 1 - question.answer)


def _apply_option_order(draft: Draft, level: Level, catalogue: Catalogue) -> Draft:
    if level == "given":
        return draft
    return replace(draft, arrange=_reverse_options, arrangement=f"{draft.arrangement}|options reversed")


FACTORS: dict[str, Factor] = {
    factor.name: factor
    for factor in (
        Factor(
            name="ppf",
            default="youare",
            parse=lambda value, catalogue: _one_of(value, catalogue.ppf),
            apply=lambda draft, level, catalogue: replace(draft, persona_template=catalogue.ppf[str(level)]),
            content=lambda level, catalogue: catalogue.ppf[str(level)],
        ),
        Factor(
            name="tpf",
            default="justanswer",
            parse=lambda value, catalogue: _one_of(value, catalogue.tpf),
            apply=lambda draft, level, catalogue: replace(draft, task_template=catalogue.tpf[str(level)]),
            content=lambda level, catalogue: catalogue.tpf[str(level)],
        ),
        Factor(
            name="temperature",
            default=0.0,
            parse=_parse_temperature,
            apply=lambda draft, level, catalogue: replace(draft, temperature=float(level)),
        ),
        # A further seed of the same setting: it enters the seed of a draw by its name and level alone.
        Factor(
            name="repeat",
            default=0,
            parse=_parse_repeat,
            apply=lambda draft, level, catalogue: draft,
        ),
        Factor(
            name="option_order",
            default="given",
            parse=lambda value, catalogue: _one_of(value, ("given", "reversed")),
            apply=_apply_option_order,
        ),
    )
}

# The paper's factors are part of every draw's identity, varied or not; a further factor enters it only at a
# level other than its default, so that adding the factor to a spec keeps the draws that are there.
CORE_FACTORS = ("ppf", "tpf", "temperature")
