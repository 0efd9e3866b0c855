"""``persona-mlflow prism bench``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import add_options, check_draws, json_option, split_list, tracking_uri_option
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persona_mlflow.prism.analyses.metrics import MethodMetrics
    from persona_mlflow.prism.bench_spec import BenchSpec
    from persona_mlflow.prism.cases import Benchmark
    from persona_mlflow.prism.results import MethodRun

BENCHMARK_OPTIONS = (
    click.option("--benchmark", "-b", metavar="NAME", help="big5-easy, big5-hard or social.  [big5-easy]"),
    click.option(
        "--data", metavar="PATH|ID", help="Its data: file, folder or hub id.  [BIG5-CHAT on the hub]"
    ),
    click.option("--size", "-n", type=int, metavar="N", help="Groups to draw.  [all]"),
    click.option("--swap", metavar="WHAT", help="Negatives of big5-easy: swap the profile or the response."),
    click.option("--keep", callback=split_list, metavar="A,B", help="Doubtful rows to keep: null, refused …"),
    click.option("--seed", type=int, metavar="N", help="Seed of every draw and order.  [0]"),
)
MODEL_OPTIONS = (
    click.option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16."),
    click.option("--quantization", metavar="KIND", help="none, 8bit or 4bit (bitsandbytes)."),
    click.option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …"),
    click.option("--batch-size", metavar="N", help="Prompts at once, or auto."),
)
ENDPOINT_OPTIONS = (
    click.option("--base-url", metavar="URL", help="Endpoint of evaluators openai:MODEL.  [OpenAI's own]"),
    click.option("--api-key-env", metavar="NAME", help="Variable that holds its key.  [OPENAI_API_KEY]"),
    click.option("--requests-per-minute", type=float, metavar="N", help="Most requests a minute."),
    click.option("--concurrency", type=int, metavar="N", help="Most requests at once.  [8]"),
    click.option("--price-prompt", type=float, metavar="X", help="Per million prompt tokens."),
    click.option("--price-completion", type=float, metavar="X", help="Per million completion tokens."),
    click.option("--cost-cap", type=float, metavar="X", help="Most that one method may spend."),
    click.option(
        "--votes", type=int, metavar="N", help="Sampled answers where it gives no log-probabilities."
    ),
)


@click.command()
@click.option("--experiment", "-e", metavar="FILE", help="YAML file, or the name of a shipped prism-… one.")
@add_options(*BENCHMARK_OPTIONS)
@click.option(
    "--evaluator", "--evaluators", "evaluators", callback=split_list, metavar="A,B", help="Models.  [smollm2]"
)
@click.option(
    "--methods", callback=split_list, metavar="A,B", help="prism, vanilla, cot, selene, pandalm, alignscore."
)
@click.option("--points", callback=split_list, metavar="5,7", help="Rubrics of vanilla and cot.  [5]")
@click.option(
    "--temperature",
    "--temperatures",
    "temperatures",
    callback=split_list,
    metavar="0,1",
    help="Of vanilla and cot.  [0]",
)
@click.option("--seeds", type=int, metavar="N", help="Draws per reply above temperature 0.  [3]")
@click.option(
    "--layout", "--layouts", "layouts", callback=split_list, metavar="A,B", help="labels-last, labels-first."
)
@click.option("--order-cases", type=int, metavar="N", help="Cases asked in all orders of the labels.  [24]")
@click.option("--max-new-tokens", type=int, metavar="N", help="Most tokens of a judge's reply.")
@click.option("--alignscore", metavar="FILE", help="AlignScore's checkpoint.")
@add_options(*MODEL_OPTIONS, *ENDPOINT_OPTIONS)
@click.option("--draws", type=click.IntRange(0), default=1000, show_default=True, help="Of the bootstrap.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Folder of scores and replies.  [outputs/NAME]"
)
@click.option("--experiment-name", metavar="NAME", help="MLflow experiment.  [the spec's name]")
@tracking_uri_option
@json_option
def bench(
    experiment: str | None,
    draws: int,
    output: Path | None,
    experiment_name: str | None,
    tracking_uri: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare PRISM and judges on a benchmark, each method logged as an MLflow run.

    Prints AUC, Pair-AUC and group accuracy with 95 % intervals. The same command goes on where an
    interrupted one stopped.
    """
    from persona_mlflow.cli.interruption import interruptible
    from persona_mlflow.cli.run import refuse_several_processes
    from persona_mlflow.prism.bench_spec import plan_methods
    from persona_mlflow.store import check_reachable, resolve_tracking_uri

    refuse_several_processes()
    check_draws("--draws", draws)
    spec = read_bench_spec(experiment, options)
    plan_methods(spec)
    check_reachable(resolve_tracking_uri(tracking_uri))
    benchmark = load(spec)
    folder = output or Path("outputs") / spec.title
    with interruptible(folder, tracking_uri):
        runs, metrics, parent = _bench(
            spec, benchmark, folder, experiment_name or spec.title, tracking_uri, draws, quiet=as_json
        )
    if as_json:
        click.echo(_document(benchmark, runs, metrics, folder, parent))
        return
    _print(benchmark, runs, metrics)
    click.echo(f"\nScores and replies: {folder}")
    _print_where_to_look(tracking_uri, benchmark, parent, folder)


