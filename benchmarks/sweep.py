"""Answers per second of a sweep: this engine against ``transformers.pipeline``.

Both hold the same model in the same process and answer the same prompts (persona × task prompt format ×
question) at the same temperatures with the same token limit. They take turns, so that whatever else the
machine does falls on both. The pipeline is given its best batch size of a list, and its prompts sorted by
length. Greedy texts must be identical, else the comparison stops.

    python benchmarks/sweep.py --model smollm2 --questions 6 --append
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from persona_mlflow.engines.base import Decoding, Draw, Request
from persona_mlflow.engines.hf import HFEngine, load_engine
from persona_mlflow.engines.models import quiet_transformers
from persona_mlflow.prompting import fill_persona, fill_question

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTION = "## Engine against transformers.pipeline"

Answers = dict[tuple[int, float], str]


def build_requests(
    personas: int, formats: Sequence[str], questions: int, temperatures: Sequence[float]
) -> list[Request]:
    """Prompts from the shipped personas, formats and questions; a draw's key is (prompt, temperature)."""
    from persona_mlflow.catalog import load_catalogue
    from persona_mlflow.questions import load_questions

    catalogue = load_catalogue()
    chosen = list(load_questions("builtin", limit=questions))
    grid = itertools.product(list(catalogue.personas.values())[:personas], formats, chosen)
    return [
        Request(
            system=fill_persona(catalogue.ppf["youare"], persona.name),
            user=fill_question(catalogue.tpf[tpf], question.text, question.options),
            draws=tuple(Draw((number, t), t, 1000 * number + int(10 * t)) for t in temperatures),
        )
        for number, (persona, tpf, question) in enumerate(grid)
    ]


def run_engine(engine: HFEngine, requests: Sequence[Request]) -> Answers:
    return {c.key: c.text for batch in engine.generate(requests) for c in batch}  # type: ignore[misc]


def run_pipeline(pipe: Any, requests: Sequence[Request], batch_size: int, new_tokens: int) -> Answers:
    """One pass per temperature, as a sweep over settings does; the longest prompts first."""
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].system) - len(requests[i].user))
    chats = [
        [{"role": "system", "content": requests[i].system}, {"role": "user", "content": requests[i].user}]
        for i in order
    ]
    answers: Answers = {}
    for temperature in sorted({draw.temperature for request in requests for draw in request.draws}):
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 50, "top_p": 1.0}
            if temperature
            else {"do_sample": False}
        )
        outputs = pipe(
            chats, batch_size=batch_size, max_new_tokens=new_tokens, return_full_text=False, **sampling
        )
        for i, output in zip(order, outputs, strict=True):
            answers[i, temperature] = output[0]["generated_text"]
    return answers


def make_pipeline(engine: HFEngine) -> Any:
    from transformers import pipeline

    return pipeline("text-generation", model=engine._running.module, tokenizer=engine._tokenizer)


def compare(arguments: argparse.Namespace) -> list[str]:
    """Run both in turns and return the lines of a Markdown report."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    requests = build_requests(
        arguments.personas, arguments.formats, arguments.questions, arguments.temperatures
    )
    engine = load_engine(
        arguments.model,
        decoding=Decoding(max_new_tokens=arguments.new_tokens),
        batch_size=arguments.batch_size,
    )
    answers = sum(len(request.draws) for request in requests)
    times: dict[str, list[float]] = {}
    with quiet_transformers():
        pipe = make_pipeline(engine)
        # Warm up: the first pass pays for memory that later ones reuse.
        run_engine(engine, requests[:2])
        run_pipeline(pipe, requests[:2], 2, 4)
        for repeat in range(arguments.repeats):
            start = time.perf_counter()
            ours = run_engine(engine, requests)
            times.setdefault("this engine", []).append(time.perf_counter() - start)
            print(f"repeat {repeat + 1}: this engine {times['this engine'][-1]:.1f} s", flush=True)
            for batch_size in arguments.pipeline_batch_sizes:
                name = f"pipeline, batch {batch_size}"
                start = time.perf_counter()
                theirs = run_pipeline(pipe, requests, batch_size, arguments.new_tokens)
                times.setdefault(name, []).append(time.perf_counter() - start)
                print(f"repeat {repeat + 1}: {name} {times[name][-1]:.1f} s", flush=True)
                check_greedy(ours, theirs, engine)
    return report(arguments, engine, answers, times)


def check_greedy(ours: Answers, theirs: Answers, engine: HFEngine) -> None:
    for key, text in ours.items():
        if key[1] == 0 and text != engine.renderer.prefill + theirs[key]:
            raise SystemExit(f"greedy texts differ at {key}:\n{text!r}\n{theirs[key]!r}")


def report(
    arguments: argparse.Namespace, engine: HFEngine, answers: int, times: dict[str, list[float]]
) -> list[str]:
    described = engine.describe()
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    ours = medians.pop("this engine")
    best = min(medians, key=lambda name: medians[name])
    ratios = [b / a for a, b in zip(times["this engine"], times[best], strict=True)]
    import torch

    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    where = threads if described["device"] == "cpu" else "1 GPU"
    lines = [
        f"### {date.today()}: {arguments.model}, {described['dtype']}, {described['device_name']}, {where}",
        "",
        f"{answers} answers: {arguments.personas} personas × {', '.join(arguments.formats)} × "
        f"{arguments.questions} questions × temperatures {', '.join(map(str, arguments.temperatures))}; at "
        f"most {arguments.new_tokens} tokens; medians of {arguments.repeats}, taken in turns; greedy texts "
        f"identical. torch {described['torch']}, transformers {described['transformers']}, Python "
        f"{platform.python_version()}; this engine with up to {described['batch_size']} rows.",
        "",
        "| | seconds | answers/s | spread of seconds |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, seconds in [("this engine", ours), *medians.items()]:
        spread = f"{min(times[name]):.1f}–{max(times[name]):.1f}"
        lines.append(f"| {name} | {seconds:.1f} | {answers / seconds:.2f} | {spread} |")
    lines += [
        "",
        f"**{statistics.median(ratios):.2f}×** the pipeline at its best batch size ({best.split()[-1]}); the "
        f"repeats gave {', '.join(f'{r:.2f}' for r in ratios)}.",
        "",
    ]
    return lines


def append(lines: Sequence[str]) -> None:
    """Put a report at the head of its section in RESULTS.md, making file and section where there are none."""
    text = RESULTS.read_text() if RESULTS.exists() else "# What was measured\n"
    if SECTION not in text:
        text = f"{text.rstrip()}\n\n{SECTION}\n\n`python benchmarks/sweep.py`, the latest first.\n"
    head, tail = text.split(SECTION, 1)
    intro, separator, rest = tail.partition("\n### ")
    report = "\n".join(lines).rstrip()
    RESULTS.write_text(f"{head}{SECTION}{intro.rstrip()}\n\n{report}\n{separator}{rest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--personas", type=int, default=2)
    parser.add_argument("--formats", nargs="+", default=["justanswer", "explain"])
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=lambda v: v if v == "auto" else int(v), default="auto")
    parser.add_argument("--pipeline-batch-sizes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument(
        "--threads", type=int, help="processor threads of both; torch's default where not given"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--append", action="store_true", help="put the report into RESULTS.md")
    arguments = parser.parse_args()
    lines = compare(arguments)
    print("\n".join(lines))
    if arguments.append:
        append(lines)


if __name__ == "__main__":
    main()
