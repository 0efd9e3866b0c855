"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow import __version__
from persona_mlflow.report.formats import to_html
from persona_mlflow.report.tables import (
    Table,
    build_table,
    format_value,
    heading,
    label,
    printable,
)

if TYPE_CHECKING:
    import xarray as xr
    from jinja2 import Environment

    from persona_mlflow.analyses.entry import Finding
    from persona_mlflow.report.figures import Figure

CLAIMS = "claims"
"""The key of the finding that stands at the top."""
FOLD, FOLD_ALONE, DROP, DROP_ALONE = 60, 250, 1500, 10_000
"""With more cells than this a table is folded, or left out for its files: beside a figure, and alone."""
TALL = 900
"""A higher figure than this, in px, may be cut by the end of a sheet: shrunk to one it could not be read."""
HEADLINE = "overview"
WHOLE = "all settings"
CHANCE = {"floor": "by chance", "independent": "if independent"}
"""What the headline sets beside an instability: variable of the finding ``chance`` → words."""
FACTS = {
    "experiment": "experiment",
    "run_id": "run",
    "source": "source",
    "runs": "runs",
    "personas": "personas",
    "settings": "settings",
    "questions": "questions",
    "categories": "categories",
    "draws": "bootstrap draws",
    "permutations": "permutations",
    "seed": "seed",
    "level": "confidence level",
}
"""What the page says of a model, in this order: key of ``about`` → heading."""


NOT_POSSIBLE = "Not possible on this grid"
FOOTER = (
    "I_A, I_O and I_Q are the accuracy, outcome and question instability of “Persona Non Grata” (P1, arXiv "
    "2607.00937); 0 is stable. Delta is baseline − new: positive is more stable."
)


@dataclass(frozen=True)
class Wording:
    """What a page says beside its findings; the defaults are those of an experiment's report.

    Attributes:
        title: The headline of the page; by default made of the experiments and models.
        lead: The sentence below it; by default about settings and resamples.
        facts: Key of ``about`` → heading, in order.
        everything: What the facts stand under that hold for all.
        headline: Key of the finding whose table stands at the top; None for none.
        not_possible: What a reason follows.
        footer: The last line; by default about the instabilities of P1.
        warnings: What to know before reading on, beside the warnings in ``about``.
    """

    title: str | None = None
    lead: str | None = None
    facts: Mapping[str, str] = field(default_factory=lambda: FACTS)
    everything: str = "All models"
    headline: str | None = HEADLINE
    not_possible: str = NOT_POSSIBLE
    footer: str = FOOTER
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Written:
    """A finding with what was made of it, and the files that hold it."""

    finding: Finding
    table: Table | None
    figure: Figure | None
    files: Sequence[str]


