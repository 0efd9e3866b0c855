"""Annotation sheets: what people rate, so that PRISM and judges can be held against them (P2 §4, §5).

The draw, where P2 leaves it open, is ours. Groups are drawn evenly over strata, which are the profiles of the
positives: trait × level for Big Five profiles, else the character or persona. Of each drawn group the sheets
have one positive and one negative, so half of all items are positives; the kinds of negative occur equally
often, within a stratum first and then over all, as far as the groups have them.

Each annotator gets two sheets of the same items in an order of their own. The two items of a group stand in
different halves of a sheet, and an item's number says nothing of which it is. The fidelity sheet shows the
profile; the dimension sheet does not, and asks what PRISM asks an evaluator: which of three described states,
in an order drawn for each annotator, item and dimension.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.ledger import write_atomically
from persona_mlflow.prism.cases import content_hash
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES, Dimensions, load_dimensions
from persona_mlflow.prism.prompt import LABELS, ORDERS

if TYPE_CHECKING:
    from persona_mlflow.prism.cases import Benchmark, Example, Profile

FORMAT = 1
KEY = "key.json"
FIDELITY, LABELLING = "fidelity.csv", "dimensions.csv"
INSTRUCTIONS = "README.txt"

SCALE = (1, 5)
"""The least and the greatest rating."""

SHEETS = {
    FIDELITY: ("item", "profile", "context", "response", "rating"),
    LABELLING: (
        *("item", "dimension", "looking_at", "context", "response"),
        *(*LABELS, "choice", "second_choice"),
    ),
}
"""The two sheets in an annotator's folder, and their columns."""

# No vowels, so that the code in front of an item's number is never a word or a month to a spreadsheet.
_LETTERS = "bcdfghjklmnpqrstvwxz"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Item:
    """One thing to be rated.

    Attributes:
        item: What the sheets call it.
        id: Its example's id in the benchmark.
        group: Its example's group.
        positive: Whether the response fits the profile.
        kind: `persona_mlflow.prism.cases.POSITIVE`, or the kind of negative.
        stratum: The stratum that its group was drawn from.
    """

    item: str
    id: str
    group: str
    positive: bool
    kind: str
    stratum: str


@dataclass(frozen=True)
class Key:
    """What the sheets do not say.

    Attributes:
        benchmark: The benchmark's name.
        fingerprint: The benchmark's fingerprint.
        groups: Groups asked for.
        seed: Seed of the draw and of every order.
        dimensions: Fingerprint of the wording of the label spaces.
        items: The items, in the order of their numbers.
        orders: Annotator → the items in the order of their sheets.
        options: Annotator → item → dimension → the states under A, B and C.
    """

    benchmark: str
    fingerprint: str
    groups: int
    seed: int
    dimensions: str
    items: tuple[Item, ...]
    orders: Mapping[str, Sequence[str]]
    options: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]]

    @property
    def draw(self) -> str:
        """Hash of what decides the items; equal draws differ in their annotators alone."""
        return _draw(self.fingerprint, self.groups, self.seed, self.dimensions)

    @property
    def annotators(self) -> tuple[str, ...]:
        """The annotators' names, in order."""
        return tuple(self.orders)

    @property
    def drawn(self) -> int:
        """Groups that were drawn."""
        return len({item.group for item in self.items})

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "fingerprint": self.fingerprint,
            "groups": self.groups,
            "seed": self.seed,
            "dimensions": self.dimensions,
            "items": [asdict(item) for item in self.items],
            "annotators": {
                name: {"order": list(self.orders[name]), "options": self.options[name]}
                for name in self.annotators
            },
        }

    @classmethod
    def load(cls, folder: Path) -> Key:
        """Read the key of a folder of sheets.

        Raises:
            UserError: There is none, or it is damaged.
        """
        path = folder / KEY
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["format"] != FORMAT:
                raise ValueError(f"format {plain['format']!r} is not {FORMAT}")
            key = cls(
                **{
                    name: plain[name] for name in ("benchmark", "fingerprint", "groups", "seed", "dimensions")
                },
                items=tuple(Item(**item) for item in plain["items"]),
                orders={name: tuple(sheet["order"]) for name, sheet in plain["annotators"].items()},
                options={name: sheet["options"] for name, sheet in plain["annotators"].items()},
            )
            _check_key(key)
        except FileNotFoundError as error:
            raise UserError(
                f"{path}: no such file; it tells what the sheets do not say. Give the folder that "
                "`persona-mlflow prism sheets` wrote, with its key"
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: damaged, or not the key of annotation sheets ({error}); restore it: the call that "
                "wrote the sheets writes the same key into another folder"
            ) from error
        return key


