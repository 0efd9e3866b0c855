"""``persona-mlflow prism sheets`` and ``prism validate``: annotation sheets, and what people make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from persona_mlflow.cli.options import check_draws, json_option, split_list
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from rich.console import Console

    from persona_mlflow.prism.annotation_reading import Annotations
    from persona_mlflow.prism.validation import Estimate, Validation

    Row = tuple[tuple[str, ...], Mapping[str, Estimate]]

FILES = {
    "verification": "human_verification.csv",
    "label_agreement": "label_agreement.csv",
    "diagnostics": "dimension_diagnostics.csv",
    "correlation": "correlation.csv",
}
"""Table → the file that `validate` writes it to."""

_HEADINGS = {
    "mean_positive": "positives",
    "mean_negative": "negatives",
    "auc": "AUC",
    "pair_auc": "Pair-AUC",
    "group_accuracy": "group\naccuracy",
    "alpha": "α",
    "top_1": "Top-1",
    "top_2": "Top-2",
    "macro_f1": "macro-F1",
    "spearman": "Spearman's ρ",
    "kendall": "Kendall's τ",
}


@click.command()
@click.option("--benchmark", "-b", required=True, metavar="NAME", help="big5-easy, big5-hard or social.")
@click.option("--data", metavar="PATH|ID", help="Its data: file, folder or hub id.  [BIG5-CHAT on the hub]")
@click.option("--groups", type=int, default=50, show_default=True, metavar="N", help="Groups to annotate.")
@click.option("--annotators", type=int, default=3, show_default=True, metavar="N", help="How many people.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of every draw.")
@click.option("--size", type=int, metavar="N", help="Draw from this subset: as --size of prism bench.  [all]")
@click.option(
    "--swap",
    default="profile",
    show_default=True,
    metavar="WHAT",
    help="Negatives of big5-easy: swap the profile or the response.",
)
@click.option("--keep", callback=split_list, metavar="A,B", help="Doubtful rows to keep: null, refused …")
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where to write.",
)
@json_option
def sheets(
    benchmark: str,
    data: str | None,
    groups: int,
    annotators: int,
    seed: int,
    size: int | None,
    swap: str,
    keep: list[str] | None,
    output: Path,
    as_json: bool,
) -> None:
    """Write annotation sheets: what people rate, to hold PRISM and judges against them.

    Draws groups of a benchmark evenly over profiles and kinds of negative. Each annotator gets a folder with
    two sheets and instructions; the key stays in FOLDER. Sheets with answers are never overwritten.

    To compare with a run of `prism bench`, give the same data, --size, --seed, --swap and --keep.
    """
    from persona_mlflow.prism.annotation import KEY, write_sheets
    from persona_mlflow.prism.benchmarks import load_benchmark

    loaded = load_benchmark(benchmark, data, size=size, seed=seed, swap=swap, keep=keep or ())
    found = write_sheets(loaded, output, groups=groups, annotators=annotators, seed=seed)
    key = found.key
    if as_json:
        content = {
            "folder": str(output),
            "key": str(output / KEY),
            "benchmark": key.benchmark,
            "fingerprint": key.fingerprint,
            "seed": key.seed,
            "groups": key.drawn,
            "items": len(key.items),
            "shortfall": found.shortfall,
            "strata": dict(found.strata),
            "kinds": dict(found.kinds),
            "annotators": list(key.annotators),
            "written": [str(path) for path in found.written],
            "kept": [str(path) for path in found.kept],
        }
        click.echo(json.dumps(content, ensure_ascii=False, indent=1))
        return
    click.echo(f"{key.benchmark}: {key.drawn:,} groups, {len(key.items):,} items to rate")
    click.echo("Items: " + "; ".join(f"{count} × {kind}" for kind, count in sorted(found.kinds.items())))
    sizes = sorted(found.strata.values())
    each = str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    click.echo(f"Profiles: {len(sizes)}, groups of each: {each}")
    if found.shortfall:
        click.echo(f"{found.shortfall:,} groups fewer than asked for: there are no more")
    for path in found.kept:
        click.echo(f"Left as it is, since it holds answers: {path}")
    click.echo("\nHand each annotator their own folder alone:")
    for name in key.annotators:
        click.echo(f"  {output / name}")
    click.echo(
        f"Keep to yourself: {output / KEY}\nWhen they are back: persona-mlflow prism validate {output}"
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--runs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Output of prism bench (or a file of PRISM scores) to hold against the annotators; repeatable.",
)
@click.option("--draws", type=click.IntRange(0), default=1000, show_default=True, help="Of the bootstrap.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of the bootstrap."
)
@json_option
def validate(folder: Path, runs: tuple[Path, ...], draws: int, seed: int, as_json: bool) -> None:
    """Read filled annotation sheets: do people see the difference, and does a method agree with them?

    FOLDER is what `prism sheets` wrote, with the filled sheets in place. Prints the human verification (mean
    ratings, AUC, Pair-AUC, group accuracy, Krippendorff's α) and, with --runs, each PRISM run's Top-1
    accuracy, Top-2 recall, macro-F1 and α against the annotators' labels, and the rank correlations of every
    method's scores with the mean ratings. Writes the tables into FOLDER as CSV.
    """
    from persona_mlflow.prism.annotation import FIDELITY, LABELLING
    from persona_mlflow.prism.annotation_reading import read_annotations, read_methods
    from persona_mlflow.prism.validation import validate as compute

    check_draws("--draws", draws)
    annotations = read_annotations(folder)
    (ratings, all_ratings), (labels, all_labels) = map(annotations.filled, (FIDELITY, LABELLING))
    if not ratings and not labels:
        raise UserError(
            f"{folder}: nothing to validate yet: {ratings} of {all_ratings} ratings and {labels} of "
            f"{all_labels} choices are filled in; put the filled sheets in place of the empty ones"
        )
    methods, notes = read_methods(runs, annotations.key)
    found = compute(annotations, methods, draws=draws, seed=seed)
    tables = found.tables()
    if not runs:
        tables = {name: tables[name] for name in ("verification", "label_agreement")}
    for name, table in tables.items():
        _write(table, folder / FILES[name])
    if as_json:
        click.echo(_document(annotations, found, tables, notes))
        return
    _print(annotations, found, notes)
    click.echo(f"\nTables: {', '.join(str(folder / FILES[name]) for name in tables)}")


def _write(table: pd.DataFrame, path: Path) -> None:
    from persona_mlflow.ledger import write_atomically

    try:
        write_atomically(path, table.to_csv(index=False).encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def _document(
    annotations: Annotations,
    found: Validation,
    tables: Mapping[str, pd.DataFrame],
    notes: Sequence[str],
) -> str:
    key = annotations.key
    content = {
        "benchmark": key.benchmark,
        "fingerprint": key.fingerprint,
        "groups": key.drawn,
        "items": len(key.items),
        "draws": found.draws,
        "progress": [progress.as_dict() for progress in annotations.progress],
        **{
            name: [
                {column: None if value != value else value for column, value in row.items()}
                for row in table.to_dict("records")
            ]
            for name, table in tables.items()
        },
        "notes": list(notes),
    }
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)


def _print(annotations: Annotations, found: Validation, notes: Sequence[str]) -> None:
    from rich.console import Console

    from persona_mlflow.prism.annotation import FIDELITY, LABELLING
    from persona_mlflow.prism.dimensions import DIMENSIONS
    from persona_mlflow.prism.validation import ALL

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    key = annotations.key
    say(f"{key.benchmark}: {key.drawn} groups, {len(key.items)} items")
    for sheet, what in ((FIDELITY, "ratings"), (LABELLING, "choices")):
        filled, rows = annotations.filled(sheet)
        lacking = [
            f"{p.annotator} lacks {p.rows - p.filled}"
            for p in annotations.progress
            if p.sheet == sheet and p.filled < p.rows
        ]
        say(f"{filled} of {rows} {what}" + (f" ({', '.join(lacking)})" if lacking else ""))
    reasons: dict[str, None] = {}
    table: list[Row] = [
        ((who,), {name: e for name, e in estimates.items() if name != "alpha"})
        for who, estimates in found.verification.items()
    ]
    _table(console, "Human verification (P2 Table 6)", ["annotator"], table, reasons)
    agreement = {"ratings": found.verification[ALL]["alpha"], **found.label_agreement}
    shown = {ALL: "all dimensions"}
    table = [((shown.get(name, name),), {"alpha": estimate}) for name, estimate in agreement.items()]
    _table(console, "Agreement between annotators", ["of"], table, reasons)
    for which, diagnoses in found.diagnoses.items():
        title = f"Dimension diagnostics (P2 Table 7): {', '.join(which)}"
        table = [((shown.get(d.dimension, d.dimension),), d.estimates) for d in diagnoses]
        _table(console, title, ["dimension"], table, reasons)
    if found.correlations:
        title = "Scores against mean ratings"
        _table(console, title, ["evaluator", "method"], list(found.correlations.items()), reasons)
    console.print()
    for (evaluator, method), diagnoses in found.diagnoses.items():
        overall = next(d for d in diagnoses if d.dimension == ALL)
        counts = (
            (overall.unlabelled, "without a human label"),
            (overall.split, "on which the annotators are split"),
            (overall.unscored, "that the method has not scored"),
            (overall.undecided, "whose likeliest states tie (a miss)"),
        )
        text = ", ".join(f"{count} {what}" for count, what in counts if count)
        if text:
            say(f"{evaluator}, {method}: of {len(DIMENSIONS) * len(key.items)} items × dimensions, {text}")
    for line in (*reasons, *(f"Note: {note}" for note in notes)):
        say(line)
    if found.draws:
        say(f"Below a number: its {1 - found.alpha:.0%} bootstrap interval over groups.")


def _table(
    console: Console,
    title: str,
    keys: Sequence[str],
    rows: Sequence[Row],
    reasons: dict[str, None],
) -> None:
    """Print estimates, and add to ``reasons`` why some are undefined."""
    from rich.markup import escape
    from rich.table import Table

    names = list(dict.fromkeys(name for _, estimates in rows for name in estimates))
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    for key in keys:
        table.add_column(key, overflow="fold")
    for name in names:
        table.add_column(_HEADINGS[name], justify="right", no_wrap=True)
    for labels, estimates in rows:
        for name, estimate in estimates.items():
            if estimate.value is None:
                where = ", ".join((title, *labels)).replace("_", " ")
                reasons[f"{where}: {_HEADINGS[name].replace(chr(10), ' ')}: {estimate.reason}"] = None
        shown = (_cell(estimates[name]) for name in names)
        table.add_row(*(escape(label.replace("_", " ")) for label in labels), *shown)
    console.print()
    console.print(title, soft_wrap=True, markup=False)
    console.print(table)


def _cell(estimate: Estimate) -> str:
    if estimate.value is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f}\n{estimate.low:.2f}, {estimate.high:.2f}"
