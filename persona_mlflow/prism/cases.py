"""What PRISM scores: a profile, a dialogue context and a response (P2 §3), and benchmarks of them (P2 §4)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    import pandas as pd

TRAITS = ("openness", "conscientiousness", "extraversion", "agreeableness", "neuroticism")
"""The Big Five, in their usual order."""

LEVELS = ("high", "low")
"""The levels of a trait."""

KINDS = ("big5", "free", "persona")
"""Kinds of profiles: a Big Five trait and level, a character with sections of text, a persona by name."""

POSITIVE = "positive"
"""The `Example.kind` of every positive."""

_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))

_BIG5_CUES = {
    ("openness", "high"): "curious, imaginative, drawn to new ideas, art and unusual views",
    ("openness", "low"): "conventional, matter-of-fact, attached to the familiar, wary of abstract ideas",
    ("conscientiousness", "high"): "organised, careful, dutiful, plans ahead and finishes what is begun",
    ("conscientiousness", "low"): "careless, unplanned, easily distracted, puts duties off",
    ("extraversion", "high"): "outgoing, talkative, energetic, seeks company and excitement",
    ("extraversion", "low"): "reserved, quiet, keeps to the background, prefers to be alone",
    ("agreeableness", "high"): "kind, trusting, cooperative, attentive to how others feel",
    ("agreeableness", "low"): "critical, suspicious, competitive, puts own interests before those of others",
    ("neuroticism", "high"): "anxious, moody, easily upset, dwells on what could go wrong",
    ("neuroticism", "low"): "calm, even-tempered, confident under stress, slow to worry",
}


@dataclass(frozen=True)
class Profile:
    """Whom a response should sound like: p of P2 §3.

    Attributes:
        kind: One of `KINDS`.
        trait: For ``big5``, one of `TRAITS`; else empty.
        level: For ``big5``, one of `LEVELS`; else empty.
        name: For ``free``, the character's name (may be empty); for ``persona``, the persona's text, such
            as ``a biologist``.
        sections: For ``free``, section title → text, such as personality and style.

    Raises:
        UserError: An unknown kind, trait or level, a field of another kind, or no usable cue: a free
            profile whose sections hold no word, or a persona whose name holds none.
    """

    kind: str
    trait: str = ""
    level: str = ""
    name: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"profile: unknown kind {self.kind!r}; {choices(self.kind, KINDS)}")
        if self.kind == "big5":
            if self.trait not in TRAITS:
                raise UserError(f"profile: unknown trait {self.trait!r}; {choices(self.trait, TRAITS)}")
            if self.level not in LEVELS:
                raise UserError(f"profile: unknown level {self.level!r}; {choices(self.level, LEVELS)}")
            if self.name or self.sections:
                raise UserError("profile: one of kind big5 has a trait and a level, no name or sections")
            return
        if self.trait or self.level:
            raise UserError(f"profile: one of kind {self.kind} has no trait or level; use kind big5 for them")
        if self.kind == "persona":
            if self.sections:
                raise UserError("profile: one of kind persona has its name alone; use kind free for sections")
            if not _has_word(self.name):
                raise UserError("profile: no usable cue: the persona's name holds no word; give it one")
        elif not any(_has_word(text) for text in self.sections.values()):
            raise UserError(
                f"profile {self.name!r}: no usable cue: none of its sections "
                f"({', '.join(self.sections) or 'there are none'}) holds a word; describe the character"
            )

    def __hash__(self) -> int:
        return hash((self.kind, self.trait, self.level, self.name, tuple(sorted(self.sections.items()))))

    @property
    def label(self) -> str:
        """Short text: ``high openness``, or the character's or persona's name."""
        if self.kind == "big5":
            return f"{self.level} {self.trait}"
        return self.name or "unnamed character"

    def describe(self) -> str:
        """The text that an evaluator or judge is shown; the wording around a profile's own is ours."""
        if self.kind == "big5":
            return f"A person with {self.level} {self.trait}: {_BIG5_CUES[self.trait, self.level]}."
        if self.kind == "persona":
            return f"The speaker is {self.name.strip()}."
        lines = [f"Character: {self.name.strip()}"] if _has_word(self.name) else []
        lines += [
            f"{title[:1].upper()}{title[1:]}: {text.strip()}"
            for title, text in self.sections.items()
            if _has_word(text)
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it: kind and that kind's own fields."""
        if self.kind == "big5":
            return {"kind": "big5", "trait": self.trait, "level": self.level}
        if self.kind == "persona":
            return {"kind": "persona", "name": self.name}
        return {"kind": "free", "name": self.name, "sections": dict(self.sections)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any] | str, where: str = "profile") -> Profile:
        """Read a profile from JSON.

        Args:
            value: The fields of `as_dict`. Without ``kind`` they tell it: ``trait`` or ``level`` is big5,
                ``sections`` is free, ``name`` alone is a persona. A text such as ``high openness`` is
                that Big Five profile; any other text is a persona.
            where: What to call the place in a message, such as ``cases.jsonl:3``.

        Raises:
            UserError: An unknown field, trait or level, a value that is no text, or no usable cue.
        """
        if isinstance(value, str):
            value = _from_text(value)
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: the profile must be an object or a text, but is {_kind_of(value)}")
        fields = ("kind", "trait", "level", "name", "sections")
        for key in value:
            if key not in fields:
                raise UserError(f"{where}: unknown profile field {key!r}; {choices(str(key), fields)}")
        kind = value.get("kind")
        if kind is None:
            kind = "big5" if "trait" in value or "level" in value else "persona"
            kind = "free" if kind == "persona" and "sections" in value else kind
        sections = value.get("sections") or {}
        if not isinstance(sections, Mapping):
            raise UserError(f"{where}: the profile's sections must be an object: title → text")
        texts = {"kind": kind} | {key: value.get(key) or "" for key in ("trait", "level", "name")}
        for key, text in [*texts.items(), *sections.items()]:
            if not isinstance(text, str):
                raise UserError(f"{where}: the profile's {key} must be a text, but is {_kind_of(text)}")
        for key in ("kind", "trait", "level"):
            texts[key] = texts[key].strip().lower()
        try:
            return cls(**texts, sections=dict(sections))
        except UserError as error:
            raise UserError(f"{where}: {error}" if where != "profile" else str(error)) from None


