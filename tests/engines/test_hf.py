"""The local engine against ``model.generate`` and against itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from persona_mlflow.engines.base import Completion, Decoding, Draw, Request
from persona_mlflow.engines.hf import HFEngine, load_engine
from persona_mlflow.errors import UserError
from tiny_models import FAMILIES, build, build_model, build_tokenizer

# Many tokens end a turn here, so that rows of a random model leave the batch at different times.
ENDS = list(range(40, 75))


def requests(count: int = 8, temperatures: Sequence[float] = (0.0, 0.5, 1.0)) -> list[Request]:
    """Prompts of different lengths, one draw per temperature."""
    return [
        Request(
            system=f"You are {persona}.",
            user="What is the capital of " + "France or Rome or " * i + f"Berlin {i}?",
            draws=tuple(
                Draw((persona, i, t), t, 1000 * i + int(10 * t) + len(persona)) for t in temperatures
            ),
        )
        for persona in ("a chef", "an elderly person")
        for i in range(count)
    ]


def run(engine: HFEngine, wanted: Sequence[Request]) -> dict[Any, Completion]:
    """All completions by key; each key exactly once."""
    completions = [c for batch in engine.generate(wanted) for c in batch]
    by_key = {c.key: c for c in completions}
    assert len(by_key) == len(completions) == sum(len(r.draws) for r in wanted)
    return by_key


def tiny_engine(family: str = "llama", *, batch_size: int = 7, new: int = 30, **overrides: Any) -> HFEngine:
    model, tokenizer = build(family, **overrides)
    model.generation_config.eos_token_id = ENDS
    return HFEngine(model, tokenizer, Decoding(max_new_tokens=new), batch_size=batch_size)


def generated_by_the_library(engine: HFEngine, request: Request) -> list[int]:
    """The greedy tokens of ``model.generate`` on this prompt alone, end-of-turn token left out."""
    ids = torch.tensor([engine.renderer.render(request.system, request.user)])
    out = engine._running.module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=engine.decoding.max_new_tokens,
        do_sample=False,
        eos_token_id=list(engine.eos_ids),
    )
    return [t for t in out[0, ids.shape[1] :].tolist() if t not in engine.eos_ids]


@pytest.mark.parametrize("family", FAMILIES)
def test_G1_greedy_text_is_that_of_generate_row_by_row(family: str) -> None:
    engine = tiny_engine(family)
    wanted = requests()
    got = run(engine, wanted)
    lengths = set()
    for request in wanted:
        tokens = generated_by_the_library(engine, request)
        completion = got[request.draws[0].key]
        assert completion.text == engine._tokenizer.decode(tokens, skip_special_tokens=True)
        assert completion.completion_tokens == len(tokens)
        assert completion.finish_reason == ("length" if len(tokens) == 30 else "stop")
        assert completion.prompt_tokens == len(engine.renderer.render(request.system, request.user))
        lengths.add(len(tokens))
    assert len(lengths) > 3  # else nothing ever left the batch early


@pytest.mark.parametrize("family", FAMILIES)
def test_G20_answers_do_not_depend_on_batch_size_or_order(family: str) -> None:
    wanted = requests(6)
    reference = run(tiny_engine(family, batch_size=1), wanted)
    assert len({c.text for c in reference.values()}) > len(reference) / 3
    for batch_size in (7, 32):
        shuffled = [
            Request(r.system, r.user, tuple(reversed(r.draws)))
            for r in random.Random(batch_size).sample(wanted, len(wanted))
        ]
        assert run(tiny_engine(family, batch_size=batch_size), shuffled) == reference


def test_G18_seed_decides_the_draw() -> None:
    engine = tiny_engine()
    prompt = Request("You are a chef.", "What?", tuple(Draw(s, 1.0, s) for s in range(12)))
    first, again = run(engine, [prompt]), run(engine, [prompt])
    assert first == again
    assert len({c.text for c in first.values()}) > 6
    same_seed = Request("You are a chef.", "What?", (Draw("x", 1.0, 5), Draw("y", 1.0, 5)))
    got = run(engine, [same_seed])
    assert got["x"].text == got["y"].text == first[5].text


def test_shared_prefill_gives_what_separate_prefills_give() -> None:
    wanted = requests(4)
    separate = [Request(r.system, r.user, (draw,)) for r in wanted for draw in r.draws]
    engine = tiny_engine()
    shared = run(engine, wanted)
    alone: dict[Any, Completion] = {}
    for request in separate:
        alone |= run(engine, [request])
    assert shared == alone


def test_prompt_is_prefilled_once_and_greedy_draws_are_decoded_once() -> None:
    engine = tiny_engine(batch_size=32)
    rows: list[tuple[int, int]] = []
    forward = engine._running.logits

    def counting(ids: torch.Tensor, *args: Any) -> torch.Tensor:
        rows.append(tuple(ids.shape))  # type: ignore[arg-type]
        return forward(ids, *args)

    engine._running.logits = counting  # type: ignore[method-assign]
    draws = (*(Draw(("greedy", i), 0.0, i) for i in range(5)), Draw("drawn", 1.0, 1))
    got = run(engine, [Request("You are a chef.", "What is the capital?", draws)])
    prefills = [shape for shape in rows if shape[1] > 1]
    assert len(prefills) == 1
    assert prefills[0][0] == 1
    assert max(shape[0] for shape in rows if shape[1] == 1) == 2
    assert len({got["greedy", i].text for i in range(5)}) == 1


def test_G1_a_missing_mask_would_change_the_answers() -> None:
    engine = tiny_engine()
    wanted = requests()
    right = run(engine, wanted)
    forward = engine._running.logits

    def unmasked(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        return forward(ids, torch.ones_like(mask), positions, cache)

    engine._running.logits = unmasked  # type: ignore[method-assign]
    assert run(engine, wanted) != right


def test_G2_padding_is_on_the_left_whatever_the_tokenizer_says() -> None:
    model, tokenizer = build("llama")
    tokenizer.padding_side = "right"
    engine = HFEngine(model, tokenizer, Decoding(max_new_tokens=12), batch_size=8)
    assert tokenizer.padding_side == "left"
    seen: list[torch.Tensor] = []
    forward = engine._running.logits

    def watching(ids: torch.Tensor, mask: torch.Tensor, *args: Any) -> torch.Tensor:
        seen.append(mask)
        return forward(ids, mask, *args)

    engine._running.logits = watching  # type: ignore[method-assign]
    run(engine, requests(4))
    assert any(not bool(mask.all()) for mask in seen)  # there was padding …
    for mask in seen:  # … and none of it on the right of a token
        assert bool((mask.diff(dim=1) >= 0).all())


def test_G4_G5_whole_number_temperatures_work() -> None:
    engine = tiny_engine()
    prompt = Request("You are a chef.", "What?", (Draw("0", 0, 1), Draw("1", 1, 1), Draw("2", 2, 1)))
    floats = Request("You are a chef.", "What?", (Draw("0", 0.0, 9), Draw("1", 1.0, 1), Draw("2", 2.0, 1)))
    assert run(engine, [prompt]) == run(engine, [floats])


def test_every_end_of_turn_token_ends_the_turn() -> None:
    model, tokenizer = build("llama")
    model.generation_config.eos_token_id = [50, 60]
    engine = HFEngine(model, tokenizer, Decoding(), batch_size=4)
    # generation config, config and tokenizer (</s>), and the template's own <|eot|>
    assert engine.eos_ids == {50, 60, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eot|>")}
    first = next(iter(run(tiny_engine(new=5), requests(1)).values()))
    assert first.finish_reason in ("stop", "length")


@pytest.mark.parametrize("wanted_id", ["first", "second"])
def test_finish_reason_and_tokens_at_the_end_of_turn(wanted_id: str) -> None:
    model, tokenizer = build("llama")
    prompt = Request("You are a chef.", "What?", (Draw("k", 0.0, 1),))
    free = HFEngine(model, tokenizer, Decoding(max_new_tokens=6), batch_size=4)
    tokens = generated_by_the_library(free, prompt)
    stop = tokens[0] if wanted_id == "first" else tokens[1]
    model.generation_config.eos_token_id = [stop]
    engine = HFEngine(model, tokenizer, Decoding(max_new_tokens=6), batch_size=4)
    got = run(engine, [prompt])["k"]
    assert got.finish_reason == "stop"
    assert got.completion_tokens == tokens.index(stop)
    assert got.text == tokenizer.decode(tokens[: tokens.index(stop)], skip_special_tokens=True)


def test_prefilled_thinking_stands_in_front_of_the_text() -> None:
    model, tokenizer = build_model("llama"), build_tokenizer("thinking")
    engine = HFEngine(model, tokenizer, Decoding(max_new_tokens=5), batch_size=4)
    for completion in run(engine, requests(1)).values():
        assert completion.text.startswith("<think>\n")


def test_G14_the_models_own_generation_config_changes_nothing() -> None:
    wanted = requests(3)
    plain = run(tiny_engine(), wanted)
    model, tokenizer = build("llama")
    model.generation_config.eos_token_id = ENDS
    model.generation_config.update(
        do_sample=True, temperature=0.1, top_p=0.2, top_k=3, repetition_penalty=5.0, max_new_tokens=2
    )
    engine = HFEngine(model, tokenizer, Decoding(max_new_tokens=30), batch_size=7)
    assert run(engine, wanted) == plain
    described = engine.describe()
    assert (described["top_k"], described["top_p"], described["max_new_tokens"]) == (50, 1.0, 30)


def test_G13_describe_names_what_moves_the_numbers() -> None:
    described = tiny_engine("mistral").describe()
    assert described["batch_size"] == 7
    assert described["dtype"] == "float32"
    assert described["device"] == "cpu"
    assert described["attention"] in ("sdpa", "eager")
    assert described["system_role"] == "folded"
    assert {"transformers", "torch", "context_length", "prefill", "deterministic"} <= described.keys()
    assert all(isinstance(v, str | int | float | bool) for v in described.values())


def test_G13_deterministic_runs_one_row_at_a_time() -> None:
    model, tokenizer = build("llama")
    engine = HFEngine(model, tokenizer, Decoding(max_new_tokens=4), batch_size=32, deterministic=True)
    widths: list[int] = []
    forward = engine._running.logits

    def watching(ids: torch.Tensor, *args: Any) -> torch.Tensor:
        widths.append(ids.shape[0])
        return forward(ids, *args)

    engine._running.logits = watching  # type: ignore[method-assign]
    run(engine, requests(2))
    assert set(widths) == {1}
    assert engine.describe()["batch_size"] == 1


def test_interrupt_comes_through_and_the_engine_goes_on() -> None:
    engine = tiny_engine()
    wanted = requests()
    expected = run(engine, wanted)
    forward = engine._running.logits
    calls = 0

    def interrupted(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return forward(*args)

    engine._running.logits = interrupted  # type: ignore[method-assign]
    done: dict[Any, Completion] = {}

    def consume() -> None:
        for batch in engine.generate(wanted):
            done.update({c.key: c for c in batch})

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert 0 < len(done) < len(expected)
    assert all(expected[key] == completion for key, completion in done.items())
    assert run(engine, wanted) == expected


def test_inference_mode_does_not_leak_to_the_caller() -> None:
    for _ in tiny_engine().generate(requests(2)):
        assert not torch.is_inference_mode_enabled()
        assert torch.ones(1, requires_grad=True).requires_grad


def test_closed_engine_says_so() -> None:
    engine = tiny_engine()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        run(engine, requests(1))


@pytest.mark.parametrize("batch_size", [0, -1, "many"])
def test_bad_batch_size_is_refused(batch_size: Any) -> None:
    model, tokenizer = build("llama")
    with pytest.raises(UserError, match="batch_size"):
        HFEngine(model, tokenizer, Decoding(), batch_size=batch_size)


def test_no_requests_give_no_completions() -> None:
    engine = tiny_engine()
    assert list(engine.generate([])) == []
    assert list(engine.generate([Request("You are a chef.", "What?", ())])) == []


@pytest.mark.slow
def test_G20_real_model_gives_the_same_answers_at_any_batch_size() -> None:
    engine = load_engine("smollm2", decoding=Decoding(max_new_tokens=16), batch_size=32)
    wanted = [
        Request(
            f"You are {persona}.",
            f"What is {i} + {i}?"
            + " Take your time." * i
            + f"\n(A) {i}\n(B) {2 * i}\n(C) 0\n\nReason step by step.",
            tuple(Draw((persona, i, t), t, 100 * i + int(10 * t)) for t in (0.0, 0.5, 1.0)),
        )
        for persona in ("a chef", "a lawyer")
        for i in range(3)
    ]
    reference = run(engine, wanted)
    for batch_size in (7, 2):
        engine._capacity = batch_size
        assert run(engine, random.Random(1).sample(wanted, len(wanted))) == reference
    for request in wanted[:2]:
        tokens = generated_by_the_library(engine, request)
        assert reference[request.draws[0].key].text == engine._tokenizer.decode(
            tokens, skip_special_tokens=True
        )
