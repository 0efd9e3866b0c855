"""Evaluators: whatever gives the probabilities of the three labels after an inverse prompt (P2 §3, §4)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from persona_mlflow.errors import UserError
from persona_mlflow.prism.prompt import LABELS, SYSTEM, LabelPrompt

if TYPE_CHECKING:
    from openai import OpenAI

Facts = dict[str, str | int | float | bool]

VARIANTS = ("", " ")
"""What may stand between prompt and label: ``A`` or `` A``, by the model's template and tokenizer."""


@dataclass(frozen=True, slots=True)
class LabelScore:
    """What an evaluator gives for one prompt.

    Attributes:
        key: The prompt's key.
        order: The prompt's order: the state under each of `LABELS`.
        log_p: Log-probability of each of `LABELS` as the next token, before normalising over the three;
            ``-inf`` for one that an endpoint cut off.
        variant: ``A`` or `` A``: which way of writing the labels was scored, the one with more mass.
        cut_off: Labels that an endpoint's list of likely tokens did not hold.
        reason: Why the prompt has no scores; empty where it has.
    """

    key: tuple[Any, ...]
    order: tuple[str, ...]
    log_p: tuple[float, ...]
    variant: str
    cut_off: int = 0
    reason: str = ""

    @property
    def mass(self) -> float:
        """Sum of the three probabilities before normalising, in [0, 1]."""
        return math.fsum(math.exp(value) for value in self.log_p)

    def by_label(self) -> dict[tuple[Any, ...], float]:
        """Log-probability by (…key, label)."""
        return {(*self.key, label): value for label, value in zip(LABELS, self.log_p, strict=True)}

    def states(self) -> dict[str, float] | None:
        """q over the states: the softmax of the three log-scores (P2 §3); None where they are all cut off."""
        top = max(self.log_p)
        if top == -math.inf:
            return None
        weights = [math.exp(value - top) for value in self.log_p]
        total = math.fsum(weights)
        return {state: weight / total for state, weight in zip(self.order, weights, strict=True)}


def unscored(prompt: LabelPrompt, reason: str) -> LabelScore:
    """The score of a prompt that could not be scored."""
    return LabelScore(prompt.key, prompt.order, (-math.inf,) * len(LABELS), "", 0, reason)


