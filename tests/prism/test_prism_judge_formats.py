"""The adapters for published judges: prompts, replies in their formats, AlignScore on small checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from persona_mlflow.engines.base import Completion, Decoding, Request
from persona_mlflow.engines.hf import HFEngine
from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import Case, Example, Profile
from persona_mlflow.prism.judges import AlignScoreJudge, PandaLMJudge, Query, SeleneJudge, judge_examples
from persona_mlflow.prism.judges.alignscore import CHUNK_WORDS, reference, reference_chunks, sentences
from persona_mlflow.prism.ranking import ranking_metrics
from tiny_models import build

HIGH = Profile("big5", trait="openness", level="high")
LOW = Profile("big5", trait="openness", level="low")
QUERY = Query("x", "", "")


def example(
    name: str,
    group: str,
    positive: bool,
    profile: Profile = HIGH,
    context: str = "Museum?",
    response: str = "",
) -> Example:
    case = Case(name, profile, context, response or f"Reply of {name}.")
    return Example(case, group, positive, "positive" if positive else "opposite level")


# ---------------------------------------------------------------------------------------------- Selene


def test_selenes_prompt_has_its_parts_in_its_order() -> None:
    text = SeleneJudge().prompt(Case("x", HIGH, "Shall we go?", "Yes, {user_input} and new art!"))
    parts = [
        "**Reasoning:** <",
        "**Result:** <an integer between 1 and 5>",
        "Instruction:\n```\n",
        HIGH.describe(),
        "Shall we go?",
        "\n```\n\nResponse:\n```\nYes, {user_input} and new art!\n```\n\n",
        "Score Rubrics:\n[",
        *(f"\nScore {n}: " for n in range(1, 6)),
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count("Shall we go?") == 1  # a placeholder inside a response stays text


@pytest.mark.parametrize(
    ("reply", "finished", "score", "reason"),
    [
        ("**Reasoning:** Curious throughout.\n\n**Result:** 5", True, 1.0, ""),
        ("**Reasoning:** It is flat.\n\n**Result:** 1", True, 0.0, ""),
        ("Reasoning: leans towards it\nResult: 4.", True, 0.75, ""),
        ("**Reasoning:** A result of 5 would need more.\n\n**Result:** 3", True, 0.5, ""),
        ("**Reasoning:** 4 cues.\n\n**Result:** <3>", True, 0.5, ""),
        ("**Reasoning:** x\n\n**Result:** 3\n\n**Result:** 2", True, 0.25, ""),
        ("**Result:** 6", True, None, "off_scale"),
        ("**Result:** 3.5", True, None, "off_scale"),
        ("**Result:** 0", True, None, "off_scale"),
        ("**Reasoning:** I would say 4/5.", True, None, "no_score"),
        ("4", True, None, "no_score"),
        ("Score: 4", True, None, "no_score"),
        ("**Result:** Yes", True, None, "no_score"),
        ("**Reasoning:** It goes on and", False, None, "truncated"),
        ("**Result:** 4", False, None, "truncated"),
        ("", True, None, "empty"),
        ("I'm sorry, but I can't evaluate this.", True, None, "refusal"),
    ],
)
def test_selenes_replies(reply: str, finished: bool, score: float | None, reason: str) -> None:
    verdict = SeleneJudge().read(QUERY, reply, finished=finished)
    assert (verdict.score, verdict.reason) == (score, reason)


def test_selene_takes_a_published_template(tmp_path: Path) -> None:
    names = ["user_input", "assistant_response", "rubric_objective"]
    names += [f"rubric_score_{n}_description" for n in range(1, 6)]
    path = tmp_path / "absolute.yaml"
    path.write_text("user_template: |-\n  BEGIN\n" + "".join(f"  <{{{name}}}>\n" for name in names))
    judge = SeleneJudge(path)
    text = judge.prompt(Case("x", HIGH, "Shall we?", "Yes!"))
    assert text.startswith("BEGIN\n<Persona: ")
    assert "<Yes!>" in text
    assert "{" not in text
    assert judge.identity() != SeleneJudge().identity()
    assert SeleneJudge("\n".join(f"{{{name}}}" for name in names)).identity() != judge.identity()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user_template: 'only {user_input}'", r"no \{assistant_response\}"),
        ("other: x", "no text under the key user_template"),
        ("a: [", "is not YAML"),
        (None, "cannot be read"),
    ],
)
def test_selenes_bad_templates(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "t.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        SeleneJudge(path)


# ---------------------------------------------------------------------------------------------- PandaLM


def test_pandalms_prompt_has_its_markers_in_its_order() -> None:
    first, second = example("p", "g", True).case, example("n", "g", False).case
    text = PandaLMJudge().prompt(first, second)
    head, rest = text.split("### Instruction:\n")
    instruction, rest = rest.split("\n\n### Input:\n")
    given, rest = rest.split("\n\n### Response 1:\n")
    one, rest = rest.split("\n\n### Response 2:\n")
    two, end = rest.split("\n\n### Evaluation:")
    assert head.strip()
    assert HIGH.describe() in instruction
    assert (given, one, two, end) == ("Museum?", "Reply of p.", "Reply of n.", "")


def test_pandalm_without_a_context_has_no_input() -> None:
    pair = [example(n, "g", p, context=" ").case for n, p in (("p", True), ("n", False))]
    assert "### Input:" not in PandaLMJudge().prompt(*pair)


def test_pandalm_shows_each_profile_where_the_two_differ() -> None:
    first, second = example("p", "g", True).case, example("n", "g", False, LOW, response="Reply of p.").case
    text = PandaLMJudge().prompt(first, second)
    one, two = text.split("### Response 1:\n")[1].split("### Response 2:\n")
    assert HIGH.describe() in one
    assert LOW.describe() in two
    assert HIGH.describe() not in text.split("### Response 1:")[0]
    moved = PandaLMJudge().prompt(first, example("n", "g", False, context="Cinema?").case)
    assert "### Input:" not in moved
    assert moved.index("Museum?") < moved.index("Response 2") < moved.index("Cinema?")


@pytest.mark.parametrize(
    ("reply", "finished", "slot", "score", "rating", "reason"),
    [
        ("1\n\n### Reason: it fits.\n\n### Reference: …", True, 1, 0.0, 1, ""),
        ("1\n\n### Reason: it fits.", True, 2, 1.0, 1, ""),
        ("2\n\n### Reason", False, 2, 0.0, 2, ""),
        ("2", True, 1, 1.0, 2, ""),
        ("Tie\n\n### Reason: both fit.", True, 1, 0.5, 0, ""),
        ("tie", True, 2, 0.5, 0, ""),
        (" Response 2\nbecause", True, 2, 0.0, 2, ""),
        ("2", False, 1, None, None, "truncated"),
        ("12\nx", True, 1, None, None, "no_verdict"),
        ("3\n", True, 1, None, None, "no_verdict"),
        ("Both are good.", True, 1, None, None, "no_verdict"),
        ("### Reason: 1 is better", True, 1, None, None, "no_verdict"),
        ("1 and 2 are equal\n", True, 1, None, None, "no_verdict"),
        ("", True, 1, None, None, "empty"),
        ("  \n", False, 1, None, None, "truncated"),
    ],
)
def test_pandalms_replies(
    reply: str, finished: bool, slot: int, score: float | None, rating: int | None, reason: str
) -> None:
    verdict = PandaLMJudge().read(Query("n", "", "", slot), reply, finished=finished)
    assert (verdict.score, verdict.rating, verdict.reason) == (score, rating, reason)


def test_pandalms_slots_are_random_seeded_and_shown_in_the_prompt() -> None:
    made = [example(f"{g}{s}", f"g{g}", s == "+") for g in range(200) for s in "+-"]
    judge = PandaLMJudge()
    queries = judge.queries(made, 0)
    assert queries == judge.queries(made[::-1], 0)[::-1]
    assert 70 < sum(q.slot == 1 for q in queries) < 130
    assert [q.slot for q in queries] != [q.slot for q in judge.queries(made, 1)]
    for query in queries:
        positive = query.user.index(f"Reply of {query.id[:-1]}+.")
        negative = query.user.index(f"Reply of {query.id}.")
        assert (positive < negative) == (query.slot == 1)


class Prefers:
    """An engine that answers as PandaLM would: the better reply's slot, by a table of wins."""

    def __init__(self, wins: dict[str, float]) -> None:
        self.wins = wins

    def describe(self) -> dict[str, Any]:
        return {"engine": "table", "model": "m"}

    def check(self, requests: Any) -> None: ...

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        for request in requests:
            for draw in request.draws:
                name = draw.key[0]  # type: ignore[index]
                one = request.user.split("### Response 1:")[1].split("### Response 2:")[0]
                better = {1.0: "+", 0.0: "-"}.get(self.wins[name])
                text = "Tie" if better is None else "1" if ("+" in one) == (better == "+") else "2"
                yield [Completion(draw.key, f"{text}\n\n### Reason: …", "stop", 1, 1)]

    def close(self) -> None: ...


