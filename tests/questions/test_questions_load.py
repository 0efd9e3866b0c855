"""Where questions come from: names, folders, mappings, the hub's cache, the category table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from question_rows import mmlu_rows, normad_rows, social_rows

from persona_mlflow.errors import UserError
from persona_mlflow.questions import hub, load_categories, load_questions


@pytest.fixture
def data(tmp_path: Path, write_mmlu, write_social, write_normad) -> Path:
    """All three sources in one folder."""
    write_mmlu({s: mmlu_rows(s, 12) for s in ("prehistory", "virology", "world_religions")}, at="data/mmlu")
    write_social(social_rows(4), at="data/social_iqa")
    write_normad(normad_rows(["egypt", "NA", "kenya"], 6), at="data/normad")
    return tmp_path / "data"


def cached(
    cache: Path, source: str, files: dict[str, bytes], commit: str = "c0ffee", revision: str | None = None
) -> Path:
    """Write a repository into a hub cache by hand, the files as links to blobs as the hub's client does."""
    repo = cache / hub.HUB[source].cache_folder
    ref = repo / "refs" / (revision or hub.HUB[source].revision)
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    (repo / "blobs").mkdir(exist_ok=True)
    for n, (name, content) in enumerate(files.items()):
        blob = repo / "blobs" / f"{commit}{n}"
        blob.write_bytes(content)
        link = repo / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return repo


