"""What one method found on one benchmark: a method run, on disk as two files, and read back from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

SCORES = "scores.parquet"
"""One row per example and seed."""
FACTS = "method_run.json"
"""What the scores are of."""

COLUMNS = ("id", "group", "positive", "kind", "profile", "score", "reason", "seed")
"""The columns that every method's scores have. PRISM's have e_d under each dimension's name too."""

_FIELDS = ("benchmark", "fingerprint", "evaluator", "method", "points", "temperature", "layout", "comparable")


@dataclass(frozen=True, eq=False)
class MethodRun:
    """The scores of one evaluator × method × rubric × temperature on one benchmark (P2 §4).

    Attributes:
        benchmark: Such as ``big5-easy``.
        fingerprint: The benchmark's.
        evaluator: The model's short name; empty for a method that needs none.
        method: ``prism``, or one of `persona_mlflow.prism.judges.JUDGES`.
        frame: One row per example and seed, with `COLUMNS` and the method's own.
        points: The rubric's maximum, for direct judging.
        temperature: 0 is greedy.
        layout: PRISM's prompt layout; empty for judges.
        comparable: Whether scores of different groups are on one scale.
        facts: Further facts, JSON values: revision, precision, seeds, order sensitivity …
    """

    benchmark: str
    fingerprint: str
    evaluator: str
    method: str
    frame: pd.DataFrame
    points: int | None = None
    temperature: float = 0.0
    layout: str = ""
    comparable: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """Names its folder and its MLflow run within an evaluator's: ``vanilla-5-t0.2``."""
        parts = [self.method]
        if self.points is not None:
            parts.append(str(self.points))
        if self.method == "prism" and self.layout == "labels-first":
            parts.append("labels-first")
        if self.temperature:
            parts.append(f"t{self.temperature:g}")
        return "-".join(parts)

    @property
    def label(self) -> str:
        """What a table calls the method, the evaluator left out: ``vanilla, 5 points, T 0.2``."""
        parts = [{"prism": "PRISM", "cot": "CoT"}.get(self.method, self.method)]
        if self.points is not None:
            parts.append(f"{self.points} points")
        if self.method == "prism" and self.layout == "labels-first":
            parts.append("labels first")
        if self.temperature:
            parts.append(f"T {self.temperature:g}")
        return ", ".join(parts)

    @property
    def seeds(self) -> list[int]:
        """The seeds of its draws, in order."""
        return sorted(int(seed) for seed in self.frame["seed"].unique())

    def of_seed(self, seed: int) -> pd.DataFrame:
        """The rows of one seed, one per example."""
        return self.frame[self.frame["seed"] == seed].reset_index(drop=True)

    def averaged(self) -> pd.DataFrame:
        """One row per example, in order: the mean score over the seeds that scored it, NaN where none did."""
        first = self.of_seed(self.seeds[0])
        if len(self.seeds) == 1:
            return first
        means = self.frame.groupby("id")["score"].mean()
        return first.assign(score=first["id"].map(means).to_numpy(float))

    def save(self, folder: Path) -> None:
        """Write `SCORES` and, last, `FACTS`, each at once or not at all."""
        import io

        from persona_mlflow.ledger import write_atomically

        folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        self.frame.to_parquet(buffer, index=False)
        write_atomically(folder / SCORES, buffer.getvalue())
        plain = {name: getattr(self, name) for name in _FIELDS} | {"facts": dict(self.facts)}
        text = json.dumps(plain, ensure_ascii=False, indent=1, allow_nan=False)
        write_atomically(folder / FACTS, text.encode())

    @classmethod
    def load(cls, folder: Path) -> MethodRun:
        """Read what `save` wrote.

        Raises:
            UserError: A file is missing, or not what `save` writes.
        """
        import pandas as pd

        try:
            plain = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            frame = pd.read_parquet(folder / SCORES)
            run = cls(frame=frame, facts=plain["facts"], **{name: plain[name] for name in _FIELDS})
            missing = [name for name in COLUMNS if name not in frame.columns]
            if missing:
                raise ValueError(f"{SCORES} has no column {missing[0]}")
        except FileNotFoundError as error:
            raise UserError(f"{error.filename}: no such file; it is part of a benchmark run") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder}: holds no readable scores of a method ({error})") from error
        return run


def find_method_runs(root: Path) -> list[Path]:
    """The folders below one, itself included, that hold a method run, sorted."""
    return sorted(path.parent for path in root.rglob(FACTS))
