"""The key-value cache of a batch whose rows come and go.

`DynamicCache` concatenates at every step, which copies the whole cache once per token, and copies it again to
drop a row. Here the rows live in one buffer per layer: a step writes one column, a finished row is
overwritten by the last one, and the view ``buffer[:rows, :, start:end]`` is what attention sees. Rows are
right-aligned, so the distance of two columns is the distance of their tokens, and a sliding-window layer may
keep every column and leave the window to its mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROW = 128
"""Columns that a full buffer grows by at least."""


class RowsLayer(DynamicLayer):
    """One layer's keys and values, ``[rows, heads, columns, head size]``, in buffers with room to spare."""

    # transformers declares these optional; they are set from the first update on.
    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.start = self.end = 0
        self.buffers: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new columns and return views on all of them (the interface of `transformers`)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        width = key_states.shape[-2]
        if not self.buffers:  # a prefill: its own tensors are the buffers, and are most often only read from
            self.rows, self.end = key_states.shape[0], width
            self.buffers = [key_states, value_states]
            self._expose()
            return self.keys, self.values
        self._reserve((key_states, value_states), self.rows, 0, width)
        self.end += width
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[: self.rows, :, self.end - width : self.end] = new
        self._expose()
        return self.keys, self.values

    def adopt(self, source: RowsLayer, index: Tensor, rows: int) -> None:
        """Append the rows `index` of a prefilled layer, right-aligned; there will be at most `rows`."""
        states = (source.keys, source.values)
        count, width = len(index), source.keys.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(*states)
        columns = self.end - self.start
        self._reserve(states, max(rows, self.rows + count), max(0, width - columns), GROW // 2)
        if not self.rows:
            self.start, self.end = 0, width
        wider = max(0, width - (self.end - self.start))
        for buffer, new in zip(self.buffers, states, strict=True):
            # Padding is masked, but 0 · NaN is NaN: what an earlier row left there must not be read.
            buffer[: self.rows, :, self.start - wider : self.start] = 0
            buffer[self.rows : self.rows + count, :, self.start - wider : self.end - width] = 0
            buffer[self.rows : self.rows + count, :, self.end - width : self.end] = new[index]
        self.start -= wider
        self.rows += count
        self._expose()

    def keep(self, order: Sequence[int], start: int) -> None:
        """Keep the rows `order`, in this order, and drop the first `start` columns; no row may move down."""
        for place, row in enumerate(order):
            if row != place:
                for buffer in self.buffers:
                    buffer[place, :, self.start : self.end] = buffer[row, :, self.start : self.end]
        self.rows = len(order)
        self.start += start
        self._expose()

    def _reserve(self, like: Sequence[Tensor], rows: int, left: int, right: int) -> None:
        """Make room for `rows` rows, `left` columns before the first and `right` after the last."""
        if self.buffers:
            capacity, _, columns, _ = self.buffers[0].shape
            if rows <= capacity and left <= self.start and self.end + right <= columns:
                return
        used = self.end - self.start
        total = left + used + right + max(GROW, used // 4)
        grown = []
        for position, states in enumerate(like):
            buffer = states.new_empty((rows, states.shape[1], total, states.shape[3]))
            if self.buffers and used:
                buffer[: self.rows, :, left : left + used] = self.buffers[position][
                    : self.rows, :, self.start : self.end
                ]
            grown.append(buffer)
            if self.buffers:
                self.buffers[position] = states.new_empty(0)  # free it before the next one is allocated
        self.buffers = grown
        self.start, self.end = left, left + used

    def _expose(self) -> None:
        self.keys, self.values = (b[: self.rows, :, self.start : self.end] for b in self.buffers)


class SlidingRowsLayer(RowsLayer):
    """A sliding-window layer that keeps every column; the model's sliding mask hides the old ones."""

    is_sliding = True

    def __init__(self, sliding_window: int) -> None:
        super().__init__()
        self.sliding_window = sliding_window


class RowsCache:
    """The cache of a running batch, over every layer of one model.

    Args:
        config: The model's configuration.

    Attributes:
        cache: What the model's forward takes.
        grows: Whether rows can join a batch that is running. Layers that keep a state other than keys and
            values (Mamba, linear attention …) stay as `transformers` made them, and the batch runs to its
            end.
    """

    def __init__(self, config: Any) -> None:
        self.cache: Any = DynamicCache(config=config)
        layers: list[Any] = []
        for layer in self.cache.layers:
            if type(layer) is DynamicLayer:
                layers.append(RowsLayer())
            elif type(layer) is DynamicSlidingWindowLayer and not _is_chunked(config):
                layers.append(SlidingRowsLayer(layer.sliding_window))
        self.grows = bool(layers) and len(layers) == len(self.cache.layers)
        if self.grows:
            self.cache.layers = layers

    def adopt(self, prefilled: RowsCache, index: torch.Tensor, rows: int) -> None:
        """Append the rows `index` of a prefilled cache; a row may come several times, once per draw.

        Args:
            prefilled: The cache that a prefill of left-padded prompts filled; it is used up.
            index: Rows of it, int64, ``[new rows]``.
            rows: Most rows that this batch will have, for the size of the buffers.
        """
        if not self.grows:
            self.cache = prefilled.cache
            self.cache.reorder_cache(index)
            return
        for layer, source in zip(self.cache.layers, prefilled.cache.layers, strict=True):
            if source.is_initialized:  # a layer that shares another's keys and values stays empty
                layer.adopt(source, index.to(source.keys.device), rows)
                source.buffers, source.keys, source.values = [], None, None  # free: both may not fit at once

    def keep(self, order: Sequence[int], start: int) -> None:
        """Keep the rows `order`, in this order, and drop the first `start` columns, which are all padding."""
        if self.grows:
            for layer in self.cache.layers:
                if layer.is_initialized:
                    layer.keep(order, start)
            return
        import torch

        self.cache.reorder_cache(torch.tensor(order))


def _is_chunked(config: Any) -> bool:
    return "chunked_attention" in (getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
