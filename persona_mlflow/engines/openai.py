"""The engine behind an endpoint: any OpenAI-compatible server, one's own or a hosted one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from persona_mlflow.engines.base import Completion, Decoding, Request
from persona_mlflow.engines.openai_client import ChatClient
from persona_mlflow.engines.openai_connection import KEY_VARIABLE, Call, Reply
from persona_mlflow.engines.pacing import Usage

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
        decoding: How to draw. `Decoding.top_k` is sent only where it is not 0, as OpenAI's own models refuse
            it. By default the whole distribution, up to 1,000 tokens.
        extra_body: Further fields of each request, as a server of your own may take.
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
        extra_body: Mapping[str, Any] | None = None,
        **client: Any,
    ) -> None:
        self.model = model
        self.decoding = decoding or Decoding(top_k=0)
        self._client = ChatClient(model, base_url=base_url, api_key_env=api_key_env, **client)
        self.usage: Usage = self._client.usage
        top_k = {"top_k": self.decoding.top_k} if self.decoding.top_k else {}
        self._fields = {"top_p": float(self.decoding.top_p), **top_k, **(extra_body or {})}

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.model!r}, base_url={self._client.url!r})"

    def describe(self) -> dict[str, str | int | float | bool]:
        """The effective settings, flat; never the key."""
        return {
            "engine": "openai-compatible",
            "model": self.model,
            "base_url": self._client.url,
            "sampling": "the server's; seed sent with each request",
            "max_new_tokens": self.decoding.max_new_tokens,
            "top_k": self.decoding.top_k,
            "top_p": self.decoding.top_p,
            **self._client.describe(),
        }

    def check(self, requests: Iterable[Request]) -> None:
        """Reach the server once, with the key, at no cost.

        Raises:
            UserError: No server answers, or it refuses the key.
        """
        self._client.check()

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

    def _calls(self, requests: Sequence[Request]) -> Iterator[Call]:
        for request in requests:
            for draw in request.draws:
                sampling = {"temperature": float(draw.temperature), "seed": draw.seed & _SEED_MASK}
                fields = {**sampling, **self._fields}
                yield Call(draw.key, request.system, request.user, self.decoding.max_new_tokens, fields)


def _completion(reply: Reply) -> Completion:
    sent, got = reply.tokens or (0, 0)
    return Completion(reply.key, reply.text, reply.finish_reason, sent, got, reply.notes)
