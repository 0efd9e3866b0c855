"""Big5-Persona-EASY and Big5-Persona-HARD from BIG5-CHAT (P2 §4, Table 1).

BIG5-CHAT has replies to one scenario by speakers of each trait and level. A reply always stays with the
context that it was written for: where the rows of one scenario word it differently, a negative made of
another row's reply has that row's context, and the report counts such groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.benchmarks import checks
from persona_mlflow.prism.benchmarks.source import Published, find
from persona_mlflow.prism.cases import (
    LEVELS,
    POSITIVE,
    TRAITS,
    Benchmark,
    BenchmarkReport,
    Case,
    Example,
    Profile,
    content_hash,
)

SWAPS = ("profile", "response")
"""What makes a negative of Big5-Persona-EASY (P2's text and its released data differ)."""

OPPOSITE_LEVEL = "opposite level"
OTHER_RESPONSE = "other trait, response"
OTHER_PROFILE = "other trait, profile"

COLUMNS = ("original_index", "trait", "level", "train_input", "train_output")
"""The columns of BIG5-CHAT that are read: scenario, trait, level, context and response."""

BIG5_CHAT = Published(
    what="BIG5-CHAT",
    hub="wenkai-li/big5_chat",
    file="big5_chat_dataset.csv",
    suffixes=(".csv",),
    get="give its CSV file, a folder with it, or the hub id wenkai-li/big5_chat",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One sound reply of BIG5-CHAT.

    Attributes:
        scenario: Its ``original_index``: equal for all replies to one scenario.
        profile: Trait and level of the speaker.
        context: What was said before, without surrounding spaces.
        response: The reply, without surrounding spaces.
    """

    scenario: str
    profile: Profile
    context: str
    response: str

    @property
    def group(self) -> str:
        """Id of the group in which this reply is the positive, the same in EASY and in HARD."""
        return content_hash(self.scenario, self.profile.as_dict(), self.context, self.response)


Rows = dict[tuple[str, str, str], Row]
"""Sound rows by scenario, trait and level."""

Negatives = list[tuple[Profile, Row, str]]
"""Profile, row of context and response, and kind of each negative of a group."""


def big5_easy(
    data: str | Path | None = None, *, swap: str = "profile", keep: Iterable[str] = ()
) -> Benchmark:
    """Big5-Persona-EASY: a reply against the opposite level of the same trait, 1:1 (P2 §4).

    Args:
        data: See `load_benchmark`.
        swap: ``profile``: the negative is the same reply under the opposite profile (P2's text);
            ``response``: the reply of the opposite level under the same profile (its released data).
        keep: Kinds of doubtful rows to keep (`checks.DOUBTS`).

    Raises:
        UserError: As `load_benchmark`, or no group is complete.
    """

    def negatives(row: Row, rows: Rows) -> Negatives | str:
        trait, level = row.profile.trait, row.profile.level
        opposite = LEVELS[1 - LEVELS.index(level)]
        if swap == "profile":
            return [(Profile("big5", trait, opposite), row, OPPOSITE_LEVEL)]
        other = rows.get((row.scenario, trait, opposite))
        if other is None:
            return "no row of the same scenario and trait at the opposite level"
        return [(row.profile, other, OPPOSITE_LEVEL)]

    if swap not in SWAPS:
        raise UserError(f"big5-easy: unknown swap {swap!r}; {choices(str(swap), SWAPS)}")
    return _build("big5-easy", data, negatives, {"swap": swap}, keep)


def big5_hard(data: str | Path | None = None, *, seed: int = 0, keep: Iterable[str] = ()) -> Benchmark:
    """Big5-Persona-HARD: a reply against another trait at the same level, 1:2 (P2 §4).

    The negatives of (p, c, r) are (p, c, r′) and (p′, c, r), where r′ is p′'s reply to the same scenario.

    Args:
        data: See `load_benchmark`.
        seed: With scenario, trait and level it decides the other trait, among those with a sound row.
        keep: Kinds of doubtful rows to keep (`checks.DOUBTS`).

    Raises:
        UserError: As `load_benchmark`, or no group is complete.
    """

    def negatives(row: Row, rows: Rows) -> Negatives | str:
        trait, level = row.profile.trait, row.profile.level
        there = [t for t in TRAITS if t != trait and (row.scenario, t, level) in rows]
        if not there:
            return "no row of the same scenario and level with another trait"
        drawn = int(content_hash("other trait", seed, row.scenario, trait, level), 16) % len(there)
        other = rows[row.scenario, there[drawn], level]
        return [(row.profile, other, OTHER_RESPONSE), (other.profile, row, OTHER_PROFILE)]

    return _build("big5-hard", data, negatives, {"seed": seed}, keep)


def read_rows(path: Path, keep: frozenset[str] = frozenset()) -> tuple[Rows, dict[str, Any]]:
    """Read BIG5-CHAT, every cell as the text that it is, and sort out what no case can be made of.

    Args:
        path: Its CSV file.
        keep: Kinds of doubtful rows to keep (`checks.DOUBTS`).

    Returns:
        The sound rows, and what `BenchmarkReport` says of the others: ``read``, ``left_out``, ``kept``,
        ``notes``.

    Raises:
        UserError: Not a CSV file, a missing column, or a trait or level that is not known.
    """
    from persona_mlflow.questions.reading import csv_records

    records = csv_records(path)
    if not records:
        raise UserError(f"{path}: holds a header, but no row")
    missing = [name for name in COLUMNS if name not in records[0].fields]
    if missing:
        raise UserError(
            f"{path}: no column {', '.join(map(repr, missing))}; BIG5-CHAT has {', '.join(COLUMNS)}, "
            f"and this file has {', '.join(records[0].fields)}"
        )
    left_out: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    seen: set[tuple[str, str, str]] = set()
    scenarios: dict[str, dict[Profile, Row]] = {}
    for record in records:
        scenario, trait, level, context, response = (record.fields[name].strip() for name in COLUMNS)
        if any(map(checks.is_null, (scenario, trait, level))):
            left_out["null scenario, trait or level"] += 1
            continue
        try:
            profile = Profile("big5", trait.lower(), level.lower())
        except UserError as error:
            raise UserError(f"{record.where}: {error}") from None
        if not response:
            left_out["empty response"] += 1
            continue
        row = Row(scenario, profile, context, response)
        content = (profile.label, context, response)
        if content in seen:
            left_out["repeated row"] += 1
            continue
        seen.add(content)
        doubt = checks.doubt(context, response)
        if doubt is not None:
            (kept if doubt in keep else left_out)[doubt] += 1
            if doubt not in keep:
                continue
        if profile in scenarios.setdefault(scenario, {}):
            left_out["further response of the same scenario, trait and level"] += 1
            continue
        scenarios[scenario][profile] = row
        notes["contexts with an odd number of double quotes"] += context.count('"') % 2
    rows: Rows = {}
    for scenario, by_profile in scenarios.items():
        members = list(by_profile.values())
        notes["scenarios worded differently across rows"] += not checks.same_wording(
            row.context for row in members
        )
        for row, doubt in zip(members, checks.alike([row.response for row in members]), strict=True):
            if doubt is not None:
                (kept if doubt in keep else left_out)[doubt] += 1
            if doubt is None or doubt in keep:
                rows[scenario, row.profile.trait, row.profile.level] = row
    return rows, {
        "read": len(records),
        "left_out": dict(left_out),
        "kept": dict(kept),
        "notes": {what: n for what, n in notes.items() if n},
    }


def _build(
    name: str,
    data: str | Path | None,
    negatives: Callable[[Row, Rows], Negatives | str],
    options: dict[str, Any],
    keep: Iterable[str],
) -> Benchmark:
    """A benchmark with a group for each row whose negatives there are; others are counted by the reason."""
    kept = checks.check_keep(keep)
    path, origin = find(data, BIG5_CHAT)
    rows, counted = read_rows(path, kept)
    incomplete: Counter[str] = Counter()
    differing = 0
    examples: list[Example] = []
    for row in rows.values():
        found = negatives(row, rows)
        if isinstance(found, str):
            incomplete[found] += 1
            continue
        group = row.group
        differing += not checks.same_wording([row.context, *(other.context for _, other, _ in found)])
        for profile, of, kind in [(row.profile, row, POSITIVE), *found]:
            case_id = content_hash(group, kind, profile.as_dict(), of.context, of.response)
            case = Case(case_id, profile, of.context, of.response)
            examples.append(Example(case, group, kind == POSITIVE, kind))
    groups = len(rows) - sum(incomplete.values())
    if not groups:
        why = {**counted["left_out"], **incomplete}
        raise UserError(
            f"{name}: {path} gives no complete group: "
            + "; ".join(f"{reason}: {n}" for reason, n in why.items())
        )
    notes = {**counted["notes"], "groups whose contexts differ": differing}
    report = BenchmarkReport(
        source=origin,
        options={**options, "keep": sorted(kept)},
        read=counted["read"],
        left_out=counted["left_out"],
        kept=counted["kept"],
        incomplete=dict(incomplete),
        notes={what: n for what, n in notes.items() if n},
        available=groups,
        groups=groups,
    )
    return Benchmark(name, tuple(examples), report)
