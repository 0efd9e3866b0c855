"""``persona-mlflow run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from persona_mlflow.cli.options import (
    SPEC_OPTIONS,
    add_options,
    experiment_option,
    json_option,
    read_spec,
    tracking_uri_option,
)
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from persona_mlflow.distributed.place import Place
    from persona_mlflow.plan import Plan
    from persona_mlflow.sweep import SweepResult


@click.command()
@add_options(experiment_option("quickstart"), *SPEC_OPTIONS)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Ledger folder.  [outputs/NAME-MODEL]")
@click.option("--experiment-name", metavar="NAME", help="MLflow experiment.  [the spec's name]")
@click.option(
    "--num-processes",
    type=int,
    metavar="N",
    help="Processes here that share the work, each on GPUs of its own.  [1, or what the launcher says]",
)
@tracking_uri_option
@json_option
@click.pass_context
def run(
    context: click.Context,
    output: Path | None,
    experiment_name: str | None,
    num_processes: int | None,
    tracking_uri: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run an experiment: every persona in every setting, each logged as an MLflow run.

    The same command goes on where an interrupted one stopped, with any number of processes.
    """
    from persona_mlflow.cli.interruption import interruptible
    from persona_mlflow.distributed.place import find_place, leave_group, share_threads
    from persona_mlflow.estimate import compare_with_estimate
    from persona_mlflow.plan import make_plan
    from persona_mlflow.store import check_reachable, resolve_tracking_uri

    place = find_place(num_processes)
    leave_group(place)
    share_threads(place)
    if not place.is_main:
        _help(place, _same_call(context), options, output)
    check_reachable(resolve_tracking_uri(tracking_uri))
    plan = make_plan(read_spec(options))
    folder = output or plan.default_output
    with interruptible(folder, tracking_uri):
        others = _same_call(context) if place.to_start else ()
        result = _sweep(plan, folder, experiment_name, tracking_uri, as_json, place, others)
    _print_result(result, plan, tracking_uri, as_json)
    said = None if as_json else compare_with_estimate(plan, folder, result.generated)
    if said is not None:
        click.echo(said)


def _help(place: Place, command: list[str], options: Mapping[str, Any], output: Path | None) -> NoReturn:
    """Share the main process's work, and exit."""
    import os
    import sys

    from persona_mlflow.distributed.helper import help_out, quiet_process
    from persona_mlflow.distributed.place import share_gpus, started_helpers
    from persona_mlflow.engines.load import load_plan_engine
    from persona_mlflow.plan import make_plan

    with quiet_process(place):
        plan = make_plan(read_spec(options))
        with started_helpers(place, command, dict(os.environ)):
            share_gpus(place, plan.spec.engine.device)
            folder = output or plan.default_output
            code = help_out(plan, folder, place, lambda: load_plan_engine(plan, lambda _: None))
    sys.exit(code)


def _same_call(context: click.Context) -> list[str]:
    """This command and its options, but for the number of processes, for the others to be given."""
    from click.core import ParameterSource

    words = ["run"]
    for option in context.command.params:
        value = context.params.get(str(option.name))
        given = context.get_parameter_source(str(option.name)) is not ParameterSource.DEFAULT
        if option.name == "num_processes" or not given or value is None:
            continue
        name = max(option.opts, key=len)
        if isinstance(option, click.Option) and option.is_flag:
            words += [name] if value else []
        elif isinstance(option, click.Option) and option.multiple:
            words += [f"{name}={one}" for one in value]
        else:
            words.append(f"{name}={','.join(value) if isinstance(value, list) else value}")
    return words


