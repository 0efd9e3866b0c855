"""Builders of P2's benchmarks (P2 §4, Table 1): Big5-Persona-EASY and -HARD, and Social-Persona."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    from persona_mlflow.prism.cases import Benchmark

NAMES = ("big5-easy", "big5-hard", "social")
"""What `load_benchmark` takes as a name."""

SIZES = (2000, 3000)
"""Groups of P2's subsets; with one seed the smaller is part of the larger."""


def load_benchmark(
    name: str,
    data: str | Path | None = None,
    *,
    size: int | None = None,
    seed: int = 0,
    swap: str = "profile",
    keep: Iterable[str] = (),
) -> Benchmark:
    """Build a benchmark from its data.

    Args:
        name: ``big5-easy`` (the opposite level of the same trait, 1:1), ``big5-hard`` (another trait at the
            same level, 1:2) or ``social`` (the gold reply against each distractor, 1:3).
        data: A file, a folder that holds it, or a data set's id on the Hugging Face hub. ``None`` is the
            published BIG5-CHAT on the hub; SocialBench has no such default.
        size: Groups to draw, see `Benchmark.subset`; ``None`` for all.
        seed: Seed of the draw, and of the other trait in ``big5-hard``.
        swap: What makes a negative of ``big5-easy``: ``profile``, as in P2's text, or ``response``, as in
            its released data.
        keep: Kinds of rows to keep that are otherwise left out (`checks.DOUBTS`).

    Raises:
        UserError: An unknown name, swap or kind, or data that cannot be had or are not in the layout.
    """
    from persona_mlflow.prism.benchmarks import big5, checks, social

    if name not in NAMES:
        raise UserError(f"unknown benchmark {name!r}; {choices(str(name), NAMES)}")
    kept = checks.check_keep(keep)
    if swap not in big5.SWAPS:
        raise UserError(f"benchmark {name}: unknown swap {swap!r}; {choices(str(swap), big5.SWAPS)}")
    if name == "social":
        benchmark = social.social_persona(data, keep=kept)
    elif name == "big5-easy":
        benchmark = big5.big5_easy(data, swap=swap, keep=kept)
    else:
        benchmark = big5.big5_hard(data, seed=seed, keep=kept)
    return benchmark if size is None else benchmark.subset(size, seed)