@dataclass(frozen=True)
class Written:
    """What `write_sheets` did.

    Attributes:
        key: The key.
        written: Sheets that were written.
        kept: Sheets of the same draw that hold answers, and were left as they are.
        strata: Stratum → groups drawn.
        kinds: Kind → items.
        shortfall: Groups asked for beyond those that there are.
    """

    key: Key
    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    strata: Mapping[str, int]
    kinds: Mapping[str, int]
    shortfall: int


def draw_pairs(benchmark: Benchmark, groups: int = 50, seed: int = 0) -> list[tuple[str, Example, Example]]:
    """Draw groups for annotation, and from each a positive and a negative.

    Args:
        benchmark: What to draw from.
        groups: Groups to draw; where there are fewer, all are.
        seed: Seed of the draw.

    Returns:
        Stratum, positive and negative of each group. Strata differ by at most one group where they have
        enough, and kinds of negative by at most one item where every group has every kind.

    Raises:
        UserError: Fewer than one group is asked for.
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise UserError(f"groups must be a whole number from 1 up, but is {groups!r}")
    members: dict[str, list[Example]] = {}
    for example in benchmark:
        members.setdefault(example.group, []).append(example)
    strata: dict[str, list[str]] = {}
    for group, examples in members.items():
        positive = next(example for example in examples if example.positive)
        strata.setdefault(_stratum(positive.case.profile), []).append(group)
    names = sorted(strata, key=lambda name: content_hash("annotate stratum", seed, name))
    for name in names:
        strata[name].sort(key=lambda group: content_hash("annotate group", seed, group))
    takes = _even(groups, {name: len(strata[name]) for name in names})
    overall: Counter[str] = Counter()
    pairs = []
    for name in names:
        within: Counter[str] = Counter()
        kinds = {g: sorted({e.kind for e in members[g] if not e.positive}) for g in strata[name]}
        # Groups without a choice first: those with one then make up for them.
        for group in sorted(strata[name][: takes[name]], key=lambda g: len(kinds[g])):

            def rank(kind: str, group: str = group, within: Counter[str] = within) -> tuple[int, int, str]:
                return within[kind], overall[kind], content_hash("annotate kind", seed, group, kind)

            kind = min(kinds[group], key=rank)
            within[kind] += 1
            overall[kind] += 1
            sides = [
                [e for e in members[group] if e.positive],
                [e for e in members[group] if not e.positive and e.kind == kind],
            ]
            positive, negative = (
                min(side, key=lambda e: content_hash("annotate example", seed, e.case.id)) for side in sides
            )
            pairs.append((name, positive, negative))
    return pairs


def make_key(
    benchmark: Benchmark,
    *,
    groups: int = 50,
    annotators: int = 3,
    seed: int = 0,
    dimensions: Dimensions | None = None,
) -> Key:
    """Draw the items, and every order.

    Args:
        benchmark: What to draw from.
        groups: Groups to draw.
        annotators: How many; they are called ``annotator-1`` and so on, and a further one changes nothing
            for the others.
        seed: Seed of the draw and of every order.
        dimensions: The wording of the label spaces; the shipped one by default.

    Raises:
        UserError: Fewer than one group or annotator.
    """
    if isinstance(annotators, bool) or not isinstance(annotators, int) or annotators < 1:
        raise UserError(f"annotators must be a whole number from 1 up, but is {annotators!r}")
    wording = (dimensions or load_dimensions()).fingerprint
    pairs = draw_pairs(benchmark, groups, seed)
    code = _code(_draw(benchmark.fingerprint, groups, seed, wording))
    drawn = [(stratum, example) for stratum, *pair in pairs for example in pair]
    drawn.sort(key=lambda entry: content_hash("annotate item", seed, entry[1].case.id))
    items = tuple(
        Item(f"{code}-{number:03d}", e.case.id, e.group, e.positive, e.kind, stratum)
        for number, (stratum, e) in enumerate(drawn, start=1)
    )
    names = [f"annotator-{number + 1}" for number in range(annotators)]
    return Key(
        benchmark=benchmark.name,
        fingerprint=benchmark.fingerprint,
        groups=groups,
        seed=seed,
        dimensions=wording,
        items=items,
        orders={name: _order(items, seed, name) for name in names},
        options={
            name: {i.item: {d: _options(seed, name, i.id, d) for d in DIMENSIONS} for i in items}
            for name in names
        },
    )


def write_sheets(
    benchmark: Benchmark,
    folder: Path,
    *,
    groups: int = 50,
    annotators: int = 3,
    seed: int = 0,
    dimensions: Dimensions | None = None,
) -> Written:
    """Write the key, and two sheets and instructions for each annotator.

    A sheet that holds an answer is never written again: a call of the same draw leaves it as it is, so that
    annotators can be added; one of another draw is refused.

    Args:
        benchmark: What to draw from.
        folder: Where to write: the key, and a folder for each annotator, which alone is to be handed out.
        groups: Groups to draw.
        annotators: How many.
        seed: Seed of the draw and of every order.
        dimensions: The wording of the label spaces; the shipped one by default.

    Raises:
        UserError: What `make_key` refuses, sheets of another draw or without a key in the folder, nothing
            left to write but sheets with answers, or a folder that cannot be written.
    """
    from persona_mlflow.prism.annotation_reading import holds_answers

    wording = dimensions or load_dimensions()
    key = make_key(benchmark, groups=groups, annotators=annotators, seed=seed, dimensions=wording)
    there = sorted(path for name in SHEETS for path in folder.glob(f"annotator-*/{name}"))
    if (folder / KEY).exists():
        old = Key.load(folder)
        if old.draw != key.draw:
            raise UserError(
                f"{folder}: holds sheets of another draw ({old.benchmark}, {old.groups} groups, seed "
                f"{old.seed}), and they are not overwritten; name another folder, or delete this one"
            )
        if len(old.annotators) > annotators:
            key = make_key(
                benchmark, groups=groups, annotators=len(old.annotators), seed=seed, dimensions=wording
            )
    elif there:
        raise UserError(
            f"{folder}: holds sheets, but not their key ({KEY}), and they are not overwritten; restore the "
            "key, or name another folder"
        )
    wanted = [folder / name / sheet for name in key.annotators for sheet in SHEETS]
    kept = [path for path in wanted if path.exists() and holds_answers(path)]
    if kept and all(path.exists() for path in wanted):
        raise UserError(
            f"{kept[0]}: holds answers ({len(kept)} of {len(wanted)} sheets in {folder} do), and is not "
            "overwritten; name another folder, or read the sheets by `persona-mlflow prism validate`"
        )
    by_id = {example.case.id: example for example in benchmark}
    written = [path for path in wanted if path not in kept]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(key.as_dict(), ensure_ascii=False, indent=1)
        write_atomically(folder / KEY, text.encode("utf-8", "replace"))
        for name in key.annotators:
            place = folder / name
            place.mkdir(exist_ok=True)
            write_atomically(place / INSTRUCTIONS, _instructions(wording).encode())
            for sheet, columns in SHEETS.items():
                if place / sheet in written:
                    rows = sheet_rows(key, name, sheet, by_id, wording)
                    write_atomically(place / sheet, _csv(columns, rows))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error})") from error
    return Written(
        key=key,
        written=tuple(written),
        kept=tuple(kept),
        strata=dict(Counter(item.stratum for item in key.items if item.positive)),
        kinds=dict(Counter(item.kind for item in key.items)),
        shortfall=max(0, groups - key.drawn),
    )


def sheet_rows(
    key: Key, annotator: str, sheet: str, examples: Mapping[str, Example], dimensions: Dimensions
) -> list[list[str]]:
    """The rows of one of `SHEETS`, answers empty: one per item, or one per item and dimension.

    Args:
        key: The key.
        annotator: Whose sheet.
        sheet: Which.
        examples: The benchmark's examples by id.
        dimensions: The wording of the label spaces.
    """
    ids = {item.item: item.id for item in key.items}
    rows = []
    for item in key.orders[annotator]:
        case = examples[ids[item]].case
        if sheet == FIDELITY:
            rows.append([item, case.profile.describe(), case.context, case.response, ""])
            continue
        for name in DIMENSIONS:
            space = dimensions[name].label_space(case.profile)
            states = [space[state] for state in key.options[annotator][item][name]]
            rows.append([item, name, dimensions[name].about, case.context, case.response, *states, "", ""])
    return rows


def guard(text: str) -> str:
    """Put an apostrophe before a cell that a spreadsheet would take for a formula."""
    return "'" + text if text.lstrip("'").startswith(_FORMULA) else text


def unguard(text: str) -> str:
    """Undo `guard`."""
    return text[1:] if text.startswith("'") and text.lstrip("'").startswith(_FORMULA) else text


def _csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """With a byte-order mark, without which some spreadsheets take UTF-8 for another encoding."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(columns)
    writer.writerows([guard(cell) for cell in row] for row in rows)
    return buffer.getvalue().encode("utf-8-sig", "replace")


