"""The published data sets on the Hugging Face hub, and folders in the layout of its cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from persona_mlflow.errors import UserError

CONVERTED = "refs/convert/parquet"
"""The branch where the hub keeps Parquet copies of data sets that are published as a script."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """Where a source is on the hub.

    Attributes:
        repo_id: The data set's id.
        revision: Branch to read.
        patterns: The files to fetch; ``{split}`` is the split's name.
    """

    repo_id: str
    revision: str
    patterns: tuple[str, ...]

    @property
    def cache_folder(self) -> str:
        """Name of its folder in the hub's cache."""
        return f"datasets--{self.repo_id.replace('/', '--')}"


HUB = {
    "mmlu": HubDataset("cais/mmlu", "main", ("all/{split}-*.parquet",)),
    "social_iqa": HubDataset("allenai/social_i_qa", CONVERTED, ("default/{split}/*.parquet",)),
    "normad": HubDataset("akhilayerukola/NormAd", "main", ("normad_etiquette_final_data.csv",)),
}


def fetch(source: str, split: str) -> Path:
    """Download a source, or find it in the hub's local cache (alone there with ``HF_HUB_OFFLINE=1``).

    Args:
        source: One of `HUB`.
        split: The hub's name of the split.

    Returns:
        The snapshot's folder, whose name is the commit.

    Raises:
        UserError: Not cached and not reachable; names the data set and its files.
    """
    from huggingface_hub import snapshot_download

    dataset = HUB[source]
    patterns = [pattern.format(split=split) for pattern in dataset.patterns]
    try:
        folder = snapshot_download(
            dataset.repo_id, repo_type="dataset", revision=dataset.revision, allow_patterns=patterns
        )
    # The hub's client lets through errors of several HTTP libraries; each means that the files cannot be had.
    except Exception as error:
        raise UserError(missing(source, patterns, _first_line(error))) from error
    if not any(any(Path(folder).glob(pattern)) for pattern in patterns):
        raise UserError(missing(source, patterns, f"they are not in {folder}"))
    return Path(folder)


def missing(source: str, patterns: list[str], why: str) -> str:
    """The message for a source that cannot be had from the hub."""
    dataset = HUB[source]
    return (
        f"{source}: cannot get {', '.join(patterns)} of the data set {dataset.repo_id} "
        f"(revision {dataset.revision}) from the Hugging Face hub or its cache: "
        f"{why}. Give a local folder instead, e.g. questions: {{source: {source}, path: FOLDER}}"
    )


def candidates(folder: Path, source: str) -> Iterator[Path]:
    """The folders where a source's files may be: the folder itself, then snapshots of a hub cache in it.

    Args:
        folder: A plain folder, a hub cache, its parent ``HF_HOME``, or a cache's ``datasets--owner--name``.
        source: One of `HUB`.
    """
    yield folder
    name = HUB[source].cache_folder
    for repo in (folder, folder / name, folder / "hub" / name):
        yield from _snapshots(repo, HUB[source].revision)


def in_cache(folder: Path) -> list[str]:
    """The sources that a hub cache folder holds."""
    roots = (folder, folder / "hub")
    return [
        s
        for s, d in HUB.items()
        if folder.name == d.cache_folder or any((r / d.cache_folder).is_dir() for r in roots)
    ]


def origin(source: str, folder: Path) -> str:
    """Where a folder's data came from: hub id and commit for a snapshot, else the folder."""
    if folder.parent.name == "snapshots":
        return f"{HUB[source].repo_id}@{folder.name}"
    return str(folder)


def _snapshots(repo: Path, revision: str) -> list[Path]:
    """Snapshots of a cached repository: the wanted revision's first, then by name."""
    ref = repo / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else ""
    return sorted((repo / "snapshots").glob("*"), key=lambda path: (path.name != commit, path.name))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
