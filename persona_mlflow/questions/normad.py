"""NormAd-Eti (Rao et al. 2025): is the conduct in a story acceptable in its country?"""

from __future__ import annotations

from pathlib import Path

from persona_mlflow.errors import UserError
from persona_mlflow.questions.base import SourceRow
from persona_mlflow.questions.reading import Record, cell, column, csv_records

NAME = "normad"
FILE = "normad_etiquette_final_data.csv"
OPTIONS = ("Yes", "No", "Neither")
GOLD = ("yes", "no", "neutral")
"""The published labels, in the order of `OPTIONS`."""

_QUESTION = """\
Country: {country}
Story: {story}

By the social norms of this country, is the behaviour in the story acceptable? Answer Neither if these norms \
do not settle it."""


def find_files(folder: Path, split: str = "") -> list[Path]:
    """The file that holds the stories; the data set has no splits."""
    file = folder / FILE
    return [file] if file.is_file() else []


def load(folder: Path, split: str = "") -> list[SourceRow]:
    """Read all stories in their published order; the label is the country, as the file writes it.

    Only the columns ``Country``, ``Story`` and ``Gold Label`` are used (country context, P1 Appendix D.1).
    How many rows there are is not checked: the hub's copy and the paper differ.

    Args:
        folder: A local folder that holds ``normad_etiquette_final_data.csv``.
        split: Ignored.

    Raises:
        UserError: No such file, a missing column, an empty cell, or a gold label other than yes, no, neutral.
    """
    files = find_files(folder)
    if not files:
        raise UserError(f"{folder}: no NormAd here; expected {FILE} (from the hub's akhilayerukola/NormAd)")
    return [_row(record) for record in csv_records(files[0])]


def country_name(label: str) -> str:
    """A country label as prose: ``bosnia_and_herzegovina`` → ``Bosnia and Herzegovina``."""
    if not label.islower():
        return label.replace("_", " ")
    words = label.replace("_", " ").split(" ")
    small = {"and", "of", "the"}
    return " ".join(word if word in small else "-".join(map(_capital, word.split("-"))) for word in words)


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]


def _row(record: Record) -> SourceRow:
    country, story, gold = (
        cell(column(record, name), f"column {name!r}", record.where)
        for name in ("Country", "Story", "Gold Label")
    )
    if gold.lower() not in GOLD:
        raise UserError(
            f"{record.where}: column 'Gold Label' is {gold!r}; it must be one of {', '.join(GOLD)}"
        )
    return SourceRow(
        text=_QUESTION.format(country=country_name(country), story=story),
        options=OPTIONS,
        answer=GOLD.index(gold.lower()),
        label=country,
        source=NAME,
    )
