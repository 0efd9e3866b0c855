"""When a request may go to a server: an even pace, waiting as asked, backing off, within a cost cap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from persona_mlflow.errors import UserError

LONGEST_BACKOFF_S = 60.0


class Pace:
    """Spaces requests evenly, and holds all of them back where a server asks for it.

    Args:
        per_minute: Most requests a minute; None is no limit.
        clock: Gives seconds that only grow.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._next = 0.0
        self._held = 0.0
        self._lock = threading.Lock()

    def delay(self) -> float:
        """Take the next place; returns the seconds until it."""
        with self._lock:
            now = self._clock()
            place = max(now, self._next, self._held)
            self._next = place + self._gap
            return place - now

    def hold(self, seconds: float) -> None:
        """Let nothing pass for so many seconds from now."""
        with self._lock:
            self._held = max(self._held, self._clock() + seconds)

    def take(self, stop: threading.Event) -> bool:
        """Wait for a place; False where `stop` was set meanwhile."""
        delay = self.delay()
        while delay > 0:
            if stop.wait(delay):
                return False
            with self._lock:  # a hold may have come up
                delay = self._held - self._clock()
        return not stop.is_set()


def backoff(attempt: int, base: float, asked: float | None, chance: float) -> float:
    """Seconds to wait before a repetition.

    Args:
        attempt: How many tries failed before this one.
        base: Seconds after the first.
        asked: What the server's ``Retry-After`` asks for.
        chance: Uniform in [0, 1): the jitter, which takes off up to half.

    Returns:
        At least what the server asks for.
    """
    delay = min(base * 2.0**attempt, LONGEST_BACKOFF_S) * (1.0 - chance / 2.0)
    return max(delay, asked or 0.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that headers ask to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date."""
    try:
        if (value := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(value) / 1000)
        if (value := headers.get("retry-after")) is None:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Prices:
    """What an endpoint charges, in any one currency.

    Attributes:
        prompt: Per million prompt tokens.
        completion: Per million completion tokens.
    """

    prompt: float
    completion: float

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of so many tokens."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass(slots=True)
class Usage:
    """What was used of an endpoint so far.

    Attributes:
        answers: Answers received.
        retries: Tries that failed and were repeated.
        prompt_tokens: Prompt tokens that the server reported.
        completion_tokens: Completion tokens that the server reported.
        unreported: Answers for which the server reported no tokens.
        cost: By the given prices. An answer without reported tokens, and a failed try that may have been
            charged (a timeout, a broken body), count with the most that they can have cost.
    """

    answers: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unreported: int = 0
    cost: float = 0.0


class CostCapReached(UserError):
    """The next request could exceed the cost cap; all that was asked before is answered."""


class Budget:
    """Accounts for what is used, and sets the most that a request can cost aside before it is sent.

    Args:
        prices: For the accounting of costs.
        cap: Most that may be spent; needs `prices`.

    Attributes:
        usage: What was used so far.
        prices: As given.

    Raises:
        UserError: A cap without prices.
    """

    def __init__(self, prices: Prices | None, cap: float | None) -> None:
        if cap is not None and prices is None:
            raise UserError("endpoint: a cost cap takes prices (per million prompt and completion tokens)")
        self.usage = Usage()
        self.prices = prices
        self._cap = cap
        self._reserved = 0.0
        self._lock = threading.Lock()

    def reserve(self, worst: float) -> bool:
        """Set aside what a request may cost; False where the cap does not allow it."""
        with self._lock:
            if self._cap is not None and self.usage.cost + self._reserved + worst > self._cap:
                return False
            self._reserved += worst
            return True

    def release(self, worst: float) -> None:
        """Give back what was set aside."""
        with self._lock:
            self._reserved -= worst

    def answered(self, tokens: tuple[int, int] | None, worst: float) -> None:
        """Account for an answer.

        Args:
            tokens: Prompt and completion tokens; None where the server reported none.
            worst: What was set aside for it.
        """
        sent, got = tokens or (0, 0)
        with self._lock:
            self.usage.answers += 1
            self.usage.prompt_tokens += sent
            self.usage.completion_tokens += got
            self.usage.unreported += tokens is None
            self.usage.cost += (
                worst if tokens is None else self.prices.cost(sent, got) if self.prices else 0.0
            )

    def failed(self, charged: float, *, last: bool) -> bool:
        """Account for a try that failed.

        Args:
            charged: What it may have cost.
            last: Whether it is not repeated anyway.

        Returns:
            Whether the cap still allows its repetition, which what was set aside for it has to pay.
        """
        with self._lock:
            self.usage.cost += charged
            allowed = self._cap is None or self.usage.cost + self._reserved <= self._cap
            self.usage.retries += allowed and not last
            return allowed

    def exhausted(self) -> CostCapReached:
        """The error to stop with."""
        return CostCapReached(
            f"cost cap: {self.usage.cost:.4f} of {self._cap:.4f} is spent and the next request could exceed "
            "it. What was answered is kept: raise the cap and run again to go on"
        )
