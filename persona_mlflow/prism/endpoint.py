"""Engines for judges: a model behind an OpenAI-compatible endpoint, or a local one (P2 §4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from persona_mlflow.engines.base import Completion, Decoding, Engine, Request
from persona_mlflow.prism.openai_client import ChatClient, endpoint_model
from persona_mlflow.prism.openai_connection import KEY_VARIABLE, Call, Reply
from persona_mlflow.prism.pacing import CostCapReached as CostCapReached
from persona_mlflow.prism.pacing import Prices as Prices
from persona_mlflow.prism.pacing import Usage as Usage

if TYPE_CHECKING:
    from persona_mlflow.engines.models import Loaded
    from persona_mlflow.prism.judges import TextJudge

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


def load_judge_engine(
    reference: str | Loaded,
    judge: TextJudge,
    *,
    base_url: str | None = None,
    api_key_env: str = KEY_VARIABLE,
    dtype: str = "auto",
    quantization: str = "none",
    device: str = "auto",
    revision: str | None = None,
    batch_size: int | Literal["auto"] = "auto",
    concurrency: int = 8,
    requests_per_minute: float | None = None,
    prices: Prices | None = None,
    cost_cap: float | None = None,
) -> Engine:
    """Make the engine that answers a judge's prompts, drawing as `judge_decoding` says (P2 §4).

    Args:
        reference: A model as the sweep takes it (short name, hub id, folder, GGUF file), or ``openai:NAME``
            for a model behind an endpoint; or a model from `load_local`, which an evaluator and the engines
            of several judges can share.
        judge: The judge.
        base_url: The endpoint of ``openai:NAME``; None is OpenAI's.
        api_key_env: Environment variable with the endpoint's key.
        dtype: Of a local model, as are quantization, device, revision and batch_size.
        quantization: ``none``, ``8bit`` or ``4bit``.
        device: ``auto``, or a torch device.
        revision: Branch, tag or commit on the hub.
        batch_size: Most draws at once, or ``auto``.
        concurrency: Most requests at once to an endpoint, as are the following its settings.
        requests_per_minute: Most requests a minute.
        prices: For the accounting of costs.
        cost_cap: Most that this engine may spend.

    Raises:
        UserError: No model of this name can be had, or a setting is not valid.
    """
    from persona_mlflow.prism.evaluators import load_local
    from persona_mlflow.prism.judges import judge_decoding

    decoding = judge_decoding(judge)
    if isinstance(reference, str):
        name = endpoint_model(reference, base_url, "judge")
        if name is not None:
            return OpenAIEngine(
                name,
                base_url=base_url,
                decoding=decoding,
                api_key_env=api_key_env,
                concurrency=concurrency,
                requests_per_minute=requests_per_minute,
                prices=prices,
                cost_cap=cost_cap,
            )
        reference = load_local(
            reference, dtype=dtype, quantization=quantization, device=device, revision=revision
        )
    from persona_mlflow.engines.hf import HFEngine

    return HFEngine(
        reference.model,
        reference.tokenizer,
        decoding,
        batch_size=batch_size,
        name=reference.name,
        details={"revision": reference.revision, "quantization": reference.quantization},
    )