def _stratum(profile: Profile) -> str:
    if profile.kind == "big5" or profile.name.strip():
        return profile.label
    return f"{profile.label} {content_hash(profile.as_dict())[:6]}"


def _even(number: int, available: Mapping[str, int]) -> dict[str, int]:
    """Share a number out over strata as evenly as they allow, the first ones getting what is left over."""
    takes = dict.fromkeys(available, 0)
    left = min(number, sum(available.values()))
    while left:
        open_ = [name for name in available if takes[name] < available[name]]
        each = max(1, min([left // len(open_), *(available[name] - takes[name] for name in open_)]))
        for name in open_[:left]:
            takes[name] += each
        left -= each * len(open_[:left])
    return takes


def _draw(fingerprint: str, groups: int, seed: int, dimensions: str) -> str:
    return content_hash("annotation sheets", FORMAT, fingerprint, groups, seed, dimensions)


def _code(draw: str) -> str:
    return "".join(_LETTERS[int(draw[i : i + 4], 16) % len(_LETTERS)] for i in range(0, 16, 4))


def _order(items: Sequence[Item], seed: int, annotator: str) -> tuple[str, ...]:
    """The order of an annotator's items: of each group one in either half, and as many positives in both."""
    groups = sorted({i.group for i in items}, key=lambda g: content_hash("annotate half", seed, annotator, g))
    positive_first = set(groups[::2])
    halves: tuple[list[Item], list[Item]] = ([], [])
    for item in items:
        halves[item.positive != (item.group in positive_first)].append(item)
    for half in halves:
        half.sort(key=lambda item: content_hash("annotate order", seed, annotator, item.id))
    return tuple(item.item for half in halves for item in half)


def _options(seed: int, annotator: str, case_id: str, dimension: str) -> tuple[str, ...]:
    drawn = int(content_hash("annotate options", seed, annotator, case_id, dimension), 16)
    return ORDERS[drawn % len(ORDERS)]


def _check_key(key: Key) -> None:
    """Refuse a key whose parts do not fit together."""
    names = [item.item for item in key.items]
    if not names or len(set(names)) < len(names):
        raise ValueError("it has no items, or two of one name")
    for annotator in key.annotators:
        if sorted(key.orders[annotator]) != sorted(names):
            raise ValueError(f"the order of {annotator} is not one of its items")
        for item in names:
            for dimension in DIMENSIONS:
                if sorted(key.options[annotator][item][dimension]) != sorted(STATES):
                    raise ValueError(
                        f"the options of {annotator}, {item}, {dimension} are not the three states"
                    )


def _instructions(dimensions: Dimensions) -> str:
    abouts = "\n".join(f"     {name}: {dimensions[name].about}" for name in DIMENSIONS)
    low, high = SCALE
    letters = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"
    return f"""How to fill in the two sheets

You will read short replies from dialogues. Work alone, in the order of the rows, and do not look at other
people's sheets. Judge each row by itself, even if you have read the same reply before.

Both files open in a spreadsheet. Save them as CSV (UTF-8) under the same names, and leave the column `item`
as it is. An empty cell means that you gave no answer.

1. {FIDELITY}: does the reply sound like the person described?
   Read the profile, what was said before (context) and the reply (response). Write one number into `rating`:
     {low}  contradicts the profile: this person would not say it like that
     2  fits the profile poorly
     3  neither for nor against, or it cannot be told
     4  fits the profile well, with small doubts
     {high}  fits the profile clearly
   Rate whether the reply shows this person, not whether it is kind, correct or well written.

2. {LABELLING}: which description fits the reply?
   Do this after the first sheet is complete. Each reply has three rows, one for each thing to look at:
{abouts}
   Look at that alone. Write the letter of the description that fits best, {letters}, into `choice`.
   The order of the descriptions changes from row to row. One of them says that there is no clear sign of
   either: choose it when that is so, not because the choice is hard. If a second description comes close,
   you may write its letter into `second_choice`.
"""
