"""The sections of an experiment's specification: decoding, engine, PRISM, and the user's catalogue files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


# YAML's `yes` and `on` are booleans, and Python's booleans are whole numbers.
Whole = Annotated[int, BeforeValidator(_no_bool)]


class Section(BaseModel):
    """A mapping in a spec: it knows its keys, and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DecodingSpec(Section):
    """How every completion is drawn (P1 §4). Temperature is a factor, not a part of this."""

    max_new_tokens: Whole = Field(default=1000, ge=1, le=1_000_000)
    top_k: Whole = Field(default=50, ge=0, le=1_000_000)
    top_p: float = Field(default=1.0, gt=0, le=1)


class LocalEngineSpec(Section):
    """Where and how a model runs here. Of all this, dtype and quantization alone change answers.

    Attributes:
        batch_size: Rows decoded together, or ``auto``.
        dtype: ``auto`` is bfloat16 on GPUs that have it and float32 on CPU.
        quantization: Load the weights in 4 or 8 bit through bitsandbytes.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` …
        deterministic: One fixed batch size and float32, so that arithmetic never depends on the batch.
    """

    batch_size: Whole | Literal["auto"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["none", "8bit", "4bit"] = "none"
    device: str = "auto"
    deterministic: bool = False

    @field_validator("batch_size")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= 65_536:
            raise ValueError("must be a whole number from 1 to 65,536, or auto")
        return value


def _without_secrets(value: str) -> str:
    # The address is logged.
    parts = urlsplit(value)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must hold no user and no password, and no query: put the key into the environment variable"
        )
    return value


# An endpoint's address.
Url = Annotated[str, AfterValidator(_without_secrets)]


class EndpointSpec(Section):
    """An OpenAI-compatible endpoint, and how fast and at what cost to use it.

    Attributes:
        base_url: Its address; OpenAI's own by default.
        api_key_env: The environment variable that holds the key.
        concurrency: Most requests at once.
        requests_per_minute: Most requests a minute; no limit by default.
        price_prompt: Per million prompt tokens, in any one currency.
        price_completion: Per million completion tokens.
        cost_cap: Most that one call may spend; needs the prices.
    """

    base_url: Url | None = None
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)
    concurrency: Whole = Field(default=8, ge=1, le=1000)
    requests_per_minute: float | None = Field(default=None, gt=0)
    price_prompt: float | None = Field(default=None, ge=0)
    price_completion: float | None = Field(default=None, ge=0)
    cost_cap: float | None = Field(default=None, gt=0)


class EngineSpec(LocalEngineSpec, EndpointSpec):
    """What answers: a model that is loaded here, or one behind an endpoint.

    Attributes:
        kind: ``transformers`` loads the model; ``openai`` asks an OpenAI-compatible server for it. The keys
            of the other kind are refused.
        extra_body: Further fields of each request, as a server of one's own may take. They are logged.
        send_top_k: Whether ``decoding.top_k`` is sent, which is no part of OpenAI's interface; by default to
            every server but OpenAI's own, which refuses it.
        timeout_s: Seconds to wait for one answer.
    """

    kind: Literal["transformers", "openai"] = "transformers"
    extra_body: dict[str, Any] = {}
    send_top_k: bool | None = None
    timeout_s: float = Field(default=600.0, gt=0)

    @field_validator("extra_body")
    @classmethod
    def _json_and_new(cls, value: dict[str, Any]) -> dict[str, Any]:
        own = set(value) & SENT_FIELDS
        if own:
            raise ValueError(f"must not hold {', '.join(sorted(own))}: the experiment itself decides that")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError("must hold values that JSON knows") from error
        return value

    @property
    def is_endpoint(self) -> bool:
        """Whether the model is behind an endpoint."""
        return self.kind == "openai"


SENT_FIELDS = frozenset(
    {
        *("model", "messages", "stream", "n", "max_tokens", "max_completion_tokens"),
        *("temperature", "top_p", "top_k", "seed"),
    }
)
"""What a sweep's request holds anyway, out of the spec and the draw."""


class PrismSpec(Section):
    """Whether and how PRISM scores the generations (P2 §3). None of it shapes an answer.

    Attributes:
        evaluator: A model as `ExperimentSpec.model`, or ``openai:NAME`` behind an OpenAI-compatible endpoint;
            without one, nothing is scored.
        sample: Questions that are scored in each run, the same in all; 0 or ``all`` for every question.
        layout: Context and response before the described states, or after them.
        seed: Seed of the sample and of the order of the labels; the experiment's by default.
        tpf: The task prompt formats that ask for an explanation; only their runs are scored.
        base_url: The endpoint's address; OpenAI's own by default.
        api_key_env: The environment variable that holds the endpoint's key.
    """

    evaluator: str | None = Field(default=None, min_length=1)
    sample: Whole | Literal["all"] = 20
    layout: Literal["labels-last", "labels-first"] = "labels-last"
    seed: Whole | None = Field(default=None, ge=0, lt=2**63)
    tpf: list[str] = Field(default=["explain", "explain-persona"], min_length=1)
    base_url: Url | None = None
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)

    @field_validator("sample")
    @classmethod
    def _not_negative(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 0 <= value < 2**31:
            raise ValueError("must be a whole number from 0, or all")
        return value


class CatalogueFiles(Section):
    """The user's own catalogue files; a relative path is looked up beside the spec, then from here."""

    personas: Path | None = None
    prompts: Path | None = None
    models: Path | None = None
    categories: Path | None = None
