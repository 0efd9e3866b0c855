"""Loading a causal chat model: hub id, local folder, GGUF file, or the embedded one."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.engines import gguf
from persona_mlflow.engines.identity import folder_hash, local_path
from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "8bit", "4bit")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run.

    Attributes:
        model: The model, in evaluation mode, on its device.
        tokenizer: Its tokenizer, padding on the left.
        name: What the user asked for.
        revision: What was loaded: the hub's commit, the GGUF file's SHA-256, or a hash over a folder's files.
        dtype: Of the weights that are not quantised, e.g. ``bfloat16``.
        quantization: ``none``, ``8bit`` or ``4bit``.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str
    dtype: str
    quantization: str


def load_model(
    reference: str,
    *,
    dtype: str = "auto",
    quantization: str = "none",
    device: str = "auto",
    revision: str | None = None,
) -> Loaded:
    """Load a model and its tokenizer.

    Args:
        reference: Hub id, local folder, GGUF file, or ``smollm2``.
        dtype: ``auto`` (bfloat16 on a GPU that has it, float16 on one that has not, float32 on the CPU),
            ``float32``, ``bfloat16`` or ``float16``.
        quantization: ``none``, ``8bit`` or ``4bit`` (bitsandbytes).
        device: ``auto``, or a torch device such as ``cpu`` or ``cuda:1``. ``auto`` is the device that
            Accelerate gives this process, or all GPUs where several are visible to a single process.
        revision: Branch, tag or commit on the hub.

    Returns:
        The loaded model.

    Raises:
        UserError: There is no such model, it cannot be reached, or the settings do not fit it.
    """
    _require("dtype", dtype, DTYPES)
    _require("quantization", quantization, QUANTIZATIONS)
    if quantization != "none" and importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            f"quantization {quantization!r} takes the package bitsandbytes: pip install bitsandbytes"
        )
    with quiet_transformers():
        source, found = _locate(reference)
        target = _device(device)
        torch_dtype = _dtype(dtype, target)
        kwargs: dict[str, Any] = {
            "dtype": torch_dtype,
            **_placement(target, device, quantization, torch_dtype),
        }
        pin = {"revision": revision} if revision else {}
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", **pin)
            model = AutoModelForCausalLM.from_pretrained(source, **kwargs, **pin)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise _cannot_load(reference, source, error) from error
        # Without tokenizer files transformers makes up an empty tokenizer.
        embedding: Any = model.get_input_embeddings()
        ids = tokenizer("The answer is (A).")["input_ids"]
        if not 0 < max(ids, default=-1) < embedding.weight.shape[0]:
            raise UserError(
                f"model {reference!r}: its tokenizer is missing or another model's; put the tokenizer's "
                "files (tokenizer.json, tokenizer_config.json) beside the weights"
            )
        if "device_map" not in kwargs:
            model.to(device=target)  # type: ignore[call-arg]
    return Loaded(
        model=model.eval(),
        tokenizer=tokenizer,
        name=reference,
        revision=found or getattr(model.config, "_commit_hash", None) or revision or "unknown",
        dtype=str(torch_dtype).removeprefix("torch."),
        quantization=quantization,
    )


def _require(key: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UserError(f"{key}: {value!r} is not valid: {choices(value, valid)}")


def _locate(reference: str) -> tuple[str, str | None]:
    """Give what ``from_pretrained`` takes, and the revision where the files themselves define it."""
    path = local_path(reference)
    if path is None:
        return reference, None
    if path.is_dir():
        return str(path), f"files:{folder_hash(path)}"
    digest = gguf.file_hash(path)
    return str(gguf.converted(path, digest)), f"sha256:{digest}"


def _device(device: str) -> torch.device:
    import torch

    if device == "auto":
        from accelerate import PartialState

        return torch.device(PartialState().device)
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device: {device!r} is not a device: use auto, cpu, cuda or cuda:1") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device: {device!r} is not there: torch sees {torch.cuda.device_count()} GPUs; use auto"
        )
    return target


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    import torch

    if dtype != "auto":
        value = getattr(torch, dtype)
        assert isinstance(value, torch.dtype)
        return value
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.float32


def _placement(target: torch.device, device: str, quantization: str, dtype: torch.dtype) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` that place and quantise the weights."""
    import torch

    placement: dict[str, Any] = {}
    if quantization != "none":
        from transformers import BitsAndBytesConfig

        placement["quantization_config"] = (
            BitsAndBytesConfig(load_in_8bit=True)
            if quantization == "8bit"
            else BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
            )
        )
        placement["device_map"] = {"": target}
    if device == "auto" and target.type == "cuda" and torch.cuda.device_count() > 1:
        from accelerate import PartialState

        if PartialState().num_processes == 1:
            placement["device_map"] = "auto"
    return placement


def _cannot_load(reference: str, source: str, error: Exception) -> UserError:
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else repr(error)
    if Path(source).is_dir():
        return UserError(f"model {reference!r}: cannot be loaded as a causal language model: {reason}")
    return UserError(
        f"model {reference!r}: no local folder or GGUF file of this name, and the hub did not give it "
        f"({reason}): check the name, the network and, for a gated model, `hf auth login`; "
        f"{gguf.EMBEDDED!r} needs no network"
    )


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars, notices and warnings off the terminal."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
