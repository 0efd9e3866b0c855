"""Which weights a name stands for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiments import start, write_spec
from persona_mlflow.engines.identity import identify
from persona_mlflow.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_folder_is_known_by_its_files(lettered_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lettered_model, copy)
    before = identify(str(copy))
    assert before == identify(str(lettered_model))
    assert before.startswith("files:")
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert identify(str(copy)) != before


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF one")
    first = identify(str(path))
    path.write_bytes(b"GGUF two")
    assert identify(str(path)) != first
    assert first.startswith("sha256:")


def test_a_revision_of_local_weights_is_refused(lettered_model: Path) -> None:
    with pytest.raises(UserError, match="leave the revision out"):
        identify(str(lettered_model), "main")


@pytest.mark.slow
def test_S10_a_hub_model_in_the_cache_runs_offline_by_its_id_and_is_known_by_its_commit(
    lettered_model: Path, workdir: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hub" / "models--someone--lettered"
    shutil.copytree(lettered_model, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    spec = write_spec(workdir, Path("someone/lettered"))
    arguments = ("run", "-e", str(spec), "-o", "out", "--limit", "2", "--temperature", "0", "--json")
    process = start(*arguments, cwd=workdir, env={"HF_HUB_CACHE": str(tmp_path / "hub")})
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(output)["model"] == "someone/lettered"
    assert json.loads((workdir / "out" / "plan.json").read_text())["revision"] == COMMIT
