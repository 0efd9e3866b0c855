"""What an experiment takes: answers and tokens by setting family, time, disk and money."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.ledger import write_atomically
from persona_mlflow.prompt_tokens import Characters, TokenModel

if TYPE_CHECKING:
    from persona_mlflow.grid import Cell
    from persona_mlflow.plan import Plan

FamilyKey = tuple[str, float]
"""A task prompt format and a temperature: what decides how long answers are."""

ESTIMATE = "estimate.json"
"""The file in the ledger's folder that an estimate is kept in."""

SHORT_ANSWER, LONG_ANSWER = 10.0, 200.0
"""Tokens of an answer, assumed where nothing was measured: of a letter alone, and of an explanation."""

WINDOW = 2048
"""Answers that a sweep asks its engine for together."""

# Bytes, measured on ledgers of 20 to 4,442 English answers of 3 to 400 tokens each, see `disk_bytes`.
_LEDGER_RUN, _LEDGER_ANSWER, _LEDGER_TOKEN = 5_200.0, 25.0, 1.7
_TABLE_ANSWER, _TABLE_TOKEN, _TABLE_ROWS = 130.0, 4.7, 200
_DATABASE, _DATABASE_RUN = 900_000.0, 14_000.0


@dataclass(frozen=True)
class Family:
    """The runs of one task prompt format at one temperature.

    Attributes:
        tpf: The task prompt format.
        temperature: The temperature.
        runs: Runs.
        answers: Answers.
        rows: Answers that are generated: a local engine draws equal greedy ones once.
        prompts: Prompts that are read. Settings that share a prompt share the cost of reading it, where the
            model is loaded here; an endpoint is sent one per answer.
        characters: Characters of these prompts.
        asked_characters: The same with a prompt counted for every answer to it, as runs count tokens.
    """

    tpf: str
    temperature: float
    runs: int
    answers: float
    rows: float
    prompts: float
    characters: float
    asked_characters: float

    @property
    def key(self) -> FamilyKey:
        """What the family is known by."""
        return self.tpf, self.temperature

    def scaled(self, share: float) -> Family:
        """The same with a share of the questions."""
        return replace(self, **{name: getattr(self, name) * share for name in _AMOUNTS})


_AMOUNTS = ("answers", "rows", "prompts", "characters", "asked_characters")
"""What of a `Family` goes with the number of questions."""


def find_families(plan: Plan, cells: Iterable[Cell] | None = None) -> list[Family]:
    """Sum an experiment up by family.

    Args:
        plan: The experiment.
        cells: Only these; all by default.
    """
    chosen = {cell.index for cell in (plan.grid.cells if cells is None else cells)}
    characters = Characters(plan)
    questions = len(plan.questions.questions)
    sums: dict[FamilyKey, dict[str, float]] = {}
    for whole in plan.grid.prompt_groups():
        group = [cell for cell in whole if cell.index in chosen]
        greedy = sum(cell.setting.draft.temperature == 0 for cell in group)
        for cell in group:
            tpf, temperature = str(cell.setting.all_levels["tpf"]), cell.setting.draft.temperature
            found = sums.setdefault((tpf, temperature), defaultdict(float))
            shared = 1 if plan.spec.engine.is_endpoint else len(group)
            alike = greedy if temperature == 0 and not plan.spec.engine.is_endpoint else 1
            found["runs"] += 1
            found["answers"] += questions
            found["rows"] += questions / alike
            found["prompts"] += questions / shared
            found["characters"] += characters.of(cell) / shared
            found["asked_characters"] += characters.of(cell)
    return [Family(*key, int(s["runs"]), *(s[name] for name in _AMOUNTS)) for key, s in sums.items()]


@dataclass(frozen=True)
class Length:
    """Tokens of an answer.

    Attributes:
        mean: The mean.
        error: Half-width of its 95 % interval; 0 where it is assumed.
        answers: Answers that it was measured on; 0 where it is assumed.
        beyond: The part of the mean that lies beyond where the measurement cut the answers.
    """

    mean: float
    error: float = 0.0
    answers: int = 0
    beyond: float = 0.0


def assumed_lengths(plan: Plan) -> dict[FamilyKey, Length]:
    """How long answers are where nothing was measured: short, unless the format asks for an explanation."""
    limit = plan.spec.decoding.max_new_tokens
    return {
        family.key: Length(min(limit, LONG_ANSWER if _explains(plan, family.tpf) else SHORT_ANSWER))
        for family in find_families(plan)
    }


def _explains(plan: Plan, tpf: str) -> bool:
    return tpf in plan.spec.prism.tpf or not tpf.startswith("justanswer")


@dataclass(frozen=True)
class Speed:
    """How fast this machine, or an endpoint, does it.

    Attributes:
        prefill: Prompt tokens read per second; None where reading is not told apart from answering.
        decode: Tokens answered per second, all rows together.
        error: Relative half-width of the 95 % interval of both.
        fixed: What → seconds that it takes once: start, load, check …
        per_run: Seconds to parse and log a run.
        source: Where this comes from.
        emptying: Seconds that are lost, once in `WINDOW` answers, while the last of them leave a batch.
        factor: For a rough figure: the truth lies between the estimate divided and multiplied by it.
    """

    prefill: float | None
    decode: float
    error: float
    fixed: Mapping[str, float]
    per_run: float
    source: str
    emptying: float = 0.0
    factor: float | None = None


