"""Social-Persona from SocialBench's English role-style items (P2 §4, Table 1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.benchmarks import checks
from persona_mlflow.prism.benchmarks.source import Published, find
from persona_mlflow.prism.cases import (
    POSITIVE,
    Benchmark,
    BenchmarkReport,
    Case,
    Example,
    Profile,
    content_hash,
)

DISTRACTOR = "distractor"

CATEGORY = "Individual-SA-RoleStyle"
"""``meta.category`` of the role-style items."""

LANGUAGE = "en"
"""``meta.lang`` of the items that are used."""

SOCIALBENCH = Published(
    what="SocialBench",
    hub=None,
    file="self_awareness.json",
    suffixes=(".json", ".jsonl"),
    get="give data/self_awareness.json of the authors' repository (github.com/X-PLUG/SocialBench), "
    "or the folder that holds it",
)

_TOPIC = (
    r"(?:personalit(?:y|ies)|traits?|character(?:istics)?|style|tone|manner|speech|speaking|language|dialogue"
    r"|catchphrases?|background|story|experiences?|identity|occupation|age|gender|appearance|relationships?"
    r"|hobbies|interests|likes|dislikes|values|beliefs|goals|motivations?|habits|behaviou?r|emotions?"
    r"|temperament|description|profile)"
)
_WORD = r"[A-Za-z'’/&-]+"
_HEADING = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]*(?P<hash>[^\n:]{1,40}?):?[ \t]*$"
    rf"|[*_\[]{{0,3}}(?P<title>(?=[A-Z])(?:{_WORD} ){{0,3}}?(?i:{_TOPIC})(?: {_WORD}){{0,2}}?)"
    r"[*_\]]{0,3}[ \t]*:[*_]{0,2})[ \t]*",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Item:
    """One item of SocialBench, its fields checked.

    Attributes:
        where: File and place, for messages.
        name: The character.
        profile: The character's description, or ``None`` where the item has none.
        context: The dialogue, a turn a line.
        choices: Letter → reply.
        gold: Letters of the right choices.
    """

    where: str
    name: str
    profile: str | None
    context: str
    choices: Mapping[str, str]
    gold: tuple[str, ...]


def social_persona(data: str | Path | None, *, keep: Iterable[str] = ()) -> Benchmark:
    """Social-Persona: a character's gold reply against each distractor, 1:3 (P2 §4).

    An item of which any choice is doubtful is left out as a whole, so that all groups have all their
    distractors. An item with several gold choices has several positives; the report counts such items, and
    all items by their number of distractors.

    Args:
        data: See `load_benchmark`.
        keep: Kinds of doubtful rows to keep (`checks.DOUBTS`).

    Raises:
        UserError: As `load_benchmark`, an item that lacks a field or has one of another kind, no item of the
            category and language, or no complete group.
    """
    kept_kinds = checks.check_keep(keep)
    path, origin = find(data, SOCIALBENCH)
    left_out: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    incomplete: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    seen: set[str] = set()
    examples: list[Example] = []
    items, read = read_items(path, left_out)
    for item in items:
        reason = _incomplete(item)
        if reason:
            incomplete[reason] += 1
            continue
        if item.profile is None or not any(c.isalnum() for c in item.profile):
            left_out["no profile for the character" if item.profile is None else "no usable cue"] += 1
            continue
        profile = Profile("free", name=item.name, sections=sections(item.profile))
        sides = {True: [], False: []}  # type: dict[bool, list[str]]
        for letter, text in item.choices.items():
            sides[letter in item.gold].append(text)
        group = content_hash(profile.as_dict(), item.context, sorted(sides[True]), sorted(sides[False]))
        if group in seen:
            left_out["repeated item"] += 1
            continue
        seen.add(group)
        doubts = _doubts(item)
        refused = [doubt for doubt in doubts if doubt not in kept_kinds]
        if refused:
            left_out[refused[0]] += 1
            continue
        kept.update(doubts)
        notes[f"items with {len(sides[False])} distractors"] += 1
        notes["items with several gold choices"] += len(sides[True]) > 1
        for positive, texts in sides.items():
            kind = POSITIVE if positive else DISTRACTOR
            for text, n in Counter(texts).items():
                for place in range(n):
                    # Equal distractors, where they are kept, need ids of their own.
                    case_id = content_hash(group, kind, text, *([place] if place else []))
                    examples.append(
                        Example(Case(case_id, profile, item.context, text), group, positive, kind)
                    )
    groups = len({example.group for example in examples})
    if not groups:
        why = "; ".join(f"{reason}: {n}" for reason, n in {**left_out, **incomplete}.items())
        raise UserError(f"social: {path} gives no complete group: {why}")
    report = BenchmarkReport(
        source=origin,
        options={"keep": sorted(kept_kinds)},
        read=read,
        left_out=dict(left_out),
        kept=dict(kept),
        incomplete=dict(incomplete),
        notes={what: n for what, n in notes.items() if n},
        available=groups,
        groups=groups,
    )
    return Benchmark("social", tuple(examples), report)


def read_items(path: Path, left_out: Counter[str] | None = None) -> tuple[list[Item], int]:
    """Read the English role-style items of a SocialBench file.

    Args:
        path: A JSON list of items, or one item a line (.jsonl).
        left_out: Where to count items of another category or language.

    Returns:
        The items, and how many items of any kind the file holds.

    Raises:
        UserError: Not such a file, a field that is missing or of another kind, or no item of the category and
            language; names the item.
    """
    from persona_mlflow.questions.reading import json_records, jsonl_records

    records = (jsonl_records if path.suffix.lower() == ".jsonl" else json_records)(path)
    left_out = Counter() if left_out is None else left_out
    items = []
    categories: Counter[str] = Counter()
    for record in records:
        meta = _field(record.fields, "meta", Mapping, record.where)
        category, language = (_field(meta, key, str, record.where, "meta.") for key in ("category", "lang"))
        categories[f"{category} ({language})"] += 1
        if category.strip().casefold() != CATEGORY.casefold():
            left_out["another category"] += 1
        elif language.strip().casefold() != LANGUAGE:
            left_out["another language"] += 1
        else:
            items.append(_item(record.fields, meta, record.where))
    if not items:
        there = ", ".join(f"{n} × {what}" for what, n in categories.most_common(5)) or "nothing"
        raise UserError(f"{path}: no item of category {CATEGORY} in {LANGUAGE}; it holds {there}")
    return items, len(records)


def sections(text: str) -> dict[str, str]:
    """A character's description by its headings.

    A heading is a Markdown heading, or at the start of a line a few words with a colon that name an aspect of
    a character, such as ``Speaking style:``. What stands before the first is the section ``profile``, as is a
    description without headings.
    """
    found: dict[str, str] = {}
    matches = list(_HEADING.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    parts = [("profile", text[: matches[0].start()] if matches else text)]
    parts += [
        ((m["hash"] or m["title"]).strip(" *_").lower(), text[m.end() : end])
        for m, end in zip(matches, ends, strict=bool(matches))
    ]
    for title, part in parts:
        if part.strip(" \n\t*_"):
            found[title] = f"{found[title]}\n{part.strip()}" if title in found else part.strip()
    return found or {"profile": text.strip()}


def _item(fields: Mapping[str, Any], meta: Mapping[str, Any], where: str) -> Item:
    name = _field(meta, "name", str, where, "meta.").strip()
    profiles = _field(meta, "profile", Mapping, where, "meta.")
    profile = profiles.get(name)
    if profile is not None and not isinstance(profile, str):
        raise UserError(f"{where}: meta.profile must give a text for {name!r}")
    turns = []
    for turn in _field(fields, "dialogue", list, where):
        if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
            raise UserError(f"{where}: a turn of dialogue needs 'from' and 'value', but one is {turn!r}")
        value = "" if turn["value"] is None else str(turn["value"]).strip()
        if value:
            turns.append(f"{turn['from']}: {value}")
    offered = _field(fields, "choices", Mapping, where)
    for letter, text in offered.items():
        if text is not None and not isinstance(text, str):
            raise UserError(f"{where}: choice {letter} must be a text, but is {text!r}")
    label = fields.get("label")
    label = [label] if isinstance(label, str) else label
    if not isinstance(label, list) or not all(isinstance(letter, str) for letter in label):
        raise UserError(f"{where}: label must be a list of letters, but is {label!r}")
    return Item(
        where=where,
        name=name,
        profile=profile,
        context="\n".join(turns),
        choices={letter.strip(): (text or "").strip() for letter, text in offered.items()},
        gold=tuple(letter.strip() for letter in label),
    )


def _field(fields: Mapping[str, Any], name: str, kind: Any, where: str, within: str = "") -> Any:
    if name not in fields:
        raise UserError(f"{where}: no field {within}{name}; {choices(name, fields)}")
    if not isinstance(fields[name], kind):
        wanted = {Mapping: "an object", list: "a list", str: "a text"}[kind]
        raise UserError(f"{where}: {within}{name} must be {wanted}, but is {fields[name]!r:.60}")
    return fields[name]


def _incomplete(item: Item) -> str | None:
    """Why an item has no positive or no negative, or ``None``."""
    if not item.gold:
        return "no gold choice"
    if any(letter not in item.choices for letter in item.gold):
        return "the label names no choice"
    if all(letter in item.gold for letter in item.choices):
        return "no distractor"
    return None


def _doubts(item: Item) -> list[str]:
    """Every kind of doubt about an item's choices, those that cannot be kept first."""
    texts = list(item.choices.values())
    found = {checks.doubt(item.context, text) for text in texts} | set(checks.alike(texts))
    empty = ["empty response"] if "" in texts else []
    return empty + [kind for kind in checks.DOUBTS if kind in found]
