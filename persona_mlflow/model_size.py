"""How large a model is, found out without loading it: its weights, and the memory that its rows take."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from persona_mlflow.engines import gguf
from persona_mlflow.engines.identity import local_path
from persona_mlflow.errors import UserError

# Parameters, layers, key-value heads and the size of a head, as the models' cards and configurations say.
_KNOWN: Mapping[str, tuple[float, int, int, int]] = {
    gguf.EMBEDDED: (134.515e6, 30, 3, 64),
    "meta-llama/Llama-3.2-1B-Instruct": (1.236e9, 16, 8, 64),
    "meta-llama/Llama-3.1-8B-Instruct": (8.030e9, 32, 8, 128),
    "Qwen/Qwen2.5-1.5B-Instruct": (1.544e9, 28, 2, 128),
    "Qwen/Qwen2.5-7B-Instruct": (7.616e9, 28, 4, 128),
    "Qwen/Qwen2.5-14B-Instruct": (14.770e9, 48, 8, 128),
    "mistralai/Mistral-7B-Instruct-v0.3": (7.248e9, 32, 8, 128),
}
# Bits per weight of common GGUF kinds, scales included.
_GGUF_BITS = {
    "Q2": 2.6,
    "Q3": 3.9,
    "Q4": 4.8,
    "Q5": 5.7,
    "Q6": 6.6,
    "Q8": 8.5,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
}
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_QUANTIZED = {"8bit": 1.0, "4bit": 0.56}  # with the scales of 4-bit blocks


@dataclass(frozen=True)
class ModelSize:
    """What is known of a model's size.

    Attributes:
        parameters: How many weights it has.
        kv_values: Numbers that one token's keys and values have in all layers; None where nobody says.
        source: Where this stands.
    """

    parameters: float
    kv_values: int | None
    source: str

    def weight_bytes(self, dtype: str, quantization: str = "none") -> float:
        """Bytes of the weights as they are loaded; embeddings are counted as the rest."""
        return self.parameters * _QUANTIZED.get(quantization, _BYTES[dtype])

    def row_bytes(self, tokens: float, dtype: str) -> float | None:
        """Bytes of the keys and values of one row of so many tokens."""
        return None if self.kv_values is None else self.kv_values * tokens * _BYTES[dtype]


def find_size(reference: str) -> ModelSize | None:
    """Find out how large a model is, from its own files or from what is known of it.

    Args:
        reference: Hub id, local folder, GGUF file, or ``smollm2``.

    Returns:
        None where there is nothing to tell it from.
    """
    folder = model_folder(reference)
    if folder is not None:
        parameters = _stored_parameters(folder)
        if parameters:
            return ModelSize(parameters, _kv_values(folder / "config.json"), "its weight files")
    if reference in _KNOWN:
        known, layers, heads, head = _KNOWN[reference]
        return ModelSize(known, 2 * layers * heads * head, "its model card")
    path = _path(reference)
    if path is not None and path.is_file():
        kind = re.search(r"\b(Q\d|BF16|F16|F32)", path.stem.upper().replace("-", " ").replace(".", " "))
        if kind:
            bits = _GGUF_BITS.get(kind.group(1), 4.8)
            return ModelSize(
                path.stat().st_size * 8 / bits, None, f"its file's size at {bits:g} bits a weight"
            )
    return None


def model_folder(reference: str) -> Path | None:
    """The folder with a model's files, if it is on this machine; nothing is fetched or converted."""
    path = _path(reference)
    if path is None:
        from huggingface_hub import try_to_load_from_cache

        try:
            config = try_to_load_from_cache(reference, "config.json")
        except ValueError:  # no hub id
            return None
        return Path(config).parent if isinstance(config, str) else None
    if path.is_dir():
        return path
    folder = gguf.converted_folder(path, gguf.file_hash(path))
    return folder if folder.is_dir() else None


def _path(reference: str) -> Path | None:
    try:
        return local_path(reference)
    except UserError:
        return None


def _stored_parameters(folder: Path) -> int:
    """Count the weights that the headers of a folder's safetensors files list."""
    total = 0
    try:
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            total += sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, struct.error):
        return 0
    return total


def _kv_values(config: Path) -> int | None:
    try:
        content: dict[str, Any] = json.loads(config.read_text())
        content = content.get("text_config") or content
        heads = content["num_attention_heads"]
        kv_heads = content.get("num_key_value_heads") or heads
        head = content.get("head_dim") or content["hidden_size"] // heads
        return int(2 * content["num_hidden_layers"] * kv_heads * head)
    except (OSError, ValueError, KeyError, TypeError):
        return None
