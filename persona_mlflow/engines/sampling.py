"""Draws whose randomness is their own.

A draw is the maximum of its logits plus Gumbel noise (Gumbel-max: the maximum's index is distributed as the
softmax). The noise is a pure function of the draw's seed, the step and the token id, so the same draw gives
the same tokens at any batch size, order, padding, process count or after a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def _signed(value: int) -> int:
    """Reinterpret an unsigned 64-bit constant as int64, the only 64-bit integer that torch multiplies."""
    return value - (1 << 64) if value >= 1 << 63 else value


# Constants of splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(x: Tensor) -> Tensor:
    """Hash int64 values elementwise: splitmix64's step and finaliser, wrapping modulo 2**64.

    Args:
        x: Values, int64, of any shape.

    Returns:
        Hashes, int64, of the same shape.
    """
    z = x + _GAMMA
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def gumbel_noise(seeds: Tensor, steps: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise, a pure function of (seed, step, token id).

    Args:
        seeds: Seed of each row's draw, int64, ``[rows]``.
        steps: Index of the token that each row draws, int64, ``[rows]``.
        token_ids: Candidate tokens, int64, ``[rows, k]``.

    Returns:
        Noise, float64, ``[rows, k]``.
    """
    row = splitmix64(splitmix64(seeds) + steps)
    hashed = splitmix64(row.unsqueeze(-1) ^ splitmix64(token_ids))
    # 53 random bits, centred in their interval: never 0, never 1.
    uniform = (_shift_right(hashed, 11).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log()


def sample(
    logits: Tensor, temperatures: Sequence[float], seeds: Tensor, steps: Tensor, *, top_k: int, top_p: float
) -> Tensor:
    """Draw one token per row.

    The order of the steps is that of transformers: temperature, top-k, top-p.

    Args:
        logits: Last-position logits, float32, ``[rows, vocabulary]``, on any device.
        temperatures: Temperature of each row; 0 takes the most likely token.
        seeds: Seed of each row's draw, int64, ``[rows]``.
        steps: Index of the token that each row draws, int64, ``[rows]``.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens with this much probability; 1.0 keeps all.

    Returns:
        Token ids, int64, ``[rows]``.
    """
    import torch

    if not any(temperatures):
        return logits.argmax(dim=-1)
    greedy = [row for row, t in enumerate(temperatures) if t == 0]
    scale = torch.tensor([t or 1.0 for t in temperatures], dtype=torch.float64, device=logits.device)

    size = logits.shape[-1]
    values, token_ids = candidates(logits, k=min(top_k or size, size))
    scaled = values.double() / scale.unsqueeze(-1)
    if top_p < 1.0:
        scaled = scaled.masked_fill(~nucleus(scaled, top_p), float("-inf"))
    best = (scaled + gumbel_noise(seeds, steps, token_ids)).argmax(dim=-1, keepdim=True)
    drawn = token_ids.gather(-1, best).squeeze(-1)
    if greedy:
        rows = torch.tensor(greedy, device=logits.device)
        drawn[rows] = logits[rows].argmax(dim=-1)
    return drawn


def candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely tokens of each row, most likely first: logits and ids, both ``[rows, k]``."""
    values, token_ids = logits.topk(k, dim=-1)
    return values, token_ids


def nucleus(scaled: Tensor, top_p: float) -> Tensor:
    """Which candidates belong to the smallest set with probability `top_p`.

    Args:
        scaled: Logits over temperature, most likely first, ``[rows, k]``.
        top_p: Probability to keep.

    Returns:
        Boolean mask, ``[rows, k]``; the first column is always kept.
    """
    probabilities = scaled.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = before < top_p
    keep[:, 0] = True
    return keep
