"""From an experiment's ``questions:`` to its question set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import OTHER, Question, SourceRow, number
from persona_mlflow.questions.categories import CategoryTable, load_categories
from persona_mlflow.questions.composite import PER_CATEGORY, sample
from persona_mlflow.questions.questionset import QuestionSet, first_of_each
from persona_mlflow.questions.report import DataReport, equal_options
from persona_mlflow.questions.resolve import Resolved, resolve

DROPS = ("duplicates", "equal_options")


def load_questions(
    source: str | Path | Mapping[str, Any],
    *,
    seed: int = 0,
    limit: int | None = None,
    categories: Iterable[str] | None = None,
    drop: Sequence[str] = (),
    per_category: int = PER_CATEGORY,
    categories_file: str | Path | None = None,
) -> QuestionSet:
    """Load the questions of an experiment (P1 Appendix D.1).

    Args:
        source: One of

            - ``"builtin"``: the original questions that the package ships;
            - ``"composite"``: MMLU, Social IQa and NormAd from the hub, each category sampled equally from
              its labels; ``"mmlu"``, ``"social_iqa"``, ``"normad"``: all of one of them;
            - a folder with subfolders ``mmlu``, ``social_iqa``, ``normad`` (a composite of those
              there), a folder that holds one of them in a published layout, or a hub cache;
            - a ``.csv``, ``.jsonl``, ``.json`` or ``.parquet`` file with `TableColumns`' default columns;
            - a mapping: ``{source: table, path: FILE, columns: {…}}``, ``{source: mmlu, path: FOLDER,
              split: test}``, or ``{source: composite, mmlu: FOLDER, social_iqa: FOLDER, normad: hub,
              per_category: 500}`` (a composite of the sources that it names, or of all from the hub).

            Paths start from the working directory; ``./mmlu`` is a folder, ``mmlu`` the hub's data set.
        seed: Seed of the sampling.
        limit: Questions in all, balanced over the categories; see `QuestionSet.limit`.
        categories: Categories to keep; ``None`` keeps all.
        drop: What to drop, before sampling: ``duplicates``, ``equal_options``.
        per_category: Questions asked of each category of a composite.
        categories_file: A category table in place of the package's; see `load_categories`.

    Raises:
        UserError: Something is unknown, missing, unreadable or malformed; says what and where.
    """
    check_drop(drop)
    table = load_categories(categories_file)
    wanted = categories if categories is None or isinstance(categories, str) else list(categories)
    resolved = resolve(source, per_category)
    if resolved.composite:
        found = _load_composite(resolved, table, wanted, drop, seed)
    else:
        pool, report = _read(resolved, set(resolved.readers), table, drop)
        found = QuestionSet.of(resolved.name, _together(pool, table), report)
        if wanted is not None:
            found = found.only(wanted)
    return found if limit is None else found.limit(limit, seed)


def check_drop(drop: Sequence[str]) -> None:
    """Check what is to be dropped.

    Raises:
        UserError: A single text in place of a list, or an unknown name.
    """
    if isinstance(drop, str):
        raise UserError(f"drop must be a list, e.g. [{drop}], not the single text {drop!r}")
    for name in drop:
        if name not in DROPS:
            raise UserError(f"drop: unknown {name!r}; {choices(str(name), DROPS)}")


def _load_composite(
    resolved: Resolved, table: CategoryTable, wanted: Iterable[str] | None, drop: Sequence[str], seed: int
) -> QuestionSet:
    used = table.only(wanted)
    _check_present(used, resolved, table, named=wanted is not None)
    pool, report = _read(resolved, {category.source for category in used.categories}, used, drop)
    questions, shortfalls = sample(
        pool, used, absent=set(resolved.absent), per_category=resolved.per_category, seed=seed
    )
    return QuestionSet.of(resolved.name, questions, report.over(questions, shortfalls=tuple(shortfalls)))


def _read(
    resolved: Resolved, sources: set[str], table: CategoryTable, drop: Sequence[str]
) -> tuple[list[Question], DataReport]:
    """Read and number some of the sources; a composite leaves out what is in none of its categories."""
    rows: list[SourceRow] = []
    read, origins = {}, {}
    for name, reader in resolved.readers.items():
        if name in sources:
            found, origins[name] = reader()
            read[name] = len(found)
            rows += found
    pool = number(rows, table.category_of)
    if resolved.composite:
        names = set(table.names)
        pool = [question for question in pool if question.category in names]
    pool, dropped = _drop(pool, drop)
    absent = {name: why for name, why in resolved.absent.items() if name in sources}
    return pool, DataReport(read=read, origins=origins, absent=absent, dropped=dropped)


def _check_present(used: CategoryTable, resolved: Resolved, table: CategoryTable, *, named: bool) -> None:
    """Refuse categories that were named but whose source is absent, and a set of which nothing is left."""
    missing = [category for category in used.categories if category.source not in resolved.readers]
    if missing and (named or len(missing) == len(used.categories)):
        valid = [category.name for category in table.categories if category.source in resolved.readers]
        why = resolved.absent.get(missing[0].source, "not read")
        raise UserError(
            f"category {missing[0].name!r} needs {missing[0].source}, which is absent ({why}); "
            f"{choices(missing[0].name, valid)}"
        )


def _drop(
    questions: list[Question], drop: Sequence[str]
) -> tuple[list[Question], dict[str, tuple[str, ...]]]:
    dropped: dict[str, tuple[str, ...]] = {}
    if "duplicates" in drop:
        kept, dropped["duplicates"] = first_of_each(questions)
        questions = list(kept)
    if "equal_options" in drop:
        dropped["equal_options"] = tuple(q.id for q in questions if equal_options(q))
        questions = [q for q in questions if not equal_options(q)]
    return questions, dropped


def _together(questions: list[Question], table: CategoryTable) -> list[Question]:
    """Bring each category's questions together: first those of the table, in its order; ``Other`` last."""
    order: dict[str, int] = {name: i for i, name in enumerate(table.names)}
    for question in questions:
        order.setdefault(question.category, len(order))
    order[OTHER] = len(order)
    return sorted(questions, key=lambda question: order[question.category])
