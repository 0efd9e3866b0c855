"""Measuring how fast a plan's engine answers real prompts of the plan, and how long its answers are.

A sample of the prompts, every prompt format alike, is answered in rounds. Reading is told apart from
answering by a round that stops at the first token, and full batches from the emptying ones at the end of the
work by rounds of two sizes. Where the limit of tokens is so high that the rounds would not end in time,
answers are cut earlier, and what lies beyond is extrapolated: an answer that has not ended is taken to end,
at each further token, as often as the answers did up to there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from persona_mlflow.engines.base import Completion, Engine, Request
from persona_mlflow.estimate import FamilyKey, Length, Speed, seconds_since_start
from persona_mlflow.logging_cost import measure_logging
from persona_mlflow.prompt_tokens import TokenModel, fit, fit_tokens, sample_requests

if TYPE_CHECKING:
    from persona_mlflow.plan import Plan

SHORTEST_LIMIT = 16
PROBE_LIMIT = 8
LARGE = 3
"""How many batches a large round has; one less on a machine that is slow at reading."""

READING_SHARE = 0.6
"""The share of a calibration's time that reading prompts may take."""

LEAST_ERROR = 0.1
"""Relative error that a short calibration cannot go below: the machine's other work, and longer contexts."""

ONE_ROUND_ERROR = 0.2
"""Relative error that is assumed where there was time for one large round alone."""

