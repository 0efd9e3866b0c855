"""The engine behind an endpoint: any OpenAI-compatible server, one's own or a hosted one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from persona_mlflow.engines.base import Completion, Decoding, Request
from persona_mlflow.engines.openai_client import ChatClient
from persona_mlflow.engines.openai_connection import KEY_VARIABLE, Call, Reply, RequestRefused
from persona_mlflow.engines.pacing import Prices, Usage
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from persona_mlflow.spec_sections import EndpointSpec

OPENAI_URL = "https://api.openai.com/v1"
# Hosts whose interface has no top_k, and which refuse fields that they do not know.
_STRICT_HOSTS = ("api.openai.com", ".openai.azure.com")
_SEED_MASK = 0x7FFF_FFFF  # some servers take 32 bits, signed


class OpenAIEngine:
    """Draws completions from an OpenAI-compatible endpoint; an `Engine` of the sweep.

    Every request carries temperature, top_p, a limit of tokens and its draw's own seed. Whether a server
    honours a seed is its own matter, and few repeat a text to the letter.

    Args:
        model: The model's name at the endpoint.
        base_url: The endpoint, e.g. ``http://127.0.0.1:8000/v1``; None is OpenAI's.
        api_key_env: Environment variable with the key; ``OPENAI_API_KEY`` by default, which a `base_url` may
            do without.
        decoding: How to draw; by default the whole distribution, up to 1,000 tokens.
        send_top_k: Whether `Decoding.top_k` is sent where it is not 0; see `takes_top_k`. By default it is.
        extra_body: Further fields of each request, as a server of your own may take.
        check_persona: Let `check` find out whether a persona prompt reaches the model, by two requests of one
            token.
        **client: Settings of the client, see `ChatClient`: concurrency, requests_per_minute, retries,
            timeout_s, backoff_s, prices, cost_cap.

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
        api_key_env: str = KEY_VARIABLE,
        decoding: Decoding | None = None,
        send_top_k: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        check_persona: bool = False,
        **client: Any,
    ) -> None:
        self.model = model
        self.decoding = decoding or Decoding(top_k=0)
        self._client = ChatClient(model, base_url=base_url, api_key_env=api_key_env, **client)
        self.usage: Usage = self._client.usage
        self._top_k = self.decoding.top_k if send_top_k else 0
        self._extra = dict(extra_body or {})
        self._persona_check = "not yet" if check_persona else ""

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.model!r}, base_url={self._client.url!r})"

    def describe(self) -> dict[str, str | int | float | bool]:
        """The effective settings, flat; never the key. What was used so far is among them."""
        client = self._client.describe()
        return {
            "engine": "openai-compatible",
            "model": self.model,
            "base_url": self._client.url,
            "system_role": "endpoint",  # a message of its own; the server's template renders it
            "persona_check": self._persona_check or "none",
            "sampling": "the server's",
            "repeatability": "the server's own: few repeat a text to the letter, whatever the seed",
            "sent": ", ".join(["temperature", "seed", str(client["limit_field"]), *self._fields()]),
            "max_new_tokens": self.decoding.max_new_tokens,
            "top_k": self._top_k,
            "top_p": self.decoding.top_p,
            **{f"extra_body.{key}": str(value) for key, value in self._extra.items()},
            **client,
            **{f"usage.{key}": value for key, value in asdict(self.usage).items()},
        }

    def check(self, requests: Iterable[Request]) -> None:
        """Reach the server once, with the key, at no cost; and, if asked to, see that personas arrive.

        Raises:
            UserError: No server answers, it refuses the key, or it drops the system message.
        """
        self._client.check()
        if self._persona_check:
            self._persona_check = self._check_persona(requests)

    def _check_persona(self, requests: Iterable[Request]) -> str:
        """Ask with a persona prompt once and twice over: where it reaches the model, the prompt gets longer.

        Not without one: some chat templates put a default of their own in its place.

        Returns:
            What was found, for `describe`.
        """
        source = (request for request in requests if request.system.strip())
        request = next(source, None)
        if request is None:
            return "no persona prompt to check"
        longest = max(chain([request], source), key=lambda r: len(r.system) + len(r.user))
        fields = {"temperature": 0.0, **self._fields()}
        calls = [
            Call(times, "\n".join([longest.system] * times), longest.user, 1, fields) for times in (1, 2)
        ]
        try:
            replies = {r.key: r for batch in self._client.answers(calls) for r in batch}
        except RequestRefused as error:
            hint = ". Leave top_k out by engine.send_top_k: false" if "top_k" in error.detail else ""
            raise UserError(f"{error}{hint}") from error
        once, twice = (_prompt_tokens(replies[times]) for times in (1, 2))
        if not once or not twice:
            return "not possible: the server does not tell how many tokens a prompt has"
        if twice <= once:
            raise UserError(
                f"endpoint {self._client.url}: drops the system message (a prompt has {once} tokens with its "
                f"persona prompt and {twice} with that twice over): every persona would score alike. Serve "
                f"{self.model!r} with a chat template that keeps it"
            )
        return f"passed: a persona prompt has {twice - once} tokens"

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        """Complete every draw of every request, some at once.

        Yields:
            The completions that finished together, in any order.

        Raises:
            CostCapReached: The cost cap does not allow the next request.
            UserError: The endpoint refuses a request, or fails more often than it is retried. What others had
                in flight is waited for and yielded first.
        """
        for replies in self._client.answers(self._calls(requests)):
            yield [_completion(reply) for reply in replies]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _fields(self) -> dict[str, Any]:
        """What every request holds besides its draw's own temperature and seed."""
        top_k = {"top_k": self._top_k} if self._top_k else {}
        return {"top_p": float(self.decoding.top_p), **top_k, **self._extra}

    def _calls(self, requests: Sequence[Request]) -> Iterator[Call]:
        for request in requests:
            for draw in request.draws:
                sampling = {"temperature": float(draw.temperature), "seed": draw.seed & _SEED_MASK}
                fields = {**sampling, **self._fields()}
                yield Call(draw.key, request.system, request.user, self.decoding.max_new_tokens, fields)


def _completion(reply: Reply) -> Completion:
    sent, got = reply.tokens or (0, 0)
    notes = reply.notes or ("" if reply.tokens else "the server reported no tokens")
    return Completion(reply.key, reply.text, reply.finish_reason, sent, got, notes)


def _prompt_tokens(reply: Reply) -> int:
    """Prompt tokens as the server reported them; 0 where it did not, or filtered the prompt."""
    return reply.tokens[0] if reply.tokens and not reply.notes else 0


def endpoint_url(base_url: str | None) -> str:
    """The address behind a setting: itself, the one in ``OPENAI_BASE_URL``, or OpenAI's own."""
    return (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")


def takes_top_k(base_url: str | None) -> bool:
    """Whether a server may be sent top_k, which is no part of OpenAI's own interface."""
    host = urlsplit(endpoint_url(base_url)).hostname or ""
    return not any(host == known.lstrip(".") or host.endswith(known) for known in _STRICT_HOSTS)


def endpoint_settings(spec: EndpointSpec) -> dict[str, Any]:
    """The settings of a spec as `OpenAIEngine` and its like take them."""
    prices = None
    if spec.price_prompt is not None or spec.price_completion is not None:
        prices = Prices(spec.price_prompt or 0.0, spec.price_completion or 0.0)
    return {
        "base_url": spec.base_url,
        "api_key_env": spec.api_key_env,
        "concurrency": spec.concurrency,
        "requests_per_minute": spec.requests_per_minute,
        "prices": prices,
        "cost_cap": spec.cost_cap,
    }
