"""The decode loop: rows join a running batch, draw a token per step, and leave it when they are done."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from persona_mlflow.engines.base import Decoding

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Row:
    """One draw on its way, or several greedy draws of one prompt, which are the same.

    Attributes:
        keys: Keys of the draws that this row answers.
        prompt: The prompt's token ids.
        temperature: Softmax temperature; 0 is greedy.
        seed: Seed of the draw.
        room: Most tokens that it may generate: the limit asked for, or what the context leaves.
        tokens: Tokens generated so far, the end-of-turn token not among them.
        finish: How it ended; `None` while it runs, ``non-finite`` where its logits were not numbers.
        notes: What happened to it out of the ordinary.
    """

    keys: tuple[Hashable, ...]
    prompt: tuple[int, ...]
    temperature: float
    seed: int
    room: int
    tokens: list[int] = field(default_factory=list)
    finish: Literal["stop", "length", "non-finite"] | None = None
    notes: str = ""

    def restart(self) -> Row:
        """Forget what was generated; the seed gives the same tokens again."""
        self.tokens, self.finish = [], None
        return self


class Model:
    """A causal language model's forward pass, with the arguments that this architecture knows.

    Args:
        module: The `transformers` model.
        pad_id: Any valid token id; padding is masked.
    """

    def __init__(self, module: Any, pad_id: int) -> None:
        self.module = module
        self.pad_id = pad_id
        names = inspect.signature(module.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_positions = "position_ids" in names
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in names else {}

    @property
    def device(self) -> Any:
        """Where the token ids go: the device of the embedding."""
        return self.module.get_input_embeddings().weight.device

    def logits(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Run the new tokens and return the last position's logits.

        Args:
            ids: New tokens, ``[rows, new]``.
            mask: 1 for each token to attend to, 0 for padding, ``[rows, cached + new]``.
            positions: Position of each new token within its own prompt, ``[rows, new]``.
            cache: The cache of the rows; it grows by the new tokens.

        Returns:
            Logits, float32, ``[rows, vocabulary]``.
        """
        kwargs: dict[str, Any] = {self._cache_name: cache, **self._last_only}
        if self._takes_positions:
            kwargs["position_ids"] = positions
        out = self.module(input_ids=ids, attention_mask=mask, use_cache=True, **kwargs)
        return out.logits[:, -1].float()


class Batch:
    """The rows that are being decoded together.

    Args:
        model: The model.
        decoding: How to draw.
        eos_ids: The tokens that end a turn.
        capacity: Most rows at once.
    """

    def __init__(self, model: Model, decoding: Decoding, eos_ids: frozenset[int], capacity: int) -> None:
        from persona_mlflow.engines.kv import RowsCache

        self.model = model
        self.decoding = decoding
        self.eos_ids = eos_ids
        self.capacity = capacity
        self.rows: list[Row] = []
        self._cache_type = RowsCache
        self._cache = RowsCache(model.module.config)
        self._mask: Tensor | None = None

    @property
    def room(self) -> int:
        """How many rows can join now."""
        if self.rows and not self._cache.grows:
            return 0
        return self.capacity - len(self.rows)

    def join(self, rows: Sequence[Row]) -> list[Row]:
        """Prefill each distinct prompt once, draw the first token of every row, and add the rows.

        Args:
            rows: New rows; those of one prompt share its prefill.

        Returns:
            Rows that ended with their first token.
        """
        import torch

        prompts = list(dict.fromkeys(row.prompt for row in rows))
        place = {prompt: i for i, prompt in enumerate(prompts)}
        ids, mask = left_pad(prompts, self.model.pad_id, self.model.device)
        # Padding gets position 0: it is masked, but an index must be valid.
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        prefilled = self._cache_type(self.model.module.config)
        logits = self.model.logits(ids, mask, positions, prefilled.cache)

        index = torch.tensor([place[row.prompt] for row in rows], device=ids.device)
        if not self.rows:
            self._cache = self._cache_type(self.model.module.config)
            self._mask = None
        self._cache.adopt(prefilled, index, self.capacity)
        self._mask = mask[index] if self._mask is None else _stack(self._mask, mask[index])
        self.rows += rows
        self._draw(logits[index.to(logits.device)], len(self.rows) - len(rows))
        return self._leave()

    def step(self) -> list[Row]:
        """Draw one token for every row.

        Returns:
            Rows that ended; they have left the batch.
        """
        import torch

        assert self._mask is not None
        device = self._mask.device
        ids = torch.tensor([[row.tokens[-1]] for row in self.rows], device=device)
        positions = torch.tensor(
            [[len(row.prompt) + len(row.tokens) - 1] for row in self.rows], device=device
        )
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        logits = self.model.logits(ids, self._mask, positions, self._cache.cache)
        self._draw(logits, 0)
        return self._leave()

    def _draw(self, logits: Tensor, first: int) -> None:
        """Draw a token for each row from `first` on; `logits` has one line for each of them."""
        import torch

        from persona_mlflow.engines.sampling import sample

        rows = self.rows[first:]
        device = logits.device
        # NaN and +inf carry through a maximum, so one reduction finds a row that cannot be drawn from.
        finite = logits.amax(dim=-1).isfinite()
        logits = torch.where(finite.unsqueeze(-1), logits, 0.0) if not bool(finite.all()) else logits
        tokens = sample(
            logits,
            [row.temperature for row in rows],
            torch.tensor([row.seed for row in rows], device=device),
            torch.tensor([len(row.tokens) for row in rows], device=device),
            top_k=self.decoding.top_k,
            top_p=self.decoding.top_p,
        )
        for row, token, fine in zip(rows, tokens.tolist(), finite.tolist(), strict=True):
            if not fine:
                row.finish = "non-finite"
            elif token in self.eos_ids:
                row.finish = "stop"
            else:
                row.tokens.append(token)
                if len(row.tokens) >= row.room:
                    row.finish = "length"

    def _leave(self) -> list[Row]:
        """Take the finished rows out; the last rows move into their places."""
        done = [row for row in self.rows if row.finish]
        if not done:
            return done
        assert self._mask is not None
        count = len(self.rows) - len(done)
        tail = [i for i in range(count, len(self.rows)) if not self.rows[i].finish]
        order = [i if not self.rows[i].finish else tail.pop() for i in range(count)]
        if not order:
            self._cache = self._cache_type(self.model.module.config)
            self.rows, self._mask = [], None
            return done
        mask = self._mask[order]
        # Columns that are padding in every row left: the longest prompt may just have gone.
        start = int(mask.any(dim=0).int().argmax()) if self._cache.grows else 0
        self._cache.keep(order, start)
        self.rows, self._mask = [self.rows[i] for i in order], mask[:, start:]
        return done


def left_pad(prompts: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[Tensor, Tensor]:
    """Pad on the left, where a decoder continues on the right.

    Args:
        prompts: Token ids of each prompt.
        pad_id: The token to pad with.
        device: Where the tensors go.

    Returns:
        Token ids and mask (1 for a token, 0 for padding), both int64, ``[prompts, longest]``.
    """
    import torch

    width = max(map(len, prompts))
    ids = [[pad_id] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _stack(upper: Tensor, lower: Tensor) -> Tensor:
    """Put two masks above each other, right-aligned."""
    import torch

    width = max(upper.shape[1], lower.shape[1])
    padded = [torch.nn.functional.pad(m, (width - m.shape[1], 0)) for m in (upper, lower)]
    return torch.cat(padded)