@dataclass(frozen=True)
class FamilyTime:
    """One family's share of the time.

    Attributes:
        family: The family.
        prompt_tokens: Tokens of its prompts.
        completion_tokens: Tokens of its answers that are generated.
        seconds: Reading and answering, in seconds; None without a `Speed`.
        length: Tokens of an answer.
    """

    family: Family
    prompt_tokens: float
    completion_tokens: float
    seconds: float | None
    length: Length


@dataclass(frozen=True)
class TimeEstimate:
    """How long an experiment takes, from the start of the command to its end.

    Attributes:
        seconds: The estimate.
        low: Lower end of its 95 % interval, or of a rough figure's range.
        high: Upper end.
        parts: What → seconds.
        families: The generation by family.
    """

    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    families: Sequence[FamilyTime] = field(default=())


def family_times(
    families: Sequence[Family],
    tokens: TokenModel,
    lengths: Mapping[FamilyKey, Length],
    speed: Speed | None,
) -> list[FamilyTime]:
    """What each family takes."""
    found = []
    for family in families:
        length = lengths[family.key]
        sent, got = tokens.tokens(family.prompts, family.characters), length.mean * family.rows
        seconds = None
        if speed is not None:
            seconds = (sent / speed.prefill if speed.prefill else 0.0) + got / speed.decode
        found.append(FamilyTime(family, sent, got, seconds, length))
    return found


def estimate_time(
    families: Sequence[Family], tokens: TokenModel, lengths: Mapping[FamilyKey, Length], speed: Speed
) -> TimeEstimate:
    """Estimate the time of a whole run.

    The error bar joins that of the speed with those of the families' lengths, which are independent.
    """
    times = family_times(families, tokens, lengths, speed)
    reading = sum(t.prompt_tokens for t in times) / speed.prefill if speed.prefill else 0.0
    answering = sum(t.completion_tokens for t in times) / speed.decode
    parts = {**speed.fixed, "reading prompts": reading, "answering": answering}
    parts["emptying batches"] = speed.emptying * max(1.0, sum(f.rows for f in families) / WINDOW)
    generation = reading + answering + parts["emptying batches"]
    parts["logging runs"] = speed.per_run * sum(family.runs for family in families)
    seconds = sum(parts.values())
    if speed.factor is not None:
        return TimeEstimate(seconds, seconds / speed.factor, seconds * speed.factor, parts, times)
    by_length = hypot(*(t.length.error * t.family.rows / speed.decode for t in times))
    half = hypot(by_length, speed.error * generation)
    return TimeEstimate(seconds, max(0.0, seconds - half), seconds + half, parts, times)


def disk_bytes(times: Sequence[FamilyTime], question_characters: float) -> dict[str, float]:
    """Bytes on disk: the ledger, and what MLflow keeps of each run.

    The ledger holds each run's answers as compressed Parquet. MLflow gets a copy of that file and, as plain
    text, a table for the UI of at most 200 answers with their questions; and rows in its database. Unparsed
    answers, of which nobody knows how many there will be, are in its artifacts once more.

    Args:
        times: The families.
        question_characters: Of a question's text, on average.
    """
    ledger = tables = runs = 0.0
    for part in times:
        answers, length = part.family.answers, part.length.mean
        runs += part.family.runs
        ledger += part.family.runs * _LEDGER_RUN + answers * (_LEDGER_ANSWER + _LEDGER_TOKEN * length)
        shown = min(answers, part.family.runs * _TABLE_ROWS)
        tables += shown * (question_characters + _TABLE_ANSWER + _TABLE_TOKEN * length)
    return {"ledger": ledger, "artifacts": ledger + tables, "database": _DATABASE + runs * _DATABASE_RUN}


# ------------------------------------------------------------------------------------- estimate and truth


def keep_estimate(plan: Plan, folder: Path, estimate: TimeEstimate, source: str) -> Path:
    """Write an estimate into a ledger's folder, for the run to hold itself against.

    Raises:
        OSError: The folder cannot be written.
    """
    content = {
        "spec_hash": plan.spec_hash,
        "seconds": estimate.seconds,
        "low": estimate.low,
        "high": estimate.high,
        "parts": dict(estimate.parts),
        "source": source,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / ESTIMATE, json.dumps(content, ensure_ascii=False, indent=1).encode())
    return folder / ESTIMATE


def compare_with_estimate(
    plan: Plan, folder: Path, generated: int, seconds: float | None = None
) -> str | None:
    """Say how far off the estimate of a run was.

    Args:
        plan: What was run.
        folder: The ledger's folder.
        generated: Answers that this call generated.
        seconds: How long it took; by default since the process began.

    Returns:
        A sentence; None where there is no estimate of this experiment, or where a part of the answers was on
        record before.
    """
    try:
        content: dict[str, Any] = json.loads((folder / ESTIMATE).read_text(encoding="utf-8"))
        estimated, low, high = (float(content[key]) for key in ("seconds", "low", "high"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if content.get("spec_hash") != plan.spec_hash or generated != plan.draws or estimated <= 0:
        return None
    took = seconds if seconds is not None else seconds_since_start()
    off = took / estimated - 1
    how = "as long" if abs(off) < 0.005 else f"{abs(off):.0%} {'longer' if off > 0 else 'less'}"
    span = f"{duration(low)} to {duration(high)}"
    return f"Estimated {duration(estimated)} ({span}), took {duration(took)}: {how}."


def seconds_since_start() -> float:
    """Seconds since this process began, its imports included."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time())


def duration(seconds: float) -> str:
    """A time as a person would write it: ``3:05``, ``2:03:05``, ``4 d 2 h``, ``3.1 years``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days > 730:
        return f"{seconds / (365.25 * 86400):,.1f} years"
    if days:
        return f"{days} d {hours} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
