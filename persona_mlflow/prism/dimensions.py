"""PRISM's dimensions and their label spaces: three described states for a profile (P2 §3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from persona_mlflow.catalog import read_yaml
from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.cases import LEVELS, TRAITS, Profile, content_hash

DIMENSIONS = ("task_framing", "interpersonal_stance", "linguistic_style")
"""The three dimensions d of P2 §3."""

STATES = ("aligned", "indeterminate", "opposite")
"""The three states of a label space, in the order of all result columns."""

_KEYS = ("about", "sections", "indeterminate", "big5", "free", "persona")
_PLACEHOLDERS = {"free": ("{name}", "{cues}"), "persona": ("{name}",)}


@dataclass(frozen=True, slots=True)
class LabelSpace:
    """What a response may be in one dimension, given a profile (P2 §3).

    Attributes:
        aligned: It shows the profile.
        indeterminate: It shows neither.
        opposite: It shows the other level of the trait, or cues foreign to the profile.
    """

    aligned: str
    indeterminate: str
    opposite: str

    def __getitem__(self, state: str) -> str:
        """The description of one of `STATES`."""
        if state not in STATES:
            raise KeyError(state)
        return str(getattr(self, state))


@dataclass(frozen=True)
class Dimension:
    """One dimension as the file has it.

    Attributes:
        name: One of `DIMENSIONS`.
        about: What it looks at, in a few words that follow "looking only at".
        sections: Words; a free profile's section with one of them in its title bears on this dimension.
        indeterminate: The middle state.
        big5: Trait → level → patterns.
        free: ``aligned`` and ``opposite`` with ``{name}`` and ``{cues}``.
        persona: ``aligned`` and ``opposite`` with ``{name}``.
    """

    name: str
    about: str
    sections: tuple[str, ...]
    indeterminate: str
    big5: Mapping[str, Mapping[str, str]]
    free: Mapping[str, str]
    persona: Mapping[str, str]

    def label_space(self, profile: Profile) -> LabelSpace:
        """The three described states for a profile; a `Profile` always has a cue for them to name."""
        if profile.kind == "big5":
            levels = self.big5[profile.trait]
            other = next(level for level in LEVELS if level != profile.level)
            return LabelSpace(levels[profile.level], self.indeterminate, levels[other])
        values = {"{name}": _one_line(profile.name)}
        if profile.kind == "free":
            values = {"{name}": values["{name}"] or "the character", "{cues}": self._cues(profile)}
        templates = self.free if profile.kind == "free" else self.persona
        aligned, opposite = (_fill(templates[state], values) for state in ("aligned", "opposite"))
        return LabelSpace(aligned, self.indeterminate, opposite)

    def _cues(self, profile: Profile) -> str:
        said = {title: _one_line(text) for title, text in profile.sections.items()}
        said = {title: text for title, text in said.items() if any(c.isalnum() for c in text)}
        fitting = [
            text for title, text in said.items() if any(word in title.casefold() for word in self.sections)
        ]
        return " ".join(fitting or said.values())


@dataclass(frozen=True)
class Dimensions:
    """The three dimensions of one file.

    Attributes:
        by_name: In the order of `DIMENSIONS`.
        fingerprint: Hash of all the wording; scores of another one are never mixed with these.
    """

    by_name: Mapping[str, Dimension]
    fingerprint: str

    def __getitem__(self, name: str) -> Dimension:
        """The dimension of this name.

        Raises:
            UserError: There is none.
        """
        if name not in self.by_name:
            raise UserError(f"dimension: no {name!r}; {choices(name, DIMENSIONS)}")
        return self.by_name[name]


def load_dimensions(path: Path | None = None) -> Dimensions:
    """Read the dimensions.

    Args:
        path: A file in place of the shipped one.

    Raises:
        UserError: It is not of its form; the message names file and key.
    """
    return _shipped() if path is None else _read(Path(path))


def label_space(profile: Profile, dimension: str, dimensions: Dimensions | None = None) -> LabelSpace:
    """The label space of a profile in a dimension (P2 §3).

    Args:
        profile: Whom the response should sound like.
        dimension: One of `DIMENSIONS`.
        dimensions: The wording; the shipped one by default.

    Raises:
        UserError: An unknown dimension.
    """
    return (dimensions or load_dimensions())[dimension].label_space(profile)


@cache
def _shipped() -> Dimensions:
    return _read(Path(str(files("persona_mlflow.prism") / "dimensions.yaml")))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fill(template: str, values: Mapping[str, str]) -> str:
    # One pass: a profile that holds "{name}" is not searched.
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match.group()], template)


def _read(path: Path) -> Dimensions:
    content = read_yaml(path)
    _keys(content, DIMENSIONS, str(path))
    found = {name: _dimension(content[name], name, f"{path}: {name}") for name in DIMENSIONS}
    return Dimensions(found, content_hash({name: content[name] for name in DIMENSIONS}))


def _dimension(entry: Any, name: str, where: str) -> Dimension:
    _keys(entry, _KEYS, where)
    for key in ("about", "indeterminate"):
        _text(entry[key], f"{where}.{key}")
    sections = entry["sections"]
    if not isinstance(sections, list) or not sections:
        raise UserError(f"{where}.sections: expected a list of words, such as [style, speech]")
    for word in sections:
        _text(word, f"{where}.sections")
    _keys(entry["big5"], TRAITS, f"{where}.big5")
    for trait in TRAITS:
        place = f"{where}.big5.{trait}"
        _keys(entry["big5"][trait], LEVELS, place)
        _distinct([*entry["big5"][trait].values(), entry["indeterminate"]], place)
    for kind, placeholders in _PLACEHOLDERS.items():
        _templates(entry, kind, placeholders, f"{where}.{kind}")
    return Dimension(
        name=name,
        about=entry["about"].strip(),
        sections=tuple(word.casefold() for word in sections),
        indeterminate=_one_line(entry["indeterminate"]),
        big5={t: {v: _one_line(entry["big5"][t][v]) for v in LEVELS} for t in TRAITS},
        free={state: _one_line(entry["free"][state]) for state in ("aligned", "opposite")},
        persona={state: _one_line(entry["persona"][state]) for state in ("aligned", "opposite")},
    )


def _templates(entry: Mapping[str, Any], kind: str, placeholders: tuple[str, ...], where: str) -> None:
    templates = entry[kind]
    _keys(templates, ("aligned", "opposite"), where)
    _distinct([*templates.values(), entry["indeterminate"]], where)
    for placeholder in placeholders:
        if placeholder not in templates["aligned"]:
            raise UserError(f"{where}.aligned: has no {placeholder}; put it where it belongs")
    for state, text in templates.items():
        for found in re.findall(r"\{\w+\}", text):
            if found not in placeholders:
                raise UserError(f"{where}.{state}: unknown {found}; {choices(found, placeholders)}")


def _keys(value: Any, wanted: tuple[str, ...], where: str) -> None:
    """Require a mapping of exactly these keys."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected a mapping of {', '.join(wanted)}, got {type(value).__name__}")
    for key in value:
        if key not in wanted:
            raise UserError(f"{where}: unknown key {key!r}; {choices(str(key), wanted)}")
    missing = [key for key in wanted if key not in value]
    if missing:
        raise UserError(f"{where}: {', '.join(missing)} missing; copy the form of the shipped file")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {value!r} is not text; put it in quotes")


def _distinct(texts: list[Any], where: str) -> None:
    for text in texts:
        _text(text, where)
    if len({_one_line(text) for text in texts}) < len(texts):
        raise UserError(f"{where}: two states have the same description; each needs its own")