def test_pandalms_choices_give_pair_auc_and_group_accuracy_and_no_auc(tmp_path: Path) -> None:
    wins = {"a-1": 1.0, "a-2": 1.0, "b-1": 1.0, "b-2": 0.5, "c-1": 0.0, "c-2": 1.0, "d-1": 0.0, "d-2": 0.5}
    made = [example(f"{g}+", g, True) for g in "abcd"]
    made += [example(f"{g}-{n}", g, False) for g in "abcd" for n in (1, 2)]
    frame = judge_examples(made, PandaLMJudge(), Prefers(wins), output=tmp_path / "a.jsonl")
    assert frame.attrs["comparable"] is False
    metrics = ranking_metrics(frame, draws=0, comparable=frame.attrs["comparable"])
    assert metrics.auc is None
    assert metrics.pair_auc == sum(wins.values()) / 8
    assert metrics.group_accuracy == 1 / 4  # a tie is a loss
    negatives = frame[~frame["positive"]].set_index("id")
    assert negatives["reply"].str.len().gt(0).all()
    assert {i: 1 - s for i, s in negatives["score"].items()} == wins
    assert set(frame[frame["positive"]]["score"]) == {0.5}


def test_pandalm_needs_one_positive_and_a_negative_in_each_group(tmp_path: Path) -> None:
    for made in (
        [example("a", "g", True)],
        [example("a", "g", False)],
        [example(n, "g", n != "c") for n in "abc"],
    ):
        with pytest.raises(UserError, match="compares one positive with at least one negative"):
            judge_examples(made, PandaLMJudge(), Prefers({}), output=tmp_path / "a.jsonl")