def render_page(
    written: Sequence[Written], about: Mapping[str, Mapping[str, Any]], wording: Wording | None = None
) -> str:
    """The page.

    Args:
        written: The analyses, in the order of the page; one with the key ``claims`` goes to the top.
        about: Model, or whatever the findings' reasons and notes are by → the facts named in `FACTS`,
            ``factors`` (name → levels) and ``warnings`` (texts). What one lacks is left out.
        wording: What the page says beside; an experiment's report by default.
    """
    wording = wording or Wording()
    environment = _environment()
    sections = [_section(item, len(about), wording.not_possible) for item in written]
    claims = next((item for item in sections if item["key"] == CLAIMS and item["found"]), None)
    section = environment.get_template("section.html.j2")

    def render_section(item: Mapping[str, Any]) -> Any:
        from markupsafe import Markup

        return Markup(section.render(item=item))

    from markupsafe import Markup

    return environment.get_template("page.html.j2").render(
        version=__version__,
        css=Markup(_resource("style.css")),
        title=_title(about) if wording.title is None else printable(wording.title),
        lead=_lead(about) if wording.lead is None else printable(wording.lead),
        models=_models(about, wording),
        warnings=[*map(printable, wording.warnings), *_warnings(about)],
        headline=_headline([item.finding for item in written], wording.headline),
        claims=claims,
        sections=[item for item in sections if item is not claims],
        section=render_section,
        not_possible=wording.not_possible[0].lower() + wording.not_possible[1:],
        footer=printable(wording.footer),
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("persona_mlflow.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _resource(name: str) -> str:
    return resources.files("persona_mlflow.report").joinpath(name).read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------- the top


def _title(about: Mapping[str, Mapping[str, Any]]) -> str:
    experiments = list(dict.fromkeys(str(facts.get("experiment", "")) for facts in about.values()))
    names = ", ".join(filter(None, experiments)) or "experiment"
    models = next(iter(about)) if len(about) == 1 else f"{len(about)} models"
    return printable(f"Persona instability: {names} · {models}")


def _lead(about: Mapping[str, Mapping[str, Any]]) -> str:
    facts = next(iter(about.values()), {})
    level, draws = facts.get("level"), facts.get("draws")
    if not draws or level is None:
        return "How much the answers move with the settings of the experiment."
    return (
        "How much the answers move with the settings of the experiment. Brackets hold "
        f"{level * 100:g} % intervals from {draws:,} resamples of the questions within their categories."
    )


def _models(about: Mapping[str, Mapping[str, Any]], wording: Wording) -> list[dict[str, Any]]:
    """The facts of each model; what holds for all of several stands first, and once."""
    facts = {name: _facts(entry, wording.facts) for name, entry in about.items()}
    if len(facts) < 2:
        return [{"name": printable(name), "facts": found} for name, found in facts.items()]
    first = next(iter(facts.values()))
    shared = [fact for fact in first if all(fact in found for found in facts.values())]
    blocks = [{"name": wording.everything, "facts": shared}] if shared else []
    for name, found in facts.items():
        own = [fact for fact in found if fact not in shared]
        if own:
            blocks.append({"name": printable(name), "facts": own})
    return blocks


def _facts(facts: Mapping[str, Any], headings: Mapping[str, str]) -> list[tuple[str, str]]:
    found = []
    for key, name in headings.items():
        value = facts.get(key)
        if value is None or value == "":
            continue
        text = f"{value:,}" if isinstance(value, int) and key != "seed" else printable(str(value))
        found.append((name, f"{value * 100:g} %" if key == "level" else text))
    factors = facts.get("factors")
    for factor, levels in factors.items() if isinstance(factors, Mapping) else ():
        found.append((heading(str(factor)), ", ".join(label(level) for level in levels)))
    return found


def _warnings(about: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = []
    for name, facts in about.items():
        for text in facts.get("warnings") or ():
            found.append(printable(f"{name}: {text}" if len(about) > 1 else str(text)))
    return found


def _headline(findings: Sequence[Finding], key: str | None = HEADLINE) -> Any:
    """The table of the experiment as a whole; under each instability what chance alone would give."""
    from markupsafe import Markup

    overall = next((f for f in findings if f.entry.key == key and f.data is not None), None)
    if overall is None:
        return None
    table = build_table(overall)
    assert overall.data is not None
    if "model" not in overall.data.coords:
        return Markup(to_html(table)) + _notes(table)
    models = [label(name) for name in overall.data["model"].values.tolist()]
    floors = _floors(findings)
    cells = []
    for row, line in zip(table.rows, table.cells, strict=True):
        model = next((name for name in row if name in models), models[0])
        cells.append(
            tuple(
                replace(cell, extra=floors.get((model, _metric((*row, *column))), ""))
                for cell, column in zip(line, table.columns, strict=True)
            )
        )
    return Markup(to_html(replace(table, cells=tuple(cells))))


def _notes(table: Table) -> Any:
    """The notes below a table that stands by itself."""
    from markupsafe import Markup

    item = Markup("<li><sup>{}</sup> {}</li>")
    items = Markup("").join(item.format(letter, text) for letter, text in table.notes.items())
    return Markup('<ul class="notes">{}</ul>').format(items) if items else Markup("")


def _metric(labels: Sequence[str]) -> str:
    """The metric that a row or column of the headline is about, by its name: ``I_A accuracy`` → accuracy."""
    for text in labels:
        first, _, rest = text.partition(" ")
        if first in ("I_A", "I_O", "I_Q"):
            return rest.split()[0] if rest else ""
    return ""


def _floors(findings: Sequence[Finding]) -> dict[tuple[str, str], str]:
    """Model and metric → what chance alone would give over all settings, in words."""
    finding = next((f for f in findings if f.entry.key == "chance" and f.data is not None), None)
    if finding is None or finding.data is None or "metric" not in finding.data.dims:
        return {}
    data = finding.data
    if "part" in data.dims:
        if WHOLE not in data["part"].values.tolist():
            return {}
        data = data.sel(part=WHOLE)
    found = {}
    for model in data["model"].values.tolist():
        for metric in data["metric"].values.tolist():
            cell = data.sel(model=model, metric=metric)
            for name, words in CHANCE.items():
                if name in cell and np.isfinite(float(cell[name])):
                    text = f"{words} {format_value(float(cell[name]), finding.entry.unit)}"
                    found[label(model), str(metric)] = text + _p_value(cell)
                    break
    return found


def _p_value(cell: xr.Dataset) -> str:
    name = next((name for name in ("p_together", "p") if name in cell), None)
    if name is None or not np.isfinite(float(cell[name])):
        return ""
    shown = format_value(float(cell[name]), name="p")
    return f", p {shown}" if shown.startswith("<") else f", p = {shown}"


# --------------------------------------------------------------------------------------------- the sections


def _section(item: Written, models: int, not_possible: str = NOT_POSSIBLE) -> dict[str, Any]:
    from markupsafe import Markup

    finding, table, figure = item.finding, item.table, item.figure
    entry = finding.entry
    cells = table.size if table else 0
    fold, drop = (FOLD, DROP) if figure else (FOLD_ALONE, DROP_ALONE)
    notes = [*(table.notes.items() if table else ())]
    notes += [("", text) for text in _by_model(finding.notes, models)]
    reasons = [f"{not_possible}: {text}" for text in _by_model(finding.reasons, models)]
    if table:
        notes += [("", text) for text in reasons]
    return {
        "key": entry.key,
        "reference": printable(entry.reference),
        "title": printable(entry.title),
        "caption": printable(entry.caption),
        "found": table is not None,
        "reasons": reasons or [f"{not_possible}."],
        "svg": Markup(figure.inline) if figure else "",
        "tall": figure is not None and figure.height > TALL,
        "table": Markup(to_html(table)) if table and cells <= drop else "",
        "folded": cells > fold,
        "cells": f"{cells:,}",
        "notes": notes,
        "files": list(item.files),
    }


def _by_model(texts: Mapping[str, str], models: int) -> list[str]:
    """Each text once, after the names of those of several models that it is about."""
    found: dict[str, list[str]] = {}
    for model, text in texts.items():
        if text:
            found.setdefault(text, []).append(model)
    if models == 1:
        return [printable(text) for text in found]
    return [
        printable(text if len(names) == models else f"{', '.join(names)}: {text}")
        for text, names in found.items()
    ]
