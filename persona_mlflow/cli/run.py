"""``persona-mlflow run`` and ``plan``."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

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

    from persona_mlflow.engines.base import Engine
    from persona_mlflow.plan import Plan
    from persona_mlflow.sweep import Progress, SweepResult


class Terminated(BaseException):
    """SIGTERM came; like Ctrl-C, it must pass every ``except Exception``."""


@click.command()
@add_options(experiment_option("quickstart"), *SPEC_OPTIONS)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Ledger folder.  [outputs/NAME-MODEL]")
@click.option("--experiment-name", metavar="NAME", help="MLflow experiment.  [the spec's name]")
@tracking_uri_option
@json_option
def run(
    output: Path | None, experiment_name: str | None, tracking_uri: str | None, as_json: bool, **options: Any
) -> None:
    """Run an experiment: every persona in every setting, each logged as an MLflow run.

    The same command goes on where an interrupted one stopped.
    """
    from persona_mlflow.plan import make_plan
    from persona_mlflow.store import check_reachable, resolve_tracking_uri

    _refuse_several_processes()
    check_reachable(resolve_tracking_uri(tracking_uri))
    plan = make_plan(read_spec(options))
    folder = output or plan.default_output
    with _interruptible(folder, tracking_uri):
        result = _sweep(plan, folder, experiment_name, tracking_uri, quiet=as_json)
    _print_result(result, plan, tracking_uri, as_json)


def _sweep(
    plan: Plan, folder: Path, experiment_name: str | None, tracking_uri: str | None, quiet: bool
) -> SweepResult:
    from persona_mlflow.cli.progress import CountProgress, TerminalProgress
    from persona_mlflow.fidelity import Fidelity, explaining_cells
    from persona_mlflow.ledger import Ledger
    from persona_mlflow.sweep import Sweep
    from persona_mlflow.tracking import Tracker

    if plan.spec.prism.evaluator:
        explaining_cells(plan)  # a plan without any leaves nothing behind
    ledger = Ledger(folder)
    with ledger.lock(), ExitStack() as watching:
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
        for line in plan.questions.report.lines()[1:]:
            if not line.startswith(" "):
                progress.message(line)
        if fidelity is not None:
            progress.message(
                f"PRISM: {fidelity.settings.evaluator} scores {len(fidelity.questions):,} answers of each of "
                f"{len(fidelity.cells):,} explaining runs"
            )
        sweep = Sweep(plan, ledger, lambda: _load_engine(plan, progress), progress, fidelity)
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


def _load_engine(plan: Plan, progress: Progress) -> Engine:
    import time

    from persona_mlflow.engines.base import Decoding
    from persona_mlflow.engines.hf import load_engine

    progress.message(f"Loading {plan.model.id} …")
    started = time.monotonic()
    settings = plan.spec.engine
    engine = load_engine(
        plan.model.id,
        decoding=Decoding(**plan.spec.decoding.model_dump()),
        batch_size=settings.batch_size,
        dtype=settings.dtype,
        quantization=settings.quantization,
        device=settings.device,
        revision=plan.commit,
        deterministic=settings.deterministic,
    )
    found = engine.describe()
    progress.message(
        f"Loaded in {time.monotonic() - started:.1f} s: {found['dtype']} on {found['device']}, "
        f"system role {found['system_role']}"
    )
    return engine


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


@contextmanager
def _interruptible(folder: Path, tracking_uri: str | None) -> Iterator[None]:
    """Turn signals and failures into exit codes, each with the command that goes on."""
    from persona_mlflow.ledger import is_disk_full
    from persona_mlflow.mlflow_project import close_adopted

    def on_signal(number: int, frame: FrameType | None) -> None:
        # On Ctrl-C, `mlflow run` sends SIGTERM on top, which must not cut short what SIGINT began.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:  # as in a script's background job, which Ctrl-C is not meant for
            signal.signal(number, on_signal)
    again = f"Everything answered so far is in {folder}. To go on: {_this_command()}"
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        close_adopted(tracking_uri)
        click.echo(f"\nInterrupted. {again}", err=True)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 143)
    except (UserError, click.ClickException):
        raise
    except Exception as error:
        if is_disk_full(error):
            click.echo(f"\nError: the disk is full. {again}", err=True)
        else:
            import traceback

            traceback.print_exc()
            click.echo(f"\nError: the run failed ({type(error).__name__}: {error}). {again}", err=True)
        sys.exit(1)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _this_command() -> str:
    return shlex.join(["persona-mlflow", *sys.argv[1:]])


def _refuse_several_processes() -> None:
    import os

    world = os.environ.get("WORLD_SIZE", "1")
    if world not in ("", "1"):
        raise UserError(
            f"started with {world} processes; start one: a model is spread over the GPUs it sees by itself"
        )


@click.command()
@add_options(experiment_option("quickstart"), *SPEC_OPTIONS)
@json_option
def plan(as_json: bool, **options: Any) -> None:
    """Say what an experiment will do: its runs, prompts and answers. Loads no model."""
    import json

    from persona_mlflow.plan import make_plan

    found = make_plan(read_spec(options))
    content = {
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
    if as_json:
        click.echo(json.dumps(content, ensure_ascii=False, indent=1))
        return
    for key, value in content.items():
        if isinstance(value, dict):
            for name, levels in value.items():
                click.echo(f"{'factor ' + name:20} {', '.join(map(str, levels))}")
        else:
            click.echo(f"{key:20} {value:,}" if isinstance(value, int) else f"{key:20} {value}")
