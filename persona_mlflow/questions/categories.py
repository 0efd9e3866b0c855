"""The category table: which labels of which source make up each category (P1 Appendix D.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions.base import OTHER
from persona_mlflow.questions.reading import bool_hint, read_text

SOURCES = ("mmlu", "social_iqa", "normad")
"""The published sources, in the order in which their questions are numbered."""


@dataclass(frozen=True, slots=True)
class Category:
    """One category.

    Attributes:
        name: What tables and figures call it.
        source: Where its questions come from: one of `SOURCES`.
        labels: Its labels, or ``None`` for every label that the source has.
    """

    name: str
    source: str
    labels: tuple[str, ...] | None


@dataclass(frozen=True)
class CategoryTable:
    """The categories in the order of tables and figures."""

    categories: tuple[Category, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The categories' names, in order."""
        return tuple(category.name for category in self.categories)

    @cached_property
    def _by_label(self) -> dict[tuple[str, str | None], str]:
        return {
            (category.source, label): category.name
            for category in self.categories
            for label in category.labels or (None,)
        }

    def category_of(self, source: str, label: str) -> str:
        """The category of a source's label; ``"Other"`` where none names it."""
        table = self._by_label
        return table.get((source, label)) or table.get((source, None)) or OTHER

    def only(self, names: Iterable[str] | None) -> CategoryTable:
        """The table cut down to some categories, its order kept; ``None`` keeps all.

        Raises:
            UserError: A name that the table lacks.
        """
        if names is None:
            return self
        wanted = check_names(names, self.names)
        return CategoryTable(tuple(c for c in self.categories if c.name in wanted))


def check_names(names: Iterable[str], valid: Iterable[str]) -> tuple[str, ...]:
    """Check a list of category names.

    Raises:
        UserError: A single text in place of a list, a boolean, no name at all, or an unknown name.
    """
    if isinstance(names, str):
        raise UserError(f"categories must be a list, e.g. [{names!r}], not the single text {names!r}")
    wanted, known = tuple(names), tuple(valid)
    if not wanted:
        raise UserError(f"categories is an empty list: leave it out for all, or {choices('', known)}")
    for name in wanted:
        if isinstance(name, bool):
            raise UserError(f"categories holds the boolean {name}; write it in quotes, as {bool_hint(name)}")
        if name not in known:
            raise UserError(f"unknown category {name!r}; {choices(str(name), known)}")
    return wanted


def load_categories(path: str | Path | None = None) -> CategoryTable:
    """Read a category table; without a path, the one that the package ships.

    Args:
        path: A YAML file in the form of ``persona_mlflow/catalog/categories.yaml``.

    Raises:
        UserError: Unreadable, unknown keys or sources, a label that YAML took for a boolean, number or null,
            or a label that two categories claim.
    """
    if path is None:
        packaged = resources.files("persona_mlflow") / "catalog" / "categories.yaml"
        return parse_categories(packaged.read_text(encoding="utf-8"), "categories.yaml of the package")
    file = Path(path).expanduser()
    return parse_categories(read_text(file), str(file))


def parse_categories(text: str, where: str) -> CategoryTable:
    """Parse a category table; see `load_categories`."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {error}") from error
    entries = data.get("categories") if isinstance(data, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: must hold a list `categories:` of entries with name, source and labels")
    categories = tuple(_entry(entry, f"{where}, category {n}") for n, entry in enumerate(entries, start=1))
    _check_unique(categories, where)
    return CategoryTable(categories)


def _entry(entry: Any, where: str) -> Category:
    keys = ("name", "source", "labels")
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: must be a mapping with the keys {', '.join(keys)}")
    for key in entry:
        if key not in keys:
            raise UserError(f"{where}: unknown key {key!r}; {choices(str(key), keys)}")
    for key in keys:
        if key not in entry:
            raise UserError(f"{where}: the key {key!r} is missing")
    name = _text(entry["name"], f"{where}: name")
    where = f"{where} ({name})"
    source = _text(entry["source"], f"{where}: source")
    if source not in SOURCES:
        raise UserError(f"{where}: unknown source {source!r}; {choices(source, SOURCES)}")
    labels = entry["labels"]
    if labels == "*":
        return Category(name, source, None)
    if not isinstance(labels, list) or not labels:
        raise UserError(f'{where}: labels must be a list, or "*" for every label of {source}')
    return Category(name, source, tuple(_text(v, f"{where}: labels[{i}]") for i, v in enumerate(labels)))


def _text(value: Any, what: str) -> str:
    if isinstance(value, bool):
        raise UserError(
            f"{what} is the boolean {value}: YAML reads a bare yes, no, on or off as one; "
            f"put the label in quotes, as {bool_hint(value)}"
        )
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{what} must be a text, but is {value!r}; put it in quotes")
    return value.strip()


def _check_unique(categories: tuple[Category, ...], where: str) -> None:
    names: set[str] = set()
    owner: dict[tuple[str, str | None], str] = {}
    for category in categories:
        if category.name in names:
            raise UserError(f"{where}: category {category.name!r} occurs twice")
        names.add(category.name)
        for label in category.labels or (None,):
            other = owner.setdefault((category.source, label), category.name)
            if other != category.name or (label is not None and (category.labels or ()).count(label) > 1):
                shown = "every label" if label is None else f"label {label!r}"
                raise UserError(
                    f"{where}: {shown} of {category.source} is claimed twice, last by {category.name!r}"
                )
    for source in {c.source for c in categories if c.labels is None}:
        if sum(c.source == source for c in categories) > 1:
            raise UserError(f'{where}: a category takes "*" of {source}, so no other may take labels of it')