@dataclass(frozen=True)
class Case:
    """One response to be scored: (p, c, r) of P2 §3.

    Attributes:
        id: Unique within what is scored together.
        profile: Whom the response should sound like.
        context: The dialogue so far; may be empty.
        response: The response.

    Raises:
        UserError: The response or the id is empty.
    """

    id: str
    profile: Profile
    context: str
    response: str

    def __post_init__(self) -> None:
        if not self.id:
            raise UserError("case: the id is empty; leave it out to get one from the content")
        for name in ("context", "response"):
            if not isinstance(getattr(self, name), str):
                raise UserError(
                    f"case {self.id}: the {name} must be a text, but is {_kind_of(getattr(self, name))}"
                )
        if not self.response.strip():
            raise UserError(f"case {self.id}: the response is empty; there is nothing to score")

    @cached_property
    def content(self) -> str:
        """Hash of profile, context and response: equal for equal cases, whatever their ids."""
        return content_hash(self.profile.as_dict(), self.context, self.response)

    @classmethod
    def of(cls, profile: Profile, context: str, response: str) -> Case:
        """A case whose id is the hash of its content."""
        return cls(content_hash(profile.as_dict(), context, response), profile, context, response)

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "id": self.id,
            "profile": self.profile.as_dict(),
            "context": self.context,
            "response": self.response,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], where: str = "case") -> Case:
        """Read a case from JSON: ``profile`` and ``response``, and where given ``context`` and ``id``.

        Args:
            value: The fields; further ones are left to the caller. Without an id the case gets the hash
                of its content.
            where: What to call the place in a message, such as ``cases.jsonl:3``.

        Raises:
            UserError: A missing field, an empty response, a field that is no text, or a profile that
                `Profile.from_dict` refuses.
        """
        for name in ("profile", "response"):
            if value.get(name) is None:
                raise UserError(
                    f"{where}: no {name}; a case needs profile and response, and may have context"
                )
        texts = {name: "" if value.get(name) is None else value[name] for name in ("context", "response")}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise UserError(f"{where}: the {name} must be a text, but is {_kind_of(text)}")
        if not texts["response"].strip():
            raise UserError(f"{where}: the response is empty; there is nothing to score")
        profile = Profile.from_dict(value["profile"], where)
        given = value.get("id")
        if given is None:
            return cls.of(profile, **texts)
        if isinstance(given, bool) or not isinstance(given, (str, int)) or given == "":
            raise UserError(f"{where}: the id must be a text or a whole number, but is {given!r}")
        return cls(str(given), profile, **texts)


@dataclass(frozen=True)
class Example:
    """A case in a benchmark (P2 §4).

    Attributes:
        case: The case.
        group: Id of its group: one positive and the negatives that it is compared with.
        positive: Whether the response fits the profile.
        kind: `POSITIVE`, or the kind of negative, such as ``opposite level``.
    """

    case: Case
    group: str
    positive: bool
    kind: str


@dataclass(frozen=True)
class BenchmarkReport:
    """What a benchmark was made of, and what was left out and why.

    Attributes:
        source: Where the data came from: a folder, a file, or a hub id with its commit.
        options: How it was built, such as the swap and the seed.
        read: Rows or items read.
        left_out: Reason → rows or items that no case was made of.
        kept: Reason → rows or items that would have been left out, but were asked for.
        incomplete: Reason → rows or items that are sound, but could not form a complete group.
        notes: What else was counted → how often, such as groups whose contexts differ.
        available: Groups before a subset was drawn.
        asked: Groups asked for, or ``None`` for all.
        groups: Groups in the benchmark.
    """

    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    read: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, int] = field(default_factory=dict)
    incomplete: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    available: int = 0
    asked: int | None = None
    groups: int = 0

    @property
    def shortfall(self) -> int:
        """Groups asked for beyond those that there are."""
        return max(0, (self.asked or 0) - self.groups)

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it, the shortfall included."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {name: dict(v) if isinstance(v, Mapping) else v for name, v in plain.items()}
        return {**plain, "shortfall": self.shortfall}


