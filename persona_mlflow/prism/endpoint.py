"""An engine on an OpenAI-compatible server: closed models, and open ones that are served (P2 §4).

It sends chat completions with the package `openai` and answers for what can go wrong on the way: it retries
what passes, stops at once at what does not, keeps to a rate and to a cost cap, and never takes an error for
an answer. The key comes from the environment and goes nowhere but into the request.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from persona_mlflow.engines.base import Completion, Decoding, Draw, Request
from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.pacing import Pace, backoff, retry_after

if TYPE_CHECKING:
    import openai

KEY_VARIABLE = "OPENAI_API_KEY"
EXTRA = 'pip install "persona-mlflow[openai]"'

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRANSIENT = (408, 409, 425, 429)
_LONGEST_HOLD_S = 600.0
_TEMPLATE_TOKENS = 64  # of a chat template around two messages, generously
_SEED_MASK = 0x7FFF_FFFF  # some servers take 32 bits, signed
_SECRET = re.compile(r"\b(?:sk|key|gsk|hf)[-_][\w*.-]{6,}|(?i:bearer)\s+\S+")


@dataclass(frozen=True, slots=True)
class Prices:
    """What the endpoint charges, in any one currency.

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
    """What an engine has used so far.

    Attributes:
        answers: Completions received.
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


class OpenAIEngine:
    """Draws completions from an OpenAI-compatible endpoint; an `Engine` of the sweep.

    Every request carries temperature, top_p, a limit of tokens and its draw's own seed. Whether a server
    honours a seed is its own matter, and few repeat a text to the letter.

    Args:
        model: The model's name at the endpoint.
        base_url: The endpoint, e.g. ``http://127.0.0.1:8000/v1``; None is OpenAI's.
        key_variable: Environment variable with the key; ``OPENAI_API_KEY`` by default, which a `base_url` may
            do without.
        decoding: How to draw. `Decoding.top_k` is sent only where it is not 0, as OpenAI's own models refuse
            it. By default the whole distribution, up to 1,000 tokens.
        concurrency: Most requests at once.
        requests_per_minute: Most requests a minute, tries included; None is no limit.
        retries: How often a request is repeated after an error that may pass: 408, 409, 425, 429, 5xx, no
            connection, a timeout, a body that is no answer.
        timeout_s: Seconds to wait for one answer.
        backoff_s: Seconds before the first repetition; they double with each, up to a minute, with jitter. A
            server's ``Retry-After`` is kept to where it asks for more.
        prices: For the accounting of costs.
        cost_cap: Most that this engine may spend; needs `prices`. Before a request is sent, the most that it
            can cost is set aside, so the cap is not exceeded.
        extra_body: Further fields of each request, as a server of your own may take.

    Attributes:
        usage: What was used so far.

    Raises:
        UserError: The package `openai` or the key is missing, or a setting is not valid.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        key_variable: str | None = None,
        decoding: Decoding | None = None,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        retries: int = 6,
        timeout_s: float = 120.0,
        backoff_s: float = 1.0,
        prices: Prices | None = None,
        cost_cap: float | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not model:
            raise UserError("endpoint: the model's name is empty; give the name that the endpoint knows")
        if concurrency < 1 or retries < 0 or timeout_s <= 0 or backoff_s < 0:
            raise UserError("endpoint: concurrency is at least 1, retries at least 0, timeout_s above 0")
        if requests_per_minute is not None and not requests_per_minute > 0:
            raise UserError(f"endpoint: requests_per_minute must be above 0, but is {requests_per_minute}")
        if cost_cap is not None and prices is None:
            raise UserError("endpoint: a cost cap takes prices (per million prompt and completion tokens)")
        self.model = model
        self.decoding = decoding or Decoding(top_k=0)
        self.usage = Usage()
        self._concurrency, self._retries, self._backoff = concurrency, retries, backoff_s
        self._prices, self._cap = prices, cost_cap
        self._rpm = requests_per_minute
        self._pace = Pace(requests_per_minute)
        self._extra = dict(extra_body or {})
        self._limit_field = "max_tokens"
        self._reserved = 0.0
        self._lock = threading.Lock()
        self._client, self._url, self._key = _client(base_url, key_variable, timeout_s)

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.model!r}, base_url={self._url!r})"

    # ------------------------------------------------------------------------------------------ protocol

    def describe(self) -> dict[str, str | int | float | bool]:
        """The effective settings, flat; never the key."""
        import openai as package

        return {
            "engine": "openai-compatible",
            "model": self.model,
            "base_url": self._url,
            "concurrency": self._concurrency,
            "requests_per_minute": self._rpm or 0,
            "sampling": "the server's; seed sent with each request",
            "limit_field": self._limit_field,
            "max_new_tokens": self.decoding.max_new_tokens,
            "top_k": self.decoding.top_k,
            "top_p": self.decoding.top_p,
            "openai": package.__version__,
        }

    def check(self, requests: Iterable[Request]) -> None:
        """Reach the server once, with the key; asks for its list of models, which costs nothing.

        Raises:
            UserError: No server answers, or it refuses the key.
        """
        import openai as package

        try:
            self._client.models.list(timeout=10.0)
        except (package.AuthenticationError, package.PermissionDeniedError) as error:
            raise self._wrong_key(error) from None
        except package.APIConnectionError as error:
            raise self._unreachable(error) from None
        except Exception:  # a server without such a list, or with one of its own form
            return

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        """Complete every draw of every request, some at once.

        Yields:
            The completions that finished together, in any order.

        Raises:
            CostCapReached: The cost cap does not allow the next request.
            UserError: The endpoint refuses a request, or fails more often than it is retried. What others had
                in flight is waited for and yielded first.
        """
        queue = deque((request, draw) for request in requests for draw in request.draws)
        running: set[Future[Completion]] = set()
        failure: UserError | None = None
        stop = threading.Event()
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="endpoint")
        try:
            while queue or running:
                while queue and not failure and len(running) < self._concurrency:
                    worst = self._worst_cost(queue[0][0])
                    if not self._reserve(worst):
                        if not running:
                            failure = self._cap_reached(len(queue))
                        break
                    running.add(pool.submit(self._complete, *queue.popleft(), worst, stop))
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
            pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # ------------------------------------------------------------------------------------------ one request

    def _complete(self, request: Request, draw: Draw, worst: float, stop: threading.Event) -> Completion:
        """Ask until there is an answer, or an error that does not pass."""
        try:
            for attempt in range(self._retries + 1):
                if not self._pace.take(stop):
                    raise _Stopped
                try:
                    completion, cost = self._ask(request, draw, worst)
                except _Passing as error:
                    problem = error
                else:
                    with self._lock:
                        self.usage.cost += cost
                    return completion
                with self._lock:
                    self.usage.cost += worst if problem.charged else 0.0
                    # What is set aside for this request now has to pay for its repetition.
                    broke = self._cap is not None and self.usage.cost + self._reserved > self._cap
                    self.usage.retries += attempt < self._retries and not broke
                if attempt == self._retries:
                    break
                if broke:
                    raise self._cap_reached(1)
                delay = backoff(attempt, self._backoff, problem.retry_after, random.random())
                if problem.retry_after:
                    self._pace.hold(delay)  # the server means all of us
                elif stop.wait(delay):
                    raise _Stopped
            raise UserError(
                f"endpoint {self._url}: no answer after {self._retries + 1} tries ({problem}); what was "
                "answered is kept: run again to go on"
            )
        finally:
            with self._lock:
                self._reserved -= worst

    def _ask(self, request: Request, draw: Draw, worst: float) -> tuple[Completion, float]:
        """One try.

        Returns:
            The completion and its cost.

        Raises:
            _Passing: It may work later.
            UserError: It will not.
        """
        import openai as package

        messages: list[Any] = (
            [{"role": "system", "content": request.system}] if request.system.strip() else []
        )
        messages.append({"role": "user", "content": request.user})
        limit_field = self._limit_field
        top_k = {"top_k": self.decoding.top_k} if self.decoding.top_k else {}
        try:
            reply = self._client.chat.completions.create(
                model=self.model,
                messages=messages,
                temperature=float(draw.temperature),
                top_p=float(self.decoding.top_p),
                seed=draw.seed & _SEED_MASK,
                stream=False,
                extra_body={limit_field: self.decoding.max_new_tokens, **top_k, **self._extra},
            )
        except package.APITimeoutError:
            raise _Passing("timeout", charged=True) from None
        except package.APIConnectionError as error:
            raise _Passing(f"no connection: {_reason(error)}") from None
        except package.APIStatusError as error:
            completion = self._refused(error, draw, limit_field)
            return completion, 0.0
        except (package.APIResponseValidationError, ValueError) as error:
            raise _Passing(f"a body that is no JSON: {_reason(error)[:80]}", charged=True) from None
        return self._accept(reply, draw, worst)

    def _accept(self, reply: Any, draw: Draw, worst: float) -> tuple[Completion, float]:
        """Take a body for an answer only if it is one."""
        try:
            choice = reply.choices[0]
            finish, message = choice.finish_reason, choice.message
            text = message.content or getattr(message, "refusal", None) or ""
        except (AttributeError, TypeError, IndexError):
            raise _Passing("a body without an answer", charged=True) from None
        if not isinstance(text, str) or finish not in ("stop", "length", "content_filter"):
            raise _Passing(f"an answer that ended with {finish!r}", charged=True)
        tokens = getattr(reply, "usage", None)
        prompt_tokens = getattr(tokens, "prompt_tokens", None)
        completion_tokens = getattr(tokens, "completion_tokens", None)
        reported = isinstance(prompt_tokens, int) and isinstance(completion_tokens, int)
        sent, got = (int(prompt_tokens or 0), int(completion_tokens or 0)) if reported else (0, 0)
        with self._lock:
            self.usage.answers += 1
            self.usage.prompt_tokens += sent
            self.usage.completion_tokens += got
            self.usage.unreported += not reported
        cost = worst if not reported else self._prices.cost(sent, got) if self._prices else 0.0
        end: Literal["stop", "length"] = "length" if finish == "length" else "stop"
        notes = "content_filter" if finish == "content_filter" else ""
        return Completion(draw.key, text, end, sent, got, notes), cost

    def _refused(self, error: openai.APIStatusError, draw: Draw, limit_field: str) -> Completion:
        """What an error status means: try later, give up, or a prompt that is filtered."""
        status, code = error.status_code, str(getattr(error, "code", "") or "")
        reason = self._scrub(_reason(error))
        where = f"endpoint {self._url}"
        if status in (401, 403):
            raise self._wrong_key(error)
        if code == "insufficient_quota" or status == 402:
            raise UserError(f"{where}: the account's quota is used up ({reason}); mend that and run again")
        if status in _TRANSIENT or (status >= 500 and status != 501):
            after = retry_after(error.response.headers)
            if after is not None and after > _LONGEST_HOLD_S:
                raise UserError(f"{where}: asks to wait {after:.0f} s ({reason}); run again then")
            raise _Passing(f"status {status}: {reason}", retry_after=after)
        if code == "content_filter":
            return Completion(draw.key, "", "stop", 0, 0, "content_filter")
        if "max_completion_tokens" in reason and limit_field == "max_tokens":
            self._limit_field = "max_completion_tokens"
            raise _Passing("the limit of tokens goes by another name")
        if status == 404 or "model" in code:
            raise self._unknown_model(status, reason)
        raise UserError(f"{where}: refuses the request for {self.model!r} (status {status}: {reason})")

    # ------------------------------------------------------------------------------------------ cost

    def _worst_cost(self, request: Request) -> float:
        """The most that one answer can cost; no tokenizer makes more tokens than there are bytes."""
        if self._prices is None:
            return 0.0
        prompt = len(request.system.encode()) + len(request.user.encode()) + _TEMPLATE_TOKENS
        return self._prices.cost(prompt, self.decoding.max_new_tokens)

    def _reserve(self, worst: float) -> bool:
        with self._lock:
            if self._cap is not None and self.usage.cost + self._reserved + worst > self._cap:
                return False
            self._reserved += worst
            return True

    def _cap_reached(self, left: int) -> CostCapReached:
        return CostCapReached(
            f"cost cap: {self.usage.cost:.4f} of {self._cap:.4f} is spent and the next request could exceed "
            f"it (at least {left} left). What was answered is kept: raise the cap and run again to go on"
        )

    # ------------------------------------------------------------------------------------------ messages

    def _scrub(self, text: str) -> str:
        """Take anything that may be a key out of a server's message."""
        return _SECRET.sub("…", text.replace(self._key, "…") if self._key else text)

    def _wrong_key(self, error: openai.APIStatusError) -> UserError:
        # Not the server's own words: some repeat the key in them.
        return UserError(
            f"endpoint {self._url}: refuses the key (status {error.status_code}): put a valid one into the "
            "environment variable for it"
        )

    def _unreachable(self, error: Exception) -> UserError:
        return UserError(
            f"endpoint {self._url}: no server answers ({self._scrub(_reason(error))}); check base_url, and "
            "that the server runs"
        )

    def _unknown_model(self, status: int, reason: str) -> UserError:
        try:
            names = [str(model.id) for model in self._client.models.list(timeout=10.0).data][:200]
        except Exception:  # no such list
            names = []
        hint = f"; {choices(self.model, names)}" if 0 < len(names) <= 50 else "; check the name and base_url"
        return UserError(
            f"endpoint {self._url}: has no model {self.model!r} (status {status}: {reason}){hint}"
        )


