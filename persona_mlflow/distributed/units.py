"""The queue: what is missing from the record, cut into small units, the dearest first."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from persona_mlflow.grid import Cell
from persona_mlflow.ledger import Row
from persona_mlflow.plan import Plan

UNITS_PER_PROCESS = 32
"""About how many units there are for each process, in a small experiment: so finely can the end be shared."""

FEWEST_DRAWS, MOST_DRAWS = 64, 2048
"""Of a unit: below, batches would run half empty; above, too much would be in memory."""

# Tokens that an answer is expected to have before any is there, at most; and what one of them costs against
# a token of the prompt, which are all taken in at once.
_EXPLAINED, _PLAIN = 200.0, 30.0
_PER_TOKEN = 4.0
_CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A slice of the questions for the cells of one prompt group, as far as their answers are missing.

    Attributes:
        cells: Indices of the cells.
        start: Position of the first question in the set.
        stop: Position after the last.
        draws: Answers that are missing.
        cost: Of all that, in prompt tokens.
        new: Whether nothing at all of these cells was on record.
    """

    cells: tuple[int, ...]
    start: int
    stop: int
    draws: int
    cost: float
    new: bool

    @classmethod
    def of(cls, values: Iterable[Any]) -> Unit:
        """Read one from its JSON values, in the order of the attributes."""
        cells, start, stop, draws, cost, new = values
        return cls(tuple(cells), start, stop, draws, cost, new)


class Lengths:
    """How many tokens the answers to a task prompt format have: counted, or else guessed."""

    def __init__(self, plan: Plan) -> None:
        self._limit = plan.spec.decoding.max_new_tokens
        self._explaining = frozenset(plan.spec.prism.tpf)
        self._seen: dict[object, list[int]] = defaultdict(lambda: [0, 0])

    def count(self, cell: Cell, rows: Collection[Row]) -> None:
        """Count answers that are on record."""
        seen = self._seen[cell.setting.all_levels["tpf"]]
        seen[0] += sum(row.completion_tokens for row in rows)
        seen[1] += len(rows)

    def expected(self, cell: Cell) -> float:
        """The expected number of tokens of an answer; 1 at least."""
        tpf = cell.setting.all_levels["tpf"]
        tokens, answers = self._seen.get(tpf, (0, 0))
        if answers:
            return max(1.0, tokens / answers)
        return min(float(self._limit), _EXPLAINED if tpf in self._explaining else _PLAIN)


def cut(
    plan: Plan, missing: Mapping[int, Collection[str]], new: Collection[int], lengths: Lengths, processes: int
) -> list[Unit]:
    """Cut what is missing into units.

    Args:
        plan: The plan.
        missing: Cell index → ids of the questions without an answer.
        new: Cells of which nothing is on record.
        lengths: What answers are expected to be like.
        processes: How many share the work.

    Returns:
        The units, those of the dearest prompt group first and the slices of one group beside each other, so
        that its cells are finished early. None is empty.
    """
    questions = plan.questions.questions
    total = sum(map(len, missing.values()))
    size = max(FEWEST_DRAWS, min(total / (UNITS_PER_PROCESS * processes), MOST_DRAWS))
    characters = np.array([len(q.text) + sum(map(len, q.options)) for q in questions], dtype=float)
    groups: list[tuple[float, list[Unit]]] = []
    for group in plan.grid.prompt_groups():
        cells = [cell for cell in group if missing.get(cell.index)]
        if not cells:
            continue
        draws = np.zeros(len(questions), dtype=int)
        for cell in cells:
            absent = missing[cell.index]
            if len(absent) == len(questions):
                draws += 1
            else:
                draws += [question.id in absent for question in questions]
        draft = cells[0].setting.draft
        prompt = (len(draft.persona_template) + len(draft.task_template) + characters) / _CHARACTERS_PER_TOKEN
        cost = np.where(draws > 0, prompt, 0.0) + draws * _PER_TOKEN * lengths.expected(cells[0])
        before = np.concatenate([[0], np.cumsum(draws)])
        pieces = max(1, round(before[-1] / size))
        ends = np.searchsorted(before, before[-1] * np.arange(pieces + 1) / pieces)
        units = [
            Unit(
                tuple(cell.index for cell in cells),
                int(start),
                int(stop),
                int(draws[start:stop].sum()),
                float(cost[start:stop].sum()),
                all(cell.index in new for cell in cells),
            )
            for start, stop in itertools.pairwise(ends)
        ]
        units = [unit for unit in units if unit.draws]
        groups.append((float(cost.sum() / draws.sum()), units))
    groups.sort(key=lambda entry: -entry[0])
    return [unit for _, units in groups for unit in units]
