"""``persona-mlflow prism score``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import add_options, json_option
from persona_mlflow.cli.prism_bench import ENDPOINT_OPTIONS, MODEL_OPTIONS, read_bench_spec
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from persona_mlflow.prism.bench_spec import BenchSpec
    from persona_mlflow.prism.cases import Case


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--evaluator", default="smollm2", show_default=True, metavar="NAME", help="The model that scores."
)
@click.option("--layout", metavar="NAME", help="labels-last or labels-first.  [labels-last]")
@click.option("--seed", type=int, metavar="N", help="Seed of the order of the labels.  [0]")
@add_options(*MODEL_OPTIONS, *ENDPOINT_OPTIONS)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep each scored case here (JSONL) as it is done; the same command goes on.",
)
@click.option(
    "--table",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write all probabilities as CSV.",
)
@json_option
def score(
    file: Path,
    evaluator: str,
    layout: str | None,
    seed: int | None,
    output: Path | None,
    table: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Score responses: does each fit its profile?

    FILE is JSON Lines, one case a line: profile, context (may be left out) and response. A profile is a text
    ("high openness", "a biologist"), or an object: {"trait": …, "level": …} or {"name": …, "sections": {…}}.

    S is the mean over three dimensions of the probability that the response is aligned with the profile.
    """
    from persona_mlflow.prism.cases import read_cases

    _check_files(file, output, table)
    cases = read_cases(file)
    spec = read_bench_spec(
        None, {**options, "evaluators": [evaluator], "layouts": [layout] if layout else None, "seed": seed}
    )
    frame, notes = _score(cases, spec, output, quiet=as_json)
    if table is not None:
        _write_table(frame, table)
    if as_json:
        click.echo(json.dumps({"cases": _records(frame), "notes": notes}, ensure_ascii=False, indent=1))
        return
    _print(cases, frame)
    for note in notes:
        click.echo(f"Note: {note}.", err=True)


def _check_files(file: Path, output: Path | None, table: Path | None) -> None:
    """Refuse, before any work, to write over what is read, or to a place that cannot be written.

    Raises:
        UserError: Two of the files are one, or the table's folder is not there.
    """
    named = [("FILE", file), ("--output", output), ("--table", table)]
    seen: dict[Path, str] = {}
    for name, path in named:
        if path is None:
            continue
        real = path.expanduser().resolve()
        if real in seen:
            raise UserError(
                f"{name} {path}: is {seen[real]} too, and would be written over; name another file"
            )
        seen[real] = name
    if table is not None and not table.expanduser().resolve().parent.is_dir():
        raise UserError(f"--table {table}: there is no such folder; make it, or name another")


def _score(
    cases: Sequence[Case], spec: BenchSpec, output: Path | None, quiet: bool
) -> tuple[pd.DataFrame, list[str]]:
    from persona_mlflow.cli.progress import CountProgress
    from persona_mlflow.prism.backends import Backends
    from persona_mlflow.prism.scoring import LabelMassWarning, score_cases

    (reference,) = spec.evaluators
    with CountProgress(quiet=quiet) as progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", LabelMassWarning)
        backends = Backends(spec, progress.message)
        evaluator = backends.evaluator(reference)
        try:
            progress.start(backends.name(reference), len(cases))
            frame = score_cases(
                cases,
                evaluator,
                output=output,
                seed=spec.seed,
                layout=spec.layouts[0],
                progress=lambda done, _: progress.advance(done),
            )
        except KeyboardInterrupt:
            if output is not None:
                progress.message(f"Scored cases are kept in {output}; the same command goes on.")
            raise
        finally:
            evaluator.close()
            backends.close()
    return frame, list(dict.fromkeys(str(warning.message) for warning in caught))


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One object per case: S, e_d, the nine probabilities, label mass and variant; null where unscored."""
    from persona_mlflow.prism.dimensions import STATES

    def plain(value: float) -> float | None:
        return None if value != value else float(value)

    found = []
    for case, rows in frame.groupby("case", sort=False):
        by = {str(row["dimension"]): row for row in rows.to_dict("records")}
        reason = next((str(row["reason"]) for row in by.values() if row["reason"]), "")
        found.append(
            {
                "id": str(case),
                "S": plain(rows["S"].iloc[0]),
                "e": {name: plain(row["e"]) for name, row in by.items()},
                "q": {name: {s: plain(row[f"q_{s}"]) for s in STATES} for name, row in by.items()},
                "label_mass": {name: plain(row["label_mass"]) for name, row in by.items()},
                "label_variant": {name: row["label_variant"] for name, row in by.items()},
                "cut_off": int(rows["cut_off"].sum()),
                "reason": reason,
            }
        )
    return found


def _print(cases: Sequence[Case], frame: pd.DataFrame) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from persona_mlflow.prism.dimensions import DIMENSIONS

    by_id = {case.id: case for case in cases}
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    table.add_column("case", overflow="fold", max_width=16)
    table.add_column("profile", overflow="fold")
    # The dimensions by their last words: task framing, interpersonal stance, linguistic style.
    for name in ("S", *(dimension.rpartition("_")[2] for dimension in DIMENSIONS), "mass"):
        table.add_column(name, justify="right", no_wrap=True)
    notes = []
    for record in _records(frame):
        case = by_id[record["id"]]
        numbers = [record["S"], *(record["e"][d] for d in DIMENSIONS), _mean(record["label_mass"].values())]
        cells = ["–" if value is None else f"{value:.3f}" for value in numbers]
        table.add_row(escape(case.id), escape(case.profile.label), *cells)
        if record["reason"]:
            notes.append(f"{case.id}: not scored, {record['reason']}")
    console = Console(highlight=False)
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _write_table(frame: pd.DataFrame, path: Path) -> None:
    try:
        frame.to_csv(path.expanduser(), index=False)
    except OSError as error:
        raise UserError(f"--table {path}: cannot be written ({error.strerror or error})") from error