@pytest.fixture
def cache(data: Path, tmp_path: Path) -> Path:
    """A hub cache with the three data sets, as `HF_HOME` holds it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    mmlu = [
        {"question": r[0], "subject": s, "choices": r[1:5], "answer": "ABCD".index(r[5])}
        for s in ("prehistory", "virology", "world_religions")
        for r in mmlu_rows(s, 12)
    ]
    keys = ("context", "question", "answerA", "answerB", "answerC", "label")
    social = [dict(zip(keys, row, strict=True)) for row in social_rows(4)]
    blobs = {}
    for name, rows in (("mmlu", mmlu), ("social", social)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        blobs[name] = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
    home = tmp_path / "hf_home"
    cached(home / "hub", "mmlu", {"all/test-00000-of-00001.parquet": blobs["mmlu"]})
    cached(home / "hub", "social_iqa", {"default/validation/0000.parquet": blobs["social"]})
    csv = (data / "normad" / "normad_etiquette_final_data.csv").read_bytes()
    cached(home / "hub", "normad", {"normad_etiquette_final_data.csv": csv})
    return home


def test_a_folder_of_three_sources_is_a_composite(data: Path):
    found = load_questions(data, per_category=21)
    assert found.name == "composite"
    assert found.report.counts == {
        "History": {"prehistory": 5},
        "Human Health and Medicine": {"virology": 3},
        "Cultural Awareness and Understanding": {"NA": 6, "egypt": 6, "kenya": 6},
        "Commonsense Reasoning/Social Awareness": dict.fromkeys(
            ("wants", "reactions", "descriptions", "motivations", "needs", "effects", "misc."), 3
        ),
    }
    assert not found.report.absent


@pytest.mark.parametrize("source", ["mmlu", "social_iqa", "normad"])
def test_a_folder_that_is_one_source_is_that_source_alone(data: Path, source: str):
    found = load_questions(data / source)
    assert found.name == source
    assert {q.source for q in found} == {source}
    assert len(found) == {"mmlu": 36, "social_iqa": 28, "normad": 18}[source]
    assert load_questions({"source": source, "path": str(data / source)}).fingerprint == found.fingerprint


def test_mappings_of_a_composite(data: Path):
    whole = load_questions(data, per_category=14)
    spec: dict[str, Any] = {"source": "composite", "per_category": 14}
    assert load_questions({**spec, "path": str(data)}).questions == whole.questions
    paths = {name: str(data / name) for name in ("mmlu", "social_iqa", "normad")}
    assert load_questions({**spec, **paths}).questions == whole.questions
    two = load_questions({**spec, **paths, "normad": None})
    assert two.questions == tuple(q for q in whole if q.source != "normad")
    assert dict(two.report.absent) == {"normad": "left out by the experiment"}


def test_a_named_folder_that_is_missing_is_an_error_not_an_absence(data: Path):
    with pytest.raises(UserError, match=r"no folder '.*nowhere'"):
        load_questions({"source": "composite", "mmlu": str(data / "mmlu"), "normad": "nowhere"})
    with pytest.raises(UserError, match=r"no NormAd here; expected normad_etiquette_final_data\.csv"):
        load_questions({"source": "composite", "normad": str(data / "mmlu")})


def test_categories_restrict(data: Path):
    found = load_questions(data, categories=["Human Health and Medicine", "History"])
    assert found.categories == ("History", "Human Health and Medicine")
    assert list(found.report.read) == ["mmlu"], "sources that no category needs are not read"
    whole = load_questions(data)
    assert found.questions == tuple(q for q in whole if q.category in found.categories)
    with pytest.raises(UserError, match=r"unknown category 'Histroy'; did you mean 'History'\?"):
        load_questions(data, categories=["Histroy"])
    with pytest.raises(UserError, match=r"unknown category 'Math'; choose from History, .*Other"):
        load_questions(data / "mmlu", categories=["Math"])
    with pytest.raises(UserError, match="must be a list"):
        load_questions(data, categories="History")


def test_a_category_whose_source_is_absent_is_refused(data: Path):
    (data / "normad" / "normad_etiquette_final_data.csv").unlink()
    with pytest.raises(
        UserError, match=r"'Cultural Awareness and Understanding' needs normad, which is absent"
    ):
        load_questions(data, categories=["Cultural Awareness and Understanding"])
    found = load_questions(data)
    assert "Cultural Awareness and Understanding" not in found.categories
    assert list(found.report.absent) == ["normad"]
    assert not load_questions(data, categories=["History"]).report.absent, "History does not need it"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mmmlu", r"unknown source 'mmmlu'; did you mean 'mmlu'\? choose from builtin, composite, mmlu"),
        ("data/nowhere", r"no file or folder 'data/nowhere'"),
        ("nowhere.csv", r"no file or folder 'nowhere\.csv'"),
        ("", r"neither a name nor a path"),
        (None, r"neither a name nor a path"),
        (3, r"neither a name nor a path"),
        ({"path": "x.csv"}, r"the key 'source' is missing"),
        ({"source": "tabel"}, r"unknown source 'tabel'; did you mean 'table'\?"),
        ({"source": "table"}, r"\(table\): path must be a path"),
        ({"source": "table", "path": "nowhere.csv"}, r"\(table\): no file 'nowhere\.csv'"),
        (
            {"source": "mmlu", "folder": "x"},
            r"\(mmlu\): unknown key 'folder'; choose from source, path, split",
        ),
        ({"source": "composite", "mmlu": None}, r"every source is left out"),
        ({"source": "composite", "path": "x", "mmlu": "y"}, r"either path or mmlu, not both"),
        ({"source": "builtin", "path": "x"}, r"\(builtin\): unknown key 'path'"),
    ],
)
def test_an_unknown_source_is_refused(source: Any, message: str):
    with pytest.raises(UserError, match=message):
        load_questions(source)


def test_an_empty_folder_says_what_is_expected(tmp_path: Path):
    with pytest.raises(
        UserError, match=r"no questions in a layout that is known.*test/\{subject\}_test\.csv"
    ):
        load_questions(tmp_path)
    (tmp_path / "mmlu").mkdir()
    with pytest.raises(UserError, match=r"none of mmlu, social_iqa, normad is there: no files of it in"):
        load_questions(tmp_path)


@pytest.mark.parametrize("drop", ["duplicates", ("duplicate",)])
def test_drop_is_checked(data: Path, drop: Any):
    with pytest.raises(
        UserError, match=r"drop must be a list|drop: unknown 'duplicate'; did you mean 'duplicates'"
    ):
        load_questions(data, drop=drop)


# ── The hub ─────────────────────────────────────────────────────────────────────────────────────────────


OFFLINE = """
import socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("dialled out")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from persona_mlflow.questions import load_questions
from persona_mlflow.errors import UserError
try:
    found = load_questions(sys.argv[1])
    print(found.fingerprint, *found.report.origins.values())
except UserError as error:
    print("UserError:", error)
