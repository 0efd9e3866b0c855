"""What ``persona-mlflow plan`` says of an experiment, as JSON values: each figure, and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow import hardware
from persona_mlflow.design_size import Design, Levels, find_designs, find_precision
from persona_mlflow.estimate import (
    LONG_ANSWER,
    SHORT_ANSWER,
    FamilyKey,
    FamilyTime,
    Length,
    Speed,
    assumed_lengths,
    disk_bytes,
    estimate_time,
    family_times,
    find_families,
    keep_estimate,
)
from persona_mlflow.model_size import find_size
from persona_mlflow.prompt_tokens import (
    CHARACTERS_PER_TOKEN,
    TEMPLATE_TOKENS,
    Characters,
    TokenModel,
    fit_tokens,
    local_renderer,
)

if TYPE_CHECKING:
    from persona_mlflow.plan import Plan


class Forecast:
    """Everything that is foreseen of a plan.

    Args:
        plan: The experiment.
        folder: Its ledger.
        subsets: Smaller sets of settings: name → factor → levels.
        like: A finished experiment to take the widths of intervals from.
        tracking_uri: The store of the run, and of `like`.
        seconds: Measure for about so long, with the model loaded; nothing is loaded by default.
        say: Told what is done.

    Attributes:
        assumptions: What the figures rest on, a sentence each.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        subsets: Mapping[str, Levels],
        *,
        like: str | None = None,
        tracking_uri: str | None = None,
        seconds: float | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.plan = plan
        self.assumptions: list[str] = []
        self._folder = folder
        self._families = find_families(plan)
        self._size = None if plan.spec.engine.is_endpoint else find_size(plan.model.id)
        self._machine = hardware.find_machine(plan.spec.engine.device)
        # Before anything is loaded: it may show that there is something wrong with `like`.
        precision = find_precision(plan, folder, like, tracking_uri)
        self._speed: Speed | None = None
        self._lengths: Mapping[FamilyKey, Length]
        self._tokens: TokenModel
        self._calibrated = seconds is not None
        if seconds is not None:
            from persona_mlflow.calibration import calibrate

            self._speed, self._lengths, tokens = calibrate(plan, tracking_uri, say, seconds)
            self._tokens = tokens or TokenModel()
        else:
            self._lengths = assumed_lengths(plan)
            renderer = local_renderer(plan)
            self._tokens = TokenModel() if renderer is None else fit_tokens(plan, renderer)
            self._speed = self._guess()
        self._times = family_times(self._families, self._tokens, self._lengths, self._speed)
        self._designs = find_designs(plan, subsets, precision)
        self._precision = precision

    def content(self) -> dict[str, Any]:
        """The figures by section; a figure that cannot be had is None, and `assumptions` says why."""
        self.assumptions.clear()
        found = {
            "tokens": self._token_counts(),
            "cost": self._cost(self._times),
            "disk": self._disk(),
            "memory": self._memory(),
            "time": self._time(),
            "designs": [self._design(design) for design in self._designs],
        }
        self.assumptions.append(f"Widths of intervals: {self._precision.source}; they go with 1/√questions.")
        if self.plan.spec.prism.evaluator:
            self.assumptions.append("PRISM: scoring is in none of these figures.")
        return {**found, "assumptions": list(self.assumptions)}

    def keep(self) -> Path | None:
        """Keep a calibrated estimate in the ledger's folder; None where there is none."""
        if not self._calibrated or self._speed is None:
            return None
        estimate = estimate_time(self._families, self._tokens, self._lengths, self._speed)
        return keep_estimate(self.plan, self._folder, estimate, self._speed.source)

    # ---------------------------------------------------------------------------------------- sections

    def _token_counts(self) -> dict[str, Any]:
        tokens, answers = self._tokens, sum(family.answers for family in self._families)
        asked = tokens.tokens(answers, sum(family.asked_characters for family in self._families))
        read = sum(part.prompt_tokens for part in self._times)
        got = sum(part.length.mean * part.family.answers for part in self._times)
        if tokens.sampled:
            self.assumptions.append(
                f"Prompt tokens: counted on {tokens.sampled:,} of the prompts by the model's tokenizer, the "
                "rest from their characters."
            )
        else:
            self.assumptions.append(
                f"Prompt tokens: the model's tokenizer is not on this machine; {CHARACTERS_PER_TOKEN:g} "
                f"characters per token and {TEMPLATE_TOKENS:g} tokens of chat template are assumed."
            )
        if self._calibrated:
            beyond = sum(part.length.beyond * part.family.answers for part in self._times)
            cut = (
                f"; {beyond / got:.0%} of them are extrapolated beyond the calibration's cut"
                if beyond
                else ""
            )
            self.assumptions.append(f"Completion tokens: from the calibration's answers{cut}.")
        else:
            self.assumptions.append(
                f"Completion tokens: assumed, {SHORT_ANSWER:g} of an answer by letter and {LONG_ANSWER:g} of "
                "an explanation, within max_new_tokens; --calibrate measures them."
            )
        return {
            "prompt": round(asked),
            "prompt_error": round(tokens.error(answers)),
            "prompt_read": round(read),
            "completion": round(got),
        }

    def _cost(self, times: Sequence[FamilyTime]) -> float | None:
        """By the endpoint's prices."""
        from persona_mlflow.engines.openai import endpoint_settings

        engine = self.plan.spec.engine
        prices = endpoint_settings(engine)["prices"] if engine.is_endpoint else None
        if prices is None:
            return None
        sent, got = (
            sum(getattr(part, name) for part in times) for name in ("prompt_tokens", "completion_tokens")
        )
        return float(prices.cost(sent, got))

    def _disk(self) -> dict[str, int]:
        self.assumptions.append(
            "Disk: measured on ledgers of English answers; unparsed answers, as text, come on top."
        )
        questions = self.plan.questions.questions
        mean = sum(len(question.text) for question in questions) / len(questions)
        return {name: round(value) for name, value in disk_bytes(self._times, mean).items()}

    def _memory(self) -> dict[str, Any] | None:
        if self.plan.spec.engine.is_endpoint:
            self.assumptions.append("Memory: the endpoint's own.")
            return None
        if self._size is None:
            self.assumptions.append(
                "Memory: not known, as the model's weights are not on this machine and its size is not known."
            )
            return None
        tokens = self._width
        row = self._size.row_bytes(tokens, self._dtype)
        self.assumptions.append(
            f"Memory: {self._size.parameters / 1e9:.3g} billion weights ({self._size.source}) in "
            f"{self._dtype if self._quantization == 'none' else self._quantization}"
            + (
                f"; keys and values of {self._rows} rows of {tokens:,.0f} tokens (the longest prompt, and "
                "max_new_tokens). Where that is too much, fewer rows run at once."
                if row is not None
                else "; the size of its keys and values is not known."
            )
        )
        return {
            "machine": self._machine.name,
            "available": round(self._machine.memory),
            "weights": round(self._size.weight_bytes(self._dtype, self._quantization)),
            "rows": self._rows,
            "keys_and_values": None if row is None else round(row * self._rows),
        }

    def _time(self) -> dict[str, Any] | None:
        if self._speed is None:
            endpoint = self.plan.spec.engine.is_endpoint
            known = self._size is not None
            why = (
                "an endpoint's speed is its own"
                if endpoint
                else f"nothing is known of {self._machine.name}"
                if known
                else "the model's size is not known"
            )
            self.assumptions.append(f"Time: {why}; --calibrate measures it.")
            return None
        found = estimate_time(self._families, self._tokens, self._lengths, self._speed)
        if self._speed.factor:
            self.assumptions.append(
                f"Time: {self._speed.source}; it may be off by a factor of {self._speed.factor:g} either "
                "way, and --calibrate measures it."
            )
        else:
            self.assumptions.append(
                f"Time: {self._speed.source}. The bounds are 95 %, from the spread of the rounds (at least "
                "10 %, and 20 % where there was time for one alone) and of the answers' lengths."
            )
        return {
            "seconds": found.seconds,
            "low": found.low,
            "high": found.high,
            "calibrated": self._calibrated,
            "parts": dict(found.parts),
            "prompt_tokens_per_second": self._speed.prefill,
            "completion_tokens_per_second": self._speed.decode,
            "families": [_family(part) for part in found.families],
        }

    def _design(self, design: Design) -> dict[str, Any]:
        times = family_times(design.families, self._tokens, self._lengths, self._speed)
        seconds = None
        if self._speed is not None:
            seconds = estimate_time(design.families, self._tokens, self._lengths, self._speed).seconds
        return {
            "design": design.name,
            "share": design.share,
            "settings": design.settings,
            "questions": design.questions,
            "answers": design.answers,
            "seconds": seconds,
            "cost": self._cost(times),
            "half_width_run": design.run,
            "half_width_accuracy": design.accuracy,
            "half_width_instability": design.instability,
        }

    # ----------------------------------------------------------------------------------------- machine

    @property
    def _dtype(self) -> str:
        engine = self.plan.spec.engine
        if engine.deterministic:
            return "float32"
        return self._machine.dtype if engine.dtype == "auto" else engine.dtype

    @property
    def _quantization(self) -> str:
        return self.plan.spec.engine.quantization

    @property
    def _rows(self) -> int:
        engine = self.plan.spec.engine
        asked = hardware.MOST_ROWS[self._machine.device] if engine.batch_size == "auto" else engine.batch_size
        return 1 if engine.deterministic else min(asked, self.plan.draws)

    @property
    def _width(self) -> float:
        """Tokens of the longest row."""
        longest = self._tokens.tokens(1, Characters(self.plan).longest)
        return longest + self.plan.spec.decoding.max_new_tokens

    def _guess(self) -> Speed | None:
        if self.plan.spec.engine.is_endpoint or self._size is None:
            return None
        runs = len(self.plan.grid)
        kind = self._dtype, self._quantization
        return hardware.rough_speed(self._machine, self._size, *kind, self._rows, runs)


def _family(part: FamilyTime) -> dict[str, Any]:
    family = part.family
    return {
        "tpf": family.tpf,
        "temperature": family.temperature,
        "runs": family.runs,
        "answers": round(family.answers),
        "prompt_tokens": round(part.prompt_tokens),
        "completion_tokens": round(part.completion_tokens),
        "tokens_per_answer": part.length.mean,
        "tokens_per_answer_error": part.length.error,
        "seconds": part.seconds,
    }
