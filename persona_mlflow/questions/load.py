"""From an experiment's ``questions:`` to its question set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions import hub, mmlu, normad, social_iqa, table
from persona_mlflow.questions.base import OTHER, Question, SourceRow, number
from persona_mlflow.questions.categories import SOURCES, CategoryTable, load_categories
from persona_mlflow.questions.composite import PER_CATEGORY, sample
from persona_mlflow.questions.questionset import QuestionSet, first_of_each
from persona_mlflow.questions.reading import READERS
from persona_mlflow.questions.report import DataReport, equal_options

DROPS = ("duplicates", "equal_options")
NAMES = ("builtin", "composite", *SOURCES)
"""What `load_questions` takes as a name; everything else is a path."""

_LOADERS = {"mmlu": mmlu.load, "social_iqa": social_iqa.load, "normad": normad.load}
_FINDERS = {"mmlu": mmlu.find_files, "social_iqa": social_iqa.find_files, "normad": normad.find_files}
_SPLITS = {"mmlu": "test", "social_iqa": "validation", "normad": ""}
_HUB_SPLITS: dict[str, Callable[[str], str]] = {
    "mmlu": mmlu.hub_split,
    "social_iqa": social_iqa.hub_split,
    "normad": str,
}

Reader = Callable[[], tuple[list[SourceRow], str]]
"""Reads one source: its rows, and where they came from."""


@dataclass(frozen=True)
class Plan:
    """What a ``questions:`` entry asks to be read.

    Attributes:
        name: Name of the question set.
        readers: Source → what reads it, in the order of numbering.
        absent: Sources that are left out → why.
        composite: Whether categories are sampled equally from their labels.
        per_category: Questions asked of each category of a composite.
    """

    name: str
    readers: Mapping[str, Reader]
    absent: Mapping[str, str] = field(default_factory=dict)
    composite: bool = False
    per_category: int = PER_CATEGORY


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
    table_ = load_categories(categories_file)
    wanted = list(categories) if categories is not None and not isinstance(categories, str) else categories
    plan = make_plan(source, per_category)
    used = table_.only(wanted) if plan.composite else table_
    if plan.composite:
        _check_present(used, plan, table_ if wanted is not None else None)
    sources = {category.source for category in used.categories} if plan.composite else set(plan.readers)
    rows: list[SourceRow] = []
    read, origins = {}, {}
    for name in plan.readers:
        if name in sources:
            found, origins[name] = plan.readers[name]()
            read[name] = len(found)
            rows += found
    pool = number(rows, used.category_of)
    if plan.composite:
        pool = [question for question in pool if question.category in used.names]
    pool, dropped = _drop(pool, drop)
    report = DataReport(read=read, origins=origins, absent=plan.absent, dropped=dropped)
    if plan.composite:
        absent = set(plan.absent)
        questions, shortfalls = sample(pool, used, absent=absent, per_category=plan.per_category, seed=seed)
        questions_set = QuestionSet.of(
            plan.name, questions, report.over(questions, shortfalls=tuple(shortfalls))
        )
    else:
        questions_set = QuestionSet.of(plan.name, _together(pool, used), report)
        if wanted is not None:
            questions_set = questions_set.only(wanted)
    return questions_set if limit is None else questions_set.limit(limit, seed)


def make_plan(source: str | Path | Mapping[str, Any], per_category: int = PER_CATEGORY) -> Plan:
    """Decide what to read, without reading it.

    Raises:
        UserError: An unknown source or key, or a path that is not there.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source, per_category)
    if not isinstance(source, (str, Path)) or not str(source).strip():
        raise UserError(f"questions: {source!r} is neither a name nor a path; {choices(str(source), NAMES)}")
    if source == "builtin":
        return Plan("builtin", {"builtin": lambda: (table.load_builtin(), "the package")})
    if source == "composite":
        return Plan("composite", {name: _remote(name) for name in SOURCES}, {}, True, per_category)
    if source in SOURCES:
        return Plan(str(source), {str(source): _remote(str(source))})
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path, per_category)
    if path.is_file():
        return _from_file(path, None)
    if len(path.parts) > 1 or path.suffix in READERS:
        raise UserError(f"questions: no file or folder {str(source)!r} (looked from {Path.cwd()})")
    raise UserError(
        f"questions: unknown source {str(source)!r}; {choices(str(source), NAMES)}, or give a path"
    )


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


def _from_mapping(spec: Mapping[str, Any], per_category: int) -> Plan:
    keys: dict[str, tuple[str, ...]] = {
        "builtin": (),
        "composite": ("path", *SOURCES, "per_category"),
        "table": ("path", "columns"),
        **dict.fromkeys(SOURCES, ("path", "split")),
    }
    source = spec.get("source")
    if not isinstance(source, str) or source not in keys:
        problem = f"unknown source {source!r}" if "source" in spec else "the key 'source' is missing"
        raise UserError(f"questions: {problem}; {choices(str(source), keys)}")
    for key in spec:
        if key != "source" and key not in keys[source]:
            raise UserError(
                f"questions ({source}): unknown key {key!r}; {choices(str(key), ('source', *keys[source]))}"
            )
    if source == "builtin":
        return make_plan("builtin")
    if source == "composite":
        return _composite(spec, per_category)
    if source == "table":
        path = _path(spec, "path", source)
        if not path.is_file():
            raise UserError(f"questions ({source}): no file {str(path)!r} (looked from {Path.cwd()})")
        return _from_file(
            path, table.TableColumns.from_mapping(spec["columns"]) if "columns" in spec else None
        )
    split = str(spec.get("split", _SPLITS[source]))
    _HUB_SPLITS[source](split)
    if "path" not in spec:
        return Plan(source, {source: _remote(source, split)})
    return Plan(source, {source: _local(source, _path(spec, "path", source), split)})