class Evaluator(Protocol):
    """Gives label probabilities for inverse prompts."""

    def describe(self) -> Facts:
        """The effective settings, flat."""
        ...

    def identity(self) -> Facts:
        """What tells its scores from another evaluator's: model, revision, precision …"""
        ...

    def label_scores(self, groups: Iterable[Sequence[LabelPrompt]]) -> Iterator[list[LabelScore]]:
        """Score groups of prompts, yielding scores as they are ready, in any order.

        Args:
            groups: The prompts of one case each, which may share a prefix; longest first by preference.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class OpenAIEvaluator:
    """A model behind an OpenAI-compatible endpoint that returns log-probabilities.

    Only the endpoint's list of likely tokens is seen: a label that is not on it gets probability 0 and is
    counted in `LabelScore.cut_off`. Failed calls are retried with growing pauses by the client.

    Args:
        base_url: The endpoint, e.g. ``http://127.0.0.1:8080/v1``; None is OpenAI's own.
        model: The model's name there.
        api_key_env: Environment variable that holds the key. The key itself is never stored or shown.
        top_logprobs: Likely tokens to ask for, 1 to 20.
        concurrency: Calls at once.
        retries: Most retries of a call.
        timeout: Seconds that a call may take.

    Raises:
        UserError: The package `openai` or the key is missing, the endpoint cannot be reached, or it gives no
            log-probabilities; found out by one call at the start.
    """

    def __init__(
        self,
        base_url: str | None,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        top_logprobs: int = 20,
        concurrency: int = 4,
        retries: int = 5,
        timeout: float = 60.0,
    ) -> None:
        if not 1 <= top_logprobs <= 20:
            raise UserError(f"top_logprobs: {top_logprobs} is not valid: use a whole number from 1 to 20")
        if concurrency < 1:
            raise UserError(f"concurrency: {concurrency} is not valid: use a whole number from 1")
        self._model, self._top, self._concurrency = model, top_logprobs, concurrency
        self._base_url = base_url
        self._limit = "max_tokens"
        self._client = _client(base_url, api_key_env, retries, timeout)
        self._served = ""
        self._probe()

    def describe(self) -> Facts:
        """Endpoint, model asked for, model served, and settings; never the key."""
        return {
            **self.identity(),
            "served_model": self._served,
            "concurrency": self._concurrency,
        }

    def identity(self) -> Facts:
        """Endpoint (without user or password), model and length of the list of likely tokens."""
        return {
            "engine": "openai",
            "base_url": _without_secrets(self._base_url) if self._base_url else "",
            "model": self._model,
            "top_logprobs": self._top,
        }

    def label_scores(self, groups: Iterable[Sequence[LabelPrompt]]) -> Iterator[list[LabelScore]]:
        """Score prompts, some at once, group by group (see `Evaluator`).

        Raises:
            UserError: The endpoint refuses a call, or fails more often than it is retried.
        """
        from concurrent.futures import ThreadPoolExecutor

        source = iter(groups)
        pool = ThreadPoolExecutor(self._concurrency)
        try:
            while block := list(islice(source, self._concurrency)):
                yield list(pool.map(self._score, (prompt for group in block for prompt in group)))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _score(self, prompt: LabelPrompt) -> LabelScore:
        likely = self._likely(prompt.system, prompt.user)
        if likely is None:
            return unscored(prompt, "the endpoint gave no log-probabilities for this prompt")
        found = {
            variant: tuple(likely.get(variant + label, -math.inf) for label in LABELS) for variant in VARIANTS
        }
        variant, log_p = max(found.items(), key=lambda item: math.fsum(map(math.exp, item[1])))
        cut_off = sum(value == -math.inf for value in log_p)
        if cut_off == len(LABELS):
            return unscored(
                prompt, f"none of the labels {', '.join(LABELS)} is among the {len(likely)} likely tokens"
            )
        return LabelScore(prompt.key, prompt.order, log_p, variant + LABELS[0], cut_off)

    def _likely(self, system: str, user: str) -> dict[str, float] | None:
        """Log-probability by token text at the first position of the answer; None where there are none."""
        reply = self._call(system, user)
        content = reply.choices[0].logprobs.content if reply.choices and reply.choices[0].logprobs else None
        if not content:
            return None
        likely: dict[str, float] = {}
        for token in [*(content[0].top_logprobs or ()), content[0]]:
            # Two ids may decode to one text; the drawn token stands in the list, too.
            if token.token not in likely:
                likely[token.token] = min(0.0, float(token.logprob))
        return likely

    def _call(self, system: str, user: str) -> Any:
        import openai

        messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        limit: Any = {self._limit: 1}
        try:
            return self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                temperature=0.0,
                logprobs=True,
                top_logprobs=self._top,
                **limit,
            )
        except openai.BadRequestError as error:
            if self._limit == "max_tokens" and "max_completion_tokens" in str(error):
                self._limit = "max_completion_tokens"  # what newer models call it
                return self._call(system, user)
            raise self._refused(error) from None
        except openai.APIError as error:
            raise self._refused(error) from None

    def _probe(self) -> None:
        """One call at the start: is there anyone, and do they give log-probabilities? (L7)"""
        question = f"{'. '.join(LABELS)}. Answer with the letter A, B or C."
        reply = self._call(SYSTEM, question)
        self._served = str(getattr(reply, "model", "") or "")
        logprobs = reply.choices[0].logprobs if reply.choices else None
        if not (logprobs and logprobs.content and logprobs.content[0].top_logprobs):
            raise UserError(
                f"evaluator {self._model} at {self._where}: the endpoint answers without log-probabilities "
                "(logprobs, top_logprobs), and PRISM scores by them: use an endpoint or a model that gives "
                "them, or a local model as evaluator"
            )

    @property
    def _where(self) -> str:
        return _without_secrets(str(self._client.base_url)).rstrip("/")

    def _refused(self, error: Exception) -> UserError:
        import openai

        what = f"evaluator {self._model} at {self._where}"
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            # The server's own words may hold a part of the key.
            return UserError(f"{what}: the key was refused; check the environment variable that holds it")
        reason = " ".join(str(error).split())
        key = self._client.api_key
        if key:
            reason = reason.replace(key, "…")
        if "logprobs" in reason:
            return UserError(
                f"{what}: the endpoint or model refuses log-probabilities ({reason}): ask for fewer "
                "(top_logprobs), use one that gives them, or a local model as evaluator"
            )
        if isinstance(error, openai.APIConnectionError):
            return UserError(f"{what}: cannot be reached ({reason}): check the address and the network")
        return UserError(f"{what}: the call failed ({reason})")


def _client(base_url: str | None, api_key_env: str, retries: int, timeout: float) -> OpenAI:
    try:
        from openai import OpenAI
    except ImportError as error:
        raise UserError(
            "an OpenAI-compatible endpoint takes the package openai: pip install 'persona-mlflow[openai]'"
        ) from error
    key = os.environ.get(api_key_env, "").strip()
    if not key and base_url is None:
        raise UserError(f"evaluator: no API key: put it into the environment variable {api_key_env}")
    # Local servers take no key, and the client must send something.
    return OpenAI(api_key=key or "none", base_url=base_url, max_retries=retries, timeout=timeout)


def _without_secrets(url: str) -> str:
    """The address without user, password and query, which may hold a key."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))
