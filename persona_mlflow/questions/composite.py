"""The paper's question set: equally many questions from each label of a category (P1 Appendix D.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from persona_mlflow.errors import UserError
from persona_mlflow.questions.base import Question
from persona_mlflow.questions.categories import CategoryTable
from persona_mlflow.questions.questionset import shuffled
from persona_mlflow.questions.report import Shortfall

PER_CATEGORY = 500


def per_label(per_category: int, labels: int) -> int:
    """Questions asked of each label: ``round(per_category / labels)``, at least 1.

    Raises:
        UserError: ``per_category`` is below 1.
    """
    if isinstance(per_category, bool) or not isinstance(per_category, int) or per_category < 1:
        raise UserError(f"per_category must be a whole number of at least 1, not {per_category!r}")
    return max(1, round(per_category / labels))


def sample(
    pool: Iterable[Question],
    table: CategoryTable,
    *,
    absent: Collection[str] = (),
    per_category: int = PER_CATEGORY,
    seed: int = 0,
) -> tuple[list[Question], list[Shortfall]]:
    """Sample each category equally from its labels, without replacement.

    A label's sample depends on the seed and on its own questions only: neither on other labels nor on the
    order of rows. A label with fewer questions than asked gives all that it has.

    Args:
        pool: The numbered questions of all sources.
        table: The categories.
        absent: Sources that could not be had; their categories are left out, which is no shortfall.
        per_category: Questions asked of each category.
        seed: Seed of the sample.

    Returns:
        The questions, ordered by category, then label, then source order; and the shortfalls.

    Raises:
        UserError: ``per_category`` is below 1.
    """
    by_label: dict[tuple[str, str], list[Question]] = defaultdict(list)
    for question in pool:
        by_label[question.source, question.label].append(question)
    chosen: list[Question] = []
    shortfalls = []
    for category in table.categories:
        if category.source in absent:
            continue
        labels = category.labels
        if labels is None:
            labels = tuple(sorted(label for source, label in by_label if source == category.source))
        asked = per_label(per_category, max(1, len(labels)))
        for label in labels:
            group = by_label.get((category.source, label), [])
            chosen += sample_label(group, asked, seed)
            if len(group) < asked:
                shortfalls.append(Shortfall(category.name, label, asked, len(group)))
    return chosen, shortfalls


def sample_label(group: Sequence[Question], n: int, seed: int) -> list[Question]:
    """``n`` questions of one label, in source order; all where there are no more."""
    kept = {question.id for question in shuffled(group, seed, "sample")[:n]}
    return [question for question in group if question.id in kept]