FINISH_SECONDS, FINISH_SECONDS_PER_RUN = 1.5, 0.007
"""Assumed: summing up, and reading the runs back."""
# Student's t for a 95 % interval, by degrees of freedom.
_T95 = {1: 12.7, 2: 4.3, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass(frozen=True)
class Round:
    """One round of requests.

    Attributes:
        seconds: How long it took.
        prompt_tokens: Tokens of its prompts, each counted once.
        completions: What came back.
    """

    seconds: float
    prompt_tokens: int
    completions: Sequence[Completion]

    @property
    def tokens(self) -> int:
        """Tokens answered."""
        return sum(completion.completion_tokens for completion in self.completions)


@dataclass
class Measurement:
    """What a calibration found.

    Attributes:
        prefill: Prompt tokens read per second; None behind an endpoint.
        rounds: Rounds of full answers.
        limit: Most tokens of an answer in them.
        rows: Answers at once.
        seconds: How long all of it took.
    """

    prefill: float | None
    rounds: list[Round] = field(default_factory=list)
    limit: int = 0
    rows: int = 0
    seconds: float = 0.0

    def answering(self, item: Round) -> float:
        """Seconds of a round without those that reading its prompts took."""
        return max(1e-9, item.seconds - (item.prompt_tokens / self.prefill if self.prefill else 0.0))

    def fit(self) -> tuple[float, float]:
        """Seconds per token of full batches, and seconds that emptying the last one costs on top.

        A small and a large round lose the same at their end, so their difference is full batches alone.
        """
        sizes = sorted({len(item.completions) for item in self.rounds})
        small, large = (
            [item for item in self.rounds if len(item.completions) == size] for size in (sizes[0], sizes[-1])
        )
        tokens_small, tokens_large = (fmean(item.tokens for item in part) for part in (small, large))
        time_small, time_large = (fmean(map(self.answering, part)) for part in (small, large))
        mean = time_large / max(1.0, tokens_large)
        if tokens_large <= tokens_small:
            return mean, 0.0
        per_token = (time_large - time_small) / (tokens_large - tokens_small)
        # Noise can turn the difference round; emptying a batch saves no time, and costs no more than all.
        per_token = min(mean, max(mean / 2, per_token))
        return per_token, time_large - per_token * tokens_large

    @property
    def error(self) -> float:
        """Relative half-width of the 95 % interval of the seconds per token, from the large rounds."""
        most = max(len(item.completions) for item in self.rounds)
        rates = [self.answering(r) / max(1, r.tokens) for r in self.rounds if len(r.completions) == most]
        if len(rates) < 2:
            return ONE_ROUND_ERROR
        spread = _T95.get(len(rates) - 1, 2.0) * stdev(rates) / sqrt(len(rates)) / fmean(rates)
        return min(0.9, max(LEAST_ERROR, spread))


def measure(
    plan: Plan, engine: Engine, seconds: float = 60.0, clock: Callable[[], float] = time.perf_counter
) -> Measurement:
    """Measure an engine on a plan's own prompts.

    Args:
        plan: The experiment.
        engine: Its engine, loaded.
        seconds: About how long; two rounds are measured in any case.
        clock: Gives seconds.

    Returns:
        The rates, and the answers that they were measured on.
    """
    started = clock()
    source = _distinct(plan)
    most = plan.spec.decoding.max_new_tokens
    endpoint = plan.spec.engine.is_endpoint
    _run(engine, _take(source, 2), min(2, most), clock)  # the first batch pays for what later ones reuse
    rows = _rows(plan, engine)
    probe = _run(engine, _take(source, rows), min(PROBE_LIMIT, most), clock)
    # Reading alone takes about so long for each batch; a slow machine gets a smaller large round.
    slow = (2 * LARGE + 1) * probe.seconds > seconds * READING_SHARE
    large = min((LARGE - slow) * rows, plan.draws)
    prefill = None
    if not endpoint:
        read = _run(engine, _take(source, large), 1, clock)
        prefill = read.prompt_tokens / max(1e-9, read.seconds)
    reading = probe.prompt_tokens / prefill if prefill else 0.0
    rate = max(1e-9, probe.tokens / max(0.2 * probe.seconds, probe.seconds - reading))
    left = seconds - (clock() - started) - reading * (rows + large) / rows
    limit = choose_limit(rows + large, most, rate, left)
    found = Measurement(prefill, limit=limit, rows=rows)
    for draws in (rows, large):
        found.rounds.append(_run(engine, _take(source, draws), limit, clock))
    while clock() - started + found.rounds[-1].seconds < seconds:
        found.rounds.append(_run(engine, _take(source, large), limit, clock))
    found.seconds = clock() - started
    return found


def choose_limit(draws: int, most: int, rate: float, seconds: float) -> int:
    """How long answers may get, so that so many of them end in time even if none ends before.

    Args:
        draws: Answers.
        most: The experiment's own limit of tokens; never exceeded.
        rate: Tokens per second, from a probe.
        seconds: How long the answers may take.
    """
    return min(most, max(SHORTEST_LIMIT, int(rate * seconds / draws)))


def _rows(plan: Plan, engine: Engine) -> int:
    if plan.spec.engine.is_endpoint:
        return plan.spec.engine.concurrency
    found = engine.describe().get("batch_size")
    return max(1, min(found if isinstance(found, int) else 32, plan.draws))


def _distinct(plan: Plan) -> Iterator[Request]:
    """Prompts of the plan; greedy draws of one prompt are equal, and a local engine makes them once."""
    for request in sample_requests(plan):
        if plan.spec.engine.is_endpoint:
            yield request
        else:
            greedy = [draw for draw in request.draws if not draw.temperature]
            yield replace(request, draws=tuple(d for d in request.draws if d.temperature or d is greedy[0]))


def _take(source: Iterator[Request], draws: int) -> list[Request]:
    """So many draws, in whole requests, at least one."""
    taken: list[Request] = []
    while sum(len(request.draws) for request in taken) < draws:
        taken.append(next(source))
    return taken


def _run(engine: Engine, requests: list[Request], limit: int, clock: Callable[[], float]) -> Round:
    # A prompt drawn twice would be read once: its draws are told apart by their place in the round.
    numbered = [
        replace(request, draws=tuple(replace(draw, key=(place, draw.key)) for draw in request.draws))
        for place, request in enumerate(requests)
    ]
    with _limited(engine, limit):
        begin = clock()
        completions = [completion for batch in engine.generate(numbered) for completion in batch]
        seconds = clock() - begin
    sent = {_place(c): c.prompt_tokens for c in completions}
    return Round(seconds, sum(sent.values()), completions)


def _place(completion: Completion) -> int:
    assert isinstance(completion.key, tuple)
    return int(completion.key[0])


@contextmanager
def _limited(engine: Any, limit: int) -> Iterator[None]:
    whole = engine.decoding
    engine.decoding = replace(whole, max_new_tokens=limit)
    try:
        yield
    finally:
        engine.decoding = whole


# ---------------------------------------------------------------------------------------------- results


def measured_lengths(plan: Plan, measurement: Measurement) -> dict[FamilyKey, Length]:
    """How long answers are, by family; a family that the sample missed gets the mean of all answers."""
    by_family: dict[FamilyKey, list[Completion]] = defaultdict(list)
    for item in measurement.rounds:
        for completion in item.completions:
            assert isinstance(completion.key, tuple)
            cell = plan.grid.cells[completion.key[1][0]]
            by_family[str(cell.setting.all_levels["tpf"]), cell.setting.draft.temperature].append(completion)
    most, limit = plan.spec.decoding.max_new_tokens, measurement.limit
    every = [completion for found in by_family.values() for completion in found]
    lengths = {}
    for cell in plan.grid.cells:
        key = str(cell.setting.all_levels["tpf"]), cell.setting.draft.temperature
        if key not in lengths:
            lengths[key] = estimate_length(by_family.get(key) or every, limit, most)
    return lengths


def estimate_length(completions: Sequence[Completion], limit: int, most: int) -> Length:
    """Mean tokens of an answer, from answers that were cut at `limit` where the experiment cuts at `most`."""
    counts = [completion.completion_tokens for completion in completions]
    n = len(counts)
    mean = fmean(counts)
    error = 1.96 * stdev(counts) / sqrt(n) if n > 1 else mean
    going = sum(completion.finish_reason == "length" for completion in completions)
    if limit >= most or not going:
        return Length(mean, error, n)
    ended = n - going
    hazard = ended / max(1, sum(counts))  # how often an answer ends at a token
    left = most - limit
    beyond = going / n * ((1 - exp(-hazard * left)) / hazard if hazard else left)
    return Length(mean + beyond, error + beyond / sqrt(max(1, ended)), n, beyond)


def measured_speed(measurement: Measurement, fixed: Mapping[str, float], per_run: float) -> Speed:
    """Rates and their error, from the rounds of a measurement."""
    per_token, emptying = measurement.fit()
    answers = sum(len(item.completions) for item in measurement.rounds)
    source = (
        f"calibrated on {answers:,} answers in {len(measurement.rounds)} rounds, {measurement.rows} at once, "
        f"{measurement.seconds:.0f} s"
    )
    rate = 1 / max(1e-9, per_token)
    return Speed(measurement.prefill, rate, measurement.error, fixed, per_run, source, emptying=emptying)


def calibrate(
    plan: Plan, tracking_uri: str | None, say: Callable[[str], None], seconds: float = 60.0
) -> tuple[Speed, dict[FamilyKey, Length], TokenModel | None]:
    """Load a plan's model and measure all that its run will do.

    Args:
        plan: The experiment.
        tracking_uri: The store that the run will log to; nothing is written there.
        say: Told what is done.
        seconds: About how long to generate.

    Returns:
        The speed, the lengths of answers, and the tokens of prompts, the last None where the engine tells no
        tokenizer.

    Raises:
        UserError: The model cannot be loaded, or a prompt cannot be run.
    """
    from persona_mlflow.engines.load import load_plan_engine

    fixed = {"starting": seconds_since_start()}
    begin = time.perf_counter()
    engine = load_plan_engine(plan, say)
    try:
        fixed["loading the model"] = time.perf_counter() - begin
        begin = time.perf_counter()
        engine.check(plan.longest_requests())
        fixed["checking the prompts"] = time.perf_counter() - begin
        say(f"Answering a sample of the prompts for about {seconds:.0f} s …")
        measurement = measure(plan, engine, seconds)
        renderer = getattr(engine, "renderer", None)
        tokens = fit_tokens(plan, renderer) if renderer is not None else _reported_tokens(plan, measurement)
    finally:
        engine.close()
    texts = [completion for item in measurement.rounds for completion in item.completions]
    say("Logging three runs to a store that is thrown away …")
    opening, per_run = measure_logging(plan, texts, tracking_uri)
    fixed["opening the store"] = opening
    fixed["summing up"] = FINISH_SECONDS + FINISH_SECONDS_PER_RUN * len(plan.grid)
    return measured_speed(measurement, fixed, per_run), measured_lengths(plan, measurement), tokens


def _reported_tokens(plan: Plan, measurement: Measurement) -> TokenModel | None:
    """The tokens of prompts as an endpoint counted them; None where it did not."""
    from persona_mlflow.plan import make_request

    by_id = {question.id: question for question in plan.questions.questions}
    pairs = []
    for item in measurement.rounds:
        for completion in item.completions:
            assert isinstance(completion.key, tuple)
            index, question_id = completion.key[1]
            request = make_request(plan.grid.cells[index], by_id[question_id])
            pairs.append((len(request.system) + len(request.user), completion.prompt_tokens))
    counted = [(characters, tokens) for characters, tokens in pairs if tokens]
    return fit([c for c, _ in counted], [n for _, n in counted]) if counted else None
