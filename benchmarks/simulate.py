"""Simulate an experiment at the paper's scale, with planted effects, and measure the report on it.

The parent run that is logged carries what a finished sweep's carries, but no children: 1,968 runs without an
answer in them would show nothing. It is tagged ``persona_mlflow.simulated``.

    python benchmarks/simulate.py --tracking-uri sqlite:///simulated.db
    python benchmarks/simulate.py --effect factor=tpf --effect persona="a biologist" --questions 1000
    python benchmarks/simulate.py --output outputs/simulated
    python benchmarks/simulate.py --report --scaling
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError
from persona_mlflow.simulate import (
    PAPER_FACTORS,
    PAPER_QUESTIONS,
    Effects,
    Simulation,
    log_simulation,
    make_simulation,
    write_simulated_ledger,
)

SIZES = (7.0, 1.0, 14.0, 1.5, 8.0)
"""Billions of parameters that the simulated models are named by, in the order in which they are taken."""
HALF_FACTORS = {**PAPER_FACTORS, "tpf": ("justanswer", "explain-persona")}


def simulate_models(
    count: int,
    *,
    personas: int | None = None,
    factors: Mapping[str, Sequence[Any]] | None = None,
    questions: int = PAPER_QUESTIONS,
    effects: Effects = "paper",
    seed: int = 0,
    name: str = "simulated",
) -> list[Simulation]:
    """Models of different sizes on the same questions; under ``paper`` larger ones are the more stable."""
    if not 1 <= count <= len(SIZES):
        raise UserError(f"--models: {count} is not from 1 to {len(SIZES)}")
    found = []
    for size in sorted(SIZES[:count]):
        sized = effects == "paper"
        found.append(
            make_simulation(
                personas,
                factors,
                questions,
                effects=effects,
                seed=seed,
                model=f"simulated-{size:g}b",
                name=name,
                accuracy=1 / (1 + math.exp(-0.4 - 0.3 * math.log(size / 7))) if sized else 0.6,
                instability=(7 / size) ** 0.3 if sized else 1.0,
            )
        )
    return found


@dataclass(frozen=True)
class Measured:
    """What a report took.

    Attributes:
        seconds: From start to end of its process.
        processor_seconds: Of all its threads and processes.
        mebibytes: The most memory that it, or a process of its own, held at once.
    """

    seconds: float
    processor_seconds: float
    mebibytes: float


def measure_report(tracking_uri: str, parents: Sequence[str], folder: Path) -> Measured:
    """Run ``persona-mlflow report`` as a process of its own.

    Raises:
        SystemExit: It failed; its output says why.
    """
    command = [sys.executable, "-m", "persona_mlflow", "report", *parents, "--tracking-uri", tracking_uri]
    start = time.perf_counter()
    with (folder / "report.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{log.read()}")
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit)


def measure(models: int, **size: Any) -> Measured:
    """Simulate so many models into a store that is thrown away, and measure the report on all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uri = f"sqlite:///{folder}/simulated.db"
        parents = [log_simulation(simulation, uri) for simulation in simulate_models(models, **size)]
        found = measure_report(uri, parents, folder)
    what = " ".join([f"{models} models" if models > 1 else "1 model", *size])
    print(f"{what}: {found.seconds:.1f} s, {found.mebibytes:,.0f} MiB", file=sys.stderr, flush=True)
    return found


def heading() -> list[str]:
    """Where it was measured."""
    packages = ("numpy", "scipy", "xarray", "pandas", "matplotlib", "mlflow")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return [
        f"### {date.today()}: {platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "",
        f"`persona-mlflow report`, with its own defaults, on simulated parents (effects `paper`, seed 0); "
        f"seconds from start to end of the process, reading and logging included. Python "
        f"{platform.python_version()}, {versions}.",
        "",
    ]


