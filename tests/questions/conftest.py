"""Small data sets in the published layouts. All texts are our own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public data sets, which the repository does not hold."""
    if not (SHARED_DATA / "mmlu").is_dir():
        pytest.skip(f"the public data sets are not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture
def write_mmlu(tmp_path: Path) -> Callable[..., Path]:
    """Write MMLU's CSV layout: subject → rows of question, four options, letter."""

    def write(subjects: dict[str, Sequence[Sequence[str]]], split: str = "test", at: str = "mmlu") -> Path:
        folder = tmp_path / at / split
        folder.mkdir(parents=True, exist_ok=True)
        for subject, rows in subjects.items():
            with (folder / f"{subject}_{split}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(rows)
        return tmp_path / at

    return write


@pytest.fixture
def write_social(tmp_path: Path) -> Callable[..., Path]:
    """Write Social IQa's archive layout: (context, question, three answers, label as text) per row."""

    def write(rows: Sequence[Sequence[str]], at: str = "social_iqa") -> Path:
        folder = tmp_path / at
        folder.mkdir(parents=True, exist_ok=True)
        keys = ("context", "question", "answerA", "answerB", "answerC")
        lines = [json.dumps(dict(zip(keys, row[:5], strict=True))) for row in rows]
        (folder / "dev.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "dev-labels.lst").write_text("".join(f"{row[5]}\n" for row in rows), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def write_normad(tmp_path: Path) -> Callable[..., Path]:
    """Write NormAd's CSV: (country, story, gold label) per row, the other published columns filled in."""

    def write(rows: Sequence[Sequence[str]], at: str = "normad") -> Path:
        folder = tmp_path / at
        folder.mkdir(parents=True, exist_ok=True)
        names = "ID,Country,Background,Axis,Subaxis,Value,Rule-of-Thumb,Story,Explanation,Gold Label"
        with (folder / "normad_etiquette_final_data.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names.split(","))
            for n, (country, story, gold) in enumerate(rows, start=1):
                writer.writerow([n, country, "b", "a", "s", "v", "r", story, "e", gold])
        return folder

    return write


@pytest.fixture
def write_table(tmp_path: Path) -> Callable[..., Path]:
    """Write a file as it stands: text, bytes, or a JSON-able value."""

    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8", newline="")
        return path

    return write
