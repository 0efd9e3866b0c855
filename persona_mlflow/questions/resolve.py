"""What a ``questions:`` entry asks to be read: a name, a path or a mapping becomes readers of sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.questions import hub, mmlu, normad, social_iqa, table
from persona_mlflow.questions.base import SourceRow
from persona_mlflow.questions.categories import SOURCES
from persona_mlflow.questions.composite import PER_CATEGORY
from persona_mlflow.questions.reading import READERS

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
class Resolved:
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


def resolve(source: str | Path | Mapping[str, Any], per_category: int = PER_CATEGORY) -> Resolved:
    """Decide what to read, without reading it.

    Raises:
        UserError: An unknown source or key, or a path that is not there.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source, per_category)
    if not isinstance(source, (str, Path)) or not str(source).strip():
        raise UserError(f"questions: {source!r} is neither a name nor a path; {choices(str(source), NAMES)}")
    if source == "builtin":
        return Resolved("builtin", {"builtin": lambda: (table.load_builtin(), "the package")})
    if source == "composite":
        return Resolved("composite", {name: _remote(name) for name in SOURCES}, {}, True, per_category)
    if source in SOURCES:
        return Resolved(str(source), {str(source): _remote(str(source))})
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


def _from_mapping(spec: Mapping[str, Any], per_category: int) -> Resolved:
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
        return resolve("builtin")
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
        return Resolved(source, {source: _remote(source, split)})
    return Resolved(source, {source: _local(source, _path(spec, "path", source), split)})


def _composite(spec: Mapping[str, Any], per_category: int) -> Resolved:
    per_category = spec.get("per_category", per_category)
    named = [name for name in SOURCES if name in spec]
    if "path" in spec:
        if named:
            raise UserError(f"questions (composite): give either path or {named[0]}, not both")
        folder = _path(spec, "path", "composite")
        return _composite_folder(folder, {name: folder / name for name in SOURCES}, per_category)
    if not named:
        return resolve("composite", per_category)
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
    return Resolved("composite", readers, absent, True, per_category)


def _from_folder(folder: Path, per_category: int) -> Resolved:
    parts = {name: folder / name for name in SOURCES}
    if any(part.is_dir() for part in parts.values()):
        return _composite_folder(folder, parts, per_category)
    cached = hub.in_cache(folder)
    if len(cached) > 1:
        return _composite_folder(folder, dict.fromkeys(SOURCES, folder), per_category)
    for name in cached or SOURCES:
        if _find(name, folder, _SPLITS[name]) is not None:
            return Resolved(name, {name: _local(name, folder)})
    raise UserError(
        f"{folder}: no questions in a layout that is known; expected subfolders {', '.join(SOURCES)}, or "
        f"MMLU (test/{{subject}}_test.csv), Social IQa (dev.jsonl with dev-labels.lst) or NormAd "
        f"({normad.FILE}) itself, or name a single file ({', '.join(READERS)})"
    )


def _composite_folder(folder: Path, parts: Mapping[str, Path], per_category: int) -> Resolved:
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
    return Resolved("composite", readers, absent, True, per_category)


def _from_file(path: Path, columns: table.TableColumns | None) -> Resolved:
    return Resolved(path.stem, {path.name: lambda: (table.load(path, columns), str(path))})


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
