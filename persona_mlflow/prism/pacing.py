"""When to send the next request to a server: an even pace, waiting as asked, backing off after errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

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
