"""The local engine when memory runs out, logits are not numbers, or a prompt is too long."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_hf import requests, run, tiny_engine

from persona_mlflow.engines.base import Decoding, Draw, Request
from persona_mlflow.engines.hf import HFEngine
from persona_mlflow.engines.memory import in_float32, is_out_of_memory
from persona_mlflow.errors import UserError
from tiny_models import build


def wrapped(error: Exception) -> Exception:
    """An error as a library passes it on: with another one around it."""
    outer = RuntimeError("forward failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        lambda: RuntimeError("CUDA error: out of memory"),
        lambda: wrapped(torch.OutOfMemoryError("CUDA out of memory")),
        lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …"),
        lambda: MemoryError(),
    ],
)
def test_G17_out_of_memory_halves_the_batch_and_retries_the_same_rows(make: Any) -> None:
    wanted = requests()
    expected = run(tiny_engine(), wanted)
    engine = tiny_engine(batch_size=16)
    forward = engine._running.logits
    sizes: list[int] = []

    def small_memory(ids: torch.Tensor, *args: Any) -> torch.Tensor:
        sizes.append(ids.shape[0])
        if ids.shape[0] > 4:
            raise make()
        return forward(ids, *args)

    engine._running.logits = small_memory  # type: ignore[method-assign]
    assert run(engine, wanted) == expected
    assert max(sizes) > 4
    assert 2 <= engine.describe()["batch_size"] <= 4  # type: ignore[operator]


def test_G17_cause_chain_decides_and_other_errors_pass() -> None:
    assert is_out_of_memory(wrapped(wrapped(torch.OutOfMemoryError("x"))))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("the word is out of memory lane"))
    engine = tiny_engine()

    def broken(*args: Any) -> torch.Tensor:
        raise RuntimeError("shape mismatch")

    engine._running.logits = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        run(engine, requests(1))


def test_G17_a_single_row_that_does_not_fit_is_the_users_to_mend() -> None:
    engine = tiny_engine()

    def never(*args: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    engine._running.logits = never  # type: ignore[method-assign]
    with pytest.raises(UserError, match="out of memory with a single row"):
        run(engine, requests(2))


@pytest.mark.parametrize("at_prefill", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_G11_rows_with_non_finite_logits_are_recomputed_alone_in_float32(
    bad: float, at_prefill: bool
) -> None:
    wanted = requests(2)
    engine = tiny_engine(new=12)
    engine._running.module.to(torch.bfloat16)
    forward = engine._running.logits
    clean = run(engine, wanted)
    alone: list[tuple[int, torch.dtype]] = []

    def overflowing(ids: torch.Tensor, mask: torch.Tensor, *args: Any) -> torch.Tensor:
        logits = forward(ids, mask, *args)
        dtype = engine._running.module.lm_head.weight.dtype
        if dtype == torch.float32:
            alone.append((ids.shape[0], dtype))
        elif (ids.shape[1] > 1) == at_prefill:
            logits[-1, 3] = bad
        return logits

    engine._running.logits = overflowing  # type: ignore[method-assign]
    got = run(engine, wanted)
    marked = {key: c for key, c in got.items() if c.notes}
    assert 0 < len(marked) < len(got) or not at_prefill
    assert {c.notes for c in marked.values()} == {"recomputed in float32"}
    assert {rows for rows, _ in alone} == {1}
    assert all(clean[key] == c for key, c in got.items() if not c.notes)
    assert engine._running.module.dtype == torch.bfloat16

    # What a float32 engine gives for these rows.
    exact = tiny_engine(new=12)
    exact._running.module.to(torch.bfloat16).float()
    expected = run(exact, wanted)
    assert all(expected[key].text == c.text for key, c in marked.items())


def test_G11_nan_of_one_row_does_not_reach_its_neighbours() -> None:
    """A removed row leaves its keys and values in the buffer, where padding of a new row may come to lie."""
    wanted = requests()
    expected = run(tiny_engine(), wanted)
    engine = tiny_engine(batch_size=6)
    forward = engine._running.logits
    calls = 0

    def poisoning(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        logits = forward(ids, mask, positions, cache)
        if calls == 3:
            for layer in cache.layers:
                layer.keys[0] = float("nan")
                layer.values[0] = float("nan")
            logits[0] = float("nan")
        return logits

    engine._running.logits = poisoning  # type: ignore[method-assign]
    got = run(engine, wanted)
    assert sum(bool(c.notes) for c in got.values()) == 1
    assert {key: c.text for key, c in got.items()} == {key: c.text for key, c in expected.items()}


def test_G11_weights_that_are_broken_are_reported() -> None:
    engine = tiny_engine()
    engine._running.module.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match=r"not numbers .* even when recomputed in float32"):
        run(engine, requests(1))


def test_float32_for_a_while_restores_every_tensor() -> None:
    model, _ = build("llama")
    model.to(torch.bfloat16)
    before = {name: (t.dtype, t.data_ptr()) for name, t in model.state_dict(keep_vars=True).items()}
    with in_float32(model):
        assert {t.dtype for t in model.state_dict().values()} == {torch.float32}
    assert {name: (t.dtype, t.data_ptr()) for name, t in model.state_dict(keep_vars=True).items()} == before


def test_prompt_longer_than_the_context_is_refused_before_anything_runs() -> None:
    engine = tiny_engine(context=80)
    good = Request("You are a chef.", "What?", (Draw("a", 0.0, 1),))
    long = Request("You are a lawyer.", "Where lies Rome? " * 40, (Draw("b", 0.0, 1),))
    engine.check([good])
    with pytest.raises(UserError) as caught:
        engine.check([good, long])
    tokens = len(engine.renderer.render(long.system, long.user))
    for part in ("You are a lawyer.", "Where lies Rome?", str(tokens), "80"):
        assert part in str(caught.value)
    with pytest.raises(UserError, match="tokens"):
        list(engine.generate([good, long]))


def test_check_finds_a_long_combination_of_parts_that_are_each_short_enough() -> None:
    engine = tiny_engine(context=100)
    persona, question = "You are a chef from Rome. " * 6, "What is the capital of France? " * 6
    draw = (Draw("k", 0.0, 1),)
    short_parts = [Request(persona, "Why?", draw), Request("A chef.", question, draw)]
    engine.check(short_parts)
    both = Request(persona, question, draw)
    assert len(engine.renderer.render(persona, question)) >= 100
    with pytest.raises(UserError, match="context"):
        engine.check([*short_parts, both])


def test_generation_that_reaches_the_end_of_the_context_is_cut() -> None:
    model, tokenizer = build("llama", context=90)
    engine = HFEngine(model, tokenizer, Decoding(max_new_tokens=1000), batch_size=4)
    engine.eos_ids = frozenset()
    for completion in run(engine, requests(2)).values():
        assert completion.finish_reason == "length"
        assert completion.prompt_tokens + completion.completion_tokens == 90
