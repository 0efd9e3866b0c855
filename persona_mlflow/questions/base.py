"""The question, and how it gets its identity."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OTHER = "Other"
"""The category of a question whose label no category names."""


@dataclass(frozen=True, slots=True)
class Question:
    """One multiple-choice question.

    Attributes:
        text: The question as it is asked, any context before it included.
        options: The option texts, in the order in which they get their letters.
        answer: Index of the correct option.
        category: One of the question set's categories (P1 Appendix D.1).
        label: The finer label within the category, e.g. an MMLU subject.
        source: Name of the source it was read from, e.g. ``mmlu``.
        id: Stable identity: a hash of text, options and answer; a repeated question gets ``~2``, ``~3`` …
    """

    text: str
    options: tuple[str, ...]
    answer: int
    category: str
    label: str
    source: str
    id: str

    @property
    def letters(self) -> str:
        """The valid letters, e.g. ``"ABCD"``."""
        return LETTERS[: len(self.options)]

    @property
    def answer_letter(self) -> str:
        """The letter of the correct option."""
        return LETTERS[self.answer]

    @property
    def lettered(self) -> dict[str, str]:
        """Letter → option text, as `persona_mlflow.parsing.parse_answer` takes it."""
        return dict(zip(self.letters, self.options, strict=True))

    @property
    def content(self) -> str:
        """The id without its ``~2``: the same for all repetitions of one question."""
        return self.id.partition("~")[0]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One question as a source holds it, before it has an id.

    Attributes:
        text: The question, cleaned by `clean`.
        options: The option texts, cleaned.
        answer: Index of the correct option.
        label: The source's own label, e.g. an MMLU subject.
        source: Name of the source.
        category: The category where the source itself names one; otherwise the category table decides.
    """

    text: str
    options: tuple[str, ...]
    answer: int
    label: str
    source: str
    category: str | None = None


def clean(text: str) -> str:
    """Unify line ends and strip outer blanks, so that one question has one id in every file format."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def content_id(text: str, options: Sequence[str], answer: int) -> str:
    """Hash a question's content to 16 hex digits."""
    payload = json.dumps([text, list(options), answer], ensure_ascii=False)
    return hashlib.sha256(payload.encode()).hexdigest()[:16]


def number(rows: Iterable[SourceRow], category_of: Callable[[str, str], str]) -> list[Question]:
    """Give every row its id and category, in source order.

    The first question with some content gets its hash as id, the next ones ``hash~2``, ``hash~3`` …, so a
    repeated question is neither lost nor counted twice. Number all sources' rows before leaving any out.

    Args:
        rows: All rows, in source order.
        category_of: (source, label) → category, for the rows that name none.

    Returns:
        One question per row, in the same order.
    """
    seen: Counter[str] = Counter()
    questions = []
    for row in rows:
        content = content_id(row.text, row.options, row.answer)
        seen[content] += 1
        questions.append(
            Question(
                text=row.text,
                options=row.options,
                answer=row.answer,
                category=category_of(row.source, row.label) if row.category is None else row.category,
                label=row.label,
                source=row.source,
                id=content if seen[content] == 1 else f"{content}~{seen[content]}",
            )
        )
    return questions
