"""Which weights a model name stands for, found out without loading them.

The ledger keeps draws of different weights apart by this identity, so a finished experiment is recognised
without a model, and a folder whose files have changed is another model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from persona_mlflow.engines import gguf
from persona_mlflow.errors import UserError, choices


def identify(reference: str, revision: str | None = None, known: Iterable[str] = ()) -> str:
    """Identify a model's weights.

    Args:
        reference: Hub id, local folder, GGUF file, or ``smollm2``.
        revision: Branch, tag or commit on the hub.
        known: The short names that a message may suggest.

    Returns:
        ``sha256:…`` of a GGUF file, ``files:…`` over a folder's files, or the hub's commit.

    Raises:
        UserError: There is no such model here, and the hub does not give it.
    """
    path = local_path(reference)
    if path is None:
        return _hub_commit(reference, revision, known)
    if revision:
        raise UserError(f"revision {revision!r}: model {reference!r} is a local file; leave the revision out")
    return f"sha256:{gguf.file_hash(path)}" if path.is_file() else f"files:{folder_hash(path)}"


def local_path(reference: str) -> Path | None:
    """The GGUF file or the folder behind a reference; None for a hub id.

    Raises:
        UserError: It names a path, and there is no model.
    """
    path = gguf.embedded_model() if reference == gguf.EMBEDDED else Path(reference).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise UserError(f"model {reference!r}: there is no such GGUF file")
        return path
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"model {reference!r}: the folder holds no config.json; name a folder that save_pretrained "
                "wrote, a GGUF file or a hub id"
            )
        return path
    if path.is_absolute() or reference.startswith((".", "~")):
        raise UserError(f"model {reference!r}: there is no such folder or GGUF file")
    return None


def folder_hash(folder: Path) -> str:
    """Hash a folder's files: small ones whole, large ones by size, first and last mebibyte."""
    edge = 1 << 20
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(edge))
            if size > edge:
                file.seek(max(edge, size - edge))
                digest.update(file.read())
    return digest.hexdigest()


def _hub_commit(reference: str, revision: str | None, known: Iterable[str]) -> str:
    from huggingface_hub import hf_hub_download

    try:
        config = Path(hf_hub_download(reference, "config.json", revision=revision))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"model {reference!r}: {choices(reference, known)}; or name a local folder, a GGUF file or a hub "
            f"id. The hub did not give it ({reason}): check the name, the network and, for a gated model, "
            "`hf auth login`"
        ) from error
    # …/snapshots/<commit>/config.json
    return config.parent.name