def _print_where_to_look(tracking_uri: str | None, benchmark: Benchmark, parent: str, folder: Path) -> None:
    import shlex

    from persona_mlflow import ui
    from persona_mlflow.prism.ranking import METRICS
    from persona_mlflow.store import connect, resolve_tracking_uri

    client, uri = connect(tracking_uri), resolve_tracking_uri(tracking_uri)
    experiment_id = client.get_run(parent).info.experiment_id
    key = ui.apply_shared_view(
        client,
        experiment_id,
        params=["evaluator", "method", "points", "temperature"],
        metrics=[*METRICS, "unscored_rate", "label_mass"],
        parent_run_ids=[parent],
        name=f"PRISM: {benchmark.name}",
    )
    click.echo("Open the results:")
    click.echo(f"  {ui.ui_command(uri)}")
    click.echo(f"  {ui.runs_url(ui.ui_base_url(uri), experiment_id, key)}")
    click.echo("Every table and figure:")
    click.echo(f"  persona-mlflow prism report {shlex.quote(str(folder))}")


def read_bench_spec(experiment: str | None, options: Mapping[str, Any]) -> BenchSpec:
    """The spec of a file with the options laid over it; an option that was not given changes nothing."""
    from persona_mlflow.cli.options import find_experiment
    from persona_mlflow.prism.bench_spec import load_bench_spec

    for name, value in options.items():
        if value in ("", []):
            raise UserError(f"--{name.replace('_', '-')}: is empty; give a value, or leave the option out")
    sections = {
        "engine": ("dtype", "quantization", "device", "batch_size"),
        "endpoint": (
            *("base_url", "api_key_env", "requests_per_minute", "concurrency"),
            *("price_prompt", "price_completion", "cost_cap", "votes"),
        ),
        "judges": ("alignscore",),
    }
    place = {name: f"{section}.{name}" for section, names in sections.items() for name in names}
    if given := [name for name in sections["endpoint"] if options.get(name) is not None]:
        names = options.get("evaluators") or []
        if not experiment and not any(str(name).startswith("openai:") for name in names):
            raise UserError(
                f"--{given[0].replace('_', '-')}: is for a model behind an endpoint; name one, as "
                "--evaluator openai:MODEL, or leave the option out"
            )
    overrides = {place.get(name, name): _number(name, value) for name, value in options.items()}
    return load_bench_spec(find_experiment(experiment, prism=True) if experiment else None, overrides)


def _number(name: str, value: Any) -> Any:
    """Numbers in lists, as YAML would read them; what is none stays, for the spec to refuse."""
    if name == "batch_size" and isinstance(value, str) and value.isdecimal():
        return int(value)
    if name in ("points", "temperatures") and isinstance(value, list):
        kind = int if name == "points" else float
        numbers = []
        for text in value:
            try:
                numbers.append(kind(text))
            except ValueError:
                numbers.append(text)
        return numbers
    return value


def load(spec: BenchSpec) -> Benchmark:
    """The benchmark that a spec names."""
    from persona_mlflow.prism.benchmarks import load_benchmark

    return load_benchmark(
        spec.benchmark, spec.data, size=spec.size, seed=spec.seed, swap=spec.swap, keep=spec.keep
    )


def _bench(
    spec: BenchSpec,
    benchmark: Benchmark,
    folder: Path,
    experiment: str,
    tracking_uri: str | None,
    draws: int,
    quiet: bool,
) -> tuple[list[MethodRun], list[MethodMetrics], str]:
    from persona_mlflow.cli.progress import CountProgress
    from persona_mlflow.ledger import Ledger
    from persona_mlflow.prism.analyses.metrics import method_metrics
    from persona_mlflow.prism.backends import Backends
    from persona_mlflow.prism.bench import Bench
    from persona_mlflow.prism.bench_tracking import close_parent, log_method, open_parent
    from persona_mlflow.tracking import Tracker

    ledger = Ledger(folder)
    tracker: Tracker | None = None
    metrics: list[MethodMetrics] = []
    with ledger.lock(), CountProgress(quiet=quiet) as progress:
        for line in _about(benchmark):
            progress.message(line)
        bench = Bench(spec, benchmark, folder, Backends(spec, progress.message), progress)

        def finished(run: MethodRun, place: Path) -> None:
            nonlocal tracker
            # After the first method, so that a call that cannot work leaves no run behind.
            tracker = tracker or open_parent(tracking_uri, experiment, spec, benchmark, ledger.id)
            metrics.append(method_metrics(run, draws=draws, seed=spec.seed))
            log_method(tracker, run, metrics[-1], benchmark, place)

        try:
            runs = bench.run(finished)
            assert tracker is not None
            close_parent(tracker, runs, metrics, folder)
        except BaseException as error:
            if tracker is not None:
                tracker.close("FAILED" if isinstance(error, Exception) else "KILLED")
            raise
    return runs, metrics, tracker.parent_id