def _composite(spec: Mapping[str, Any], per_category: int) -> Plan:
    per_category = spec.get("per_category", per_category)
    named = [name for name in SOURCES if name in spec]
    if "path" in spec:
        if named:
            raise UserError(f"questions (composite): give either path or {named[0]}, not both")
        folder = _path(spec, "path", "composite")
        return _composite_folder(folder, {name: folder / name for name in SOURCES}, per_category)
    if not named:
        return make_plan("composite", per_category)
    readers, absent = {}, {}
    for name in SOURCES:
        if spec.get(name) is None:
            absent[name] = "left out by the experiment"
        elif spec[name] == "hub":
            readers[name] = _remote(name)
        else:
            readers[name] = _local(name, _path(spec, name, "composite"))
    if not readers:
        raise UserError(
            "questions (composite): every source is left out; give mmlu, social_iqa or normad a folder"
        )
    return Plan("composite", readers, absent, True, per_category)


def _from_folder(folder: Path, per_category: int) -> Plan:
    parts = {name: folder / name for name in SOURCES}
    if any(part.is_dir() for part in parts.values()):
        return _composite_folder(folder, parts, per_category)
    cached = hub.in_cache(folder)
    if len(cached) > 1:
        return _composite_folder(folder, dict.fromkeys(SOURCES, folder), per_category)
    for name in cached or SOURCES:
        if _find(name, folder, _SPLITS[name]) is not None:
            return Plan(name, {name: _local(name, folder)})
    raise UserError(
        f"{folder}: no questions in a layout that is known; expected subfolders {', '.join(SOURCES)}, or "
        f"MMLU (test/{{subject}}_test.csv), Social IQa (dev.jsonl with dev-labels.lst) or NormAd "
        f"({normad.FILE}) itself, or name a single file ({', '.join(READERS)})"
    )


def _composite_folder(folder: Path, parts: Mapping[str, Path], per_category: int) -> Plan:
    """A composite of those sources of a folder that are there."""
    readers, absent = {}, {}
    for name, part in parts.items():
        if not part.is_dir():
            absent[name] = f"no folder {part}"
        elif _find(name, part, _SPLITS[name]) is None:
            absent[name] = f"no files of it in {part}"
        else:
            readers[name] = _local(name, part)
    if not readers:
        raise UserError(f"{folder}: none of {', '.join(SOURCES)} is there: {'; '.join(absent.values())}")
    return Plan("composite", readers, absent, True, per_category)


def _from_file(path: Path, columns: table.TableColumns | None) -> Plan:
    return Plan(path.stem, {path.name: lambda: (table.load(path, columns), str(path))})


def _find(source: str, folder: Path, split: str) -> Path | None:
    return next((c for c in hub.candidates(folder, source) if _FINDERS[source](c, split)), None)


def _local(source: str, folder: Path, split: str | None = None) -> Reader:
    split = _SPLITS[source] if split is None else split

    def read() -> tuple[list[SourceRow], str]:
        if not folder.is_dir():
            raise UserError(f"questions ({source}): no folder {str(folder)!r} (looked from {Path.cwd()})")
        found = _find(source, folder, split) or folder
        return _LOADERS[source](found, split), hub.origin(source, found)

    return read


def _remote(source: str, split: str | None = None) -> Reader:
    split = _SPLITS[source] if split is None else split

    def read() -> tuple[list[SourceRow], str]:
        folder = hub.fetch(source, _HUB_SPLITS[source](split))
        return _LOADERS[source](folder, split), hub.origin(source, folder)

    return read


def _path(spec: Mapping[str, Any], key: str, source: str) -> Path:
    value = spec.get(key)
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise UserError(f"questions ({source}): {key} must be a path, but is {value!r}")
    return Path(value).expanduser()


def _check_present(used: CategoryTable, plan: Plan, named_of: CategoryTable | None) -> None:
    """Refuse categories that were named but whose source is absent, and a set of which nothing is left."""
    present = [category.name for category in used.categories if category.source in plan.readers]
    for category in used.categories:
        if category.source not in plan.readers and (named_of is not None or not present):
            valid = [c.name for c in (named_of or used).categories if c.source in plan.readers]
            why = plan.absent.get(category.source, "not read")
            raise UserError(
                f"category {category.name!r} needs {category.source}, which is absent ({why}); "
                f"{choices(category.name, valid)}"
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


def _together(questions: list[Question], table_: CategoryTable) -> list[Question]:
    """Bring each category's questions together: first those of the table, in its order; ``Other`` last."""
    order: dict[str, int] = {name: i for i, name in enumerate(table_.names)}
    for question in questions:
        order.setdefault(question.category, len(order))
    order[OTHER] = len(order)
    return sorted(questions, key=lambda question: order[question.category])