def test_a_model_without_a_chat_template_reads_pandalms_format_as_it_is() -> None:
    model, tokenizer = build("llama", context=2048)
    tokenizer.chat_template = None
    engine = HFEngine(model, tokenizer, Decoding(4, 0, 1.0), name="tiny")
    query = PandaLMJudge().queries([example("p", "g", True), example("n", "g", False)], 0)[0]
    ids = engine.renderer.render(query.system, query.user)
    assert tokenizer.decode(ids[1:]) == query.user + "\n"
    assert ids[0] == tokenizer.bos_token_id


# ---------------------------------------------------------------------------------------------- AlignScore


@pytest.fixture(scope="module")
def align(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small checkpoint in AlignScore's layout and a RoBERTa-like tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM, RobertaModel

    folder = tmp_path_factory.mktemp("align")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["the museum is new and the art is old"], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        cls_token="<s>",
        unk_token="<unk>",
        mask_token="<mask>",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=backend.get_vocab_size(), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=96, max_position_embeddings=66, type_vocab_size=1, initializer_range=0.3,
        layer_norm_eps=1e-5, pad_token_id=1,
    )  # fmt: skip
    encoder = RobertaModel(config)
    heads = {
        name: torch.nn.Linear(128, n) for name, n in (("bin_layer", 2), ("tri_layer", 3), ("reg_layer", 1))
    }
    state = {f"base_model.{k}": v for k, v in encoder.state_dict().items()}
    # A buffer that checkpoints of the time held, and a head that is not needed.
    state["base_model.embeddings.position_ids"] = torch.arange(66)[None]
    state |= {f"mlm_head.{k}": v for k, v in RobertaForMaskedLM(config).lm_head.state_dict().items()}
    state |= {f"{name}.{k}": v for name, head in heads.items() for k, v in head.state_dict().items()}
    content = {
        "epoch": 3,
        "global_step": 7,
        "pytorch-lightning_version": "1.7.7",
        "state_dict": state,
        "hyper_parameters": {"model": "roberta-large", "using_pretrained": True},
    }
    torch.save(content, folder / "AlignScore-small.ckpt")
    return folder