def _sweep(
    plan: Plan,
    folder: Path,
    experiment_name: str | None,
    tracking_uri: str | None,
    quiet: bool,
    place: Place,
    others: Sequence[str],
) -> SweepResult:
    import os

    from persona_mlflow.cli.progress import CountProgress, TerminalProgress
    from persona_mlflow.distributed.place import share_gpus, started_helpers
    from persona_mlflow.distributed.team import Team, forget_team
    from persona_mlflow.engines.load import load_plan_engine
    from persona_mlflow.fidelity import Fidelity, explaining_cells
    from persona_mlflow.ledger import Ledger
    from persona_mlflow.sweep import Sweep
    from persona_mlflow.tracking import Tracker

    if plan.spec.prism.evaluator:
        explaining_cells(plan)  # a plan without any leaves nothing behind
    ledger = Ledger(folder)
    environment = dict(os.environ)  # before it is narrowed to this process's GPUs
    share_gpus(place, plan.spec.engine.device)
    team = Team(folder, place, plan.spec_hash) if place.world > 1 else None
    with (
        ledger.lock(),
        team or nullcontext(),
        started_helpers(place, others, environment),
        ExitStack() as watching,
    ):
        if team is None:
            forget_team(folder)
        progress = watching.enter_context(TerminalProgress(quiet=quiet))

        def watch_scoring() -> CountProgress:
            watching.close()  # one live line at a time
            return watching.enter_context(CountProgress(quiet=quiet))

        fidelity = Fidelity(plan, ledger, watch_scoring) if plan.spec.prism.evaluator else None
        progress.message(
            f"{plan.spec.name}: {plan.model.name}, {len(plan.grid.personas)} personas × "
            f"{len(plan.grid.settings)} settings × {len(plan.questions.questions)} questions = "
            f"{plan.draws:,} answers in {len(plan.grid):,} runs"
        )
        if team is not None:
            progress.message(f"{place.world} processes share the work")
        for line in plan.questions.report.lines()[1:]:
            if not line.startswith(" "):
                progress.message(line)
        if fidelity is not None:
            progress.message(
                f"PRISM: {fidelity.settings.evaluator} scores {len(fidelity.questions):,} answers of each of "
                f"{len(fidelity.cells):,} explaining runs"
            )
        sweep = Sweep(
            plan, ledger, lambda: load_plan_engine(plan, progress.message), progress, fidelity, team
        )
        return sweep.run(
            lambda: Tracker.open(
                tracking_uri,
                experiment_name or plan.spec.name,
                run_name=f"{plan.spec.name} · {plan.model.name}",
                spec_hash=plan.spec_hash,
                params=plan.params(),
                ledger=ledger.id,
                description=plan.spec.description,
            )
        )


def _print_result(result: SweepResult, plan: Plan, tracking_uri: str | None, as_json: bool) -> None:
    import json

    from persona_mlflow.store import connect, resolve_tracking_uri
    from persona_mlflow.summary import run_summary, summary_table

    client = connect(tracking_uri)
    row = run_summary(client.get_run(result.parent_id))
    if as_json:
        click.echo(json.dumps({**row, "output": str(result.output)}, ensure_ascii=False, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print()
    console.print(summary_table([row]))
    for name, reason in row["undefined"].items():
        console.print(f"{name}: undefined, {reason}")
    for warning in result.summary["warnings"]:
        console.print(f"Note: {warning}.", style="yellow")
    console.print()
    _print_where_to_look(client, resolve_tracking_uri(tracking_uri), result, plan)


def _print_where_to_look(client: MlflowClient, uri: str, result: SweepResult, plan: Plan) -> None:
    from persona_mlflow import ui
    from persona_mlflow.summary import METRICS

    shown = [*ui.DEFAULT_METRICS, *(["prism/fidelity"] if plan.spec.prism.evaluator else [])]
    key = ui.apply_shared_view(
        client,
        result.experiment_id,
        params=["persona", "persona_group", *plan.grid.factors],
        metrics=[*shown, *(name for name in METRICS if name.startswith("instability/"))],
        parent_run_ids=[result.parent_id],
        name=f"Persona × setting: {plan.model.name}",
    )
    click.echo("Open the results:")
    click.echo(f"  {ui.ui_command(uri)}")
    click.echo(f"  {ui.runs_url(ui.ui_base_url(uri), result.experiment_id, key)}")
    click.echo("Compare experiments:")
    click.echo("  persona-mlflow summarize")


def refuse_several_processes() -> None:
    """Refuse a command to run as one of several processes, each of which would do all of the work."""
    import os

    world = os.environ.get("WORLD_SIZE", "1")
    if world not in ("", "1"):
        raise UserError(
            f"started with {world} processes; start one: a model is spread over the GPUs it sees by itself"
        )
