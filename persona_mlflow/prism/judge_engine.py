"""The engine that answers a judge's prompts: a model behind an endpoint, or a local one (P2 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from persona_mlflow.engines.base import Engine
from persona_mlflow.engines.openai import OpenAIEngine
from persona_mlflow.engines.openai_client import endpoint_model
from persona_mlflow.engines.openai_connection import KEY_VARIABLE
from persona_mlflow.engines.pacing import Prices

if TYPE_CHECKING:
    from persona_mlflow.engines.models import Loaded
    from persona_mlflow.prism.judges import TextJudge


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
