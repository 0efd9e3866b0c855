"""The set of questions that an experiment asks."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from persona_mlflow.errors import UserError
from persona_mlflow.questions.base import Question
from persona_mlflow.questions.categories import check_names
from persona_mlflow.questions.report import DataReport

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class QuestionSet:
    """Questions with unique ids, and the report of how they were had.

    Attributes:
        name: Name of the source, e.g. ``builtin`` or ``composite``.
        questions: The questions; those of one category stand together.
        report: Counts, shortfalls, absent sources, and what is odd about the data.
    """

    name: str
    questions: tuple[Question, ...]
    report: DataReport

    @classmethod
    def of(cls, name: str, questions: Iterable[Question], report: DataReport | None = None) -> QuestionSet:
        """Make a set, counting its report anew.

        Raises:
            UserError: No question at all.
            ValueError: Two questions with the same id.
        """
        kept = tuple(questions)
        if not kept:
            raise UserError(f"question set {name!r} is empty")
        if len({question.id for question in kept}) != len(kept):
            raise ValueError(f"question set {name!r}: ids are not unique; number the rows with base.number")
        return cls(name, kept, (report or DataReport()).over(kept))

    def __len__(self) -> int:
        """Number of questions."""
        return len(self.questions)

    def __iter__(self) -> Iterator[Question]:
        """Iterate over the questions."""
        return iter(self.questions)

    @cached_property
    def by_id(self) -> Mapping[str, Question]:
        """Id → question, read-only."""
        return MappingProxyType({question.id: question for question in self.questions})

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The categories that have questions, in order."""
        return tuple(dict.fromkeys(question.category for question in self.questions))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels that have questions, in order."""
        return tuple(dict.fromkeys(question.label for question in self.questions))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all ids with their categories and labels: 16 hex digits, the same on every machine.

        The order of the questions does not count, since no result depends on it.
        """
        rows = sorted([question.id, question.category, question.label] for question in self.questions)
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()[:16]

    def limit(self, n: int, seed: int = 0) -> QuestionSet:
        """Take ``n`` questions, as many from each category as from the next.

        Categories take turns in order, and within a category its labels do, each in an order of its own that
        only ``seed`` and the ids decide. So the same questions come out each time, and the smaller limit's
        are among the greater one's: raising it reuses finished work.

        Args:
            n: Questions in all; all of them where there are no more.
            seed: Seed of the choice.

        Raises:
            UserError: ``n`` is below 1.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UserError(f"limit must be a whole number of at least 1, not {n!r}")
        if n >= len(self):
            return self
        turns = (take_turns(_by_label(group, seed)) for group in _group(self.questions, "category").values())
        chosen = {question.id for question in take_turns(list(turns))[:n]}
        kept = tuple(question for question in self.questions if question.id in chosen)
        return QuestionSet(self.name, kept, self.report.over(kept, limited_from=len(self)))

    def only(self, categories: Iterable[str]) -> QuestionSet:
        """Keep some categories.

        Raises:
            UserError: A category that the set lacks.
        """
        wanted = check_names(categories, self.categories)
        kept = tuple(question for question in self.questions if question.category in wanted)
        shortfalls = tuple(s for s in self.report.shortfalls if s.category in wanted)
        return QuestionSet(self.name, kept, self.report.over(kept, shortfalls=shortfalls))

    def drop_duplicates(self) -> QuestionSet:
        """Keep the first of each group of repeated questions."""
        kept, dropped = first_of_each(self.questions)
        return QuestionSet(self.name, kept, self.report.over(kept, dropped=self._dropped(dropped)))

    def to_frame(self) -> pd.DataFrame:
        """One row per question: id, category, label, text, options (a list), answer (a letter), source."""
        import pandas as pd

        return pd.DataFrame(
            {
                "id": [q.id for q in self],
                "category": [q.category for q in self],
                "label": [q.label for q in self],
                "text": [q.text for q in self],
                "options": [list(q.options) for q in self],
                "answer": [q.answer_letter for q in self],
                "source": [q.source for q in self],
            }
        )

    def _dropped(self, ids: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        before = dict(self.report.dropped)
        return {**before, "duplicates": before.get("duplicates", ()) + ids} if ids else before


def first_of_each(questions: Iterable[Question]) -> tuple[tuple[Question, ...], tuple[str, ...]]:
    """Split questions into the first of each content, and the ids of the repetitions."""
    kept: dict[str, Question] = {}
    dropped = []
    for question in questions:
        if kept.setdefault(question.content, question) is not question:
            dropped.append(question.id)
    return tuple(kept.values()), tuple(dropped)


def shuffled(questions: Iterable[Question], seed: int, purpose: str) -> list[Question]:
    """Put questions in an order that only the seed, the purpose and each id decide.

    Sorting by a seeded hash is a uniform shuffle; unlike one by a random generator it depends neither on the
    order of the input nor on what else is in it, and its beginning is a sample that grows without changing.
    """

    def rank(question: Question) -> bytes:
        return hashlib.blake2b(f"{purpose}\0{seed}\0{question.id}".encode(), digest_size=16).digest()

    return sorted(questions, key=rank)


def take_turns(queues: Sequence[Sequence[Question]]) -> list[Question]:
    """Take one from each queue in turn until all are empty."""
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _by_label(questions: Iterable[Question], seed: int) -> list[list[Question]]:
    return [shuffled(group, seed, "limit") for group in _group(questions, "label").values()]


def _group(questions: Iterable[Question], attribute: str) -> dict[str, list[Question]]:
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[getattr(question, attribute)].append(question)
    return groups
