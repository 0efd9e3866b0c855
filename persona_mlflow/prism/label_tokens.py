"""What a local model reads for a prompt: token ids up to the label, the labels' own, and batches of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.prism.evaluators import VARIANTS
from persona_mlflow.prism.prompt import LABELS, LabelPrompt, LabelRenderer

if TYPE_CHECKING:
    from torch import Tensor

Variant = tuple[str, tuple[int, ...], tuple[int, ...]]
"""What stands before the letter, the token ids before the label, and the three labels' ids."""

# A shorter common prefix is not worth a pass of its own.
_SHORTEST_PREFIX = 16


@dataclass(frozen=True, slots=True)
class Target:
    """Three label tokens to read off at the end of a row."""

    prompt: LabelPrompt
    variant: str
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids up to the split point before the label, and what is read there."""

    ids: tuple[int, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts, each with its rows, and how many tokens all rows begin with."""

    prompts: tuple[tuple[Row, ...], ...]
    prefix: int

    @property
    def rows(self) -> list[Row]:
        """All rows, prompt by prompt."""
        return [row for rows in self.prompts for row in rows]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)


class LabelTokens:
    """Tokenises labels jointly with their prompt (pitfalls L1, L3, L8, L11).

    Args:
        renderer: The model's renderer.
        name: The model's name, for messages.
    """

    def __init__(self, renderer: LabelRenderer, name: str) -> None:
        self._renderer = renderer
        self._name = name
        self._tails: dict[str, list[Variant]] = {}

    def rows(self, prompt: LabelPrompt) -> tuple[Row, ...]:
        """One row, or one for each variant where the split points differ.

        Raises:
            UserError: A label cannot be one token, or the prompt cannot be rendered.
        """
        found: dict[tuple[int, ...], list[Target]] = {}
        try:
            variants = self.variants(prompt)
        except UserError as error:
            raise UserError(f"case {prompt.key[0]}: {error}") from error
        for variant, ids, labels in variants:
            found.setdefault(ids, []).append(Target(prompt, variant + LABELS[0], labels))
        return tuple(Row(ids, tuple(targets)) for ids, targets in found.items())

    def variants(self, prompt: LabelPrompt) -> list[Variant]:
        """The variants in which each label is one token.

        Raises:
            UserError: There is none.
        """
        system, user = prompt.system, prompt.user
        whole = self._renderer.with_completion(system, user, "")
        tail = self._renderer.tail(system, user)
        if tail is not None:
            end = self._renderer.encode_tail(tail, "")
            if whole[-len(end) :] == end:
                if tail not in self._tails:
                    self._tails[tail] = self._split(end, lambda text: self._renderer.encode_tail(tail, text))
                start = tuple(whole[: -len(end)])
                return [(variant, start + before, labels) for variant, before, labels in self._tails[tail]]
        return self._split(whole, lambda text: self._renderer.with_completion(system, user, text))

    def _split(self, prompt: list[int], encode: Callable[[str], list[int]]) -> list[Variant]:
        """Find the split point before the label in the joint encoding of prompt and label (L1, L3, L8)."""
        found = []
        for variant in VARIANTS:
            joint = [encode(variant + label) for label in LABELS]
            before = joint[0][:-1]
            labels = tuple(ids[-1] for ids in joint)
            # What stands before the label must be what the model has read, and nothing of the label itself.
            one_token = all(ids[:-1] == before for ids in joint) and prompt[: len(before)] == before
            if one_token and len(before) <= len(prompt) and len(set(labels)) == len(LABELS):
                found.append((variant, tuple(before), labels))
        if not found:
            raise UserError(
                f"the tokenizer of {self._name} cannot write each of the labels {', '.join(LABELS)} as one "
                "token after the prompt: use another evaluator"
            )
        return found


def group_rows(prompts: Sequence[tuple[Row, ...]], *, share: bool) -> Group:
    """Put the rows of a case's prompts together.

    Args:
        prompts: Each prompt's rows.
        share: Whether to look for a common prefix.
    """
    ids = [row.ids for rows in prompts for row in rows]
    prefix = common_prefix(ids) if share and len(ids) > 1 else 0
    return Group(tuple(prompts), prefix if prefix >= _SHORTEST_PREFIX else 0)


def take_batch(queue: deque[Group], most_prompts: int, most_tokens: int) -> list[Group]:
    """Take the groups of the next batch off a queue, all with or all without a shared prefix.

    Args:
        queue: Groups, longest first; one that holds more prompts than a batch is taken in parts.
        most_prompts: Most prompts of a batch.
        most_tokens: Most padded tokens of one pass, where that is more than one group.
    """
    first = queue.popleft()
    if len(first.prompts) > most_prompts:
        queue.appendleft(replace(first, prompts=first.prompts[most_prompts:]))
        return [replace(first, prompts=first.prompts[:most_prompts])]
    batch = [first]
    prompts, rows = len(first.prompts), len(first.rows)
    prefix, rest = first.prefix, first.longest - first.prefix
    while queue:
        group = queue[0]
        prefix, rest = max(prefix, group.prefix), max(rest, group.longest - group.prefix)
        prompts, rows = prompts + len(group.prompts), rows + len(group.rows)
        tokens = max(rows * rest, (len(batch) + 1) * prefix)
        full = prompts > most_prompts or tokens > most_tokens
        if full or bool(group.prefix) != bool(first.prefix):
            break
        batch.append(queue.popleft())
    return batch


def common_prefix(rows: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all rows begin with; at least one is left over in each."""
    low, high = min(rows), max(rows)
    most = min(map(len, rows)) - 1
    return next((i for i in range(most) if low[i] != high[i]), most)


def right_pad(rows: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both int64, ``[rows, longest]``, padded after the end of each row."""
    import torch

    width = max(map(len, rows))
    ids = [list(row) + [pad] * (width - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