def _about(benchmark: Benchmark) -> list[str]:
    from persona_mlflow.prism.bench import composition

    found = composition(benchmark)
    lines = [
        f"{benchmark.name}: {found['groups']:,} groups, {found['positives']:,} positives, "
        f"{found['negatives']:,} negatives"
    ]
    report = benchmark.report
    for what, reasons in (
        ("Left out", report.left_out),
        ("Kept all the same", report.kept),
        ("No complete group", report.incomplete),
    ):
        if reasons:
            lines.append(f"{what}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()))
    if report.shortfall:
        lines.append(f"{report.shortfall:,} groups fewer than asked for: there are no more")
    return lines


def _print(benchmark: Benchmark, runs: Sequence[MethodRun], metrics: Sequence[MethodMetrics]) -> None:
    from rich.console import Console
    from rich.table import Table

    from persona_mlflow.prism.ranking import METRICS

    headings = {"auc": "AUC", "pair_auc": "Pair-AUC", "group_accuracy": "group accuracy"}
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    for name in ("evaluator", "method"):
        table.add_column(name, overflow="fold")
    for name in METRICS:
        table.add_column(headings[name], justify="right")
    table.add_column("scored", justify="right")
    table.add_column("groups", justify="right")
    for run, found in zip(runs, metrics, strict=True):
        scored = run.frame["score"].notna().mean()
        groups = f"{found.groups_used['pair_auc']:,}"
        table.add_row(
            run.evaluator, run.label, *(_cell(found, name) for name in METRICS), f"{scored:.1%}", groups
        )
    console = Console(highlight=False)
    console.print()
    console.print(table)
    console.print(
        f"{benchmark.name}, {len(benchmark.groups):,} groups; fractions of 1, by chance 0.5, 0.5 and "
        f"{_chance(benchmark):.2f}; brackets hold 95 % bootstrap intervals over groups. Groups are those "
        "with a scored positive and a scored negative.",
        soft_wrap=True,
    )
    for run, found in zip(runs, metrics, strict=True):
        for name, reason in found.reasons.items():
            console.print(f"{run.evaluator}, {run.label}: {headings[name]}: {reason}", soft_wrap=True)
        for line in _about_labels(run):
            console.print(line, soft_wrap=True)


def _about_labels(run: MethodRun) -> list[str]:
    """What a reader of PRISM's scores must know: the label mass, and how far the labels' order decides."""
    order = run.facts.get("order_sensitivity") or {}
    if order.get("flips") is None:
        return []
    letters = ", ".join(f"{letter} {share:.2f}" for letter, share in order["letters"].items())
    mass = run.facts.get("label_mass", 0.0)
    return [
        f"{run.evaluator}, {run.label}: label mass {mass:.2f}; the order of the labels changes the likeliest "
        f"state of {order['flips']:.0%} of {order['cases']} × 3 prompts (mean probability of {letters})"
    ]


def _cell(metrics: MethodMetrics, name: str) -> str:
    value, bounds = metrics[name], metrics.intervals.get(name)
    if value is None:
        return "–"
    return f"{value:.3f}" + (f"\n[{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else "")


def _chance(benchmark: Benchmark) -> float:
    """Chance of a random ranking without ties to put the positives of a group first, mean over groups."""
    from collections import Counter
    from math import comb

    sizes = Counter(example.group for example in benchmark)
    positives = Counter(example.group for example in benchmark if example.positive)
    return sum(1 / comb(sizes[group], positives[group]) for group in sizes) / len(sizes)


def _document(
    benchmark: Benchmark,
    runs: Sequence[MethodRun],
    metrics: Sequence[MethodMetrics],
    folder: Path,
    parent: str,
) -> str:
    content = {
        "benchmark": benchmark.name,
        "fingerprint": benchmark.fingerprint,
        "groups": len(benchmark.groups),
        "examples": len(benchmark),
        "report": benchmark.report.as_dict(),
        "output": str(folder),
        "parent": parent,
        "methods": [
            {
                "evaluator": run.evaluator,
                "method": run.method,
                "points": run.points,
                "temperature": run.temperature,
                "layout": run.layout or None,
                **found.as_dict(),
                "label_mass": run.facts.get("label_mass"),
                "order_sensitivity": run.facts.get("order_sensitivity"),
                "warnings": run.facts.get("warnings", []),
            }
            for run, found in zip(runs, metrics, strict=True)
        ],
    }
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False, default=str)
