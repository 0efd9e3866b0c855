"""What the end-to-end tests share: a small model that gives letters, a small spec, and ways to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

SPEC: dict[str, Any] = {
    "name": "small",
    "description": "An experiment for a test.",
    "questions": "builtin",
    "limit": 6,
    "personas": ["a man", "a biologist", "a chef"],
    "factors": {"ppf": ["barebones", "youare"], "tpf": ["justanswer"], "temperature": [0.0, 1.0]},
    "decoding": {"max_new_tokens": 1},
}
RUNS, ANSWERS = 12, 72


def save_lettered_model(folder: Path, seed: int = 0) -> Path:
    """A tiny random Llama whose output layer leans to the letters A to D and to ending its turn."""
    import torch

    from tiny_models import build_model, build_tokenizer

    tokenizer = build_tokenizer("chatml")
    model = build_model("qwen2", seed=seed)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        ends = [tokenizer.eos_token_id] * 4
        for token in [*tokenizer.convert_tokens_to_ids(list("ABCD")), *ends]:
            weight[token] *= 4.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_spec(folder: Path, model: Path, **changes: Any) -> Path:
    """Write the small spec with changes into a folder."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SPEC, "model": str(model), **changes}, sort_keys=False))
    return path


def call(*arguments: str) -> int:
    """Run the command line in this process, and give its exit code."""
    from persona_mlflow.cli import main

    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def start(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the command line as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "persona_mlflow", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_ledger(output: Path) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Cell → question → everything about the answer but the time of it."""
    import pyarrow.parquet as pq

    found = {}
    for path in sorted((output / "cells").glob("*.parquet")):
        rows = pq.read_table(path).drop_columns(["time"]).to_pylist()
        found[path.stem] = {row["question_id"]: tuple(row.values()) for row in rows}
    return found


def summary(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """What `summarize --json` prints."""
    capsys.readouterr()
    assert call("summarize", "--json", *arguments) == 0
    return list(json.loads(capsys.readouterr().out))
