"""What a loaded model says of itself."""

from __future__ import annotations

from typing import Any

from persona_mlflow.prompting import PromptRenderer


def context_length(config: Any) -> int | None:
    """Most tokens that prompt and completion may have together; `None` where the model names no limit."""
    text = config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def end_of_turn_ids(model: Any, tokenizer: Any, renderer: PromptRenderer) -> frozenset[int]:
    """All tokens that end a turn: the generation config's, the tokenizer's and the chat template's."""
    ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for value in (
        getattr(generation, "eos_token_id", None),
        model.config.eos_token_id,
        tokenizer.eos_token_id,
    ):
        if value is not None:
            ids.update(value if isinstance(value, list | tuple) else [value])
    end = renderer.end_of_turn
    if end is not None:
        ids.add(end)
    return frozenset(int(i) for i in ids)


def device_name(device: Any) -> str:
    """Name of the GPU, or the processor's architecture."""
    import platform

    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
