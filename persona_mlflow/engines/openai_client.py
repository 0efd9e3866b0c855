"""The one client of OpenAI-compatible servers: closed models, and open ones that are served (P2 §4).

It sends chat completions with the package `openai` and answers for what can go wrong on the way: it retries
what passes, stops at once at what does not, keeps to a rate and to a cost cap, and never takes an error for
an answer. The key comes from the environment and goes nowhere but into the request.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from persona_mlflow.engines.openai_connection import KEY_VARIABLE, Call, Connection, Passing, Reply
from persona_mlflow.engines.pacing import Budget, Pace, Prices, Usage, backoff
from persona_mlflow.errors import UserError

PREFIX = "openai:"
"""What a reference to a model behind an endpoint starts with; a name at the endpoint follows."""

_TEMPLATE_TOKENS = 64  # of a chat template around two messages, generously


class ChatClient:
    """Sends chat completions to one model behind an OpenAI-compatible endpoint.

    Args:
        model: The model's name at the endpoint.
        base_url: The endpoint, e.g. ``http://127.0.0.1:8000/v1``; None is OpenAI's. A proxy in the
            environment is not used for this machine's own addresses.
        api_key_env: Environment variable with the key. With a `base_url` the default one may be missing.
        concurrency: Most requests at once.
        requests_per_minute: Most requests a minute, tries included; None is no limit.
        retries: How often a request is repeated after an error that may pass: 408, 409, 425, 429, 5xx, no
            connection, a timeout, a body that is no answer.
        timeout_s: Seconds to wait for one answer.
        backoff_s: Seconds before the first repetition; they double with each, up to a minute, with jitter. A
            server's ``Retry-After`` is kept to where it asks for more.
        prices: For the accounting of costs.
        cost_cap: Most that may be spent; needs `prices`. Before a request is sent, the most that it can cost
            is set aside, so the cap is not exceeded.

    Attributes:
        model: As given.
        url: The endpoint's address.
        usage: What was used so far.

    Raises:
        UserError: The package `openai` or the key is missing, or a setting is not valid.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key_env: str = KEY_VARIABLE,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        retries: int = 6,
        timeout_s: float = 120.0,
        backoff_s: float = 1.0,
        prices: Prices | None = None,
        cost_cap: float | None = None,
    ) -> None:
        if concurrency < 1 or retries < 0 or timeout_s <= 0 or backoff_s < 0:
            raise UserError("endpoint: concurrency is at least 1, retries at least 0, timeout_s above 0")
        if requests_per_minute is not None and not requests_per_minute > 0:
            raise UserError(f"endpoint: requests_per_minute must be above 0, but is {requests_per_minute}")
        self._concurrency, self._retries, self._backoff = concurrency, retries, backoff_s
        self._rpm = requests_per_minute
        self._budget = Budget(prices, cost_cap)
        self._pace = Pace(requests_per_minute)
        self._connection = Connection(model, base_url, api_key_env, timeout_s)
        self.model = model
        self.url = self._connection.url
        self.usage: Usage = self._budget.usage

    def describe(self) -> dict[str, str | int | float | bool]:
        """The settings, flat; never the key."""
        import openai as package

        return {
            "concurrency": self._concurrency,
            "requests_per_minute": self._rpm or 0,
            "limit_field": self._connection.limit_field,
            "openai": package.__version__,
        }

    def check(self) -> None:
        """Reach the server once, with the key, at no cost.

        Raises:
            UserError: No server answers, or it refuses the key.
        """
        self._connection.check()

    def ask(self, call: Call) -> Reply:
        """Send one request; see `answers`."""
        return next(self.answers([call]))[0]

    def answers(self, calls: Iterable[Call]) -> Iterator[list[Reply]]:
        """Send requests, some at once; `calls` is read no further ahead than that.

        Yields:
            The replies that came together, in any order.

        Raises:
            CostCapReached: The cost cap does not allow the next request.
            UserError: The endpoint refuses a request, or fails more often than it is retried; or `calls`
                itself raised it. What others had in flight is waited for and yielded first.
        """
        source = iter(calls)
        waiting: Call | None = None
        running: set[Future[Reply]] = set()
        failure: UserError | None = None
        stop = threading.Event()
        try:
            while True:
                while failure is None and len(running) < self._concurrency:
                    try:
                        waiting = waiting or next(source, None)
                    except UserError as error:
                        failure = error
                        break
                    if waiting is None:
                        break
                    worst = self._worst_cost(waiting)
                    if not self._budget.reserve(worst):
                        # What is in flight may turn out cheaper than what was set aside for it.
                        failure = None if running else self._budget.exhausted()
                        break
                    running.add(self._start(waiting, worst, stop))
                    waiting = None
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                finished = []
                for future in done:
                    try:
                        finished.append(future.result())
                    except _Stopped:
                        continue
                    except UserError as error:
                        failure = failure or error
                        stop.set()
                if finished:
                    yield finished
            if failure:
                raise failure
        finally:
            stop.set()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _worst_cost(self, call: Call) -> float:
        """The most that one answer can cost; no tokenizer makes more tokens than there are bytes."""
        if self._budget.prices is None:
            return 0.0
        prompt = sum(len(text.encode("utf-8", "replace")) for text in (call.system, call.user))
        return self._budget.prices.cost(prompt + _TEMPLATE_TOKENS, call.max_tokens)

    def _start(self, call: Call, worst: float, stop: threading.Event) -> Future[Reply]:
        """Answer a call in a thread of its own.

        The threads are daemons: those of a pool would be waited for at the end of the process, so that an
        interrupted one would hang until the server has answered what it still has.
        """
        future: Future[Reply] = Future()

        def work() -> None:
            try:
                future.set_result(self._answer(call, worst, stop))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="endpoint", daemon=True).start()
        return future

    def _answer(self, call: Call, worst: float, stop: threading.Event) -> Reply:
        """Ask until there is an answer, or an error that does not pass."""
        try:
            for attempt in range(self._retries + 1):
                if not self._pace.take(stop):
                    raise _Stopped
                try:
                    reply = self._connection.send(call)
                except Passing as error:
                    problem = error
                else:
                    self._budget.answered(reply.tokens, worst)
                    return reply
                last = attempt == self._retries
                allowed = self._budget.failed(worst if problem.charged else 0.0, last=last)
                if last:
                    break
                if not allowed:
                    raise self._budget.exhausted()
                delay = backoff(attempt, self._backoff, problem.retry_after, random.random())
                if problem.retry_after:
                    self._pace.hold(delay)  # the server means all of us
                elif stop.wait(delay):
                    raise _Stopped
            raise UserError(
                f"endpoint {self.url}: no answer after {self._retries + 1} tries ({problem}); what was "
                "answered is kept: run again to go on"
            )
        finally:
            self._budget.release(worst)


class _Stopped(Exception):
    """Another request ended the run."""


def endpoint_model(reference: str, base_url: str | None, what: str) -> str | None:
    """The name at the endpoint behind a reference ``openai:NAME``; None for a model that is loaded here.

    Args:
        reference: What the user wrote.
        base_url: The endpoint that goes with it.
        what: What the model is for, for messages: ``evaluator`` or ``judge``.

    Raises:
        UserError: There is no name, or an endpoint's address with a model that is loaded here.
    """
    if not reference.strip():
        raise UserError(
            f"{what}: no model given; name one as for a sweep (smollm2, a hub id, a folder, a GGUF file), or "
            f"{PREFIX}NAME for a model behind an OpenAI-compatible endpoint"
        )
    if not reference.startswith(PREFIX):
        if base_url:
            raise UserError(
                f"{what} {reference!r}: a base_url goes with a model behind an endpoint: write "
                f"{PREFIX}{reference}, or leave the base_url out"
            )
        return None
    name = reference.removeprefix(PREFIX).strip()
    if not name:
        raise UserError(f"{what} {reference!r}: give the name that the endpoint knows after {PREFIX!r}")
    return name
