"""Where benchmark data come from: a file, a folder, a hub cache, or the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from persona_mlflow.errors import UserError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Published:
    """How a data set is published.

    Attributes:
        what: Its name, for messages.
        hub: Its id on the Hugging Face hub, or ``None``.
        file: The name of its file.
        suffixes: Suffixes of files that are read, the dot included.
        get: How to get it by hand, for messages.
    """

    what: str
    hub: str | None
    file: str
    suffixes: tuple[str, ...]
    get: str


def find(data: str | Path | None, published: Published) -> tuple[Path, str]:
    """Find the file of a data set.

    Args:
        data: A file, a folder, a hub id, or ``None`` for the published one.
        published: What is looked for.

    Returns:
        The file, and where it came from: the path as given, or the hub id with its commit.

    Raises:
        UserError: It is not there, or a folder holds several files that may be it.
    """
    if data is None:
        if published.hub is None:
            raise UserError(f"{published.what}: no data given; {published.get}")
        data = published.hub
    path = Path(data).expanduser()
    if path.is_file():
        if path.suffix.lower() not in published.suffixes:
            raise UserError(f"{path}: {published.what} is read from a {' or '.join(published.suffixes)} file")
        return path, str(data)
    if path.is_dir():
        return _in_folder(path, published), str(data)
    if isinstance(data, str) and _HUB_ID.fullmatch(data) and not path.suffix:
        folder = _fetch(data, published)
        return _in_folder(folder, published), f"{data}@{folder.name}"
    raise UserError(
        f"{published.what}: no file or folder {str(data)!r} (looked from {Path.cwd()}); {published.get}"
    )


def _in_folder(folder: Path, published: Published) -> Path:
    """The published file in a folder or below it; else the only file with a right suffix."""
    named = sorted(folder.rglob(published.file))
    if named:
        return named[0]
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in published.suffixes and p.is_file())
    if len(found) == 1:
        return found[0]
    listed = ", ".join(p.name for p in found[:5]) or f"no {' or '.join(published.suffixes)} file"
    raise UserError(
        f"{published.what}: {folder} has no {published.file}, but {listed}; name the file itself"
        if found
        else f"{published.what}: {folder} has {listed}; {published.get}"
    )


def _fetch(repo_id: str, published: Published) -> Path:
    """Download a data set, or find it in the hub's local cache (alone there with ``HF_HUB_OFFLINE=1``)."""
    from huggingface_hub import snapshot_download

    patterns = [pattern for suffix in published.suffixes for pattern in (f"*{suffix}", f"**/*{suffix}")]
    try:
        return Path(snapshot_download(repo_id, repo_type="dataset", allow_patterns=patterns))
    # The hub's client lets through errors of several HTTP libraries; each means that the files cannot be had.
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"{published.what}: cannot get the data set {repo_id} from the hub or its cache, and there is no "
            f"folder of that name here: {why}. Give a local file or folder instead"
        ) from error