def plain_aligned(folder: Path, chunk: str, claim: str) -> float:
    """P(aligned) of one pair in float64, alone and unpadded, from the checkpoint's tensors."""
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    state = torch.load(folder / "AlignScore-small.ckpt", weights_only=True)["state_dict"]
    config = RobertaConfig(
        vocab_size=len(state["base_model.embeddings.word_embeddings.weight"]), hidden_size=128,
        num_hidden_layers=2, num_attention_heads=2, intermediate_size=96, max_position_embeddings=66,
        type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1,
    )  # fmt: skip
    encoder = RobertaModel(config).double().eval()
    own = {k.removeprefix("base_model."): v for k, v in state.items() if k.startswith("base_model.")}
    own.pop("embeddings.position_ids")
    encoder.load_state_dict(own)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    a, b = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (chunk, claim))
    a = a[: 64 - 4 - len(b)]  # the reference gives way
    ids = torch.tensor([[0, *a, 2, 2, *b, 2]])
    with torch.no_grad():
        pooled = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).pooler_output[0]
    logits = state["tri_layer.weight"].double() @ pooled + state["tri_layer.bias"].double()
    exponentials = [math.exp(x) for x in logits.tolist()]
    return exponentials[0] / sum(exponentials)


def test_alignscore_is_the_mean_over_sentences_of_the_best_chunk(align: Path) -> None:
    long = " ".join(f"Museum {n} has art." for n in range(200))  # 800 words: three chunks
    made = [
        example(
            "a",
            "g",
            True,
            context="We saw old art. It was new.",
            response="The art is old. I like it! Do you?",
        ),
        example("b", "g", False, LOW, context=long, response="No.\nIt is new."),
        example("c", "h", True, context="", response="yes"),
    ]
    verdicts = AlignScoreJudge(align, batch_size=3, device="cpu").score(made)
    for made_one, verdict in zip(made, verdicts, strict=True):
        total = 0.0
        claims = sentences(made_one.case.response)
        for claim in claims:
            best = 0.0
            for chunk in reference_chunks(reference(made_one.case)):
                best = max(best, plain_aligned(align, chunk, claim))
            total += best
        assert verdict.score == pytest.approx(total / len(claims), abs=1e-5)
        assert verdict.rating == verdict.score
    assert len(reference_chunks(reference(made[1].case))) >= 3
    assert len({v.score for v in verdicts}) == 3


def test_alignscores_chunks_are_whole_sentences_of_about_350_words() -> None:
    text = " ".join(f"This is sentence number {n} of it." for n in range(300))  # 7 words each
    chunks = reference_chunks(text)
    assert " ".join(chunks) == text
    assert all(chunk.endswith("of it.") for chunk in chunks)
    assert len(chunks) == 8  # 2,100 words ask for 7 chunks, of 300 // 7 = 42 sentences; 6 are left over
    assert max(len(chunk.split()) for chunk in chunks) <= CHUNK_WORDS
    assert reference_chunks("Short.") == ["Short."]