@dataclass(frozen=True)
class Benchmark:
    """Positives and negatives in groups (P2 §4, Table 1).

    Attributes:
        name: Such as ``big5-easy``.
        examples: The examples, those of a group side by side.
        report: What it was made of, and what was left out and why.

    Raises:
        UserError: An id that occurs twice, or a group without a positive or without a negative.
    """

    name: str
    examples: tuple[Example, ...]
    report: BenchmarkReport = field(default_factory=BenchmarkReport)

    def __post_init__(self) -> None:
        repeated = [i for i, n in Counter(e.case.id for e in self.examples).items() if n > 1]
        if repeated:
            raise UserError(f"benchmark {self.name}: the id {repeated[0]!r} occurs more than once")
        for group, members in self._members.items():
            for positive, word in ((True, "positive"), (False, "negative")):
                if not any(e.positive is positive for e in members):
                    raise UserError(
                        f"benchmark {self.name}: group {group!r} has no {word} example; "
                        "each group needs at least one of both"
                    )

    @cached_property
    def _members(self) -> dict[str, list[Example]]:
        members: dict[str, list[Example]] = {}
        for example in self.examples:
            members.setdefault(example.group, []).append(example)
        return members

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' ids, in the order of the examples."""
        return tuple(self._members)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases, in the order of the examples."""
        return tuple(example.case for example in self.examples)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the name and every example, whatever their order: equal benchmarks have equal ones."""
        rows = sorted([e.group, e.case.id, e.case.content, e.positive, e.kind] for e in self.examples)
        return content_hash(self.name, rows)

    def subset(self, size: int, seed: int = 0) -> Benchmark:
        """A seeded draw of whole groups, without replacement.

        With one seed a smaller subset is part of a larger one. Where there are fewer groups than asked
        for, all are kept, and `BenchmarkReport.shortfall` tells.

        Args:
            size: Groups to draw, at least 1.
            seed: Seed of the draw.

        Raises:
            UserError: A size under 1.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UserError(f"benchmark {self.name}: size must be a whole number from 1 up, but is {size!r}")
        drawn = set(sorted(self.groups, key=lambda group: content_hash("subset", seed, group))[:size])
        kept = tuple(example for example in self.examples if example.group in drawn)
        options = {**self.report.options, "subset seed": seed}
        available = self.report.available or len(self.groups)
        report = replace(self.report, options=options, available=available, asked=size, groups=len(drawn))
        return Benchmark(self.name, kept, report)

    def to_frame(self) -> pd.DataFrame:
        """One row per example: id, group, positive, kind, profile (its label), context, response."""
        import pandas as pd

        columns = ["id", "group", "positive", "kind", "profile", "context", "response"]
        rows = [
            (e.case.id, e.group, e.positive, e.kind, e.case.profile.label, e.case.context, e.case.response)
            for e in self.examples
        ]
        return pd.DataFrame(rows, columns=columns).astype({"positive": bool})


def read_cases(path: Path | str) -> list[Case]:
    """Read cases from a JSONL file, one a line: ``profile``, ``response``, and if wanted ``context``, ``id``.

    Raises:
        UserError: Unreadable, a line that is no case, no line at all, or an id that occurs twice (equal
            cases without an id are one and the same); names the line.
    """
    from persona_mlflow.questions.reading import jsonl_records

    path = Path(path).expanduser()
    seen: dict[str, str] = {}
    cases = []
    for record in jsonl_records(path):
        case = Case.from_dict(record.fields, record.where)
        if case.id in seen:
            raise UserError(f"{record.where}: the same id as at {seen[case.id]} ({case.id}); ids must differ")
        seen[case.id] = record.where
        cases.append(case)
    if not cases:
        raise UserError(f"{path}: holds no case; write one JSON object a line: profile, context, response")
    return cases


def content_hash(*parts: Any) -> str:
    """16 hexadecimal digits that depend on the JSON of ``parts`` alone."""
    return hashlib.sha256(_ENCODER.encode(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def whole_text(text: str) -> str:
    """Replace half of a surrogate pair, which JSON can hold and neither a file nor a tokenizer can."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _from_text(text: str) -> dict[str, str]:
    """``high openness`` as big5, anything else as a persona; half of the former is refused by `Profile`."""
    words: Sequence[str] = text.lower().split()
    if len(words) == 2 and (words[0] in LEVELS or words[1] in TRAITS):
        # "low openess" is a slip, but "high priest" is a persona.
        import difflib

        if words[1] in TRAITS or difflib.get_close_matches(words[1], TRAITS, n=1, cutoff=0.8):
            return {"kind": "big5", "level": words[0], "trait": words[1]}
    return {"kind": "persona", "name": text}


def _has_word(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _kind_of(value: object) -> str:
    names = {list: "a list", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")
