"""What is in a question set, and what is amiss with it."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from persona_mlflow.questions.base import LETTERS, Question


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A label that has fewer questions than its category asks of it.

    Attributes:
        category: The category.
        label: The label.
        asked: Questions asked of the label.
        got: Questions that it has.
    """

    category: str
    label: str
    asked: int
    got: int


@dataclass(frozen=True, slots=True)
class EqualOptions:
    """A question with options of the same text.

    Attributes:
        id: The question's id.
        letters: The letters of the equal options, e.g. ``"BD"``.
        correct: Whether the correct option is among them.
    """

    id: str
    letters: str
    correct: bool


@dataclass(frozen=True)
class DataReport:
    """What a question set holds and where it falls short; nothing of it is dropped unless asked.

    Attributes:
        read: Rows read per source, before sampling.
        origins: Where each source was read from: a folder, a file, or a hub id with its commit.
        counts: Questions per category and label.
        shortfalls: Labels with fewer questions than asked.
        absent: Sources that could not be had → why; their categories are missing.
        repeated: Groups of ids with the same text, options and answer, within this set.
        conflicting: Groups of ids with the same text and options, but different answers.
        equal_options: Questions with options of the same text.
        dropped: Why → the ids that were dropped on request.
        limited_from: Size of the set before `QuestionSet.limit`, or ``None``.
    """

    read: Mapping[str, int] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shortfalls: tuple[Shortfall, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    repeated: tuple[tuple[str, ...], ...] = ()
    conflicting: tuple[tuple[str, ...], ...] = ()
    equal_options: tuple[EqualOptions, ...] = ()
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limited_from: int | None = None

    @property
    def total(self) -> int:
        """Questions in all."""
        return sum(sum(labels.values()) for labels in self.counts.values())

    def over(self, questions: Sequence[Question], **changes: Any) -> DataReport:
        """The same report over other questions: everything that is counted is counted anew."""
        return dataclasses.replace(
            self,
            counts=count(questions),
            repeated=repeated(questions),
            conflicting=conflicting(questions),
            equal_options=tuple(equal for q in questions if (equal := equal_options(q))),
            **changes,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report in JSON's own types."""
        return {
            "total": self.total,
            "read": dict(self.read),
            "origins": dict(self.origins),
            "counts": {category: dict(labels) for category, labels in self.counts.items()},
            "shortfalls": [dataclasses.asdict(shortfall) for shortfall in self.shortfalls],
            "absent": dict(self.absent),
            "repeated": [list(ids) for ids in self.repeated],
            "conflicting": [list(ids) for ids in self.conflicting],
            "equal_options": [dataclasses.asdict(equal) for equal in self.equal_options],
            "dropped": {reason: list(ids) for reason, ids in self.dropped.items()},
            "limited_from": self.limited_from,
        }

    def lines(self) -> list[str]:
        """The report for people, one line per matter; the first is the size of the set."""
        lines = [
            f"{_plural(self.total, 'question')} in {_plural(len(self.counts), 'category', 'categories')}"
        ]
        if self.limited_from is not None:
            lines[0] += f" (limited from {self.limited_from:,})"
        lines += [f"  {category}: {_labels(labels)}" for category, labels in self.counts.items()]
        lines += [f"absent source {source}: {why}; the rest runs" for source, why in self.absent.items()]
        lines += [
            f"shortfall in {s.category}: {s.label} has {s.got} of {s.asked} asked" for s in self.shortfalls
        ]
        if self.repeated:
            lines.append(
                f"{_plural(len(self.repeated), 'question')} repeated (kept; drop: duplicates removes)"
            )
        if self.conflicting:
            lines.append(f"{_plural(len(self.conflicting), 'question')} with contradictory answers (kept)")
        if self.equal_options:
            correct = sum(equal.correct for equal in self.equal_options)
            lines.append(
                f"{_plural(len(self.equal_options), 'question')} with equal options, the correct one "
                f"among them in {correct} (kept; drop: equal_options removes)"
            )
        lines += [f"{_plural(len(ids), 'question')} dropped: {why}" for why, ids in self.dropped.items()]
        return lines


def count(questions: Iterable[Question]) -> dict[str, dict[str, int]]:
    """Questions per category and label, in order of first appearance."""
    counts: dict[str, Counter[str]] = {}
    for question in questions:
        counts.setdefault(question.category, Counter())[question.label] += 1
    return {category: dict(labels) for category, labels in counts.items()}


def repeated(questions: Iterable[Question]) -> tuple[tuple[str, ...], ...]:
    """Groups of two or more ids with the same text, options and answer."""
    groups: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        groups[question.content].append(question.id)
    return tuple(tuple(ids) for ids in groups.values() if len(ids) > 1)


def conflicting(questions: Iterable[Question]) -> tuple[tuple[str, ...], ...]:
    """Groups of ids with the same text and options, but not all with the same answer."""
    groups: dict[tuple[str, tuple[str, ...]], list[Question]] = defaultdict(list)
    for question in questions:
        groups[question.text, question.options].append(question)
    return tuple(
        tuple(q.id for q in group) for group in groups.values() if len({q.answer for q in group}) > 1
    )


def equal_options(question: Question) -> EqualOptions | None:
    """The options of a question that share their text with another, or ``None``."""
    times = Counter(question.options)
    equal = [i for i, option in enumerate(question.options) if times[option] > 1]
    if not equal:
        return None
    return EqualOptions(question.id, "".join(LETTERS[i] for i in equal), question.answer in equal)


def _plural(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _labels(labels: Mapping[str, int]) -> str:
    total = f"{sum(labels.values()):,}"
    if len(labels) > 10:
        low, high = min(labels.values()), max(labels.values())
        return f"{total} from {len(labels)} labels, {low if low == high else f'{low} to {high}'} each"
    return f"{total} ({', '.join(f'{label} {n}' for label, n in labels.items())})"
