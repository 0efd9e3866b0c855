"""Seconds of a sweep in two processes against one, each process given one core.

Every measurement is the command line itself, on a new ledger and a new store. With two processes, each is
bound to a core of its own; a single process is bound to one core. They take turns, so that whatever else the
machine does falls on both. A run's time goes from when the model is loaded and the parent run made to when
every child and the parent are logged; the second process may still be loading then, which counts.

    python benchmarks/processes.py --personas 2 --questions 32 --new-tokens 256 --append
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from persona_mlflow.store import connect, find_parents

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTION = "## Two processes against one"
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measured:
    """One call.

    Attributes:
        run: Seconds of the parent run.
        command: Seconds of the whole command, with starting Python and loading the model.
        answers: (file, question) → text.
    """

    run: float
    command: float
    answers: dict[tuple[str, str], str]


def write_spec(arguments: argparse.Namespace, folder: Path) -> Path:
    from persona_mlflow.catalog import load_catalogue

    catalogue = load_catalogue()
    spec: dict[str, Any] = {
        "name": "processes",
        "model": arguments.model,
        "questions": "builtin",
        "limit": arguments.questions,
        "personas": list(catalogue.personas)[: arguments.personas],
        "factors": {
            "ppf": arguments.persona_formats or list(catalogue.ppf),
            "tpf": arguments.formats or list(catalogue.tpf),
            "temperature": arguments.temperatures,
        },
        "decoding": {"max_new_tokens": arguments.new_tokens},
    }
    path = folder / "processes.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def measure(spec: Path, new_store: Path, processes: int, cores: Sequence[int], batch_size: str) -> Measured:
    """Run a spec once, in so many processes, the first bound to the first core and so on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copyfile(new_store, folder / "mlflow.db")
        command = [sys.executable, "-m", "persona_mlflow", "run", "-e", str(spec), "-o", "out", "--json"]
        started = time.perf_counter()
        running = [
            subprocess.Popen(
                ["taskset", "-c", str(cores[rank]), *command, "--batch-size", batch_size],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(PACKAGE),
                    "OMP_NUM_THREADS": "1",
                    "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(processes),
                    "LOCAL_WORLD_SIZE": str(processes),
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        errors = [process.communicate()[1] for process in running]
        seconds = time.perf_counter() - started
        if any(process.returncode for process in running):
            raise SystemExit("\n".join(errors))
        (parent,) = find_parents(connect(f"sqlite:///{folder}/mlflow.db"))
        run = (parent.info.end_time - parent.info.start_time) / 1000
        return Measured(run, seconds, read_answers(folder / "out"))


def read_answers(output: Path) -> dict[tuple[str, str], str]:
    import pyarrow.parquet as pq

    return {
        (path.name, row["question_id"]): row["text"]
        for path in (output / "cells").glob("*.parquet")
        for row in pq.read_table(path, columns=["question_id", "text"]).to_pylist()
    }


def compare(arguments: argparse.Namespace) -> list[str]:
    """Run both in turns and return the lines of a Markdown report."""
    found: dict[int, list[Measured]] = {1: [], arguments.processes: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        connect(f"sqlite:///{folder}/mlflow.db")
        spec = write_spec(arguments, folder)
        for repeat in range(arguments.repeats):
            for processes, measured in found.items():
                measured.append(
                    measure(spec, folder / "mlflow.db", processes, arguments.cores, arguments.batch_size)
                )
                print(f"repeat {repeat + 1}: {processes} of {measured[-1].run:.1f} s", flush=True)
    return report(arguments, found)


def report(arguments: argparse.Namespace, found: dict[int, list[Measured]]) -> list[str]:
    one, many = found[1], found[arguments.processes]
    answers = len(one[0].answers)
    pairs = list(zip(one, many, strict=True))
    same = min(sum(a.answers[key] == text for key, text in b.answers.items()) for a, b in pairs)
    settings = answers // arguments.personas // arguments.questions
    ratios = [a.run / b.run for a, b in pairs]
    lines = [
        f"### {date.today()}: {arguments.model}, {platform.machine()}, a core for each process",
        "",
        f"{answers:,} answers: {arguments.personas} personas × {settings} settings × "
        f"{arguments.questions} questions, at most {arguments.new_tokens} tokens, batch "
        f"size {arguments.batch_size}; medians of {arguments.repeats}, taken in turns. {same:,} answers are "
        "the same, letter by letter. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}. Python {platform.python_version()}.",
        "",
        "| processes | seconds of the run | answers/s | spread of seconds | seconds of the command |",
        "| ---: | ---: | ---: | --- | ---: |",
    ]
    for processes, measured in found.items():
        seconds = [m.run for m in measured]
        median, spread = statistics.median(seconds), f"{min(seconds):.1f}–{max(seconds):.1f}"
        command = statistics.median(m.command for m in measured)
        lines.append(f"| {processes} | {median:.1f} | {answers / median:.2f} | {spread} | {command:.1f} |")
    lines += [
        "",
        f"**{statistics.median(ratios):.2f}×** one process; the repeats gave "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}.",
        "",
    ]
    return lines


def append(lines: Sequence[str]) -> None:
    """Put a report at the head of its section in RESULTS.md, making the section where there is none."""
    text = RESULTS.read_text() if RESULTS.exists() else "# What was measured\n"
    if SECTION not in text:
        text = f"{text.rstrip()}\n\n{SECTION}\n\n`python benchmarks/processes.py`, the latest first.\n"
    head, tail = text.split(SECTION, 1)
    intro, separator, rest = tail.partition("\n### ")
    following = intro.find("\n## ")
    if following >= 0:  # no report yet, and another section after this one
        intro, separator, rest = intro[:following], "", tail[following:]
    body = "\n".join(lines).rstrip()
    RESULTS.write_text(f"{head}{SECTION}{intro.rstrip()}\n\n{body}\n{separator}{rest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--personas", type=int, default=2)
    parser.add_argument("--persona-formats", nargs="+", help="all of the catalogue's where not given")
    parser.add_argument("--formats", nargs="+", help="all of the catalogue's where not given")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--batch-size", default="auto")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)), help="one for each process"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--append", action="store_true", help="put the report into RESULTS.md")
    arguments = parser.parse_args()
    if len(arguments.cores) < arguments.processes:
        parser.error(f"{arguments.processes} processes take as many cores; there are {len(arguments.cores)}")
    lines = compare(arguments)
    print("\n".join(lines))
    if arguments.append:
        append(lines)


if __name__ == "__main__":
    main()
