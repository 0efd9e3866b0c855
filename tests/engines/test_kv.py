"""The rows' key-value buffers against plain lists of columns."""

from __future__ import annotations

import random

import pytest
import torch

from persona_mlflow.engines.kv import GROW, RowsLayer

HEADS, SIZE = 2, 3


def prefilled(widths: list[int]) -> tuple[RowsLayer, list[torch.Tensor]]:
    """A layer after a prefill of left-padded prompts, and each prompt's own columns."""
    longest = max(widths)
    states = torch.randn(len(widths), HEADS, longest, SIZE)
    layer = RowsLayer()
    keys, values = layer.update(states, -states)
    assert torch.equal(keys, states)
    assert torch.equal(values, -states)
    return layer, [states[i, :, longest - width :] for i, width in enumerate(widths)]


@pytest.mark.parametrize("seed", range(6))
def test_random_joins_steps_and_leaves_match_lists_of_columns(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    layer, rows = RowsLayer(), []
    widest = 0
    for _ in range(160):
        action = chance.choice(["join", "step", "step", "step", "leave"])
        if action == "join" or not rows:
            # Wider than what is running at times, narrower at others; a prompt may serve several rows.
            widths = [chance.randint(1, 80) for _ in range(chance.randint(1, 3))]
            source, columns = prefilled(widths)
            index = [widths.index(max(widths)), *chance.choices(range(len(widths)), k=chance.randint(0, 3))]
            if not rows:
                layer = RowsLayer()
            layer.adopt(source, torch.tensor(index), rows=4)
            rows += [columns[i] for i in index]
        elif action == "step":
            new = torch.randn(len(rows), HEADS, 1, SIZE)
            layer.update(new, -new)
            rows = [torch.cat([row, column], dim=1) for row, column in zip(rows, new, strict=True)]
        else:
            gone = set(chance.sample(range(len(rows)), chance.randint(0, len(rows) - 1)))
            kept = len(rows) - len(gone)
            tail = [i for i in range(kept, len(rows)) if i not in gone]
            order = [i if i not in gone else tail.pop() for i in range(kept)]
            rows = [rows[i] for i in order]
            layer.keep(order, layer.keys.shape[2] - max(row.shape[1] for row in rows))
        longest = max(row.shape[1] for row in rows)
        widest = max(widest, longest)
        assert layer.keys.shape == layer.values.shape == (len(rows), HEADS, longest, SIZE)
        assert layer.get_seq_length() == longest
        assert layer.get_mask_sizes(1) == (longest + 1, 0)
        for i, row in enumerate(rows):
            start = longest - row.shape[1]
            assert torch.equal(layer.keys[i, :, start:], row)
            assert torch.equal(layer.values[i, :, start:], -row)
            assert bool(layer.keys[i, :, :start].isfinite().all())
    assert widest > GROW // 2


def test_a_step_copies_one_column_and_not_the_cache() -> None:
    source, _ = prefilled([5, 9])
    layer = RowsLayer()
    layer.adopt(source, torch.tensor([0, 1, 1]), rows=3)
    before = layer.keys.data_ptr()
    for _ in range(GROW // 2):
        new = torch.randn(3, HEADS, 1, SIZE)
        keys, _ = layer.update(new, new)
        assert keys.data_ptr() == before
