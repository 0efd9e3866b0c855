"""How much memory there is, and what happens when it runs out or half precision overflows."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "not enough memory")


def kv_bytes_per_token(module: Any) -> int:
    """Bytes of keys and values that one token takes in all layers."""
    text = module.config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", 1)
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(2 * text.num_hidden_layers * kv_heads * head * module.dtype.itemsize)


def free_bytes(device: Any) -> int:
    """Memory that is free on a device, in bytes."""
    import torch

    if device.type == "cuda":
        # What torch has reserved and does not use is free to it, too.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    import psutil

    return int(psutil.virtual_memory().available)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says that memory ran out."""
    import torch

    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, torch.OutOfMemoryError | MemoryError):
            return True
        text = str(current).lower()
        if isinstance(current, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY):
            return True
        current = current.__cause__ or current.__context__
    return False


def free_memory() -> None:
    """Give back what nothing refers to any more."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def in_float32(module: Any) -> Iterator[None]:
    """Hold the model's floating-point weights in float32 for a while; they come back exactly as they were."""
    import torch

    tensors = [*module.parameters(), *module.buffers()]
    narrow = [(t, t.data) for t in tensors if t.is_floating_point() and t.dtype != torch.float32]
    try:
        for tensor, data in narrow:
            tensor.data = data.float()
        yield
    finally:
        for tensor, data in narrow:
            tensor.data = data
