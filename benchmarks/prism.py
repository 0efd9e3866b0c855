"""Cases per second of PRISM: this evaluator against the naive way.

The naive way scores a label as most code does: prompt and label through one forward pass, the log-softmax of
its logits, and the label's position read off; a pass for each of the nine labels of a case, nothing batched,
nothing shared. Both hold the same model in the same process, score the same prompts, and take turns, so that
whatever else the machine does falls on both. The scores must agree, else the comparison stops.

    python benchmarks/prism.py --model smollm2 --cases 24 --append
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

from persona_mlflow.prism.cases import LEVELS, TRAITS, Case, Profile
from persona_mlflow.prism.hf_evaluator import HFEvaluator, load_evaluator
from persona_mlflow.prism.prompt import LABELS, LAYOUTS, case_prompts

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTION = "## PRISM against one pass per label"
TOLERANCE = 1e-3

Scores = dict[tuple[Any, ...], tuple[float, ...]]

CONTEXTS = (
    "Hello Ana, the roof of the shed came down in last night's storm, and half of our tools are under it. "
    "The weather is meant to hold until Thursday. I could take Wednesday off, and my cousin has a truck that "
    "we may borrow if we ask him today. How would you like to go about this, and what do you need from me?",
    "You know that choir I told you about? They are looking for two more voices for the summer concert, and "
    "there is a first meeting tonight in the old school. I have never sung in front of anybody, and neither "
    "have you, I think. The door is open to everyone. What do you say, shall we go and have a look?",
    "I have read your draft of the report. The figures in the second part do not match those in the annex, "
    "and the summary promises a comparison that I could not find. The client wants it on Monday. I do not "
    "mean to spoil your weekend, but somebody has to look at it before then. Can we talk about it?",
    "Our neighbours have started to leave their bicycles in the hallway again. Yesterday the lady from the "
    "third floor nearly fell over one with her shopping. I put up a note, and somebody drew a moustache on "
    "it. There is a meeting of the house next week. Would you come along, and should we bring it up there?",
)
RESPONSES = (
    "Let us sit down with a pencil first. I would make a list of what can be saved, ring your cousin before "
    "noon, and have everything dry and sorted by Wednesday evening. If we share the work well, nobody has "
    "to lift more than they should, and we know on Tuesday already whether something is missing.",
    "Oh, why not! It might turn into something that we laugh about for years. I keep thinking of how those "
    "old rooms sound when many people breathe at once. Whatever comes of it, we will have seen a corner of "
    "the town that we never look at, and met people whom we would not have met otherwise.",
    "I don't know. It always ends with me in the middle of it, and then I lie awake and go over every word. "
    "Maybe it is my fault anyway, I should have noticed earlier. Could you do the talking, please? I would "
    "feel so much better if I knew that you are not cross with me about all of this.",
    "No. I have said what I think about this more than once, and nobody listened. Sort it out among "
    "yourselves, and leave me out of it. If people cannot look where they walk, or read what stands in front "
    "of them, that is hardly my problem. I have better things to do with a free evening.",
)


def build_cases(count: int) -> list[Case]:
    """Big Five profiles × contexts × responses, of lengths that vary as those of chat data do."""
    profiles = [Profile("big5", trait=trait, level=level) for trait in TRAITS for level in LEVELS]
    grid = itertools.product(CONTEXTS, RESPONSES, profiles)
    step = max(1, len(CONTEXTS) * len(RESPONSES) * len(profiles) // count)
    cases = []
    for number, (context, response, profile) in enumerate(itertools.islice(grid, 0, None, step)):
        half = response[: response.index(". ") + 1] if number % 3 == 0 else response
        cases.append(Case(f"case {number}", profile, context, half))
    return cases[:count]


def run_evaluator(evaluator: HFEvaluator, cases: Sequence[Case], layout: str) -> Scores:
    groups = (case_prompts(case, layout=layout) for case in cases)
    return {score.key: score.log_p for batch in evaluator.label_scores(groups) for score in batch}


def run_naive(evaluator: HFEvaluator, cases: Sequence[Case], layout: str) -> Scores:
    """One forward pass per label."""
    import torch

    model: Any = evaluator._module
    device = model.device
    scores: Scores = {}
    for case in cases:
        for prompt in case_prompts(case, layout=layout):
            values = []
            for label in LABELS:
                ids = evaluator.renderer.with_completion(prompt.system, prompt.user, label)
                with torch.inference_mode():
                    log_p = model(torch.tensor([ids], device=device)).logits[0].float().log_softmax(dim=-1)
                values.append(float(log_p[-2, ids[-1]]))
            scores[prompt.key] = tuple(values)
    return scores


def check(ours: Scores, theirs: Scores) -> float:
    """The largest difference of two log-scores; stops where it is too large."""
    assert ours.keys() == theirs.keys()
    largest = max(abs(a - b) for key in ours for a, b in zip(ours[key], theirs[key], strict=True))
    if largest > TOLERANCE:
        raise SystemExit(f"the scores differ by {largest:.2g} in log-probability")
    return largest


def compare(arguments: argparse.Namespace) -> list[str]:
    """Run both in turns and return the lines of a Markdown report."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    cases = build_cases(arguments.cases)
    evaluator = load_evaluator(arguments.model, dtype="float32", batch_size=arguments.batch_size)
    # Warm up: the first pass pays for memory that later ones reuse.
    run_evaluator(evaluator, cases[:2], arguments.layout)
    run_naive(evaluator, cases[:1], arguments.layout)
    times: dict[str, list[float]] = {"this evaluator": [], "one pass per label": []}
    difference = 0.0
    for repeat in range(arguments.repeats):
        found = []
        for name, function in (("this evaluator", run_evaluator), ("one pass per label", run_naive)):
            start = time.perf_counter()
            found.append(function(evaluator, cases, arguments.layout))
            times[name].append(time.perf_counter() - start)
            print(f"repeat {repeat + 1}: {name} {times[name][-1]:.1f} s", flush=True)
        difference = max(difference, check(*found))
    return report(arguments, evaluator, cases, times, difference)