def table(rows: Sequence[tuple[str, int, int, int, int, Measured]]) -> list[str]:
    lines = [
        "| | models | personas | settings | questions | seconds | processor seconds | peak memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, models, personas, settings, questions, found in rows:
        lines.append(
            f"| {name} | {models} | {personas} | {settings} | {questions:,} | {found.seconds:.1f} | "
            f"{found.processor_seconds:.1f} | {found.mebibytes / 1024:.2f} GiB |"
        )
    return [*lines, ""]


def report_section(models: Sequence[int]) -> list[str]:
    """The report at the paper's scale, on so many models at once."""
    return table([("the paper's scale", n, 41, 48, PAPER_QUESTIONS, measure(n)) for n in models])


def scaling_section(whole: Measured) -> list[str]:
    """The report on one model, with half of the questions, of the settings and of the personas."""
    half_questions, half_personas = PAPER_QUESTIONS // 2, 20
    return table(
        [
            ("the paper's scale", 1, 41, 48, PAPER_QUESTIONS, whole),
            ("half the questions", 1, 41, 48, half_questions, measure(1, questions=half_questions)),
            ("half the settings", 1, 41, 24, PAPER_QUESTIONS, measure(1, factors=HALF_FACTORS)),
            ("half the personas", 1, half_personas, 48, PAPER_QUESTIONS, measure(1, personas=half_personas)),
        ]
    )


def parse_settings(text: str) -> Mapping[str, Sequence[Any]]:
    """``paper``, or factors as ``ppf=youare,barebones temperature=0,1``."""
    from persona_mlflow.catalog import load_catalogue
    from persona_mlflow.spec import parse_spec

    if text == "paper":
        return PAPER_FACTORS
    factors = {}
    for part in text.split():
        name, equals, levels = part.partition("=")
        if not equals or not levels:
            raise UserError(f"--settings {part!r}: write paper, or NAME=LEVEL,LEVEL for each factor")
        factors[name] = levels.split(",")
    spec = parse_spec({"name": "simulated", "factors": factors}, source="--settings")
    return spec.select_factors(load_catalogue())


def parse_effects(pairs: Sequence[str], none: bool) -> Effects:
    """The effects of ``--effect KIND=WHERE``, the paper's where there are none, or no effect."""
    if none and pairs:
        raise UserError("--none and --effect exclude each other")
    if none or not pairs:
        return "none" if none else "paper"
    effects: dict[str, str] = {}
    for pair in pairs:
        kind, equals, target = pair.partition("=")
        if not equals or kind in effects:
            raise UserError(f"--effect {pair!r}: write KIND=WHERE, each kind once, such as factor=tpf")
        effects[kind] = target
    return effects


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--personas", type=int, default=41, help="how many of the catalogue's")
    parser.add_argument("--settings", default="paper", help='paper, or "ppf=A,B tpf=A,B temperature=0,1"')
    parser.add_argument("--questions", type=int, default=PAPER_QUESTIONS)
    parser.add_argument("--models", type=int, default=1, help=f"1 to {len(SIZES)}, a parent run each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="simulated", help="of the experiment")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--tracking-uri", default="sqlite:///simulated.db", help="the MLflow store")
    where.add_argument("--output", type=Path, help="write a ledger's folder instead, one per model")
    parser.add_argument(
        "--effect",
        action="append",
        default=[],
        metavar="KIND=WHERE",
        help="factor=NAME, domain=CATEGORY or persona=NAME, once each; the paper's trends by default",
    )
    parser.add_argument("--none", action="store_true", help="no effect at all")
    parser.add_argument(
        "--report", action="store_true", help="measure the report on 1 and on 5 models instead"
    )
    parser.add_argument("--scaling", action="store_true", help="measure it at half of each size instead")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    if options.report or options.scaling:
        lines = heading()
        if options.report:
            lines += report_section((1, 5))
        if options.scaling:
            lines += scaling_section(measure(1))
        print("\n".join(lines))
        return
    simulations = simulate_models(
        options.models,
        personas=options.personas,
        factors=parse_settings(options.settings),
        questions=options.questions,
        effects=parse_effects(options.effect, options.none),
        seed=options.seed,
        name=options.name,
    )
    for simulation in simulations:
        if options.output:
            folder = options.output / simulation.model if len(simulations) > 1 else options.output
            write_simulated_ledger(simulation, folder)
            print(folder)
        else:
            print(log_simulation(simulation, options.tracking_uri))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"Error: {error}")
