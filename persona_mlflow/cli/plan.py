"""``persona-mlflow plan``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import (
    SPEC_OPTIONS,
    add_options,
    experiment_option,
    json_option,
    read_spec,
    shipped_experiments,
    tracking_uri_option,
)

if TYPE_CHECKING:
    from persona_mlflow.plan import Plan

SUBSETS = {"subset A": "subset-a", "subset B": "subset-b"}
"""The smaller sets of settings (P1 Table 10), and the experiments that have them."""


@click.command()
@add_options(experiment_option("quickstart"), *SPEC_OPTIONS)
@click.option(
    "--calibrate",
    is_flag=False,
    flag_value=60.0,
    type=click.FloatRange(min=1),
    metavar="[SECONDS]",
    help="Load the model and measure it on the experiment's own prompts, for about a minute.",
)
@click.option(
    "--like", metavar="SOURCE", help="Take widths of intervals from this ledger, run or experiment."
)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Ledger folder.  [outputs/NAME-MODEL]")
@tracking_uri_option
@json_option
def plan(
    calibrate: float | None,
    like: str | None,
    output: Path | None,
    tracking_uri: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what an experiment will take: answers, tokens, memory, disk, time; and what a smaller one would.

    Loads no model, unless --calibrate asks to measure. Every assumption is printed.
    """
    from persona_mlflow.forecast import Forecast
    from persona_mlflow.plan import make_plan

    found = make_plan(read_spec(options), needs_weights=calibrate is not None)
    counts = _counts(found)
    forecast = Forecast(
        found,
        output or found.default_output,
        _subsets(found),
        like=like,
        tracking_uri=tracking_uri,
        seconds=calibrate,
        say=lambda text: click.echo(text, err=True),
    )
    content = forecast.content()
    kept = forecast.keep()
    if as_json:
        click.echo(json.dumps({**counts, **content}, ensure_ascii=False, indent=1, allow_nan=False))
        return
    _print(counts, content)
    if kept is not None:
        click.echo(f"\nThe estimate is in {kept}: the run will say how far off it was.")


def _counts(found: Plan) -> dict[str, Any]:
    content: dict[str, Any] = {
        "experiment": found.spec.name,
        "model": found.model.name,
        "personas": len(found.grid.personas),
        "factors": {name: list(levels) for name, levels in found.grid.factors.items()},
        "settings": len(found.grid.settings),
        "runs": len(found.grid),
        "questions": len(found.questions.questions),
        "prompts": found.prompts,
        "answers": found.draws,
    }
    if found.spec.prism.evaluator:
        from persona_mlflow.fidelity import explaining_cells, sample_questions

        prism = found.spec.prism
        seed = found.spec.seed if prism.seed is None else prism.seed
        content["scored answers"] = len(explaining_cells(found)) * len(
            sample_questions(found, prism.sample, seed)
        )
    return content


def _subsets(found: Plan) -> dict[str, Any]:
    from persona_mlflow.spec import load_spec

    shipped = shipped_experiments()
    return {
        name: load_spec(shipped[file]).select_factors(found.catalogue)
        for name, file in SUBSETS.items()
        if file in shipped
    }


# -------------------------------------------------------------------------------------------- printing


def _print(counts: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    for key, value in counts.items():
        if isinstance(value, dict):
            for name, levels in value.items():
                click.echo(f"{'factor ' + name:20} {', '.join(map(str, levels))}")
        else:
            click.echo(f"{key:20} {value:,}" if isinstance(value, int) else f"{key:20} {value}")
    _print_amounts(content)
    _print_time(content["time"])
    _print_designs(content["designs"])
    click.echo("\nWhat this rests on")
    for line in content["assumptions"]:
        click.echo(f"- {line}")


def _print_amounts(content: Mapping[str, Any]) -> None:
    tokens, disk, memory = content["tokens"], content["disk"], content["memory"]
    error = f" ± {_short(tokens['prompt_error'])}" if tokens["prompt_error"] else ""
    read = (
        f", {_short(tokens['prompt_read'])} of them read" if tokens["prompt_read"] < tokens["prompt"] else ""
    )
    click.echo(f"{'prompt tokens':20} {_short(tokens['prompt'])}{error}{read}")
    click.echo(f"{'completion tokens':20} {_short(tokens['completion'])}")
    if content["cost"] is not None:
        click.echo(f"{'cost':20} {content['cost']:,.2f}")
    parts = ", ".join(f"{name} {_bytes(value)}" for name, value in disk.items())
    click.echo(f"{'disk':20} {_bytes(sum(disk.values()))}: {parts}")
    if memory is not None:
        rows = memory["keys_and_values"]
        total = memory["weights"] + (rows or 0)
        kept = f", {memory['rows']} rows {_bytes(rows)}" if rows is not None else ""
        note = "" if total <= memory["available"] else "  (more than there is)"
        click.echo(f"{'memory':20} {_bytes(total)}: weights {_bytes(memory['weights'])}{kept}{note}")
        click.echo(f"{'machine':20} {memory['machine']}, {_bytes(memory['available'])} free")


def _print_time(time: Mapping[str, Any] | None) -> None:
    from persona_mlflow.estimate import duration

    if time is None:
        return
    span = f"{duration(time['low'])} to {duration(time['high'])}"
    click.echo(f"{'time':20} {'' if time['calibrated'] else 'roughly '}{duration(time['seconds'])} ({span})")
    for name, seconds in time["parts"].items():
        click.echo(f"  {name:18} {duration(seconds)}")
    rows = [["answers of", "temperature", "runs", "tokens each", "time"]]
    for family in time["families"]:
        error = f" ± {family['tokens_per_answer_error']:.0f}" if family["tokens_per_answer_error"] else ""
        rows.append(
            [
                family["tpf"],
                f"{family['temperature']:g}",
                f"{family['runs']:,}",
                f"{family['tokens_per_answer']:.0f}{error}",
                duration(family["seconds"]),
            ]
        )
    click.echo()
    _print_table(rows)


def _print_designs(designs: Sequence[Mapping[str, Any]]) -> None:
    from persona_mlflow.estimate import duration

    costs = any(design["cost"] is not None for design in designs)
    rows = [["settings", "questions", "answers", "time", *(["cost"] if costs else [])]]
    rows[0] += ["accuracy of a run", "mean accuracy", "I_A"]
    for design in designs:
        seconds = design["seconds"]
        rows.append(
            [
                f"{design['settings']:,} ({design['design']})",
                f"{design['questions']:,}",
                f"{design['answers']:,}",
                "?" if seconds is None else duration(seconds),
                *([f"{design['cost']:,.2f}"] if costs else []),
                *(_points(design[f"half_width_{name}"]) for name in ("run", "accuracy", "instability")),
            ]
        )
    click.echo("\nSmaller designs; ± is half the 95 % interval, in percentage points")
    _print_table(rows)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = row
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        click.echo("  ".join(cells).rstrip())


def _points(fraction: float | None) -> str:
    return "–" if fraction is None else f"± {100 * fraction:.2f}"


def _short(number: float) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"


def _bytes(number: float) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 2**10:.3g} KiB"