"""


def offline(source: str, home: Path) -> str:
    """Load in a process of its own with the hub switched off and every connection an error."""
    env = {
        "PYTHONPATH": ":".join(sys.path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home),
        "PATH": os.environ["PATH"],
    }
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE, source], env=env, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("source", ["composite", "mmlu", "social_iqa", "normad"])
def test_S10_cached_data_loads_offline_without_dialling(data: Path, cache: Path, source: str):
    here = load_questions(data if source == "composite" else data / source)
    fingerprint, *origins = offline(source, cache).split()
    assert fingerprint == here.fingerprint
    assert all(re.fullmatch(r"\S+/\S+@c0ffee", origin) for origin in origins)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("mmlu", ("all/test-*.parquet", "cais/mmlu")),
        ("social_iqa", ("default/validation/*.parquet", "allenai/social_i_qa", "refs/convert/parquet")),
        ("normad", ("normad_etiquette_final_data.csv", "akhilayerukola/NormAd")),
        ("composite", ("cais/mmlu",)),
    ],
)
def test_S10_what_is_not_cached_is_named_offline(tmp_path: Path, source: str, names: tuple[str, ...]):
    message = offline(source, tmp_path / "empty")
    assert message.startswith("UserError:")
    assert "local folder" in message
    for name in names:
        assert name in message


def test_S10_a_cached_snapshot_without_the_files_is_named(tmp_path: Path):
    cached(tmp_path / "hub", "normad", {"README.md": b"none"})
    message = offline("normad", tmp_path)
    assert "normad_etiquette_final_data.csv" in message
    assert "local folder" in message


def test_S10_a_folder_in_the_caches_layout_needs_no_hub(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("asked the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    whole = load_questions(data)
    for folder in (cache, cache / "hub"):
        found = load_questions(folder)
        assert found.fingerprint == whole.fingerprint
        assert found.report.origins["mmlu"] == "cais/mmlu@c0ffee"
    alone = load_questions(cache / "hub" / "datasets--allenai--social_i_qa")
    assert alone.fingerprint == load_questions(data / "social_iqa").fingerprint
    mixed = {
        "source": "composite",
        "mmlu": str(cache),
        "social_iqa": str(cache / "hub"),
        "normad": str(data / "normad"),
    }
    assert load_questions(mixed).fingerprint == whole.fingerprint


def test_S10_the_referenced_snapshot_of_a_cache_wins(tmp_path: Path, write_normad):
    old = (write_normad(normad_rows(["egypt"], 2), at="old") / "normad_etiquette_final_data.csv").read_bytes()
    new = (write_normad(normad_rows(["egypt"], 5), at="new") / "normad_etiquette_final_data.csv").read_bytes()
    cached(tmp_path / "hub", "normad", {"normad_etiquette_final_data.csv": old}, commit="aaaa")
    cached(tmp_path / "hub", "normad", {"normad_etiquette_final_data.csv": new}, commit="bbbb")
    assert len(load_questions(tmp_path / "hub")) == 5


def test_the_hub_is_asked_for_the_split_alone(cache: Path, monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}

    def download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(cache / "hub" / "datasets--cais--mmlu" / "snapshots" / "c0ffee")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert len(load_questions("mmlu")) == 36
    assert asked == {
        "repo_id": "cais/mmlu",
        "repo_type": "dataset",
        "revision": "main",
        "allow_patterns": ["all/test-*.parquet"],
    }


# ── The category table ──────────────────────────────────────────────────────────────────────────────────


def test_the_shipped_table_is_the_papers():
    table = load_categories()
    assert [(c.name, c.source, c.labels and len(c.labels)) for c in table.categories] == [
        ("History", "mmlu", 4),
        ("Politics and Law", "mmlu", 7),
        ("Social Science", "mmlu", 5),
        ("Business/Accounting and Economics", "mmlu", 7),
        ("EECS", "mmlu", 5),
        ("Math", "mmlu", 5),
        ("Natural Science", "mmlu", 8),
        ("Human Health and Medicine", "mmlu", 8),
        ("Cultural Awareness and Understanding", "normad", None),
        ("Commonsense Reasoning/Social Awareness", "social_iqa", 7),
    ]
    assert table.category_of("mmlu", "jurisprudence") == "Politics and Law"
    assert table.category_of("normad", "NA") == "Cultural Awareness and Understanding"
    assert table.category_of("mmlu", "wants") == "Other"


def test_every_mmlu_label_of_the_table_exists(shared_data: Path):
    subjects = {file.stem.removesuffix("_test") for file in (shared_data / "mmlu" / "test").iterdir()}
    labels = {label for c in load_categories().categories if c.source == "mmlu" for label in c.labels or ()}
    assert labels < subjects


def write_categories(tmp_path: Path, labels: str, source: str = "normad") -> Path:
    path = tmp_path / "categories.yaml"
    path.write_text(f"categories:\n  - name: Mine\n    source: {source}\n    labels: {labels}\n")
    return path


def test_a_users_table_replaces_ours(data: Path, tmp_path: Path):
    path = write_categories(tmp_path, '["NA", "egypt"]')
    found = load_questions(data, categories_file=path, per_category=4)
    assert found.report.counts == {"Mine": {"NA": 2, "egypt": 2}}


@pytest.mark.parametrize("labels", ["[yes, egypt]", "[egypt, no]", "[NO]", "[on]", "[Off]", "[true]"])
def test_S6_boolean_labels_are_refused_with_the_hint(tmp_path: Path, labels: str):
    with pytest.raises(
        UserError, match=r"category 1 \(Mine\): labels\[\d\] is the boolean (True|False): .*in quotes"
    ):
        load_categories(write_categories(tmp_path, labels))


def test_S6_quoted_labels_are_text(tmp_path: Path):
    table = load_categories(write_categories(tmp_path, '["yes", "no", "NO", "on", "NA", "null"]'))
    assert table.categories[0].labels == ("yes", "no", "NO", "on", "NA", "null")


def test_S6_a_boolean_among_the_categories_of_an_experiment_is_refused(data: Path):
    with pytest.raises(UserError, match="the boolean False; write it in quotes"):
        load_questions(data, categories=[False])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("categories: []", "must hold a list"),
        ("- a", "must hold a list"),
        ("categories: [: {", "not valid YAML"),
        ("categories:\n  - {name: A, source: mmlu}", "the key 'labels' is missing"),
        (
            "categories:\n  - {name: A, source: mmlu, label: [a]}",
            "unknown key 'label'; did you mean 'labels'",
        ),
        (
            "categories:\n  - {name: A, source: mmul, labels: [a]}",
            "unknown source 'mmul'; did you mean 'mmlu'",
        ),
        ("categories:\n  - {name: A, source: mmlu, labels: a}", "labels must be a list"),
        ("categories:\n  - {name: A, source: mmlu, labels: [1]}", r"labels\[0\] must be a text, but is 1"),
        ("categories:\n  - {name: A, source: mmlu, labels: [~]}", r"labels\[0\] must be a text, but is None"),
        ("categories:\n  - {name: A, source: mmlu, labels: [a, a]}", "label 'a' of mmlu is claimed twice"),
        (
            "categories:\n  - {name: A, source: mmlu, labels: [a]}\n  - {name: B, source: mmlu, labels: [a]}",
            "label 'a' of mmlu is claimed twice, last by 'B'",
        ),
        (
            "categories:\n  - {name: A, source: mmlu, labels: [a]}\n  - {name: A, source: mmlu, labels: [b]}",
            "category 'A' occurs twice",
        ),
        (
            'categories:\n  - {name: A, source: mmlu, labels: [a]}\n  - {name: B, source: mmlu, labels: "*"}',
            "no other may take labels of it",
        ),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, message: str):
    path = tmp_path / "categories.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_categories(path)


# ── The built-in questions ──────────────────────────────────────────────────────────────────────────────


def test_builtin_has_every_category_of_the_table():
    found = load_questions("builtin")
    assert found.categories == load_categories().names
    assert min(sum(labels.values()) for labels in found.report.counts.values()) >= 20
    assert {q.source for q in found} == {"builtin"}
    assert not found.report.repeated
    assert not found.report.equal_options
    assert load_questions({"source": "builtin"}).fingerprint == found.fingerprint
    assert load_questions("builtin", limit=10).categories == found.categories