class _Passing(Exception):
    """A try failed, and the next may not."""

    def __init__(self, what: str, *, retry_after: float | None = None, charged: bool = False) -> None:
        super().__init__(what)
        self.retry_after = retry_after
        self.charged = charged


class _Stopped(Exception):
    """Another request ended the run."""


def _client(
    base_url: str | None, key_variable: str | None, timeout_s: float
) -> tuple[openai.OpenAI, str, str]:
    """The client, the endpoint's address for messages, and the key."""
    try:
        import openai as package
    except ImportError as error:
        raise UserError(f"an OpenAI-compatible endpoint takes the package openai: {EXTRA}") from error
    variable = key_variable or KEY_VARIABLE
    key = os.environ.get(variable, "").strip()
    if not key and (key_variable or not base_url):
        raise UserError(
            f"endpoint {base_url or 'OpenAI'}: the environment variable {variable} with its key is not set"
        )
    kwargs: dict[str, Any] = {}
    if base_url is not None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"endpoint {base_url!r}: is no address; write it like http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise UserError("endpoint: the address holds a name or password; give the key by the environment")
        if parts.hostname in _LOOPBACK:
            # A proxy in the environment is not for this machine.
            kwargs["http_client"] = package.DefaultHttpxClient(trust_env=False)
    client = package.OpenAI(
        api_key=key or "none", base_url=base_url, max_retries=0, timeout=timeout_s, **kwargs
    )
    return client, str(client.base_url).rstrip("/"), key


def _reason(error: BaseException) -> str:
    """The first line of an error's message, its cause's where that says more."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        detail = body.get("message") or body.get("detail") or body.get("error")
        if isinstance(detail, str) and detail:
            return detail.splitlines()[0][:300]
    cause = error.__cause__
    text = str(cause if cause is not None and str(cause) else error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