def report(
    arguments: argparse.Namespace,
    evaluator: HFEvaluator,
    cases: Sequence[Case],
    times: dict[str, list[float]],
    difference: float,
) -> list[str]:
    import torch

    described = evaluator.describe()
    groups = [evaluator._group(case_prompts(case, layout=arguments.layout), []) for case in cases]
    prefix = statistics.median(group.prefix for group in groups)
    rest = statistics.median(len(row.ids) - group.prefix for group in groups for row in group.rows)
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    where = threads if described["device"] == "cpu" else "1 GPU"
    lines = [
        f"### {date.today()}: {arguments.model}, {described['dtype']}, {described['device_name']}, {where}",
        "",
        f"{len(cases)} cases of three prompts, {arguments.layout}: {prefix:.0f} tokens shared and "
        f"{rest:.0f} more in each prompt (medians); {arguments.repeats} repeats, taken in turns; log-scores "
        f"within {difference:.0e}. torch {described['torch']}, transformers {described['transformers']}, "
        f"Python {platform.python_version()}; up to {described['batch_size']} prompts at once.",
        "",
        "| | seconds | cases/s | spread of seconds |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, seconds in times.items():
        median = statistics.median(seconds)
        spread = f"{min(seconds):.1f}–{max(seconds):.1f}"
        lines.append(f"| {name} | {median:.1f} | {len(cases) / median:.2f} | {spread} |")
    ratios = [b / a for a, b in zip(*times.values(), strict=True)]
    lines += [
        "",
        f"**{statistics.median(ratios):.2f}×** one pass per label; the repeats gave "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}.",
        "",
    ]
    return lines


def append(lines: Sequence[str]) -> None:
    """Put a report at the head of its section in RESULTS.md, making file and section where there are none."""
    text = RESULTS.read_text() if RESULTS.exists() else "# What was measured\n"
    if SECTION not in text:
        text = f"{text.rstrip()}\n\n{SECTION}\n\n`python benchmarks/prism.py`, the latest first.\n"
    head, tail = text.split(SECTION, 1)
    # The section ends where the next one begins.
    tail, following, others = tail.partition("\n## ")
    intro, separator, rest = tail.partition("\n### ")
    report = "\n".join(lines).rstrip()
    section = f"{head}{SECTION}{intro.rstrip()}\n\n{report}\n{separator}{rest}"
    RESULTS.write_text(f"{section.rstrip()}\n{following}{others}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--layout", choices=LAYOUTS, default="labels-last")
    parser.add_argument("--batch-size", type=lambda v: v if v == "auto" else int(v), default="auto")
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