def test_sentences_end_at_punctuation_and_lines() -> None:
    assert sentences('He said "No." Then he left!\nNew line (sic). 3.5 is not two') == [
        'He said "No."',
        "Then he left!",
        "New line (sic).",
        "3.5 is not two",
    ]
    assert sentences("…\n!!!") == []


def test_a_response_without_a_word_is_unscored(align: Path, tmp_path: Path) -> None:
    made = [example("a", "g", True), example("b", "g", False, response="!!!")]
    frame = judge_examples(made, AlignScoreJudge(align), output=tmp_path / "a.jsonl")
    assert list(frame["reason"]) == ["", "no_claim"]
    assert frame["score"].isna().tolist() == [False, True]


def test_a_claim_longer_than_the_model_is_cut_not_refused(align: Path) -> None:
    made = [example("a", "g", True, response="art " * 200)]
    score = AlignScoreJudge(align).score(made)[0].score
    assert score is not None
    assert 0 < score < 1


def test_an_alignscore_run_resumes_exactly(
    align: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import persona_mlflow.prism.judges.run as run

    monkeypatch.setattr(run, "_CHUNK", 2)
    path = tmp_path / "a.jsonl"
    made = [example(f"{g}{s}", f"g{g}", s == "+") for g in range(4) for s in "+-"]
    judge = AlignScoreJudge(align)
    whole = judge_examples(made, judge, output=path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[0])["judge"]["method"] == "alignscore"
    path.write_bytes(b"".join(lines[:4]) + lines[4][:9])
    asked: list[str] = []
    real = judge.score

    def counting(part: Sequence[Example]) -> Any:
        asked.extend(e.case.id for e in part)
        return real(part)

    monkeypatch.setattr(judge, "score", counting)
    again = judge_examples(made, judge, output=path)
    assert asked == [e.case.id for e in made[3:]]
    assert again["score"].to_list() == pytest.approx(whole["score"].to_list(), abs=1e-6)


def test_alignscore_reads_safetensors_and_a_file_by_name(align: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    state = torch.load(align / "AlignScore-small.ckpt", weights_only=True)["state_dict"]
    save_file({k: v.contiguous().clone() for k, v in state.items()}, tmp_path / "align.safetensors")
    made = [example("a", "g", True)]
    expected = AlignScoreJudge(align / "AlignScore-small.ckpt").score(made)
    assert AlignScoreJudge(tmp_path / "align.safetensors", tokenizer=align).score(made) == expected


def test_alignscores_bad_checkpoints(align: Path, tmp_path: Path) -> None:
    def refused(message: str, content: Any = None) -> None:
        path = tmp_path / "x.ckpt"
        if content is not None:
            torch.save(content, path)
        with pytest.raises(UserError, match=message):
            AlignScoreJudge(path, tokenizer=align)

    refused("no such file or folder")
    (tmp_path / "x.ckpt").write_bytes(b"not a checkpoint")
    refused("cannot be read|more than tensors")
    refused("more than tensors and plain values", {"state_dict": {}, "hooks": Path("x")})
    refused("is not one of AlignScore's", {"state_dict": {"weight": torch.ones(2)}})
    state = torch.load(align / "AlignScore-small.ckpt", weights_only=True)["state_dict"]
    refused("tri_layer", {"state_dict": {k: v for k, v in state.items() if "tri_layer" not in k}})
    refused("is not one of", {"state_dict": {k: v for k, v in state.items() if "layer.1.output" not in k}})
    (tmp_path / "y.ckpt").touch()
    with pytest.raises(UserError, match="holds 2 checkpoints"):
        AlignScoreJudge(tmp_path)
    (tmp_path / "x.ckpt").unlink()
    torch.save({"state_dict": state}, tmp_path / "y.ckpt")
    with pytest.raises(UserError, match=r"tokenizer.*cannot be loaded"):
        AlignScoreJudge(tmp_path, tokenizer=tmp_path / "nowhere")
