"""A finished cell: its answers parsed, its metrics, and the files that its MLflow run carries."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from persona_mlflow.grid import Cell
from persona_mlflow.ledger import CellLog, Row
from persona_mlflow.outcomes import GENERATIONS
from persona_mlflow.parsing import parse_answer
from persona_mlflow.questions.base import Question
from persona_mlflow.tracking import Child

ANSWERS = "answers.json"
PARSE_ERRORS = "parse_errors.jsonl"
# The UI loads a table whole; beyond this many rows the Parquet file is the place to look.
TABLE_ROWS = 200


def row_parser(cell: Cell, by_id: Mapping[str, Question]) -> Callable[[Row], dict[str, Any]]:
    """Make the function that judges a cell's rows: letter, status, and whether the letter is the right one.

    An unparsed answer counts as incorrect, and apart (P1 §E.8).
    """

    def parse(row: Row) -> dict[str, Any]:
        question = by_id[row.question_id]
        presented = cell.setting.draft.arrange(question)
        answer = parse_answer(row.text, presented.lettered, finished=row.finish_reason == "stop")
        return {
            "category": question.category,
            "label": question.label,
            "gold": presented.answer_letter,
            "letter": answer.letter,
            "status": answer.status,
            "correct": answer.letter == presented.answer_letter,
        }

    return parse


def cell_metrics(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """The metrics of one run.

    Args:
        rows: Its generations, as in the Parquet file.

    Returns:
        ``accuracy`` and ``accuracy/<category>``, ``parse_error_rate`` and ``status/<status>`` as fractions;
        token counts as ``tokens/prompt`` and ``tokens/completion``, sums over the run.
    """
    n = len(rows)
    by_category: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        by_category[row["category"]].append(row["correct"])
    statuses = Counter(row["status"] for row in rows)
    return {
        "accuracy": sum(row["correct"] for row in rows) / n,
        "parse_error_rate": 1 - statuses["ok"] / n,
        "tokens/prompt": float(sum(row["prompt_tokens"] for row in rows)),
        "tokens/completion": float(sum(row["completion_tokens"] for row in rows)),
        **{f"accuracy/{metric_name(c)}": sum(v) / len(v) for c, v in by_category.items()},
        **{f"status/{status}": count / n for status, count in statuses.items()},
    }


def metric_name(text: str) -> str:
    """Text as MLflow takes it in a metric's name."""
    return re.sub(r"[^\w\-. /:]", "_", text.replace("/", " - "))


def make_child(
    cell: Cell, log: CellLog, by_id: Mapping[str, Question], shared: Mapping[str, Any], folder: Path
) -> Child:
    """Gather what a finished cell's run carries.

    Args:
        cell: The cell.
        log: Its finished record.
        by_id: Questions by id.
        shared: Parameters that all children share: model, dataset …
        folder: An empty folder for the artifacts.
    """
    rows = log.table().to_pylist()
    shutil.copyfile(log.parquet, folder / GENERATIONS)
    _write_parse_errors(rows, folder / PARSE_ERRORS)
    _write_table(rows, by_id, folder / ANSWERS)
    return Child(
        cell=cell.key,
        name=cell.name,
        params={
            "persona": cell.persona.name,
            "persona_group": cell.persona.group,
            **({"persona_subgroup": cell.persona.subgroup} if cell.persona.subgroup else {}),
            **cell.setting.all_levels,
            **shared,
        },
        metrics=cell_metrics(rows),
        files=folder,
        tables=(ANSWERS,),
        start=min(row["time"] for row in rows),
        end=max(row["time"] for row in rows),
    )


def _write_parse_errors(rows: list[dict[str, Any]], path: Path) -> None:
    keys = ("question_id", "status", "finish_reason", "text")
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            if row["status"] != "ok":
                file.write(json.dumps({key: row[key] for key in keys}, ensure_ascii=False) + "\n")


def _write_table(rows: list[dict[str, Any]], by_id: Mapping[str, Question], path: Path) -> None:
    # The evaluation view groups by the first column and compares the second.
    columns = ["question", "text", "letter", "gold", "status", "correct", "category", "question_id"]
    data = [
        [by_id[row["question_id"]].text, *(row[column] for column in columns[1:])]
        for row in rows[:TABLE_ROWS]
    ]
    path.write_text(
        json.dumps({"columns": columns, "data": data}, ensure_ascii=False, allow_nan=False), encoding="utf-8"
    )
