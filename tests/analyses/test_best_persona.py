"""Best-persona prediction: learns what is there, loses nothing when killed, and says what it cannot do."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from persona_mlflow.analyses.best_persona import (
    RESULT,
    ROWS,
    TABLE,
    by_level,
    load_best_personas,
    predict_best_personas,
    save_best_personas,
    split_questions,
)
from persona_mlflow.analyses.best_persona_training import Classifier, sample_f1
from persona_mlflow.errors import UserError

FACTORS: dict[str, list[Any]] = {"ppf": ["barebones", "youare"], "temperature": [0.0, 1.0]}
PERSONAS = ["a chef", "a lawyer", "a man"]
CATEGORIES = ["Math", "EECS", "History", "Politics and Law"]
TRAINING: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 5e-3, "warmup_steps": 4}


def make_encoder(folder: Path, family: str = "roberta") -> Path:
    """A tiny random encoder without an output layer, with its tokenizer; 30 tokens at most."""
    import torch
    from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

    from tiny_models import build_tokenizer

    tokenizer = build_tokenizer("base")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,
    }
    if family == "roberta":
        positions = 31 + int(tokenizer.pad_token_id)
        RobertaModel(RobertaConfig(max_position_embeddings=positions, **sizes)).save_pretrained(folder)
    else:
        BertModel(BertConfig(max_position_embeddings=30, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


def make_questions(n: int = 80) -> pd.DataFrame:
    """Questions that are about cooking or about the law, in turn."""
    topics = ("capital of France", "elderly person")
    return pd.DataFrame(
        {
            "id": [f"q{i:03}" for i in range(n)],
            "text": [f"{topics[i % 2]}? {i}" for i in range(n)],
            "options": [["x", "y"]] * n,
            "category": [CATEGORIES[i // 2 % len(CATEGORIES)] for i in range(n)],
            "label": "l",
        }
    )


def make_dataset(
    questions: pd.DataFrame, personas: list[str] = PERSONAS, factors: dict[str, list[Any]] = FACTORS
) -> xr.Dataset:
    """At temperature 0 the topic decides who is right; else nobody can know."""
    n, rng = len(questions), np.random.default_rng(3)
    shape = (len(personas), *map(len, factors.values()), n)
    dims = ("persona", *factors, "question")
    coords = {"persona": personas, **factors, "question": questions["id"].tolist()}
    correct = xr.DataArray(rng.random(shape) < 0.5, coords, dims)
    topic = np.arange(n) % 2 == 0
    if "temperature" in factors:
        for p, name in enumerate(personas):
            correct.loc[{"persona": name, "temperature": 0.0}] = topic if p % 2 == 0 else ~topic
    return xr.Dataset(
        {"correct": correct, "status": (dims, np.zeros(shape, dtype=np.int8))},
        attrs={"experiment": "planted", "model": "m"},
    )


def predict(folder: Path, encoder: Path, **changes: Any) -> xr.Dataset:
    questions = changes.pop("questions", None)
    questions = make_questions() if questions is None else questions
    dataset = changes.pop("dataset", None)
    dataset = make_dataset(questions) if dataset is None else dataset
    return predict_best_personas(
        dataset, questions, str(encoder), folder=folder, **{**TRAINING, "device": "cpu", **changes}
    )


def f1_by_hand(truth: np.ndarray, predicted: np.ndarray) -> float:
    scores = []
    for right, named in zip(truth.tolist(), predicted.tolist(), strict=True):
        hits = sum(1 for r, p in zip(right, named, strict=True) if r and p)
        precision = hits / sum(named) if sum(named) else 0.0
        recall = hits / sum(right) if sum(right) else 0.0
        scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return sum(scores) / len(scores)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 8), st.floats(0, 1))
def test_sample_f1_against_loops_and_scikit_learn(seed: int, n: int, personas: int, share: float) -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(seed)
    truth, predicted = rng.random((2, n, personas)) < share
    assert sample_f1(truth, predicted) == pytest.approx(f1_by_hand(truth, predicted))
    if personas > 1:
        judged = f1_score(truth, predicted, average="samples", zero_division=0)
        assert sample_f1(truth, predicted) == pytest.approx(judged)


@settings(deadline=None, max_examples=60)
@given(st.integers(10, 200), st.integers(0, 5), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_split_is_70_10_20_in_each_category_whatever_the_order(
    n: int, seed: int, repeats: int, random: Any
) -> None:
    rows = [(f"text {i}", CATEGORIES[random.randrange(4)]) for i in range(n)]
    rows += rows[:repeats]
    random.shuffle(rows)
    frame = pd.DataFrame(rows, columns=["text", "category"])
    parts = split_questions(frame, seed)
    by_text: dict[str, str] = {}
    for (text, _), part in zip(rows, parts.tolist(), strict=True):
        assert by_text.setdefault(text, part) == part  # a repeated text is never on both sides
    counts = Counter(by_text.values())
    for part, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
        assert abs(counts[part] - share * n) < 2
    category_of = dict(rows)
    for category in CATEGORIES:
        texts = [text for text in by_text if category_of[text] == category]
        inside = Counter(by_text[text] for text in texts)
        assert abs(inside["test"] - 0.2 * len(texts)) < 2
        assert abs(inside["validation"] - 0.1 * len(texts)) < 2
    other = frame.sample(frac=1, random_state=seed)
    again = dict(zip(other["text"], split_questions(other, seed).tolist(), strict=True))
    assert again == by_text


def test_another_seed_splits_otherwise() -> None:
    frame = make_questions()
    assert (split_questions(frame, 0) != split_questions(frame, 1)).any()


def test_what_can_be_learned_is_learned_and_nothing_else(tmp_path: Path, encoder: Path) -> None:
    found = predict(tmp_path, encoder, epochs=15)
    assert found["f1"].dims == ("ppf", "temperature")
    assert (found["f1"].sel(temperature=0.0) > 0.95).all()
    assert (found["base_rate"].sel(temperature=0.0) < 0.8).all()
    # By chance every persona is right half of the time: no F1 there is far above the base rate.
    assert (found["f1"].sel(temperature=1.0) < 0.8).all()
    assert (found["f1_validation"].sel(temperature=0.0) > 0.95).all()
    assert (found["f1_at_best_validation"].sel(temperature=0.0) > 0.95).all()
    assert ((found["best_epoch"] >= 1) & (found["best_epoch"] <= 15)).all()
    assert (found["reason"] == "").all()
    assert found.attrs["questions"] == {"train": 56, "validation": 8, "test": 16}


def test_base_rate_and_ceiling_by_hand(tmp_path: Path, encoder: Path) -> None:
    questions = make_questions(40)
    dataset = make_dataset(questions)
    found = predict(tmp_path, encoder, questions=questions, dataset=dataset, epochs=1)
    parts = split_questions(questions)
    for ppf in FACTORS["ppf"]:
        for temperature in FACTORS["temperature"]:
            right = dataset["correct"].sel(ppf=ppf, temperature=temperature).transpose("question", "persona")
            train, test = right.values[parts == "train"], right.values[parts == "test"]
            usual = [sum(column) * 2 > len(column) for column in train.T.tolist()]
            expected = f1_by_hand(test, np.array([usual] * len(test)))
            part = found.sel(ppf=ppf, temperature=temperature)
            assert part["base_rate"].item() == pytest.approx(expected)
            anyone = [any(row) for row in test.tolist()]
            assert part["ceiling"].item() == pytest.approx(sum(anyone) / len(anyone))


def test_the_test_questions_are_not_trained_on(tmp_path: Path, encoder: Path) -> None:
    """Turning every label of the test questions round turns what is predicted right into wrong."""
    questions = make_questions()
    parts = split_questions(questions)
    dataset = make_dataset(questions)
    turned = dataset.copy(deep=True)
    held_out = questions["id"][parts == "test"].tolist()
    turned["correct"].loc[{"question": held_out}] = ~dataset["correct"].sel(question=held_out)
    found = predict(tmp_path, encoder, dataset=turned, epochs=15)
    assert (found["f1"].sel(temperature=0.0) < 0.1).all()
    assert (found["f1_validation"].sel(temperature=0.0) > 0.95).all()


def test_a_second_call_trains_nothing_and_a_changed_one_does(tmp_path: Path, encoder: Path) -> None:
    epochs: list[int] = []

    def count(done: int, total: int, epoch: int) -> None:
        epochs.append(epoch)

    first = predict(tmp_path, encoder, limit=2, progress=count)
    assert sum(e > 0 for e in epochs) == 2 * TRAINING["epochs"]
    assert int(first["f1"].notnull().sum()) == 2
    assert sorted(set(first["reason"].values.ravel())) == ["", "left out: only some settings were asked for"]
    epochs.clear()
    second = predict(tmp_path, encoder, limit=2, progress=count)
    assert not any(epochs)
    assert second.identical(first)
    # A greater limit adds to the smaller one's settings.
    third = predict(tmp_path, encoder, limit=3, progress=count)
    assert sum(e > 0 for e in epochs) == TRAINING["epochs"]
    assert (third["f1"] == first["f1"]).where(first["f1"].notnull(), True).all()
    for change in ({"seed": 1}, {"learning_rate": 1e-3}, {"epochs": 2}, {"batch_size": 8}):
        epochs.clear()
        predict(tmp_path, encoder, limit=1, progress=count, **change)
        assert any(epochs), change


def test_changed_answers_or_weights_are_trained_anew(tmp_path: Path, encoder: Path) -> None:
    dataset = make_dataset(make_questions())
    predict(tmp_path / "out", encoder, dataset=dataset)
    lines = (tmp_path / "out" / ROWS).read_text().count("\n")
    assert lines == 4
    changed = dataset.copy(deep=True)
    cell = {"persona": "a man", "ppf": "youare", "temperature": 1.0, "question": "q000"}
    changed["correct"].loc[cell] = ~changed["correct"].loc[cell]
    predict(tmp_path / "out", encoder, dataset=changed)
    assert (tmp_path / "out" / ROWS).read_text().count("\n") == lines + 1
    other = shutil.copytree(encoder, tmp_path / "other")
    (other / "README.md").write_text("another")
    predict(tmp_path / "out", other, dataset=dataset, limit=1)
    assert (tmp_path / "out" / ROWS).read_text().count("\n") == lines + 2


def test_no_result_depends_on_what_was_trained_before(tmp_path: Path, encoder: Path) -> None:
    dataset = make_dataset(make_questions())
    whole = predict(tmp_path / "a", encoder, dataset=dataset)
    alone = predict(tmp_path / "b", encoder, dataset=dataset.isel(ppf=[1], temperature=[1]))
    at = {"ppf": "youare", "temperature": 1.0}
    assert alone["f1"].item() == whole["f1"].sel(at).item()
    assert alone["f1_validation"].item() == whole["f1_validation"].sel(at).item()
    order = np.random.default_rng(0).permutation(dataset.sizes["question"])
    moved = predict(tmp_path / "c", encoder, dataset=dataset.isel(question=order))
    assert moved["f1"].identical(whole["f1"])


def test_a_torn_last_line_is_dropped_and_a_damaged_one_named(tmp_path: Path, encoder: Path) -> None:
    first = predict(tmp_path, encoder)
    path = tmp_path / ROWS
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = predict(tmp_path, encoder)
    assert again.identical(first)
    assert path.read_bytes() == whole
    path.write_bytes(b"{broken\n" + whole)
    with pytest.raises(UserError, match="line 1: is damaged"):
        predict(tmp_path, encoder)


KILLED = """
import sys
import time
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import test_best_persona as t
def say(done, total, epoch):
    print(done, epoch, flush=True)
    if (done, epoch) == (2, 3):
        time.sleep(60)
t.predict(Path(sys.argv[1]), Path(sys.argv[2]), progress=say, epochs=5)
"""


def test_a_kill_loses_the_setting_in_training_at_most(tmp_path: Path, encoder: Path) -> None:
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), str(here.parents[1])]
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(encoder), *paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.split() == ["2", "3"]:
                process.kill()
                break
        else:
            pytest.fail("ended before it was killed")
    path = tmp_path / "out" / ROWS
    kept = path.read_bytes()
    assert kept.count(b"\n") == 2
    trained: set[int] = set()

    def note(done: int, total: int, epoch: int) -> None:
        if epoch:
            trained.add(done)

    resumed = predict(tmp_path / "out", encoder, epochs=5, progress=note)
    assert trained == {2, 3}
    assert path.read_bytes().startswith(kept)
    assert resumed.identical(predict(tmp_path / "whole", encoder, epochs=5))


def test_two_processes_do_not_share_a_folder(tmp_path: Path, encoder: Path) -> None:
    from filelock import FileLock

    with (
        FileLock(tmp_path / "best_persona.lock"),
        pytest.raises(UserError, match="another process is training"),
    ):
        predict(tmp_path, encoder)


def make_result(f1: list[list[float | None]], reasons: list[list[str]]) -> xr.Dataset:
    values = np.array([[math.nan if v is None else v for v in row] for row in f1])
    dims = ("ppf", "temperature")
    rest = ("f1_validation", "f1_at_best_validation", "base_rate", "ceiling")
    return xr.Dataset(
        {
            "f1": (dims, values),
            **dict.fromkeys(rest, (dims, values / 2)),
            "best_epoch": (dims, values * 8),
            "reason": (dims, np.array(reasons, dtype=object)),
        },
        FACTORS,
        {"unit": "fraction", "warnings": [], "hyperparameters": {"epochs": 3}},
    )


def test_by_level_by_hand() -> None:
    found = by_level(make_result([[0.5, 0.25], [0.75, None]], [["", ""], ["", "why"]]))
    assert found["factor_level"].values.tolist() == [
        "ppf barebones",
        "ppf youare",
        "temperature 0",
        "temperature 1",
    ]
    assert found["value"].values.tolist() == [0.375, 0.75, 0.625, 0.25]
    assert found["low"].values.tolist() == [0.25, 0.75, 0.5, 0.25]
    assert found["high"].values.tolist() == [0.5, 0.75, 0.75, 0.25]
    assert found["base_rate"].values.tolist() == [0.1875, 0.375, 0.3125, 0.125]
    assert found["settings"].values.tolist() == [2, 1, 2, 1]
    left_out = "1 of 2 settings have no F1: why"
    assert found["reason"].values.tolist() == ["", left_out, "", left_out]
    assert "least and the greatest" in found.attrs["low_high"]


def test_a_level_without_any_f1_says_why() -> None:
    found = by_level(make_result([[None, 0.5], [None, 0.5]], [["why", ""], ["also", ""]]))
    cold = found.sel(factor_level="temperature 0")
    assert np.isnan([cold["value"], cold["low"], cold["high"]]).all()
    assert cold["reason"].item() == "2 of 2 settings have no F1: why; also"


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    result = make_result([[0.5, 0.25], [0.75, None]], [["", ""], ["", "why"]])
    json_path, csv_path = save_best_personas(result, tmp_path)
    assert load_best_personas(json_path).identical(result)
    assert load_best_personas(tmp_path).identical(result)
    before = json_path.read_bytes()
    save_best_personas(load_best_personas(json_path), tmp_path)
    assert json_path.read_bytes() == before
    table = pd.read_csv(csv_path)
    assert table[["ppf", "temperature"]].values.tolist() == [
        ["barebones", 0.0],
        ["barebones", 1.0],
        ["youare", 0.0],
        ["youare", 1.0],
    ]
    assert table["f1"].tolist()[:3] == [0.5, 0.25, 0.75]
    assert table["reason"].tolist()[3] == "why"
    assert json.loads(json_path.read_text())["settings"][3]["f1"] is None
    assert csv_path.read_text().splitlines()[1].split(",")[5] == "4"  # an epoch is a whole number
    for content in ("{", "[]", '{"factors": {}}'):
        json_path.write_text(content)
        with pytest.raises(UserError, match="run it again"):
            load_best_personas(json_path)
    with pytest.raises(UserError, match="no such file"):
        load_best_personas(tmp_path / "elsewhere.json")


def test_one_persona_one_setting_and_no_factor_work(tmp_path: Path, encoder: Path) -> None:
    questions = make_questions()
    one = make_dataset(questions, ["a chef"], {"temperature": [0.0]})
    found = predict(tmp_path, encoder, dataset=one, epochs=15)
    # With one persona F1 is the share of questions that are right and predicted to be: half of them here.
    assert found["f1"].item() == pytest.approx(found["ceiling"].item())
    assert by_level(found)["value"].item() == found["f1"].item()
    bare = one.isel(temperature=0, drop=True)
    single = predict(tmp_path, encoder, dataset=bare)
    assert single["f1"].dims == ()
    assert by_level(single).sizes["factor_level"] == 0
    save_best_personas(single, tmp_path)
    assert load_best_personas(tmp_path).identical(single)


def test_all_right_all_wrong_and_unfinished_settings(tmp_path: Path, encoder: Path) -> None:
    dataset = make_dataset(make_questions())
    dataset["correct"].loc[{"ppf": "barebones", "temperature": 0.0}] = True
    dataset["correct"].loc[{"ppf": "barebones", "temperature": 1.0}] = False
    dataset["status"].loc[
        {"ppf": "youare", "temperature": 1.0, "persona": "a man", "question": ["q001", "q002"]}
    ] = -1
    found = predict(tmp_path, encoder, dataset=dataset, epochs=15)
    right = found.sel(ppf="barebones", temperature=0.0)
    assert (right["f1"].item(), right["base_rate"].item(), right["ceiling"].item()) == (1.0, 1.0, 1.0)
    wrong = found.sel(ppf="barebones", temperature=1.0)
    assert np.isnan(wrong["f1"].item())
    assert "no persona is right" in wrong["reason"].item()
    unfinished = found.sel(ppf="youare", temperature=1.0)
    assert np.isnan(unfinished["f1"].item())
    assert unfinished["reason"].item() == "1 of 3 runs are unfinished; finish them"
    # Finishing the run trains this setting alone.
    dataset["status"][:] = 0
    lines = (tmp_path / ROWS).read_text().count("\n")
    again = predict(tmp_path, encoder, dataset=dataset, epochs=15)
    assert (tmp_path / ROWS).read_text().count("\n") == lines + 1
    assert again["reason"].sel(ppf="youare", temperature=1.0).item() == ""


def test_a_training_that_diverges_says_so(tmp_path: Path, encoder: Path) -> None:
    found = predict(tmp_path, encoder, limit=1, learning_rate=1e30, warmup_steps=0, epochs=5)
    reasons = [reason for reason in found["reason"].values.ravel() if not reason.startswith("left out")]
    assert len(reasons) == 1
    assert "lower the learning rate" in reasons[0]
    assert found["f1"].isnull().all()
    assert int(found["base_rate"].notnull().sum()) == 1


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_long_questions_are_cut_and_counted(tmp_path: Path, family: str) -> None:
    folder = make_encoder(tmp_path / family, family)
    questions = make_questions(20)
    questions.loc[3, "text"] += " and so on" * 50
    found = predict(tmp_path / "out", folder, questions=questions, limit=1)
    assert found.attrs["questions_cut"] == 1
    assert any("1 questions are longer" in warning for warning in found.attrs["warnings"])
    again = predict(tmp_path / "out", folder, questions=questions, limit=1)
    assert again.identical(found)


def test_padding_and_batch_mates_change_no_prediction(encoder: Path) -> None:
    texts = ["capital", "capital of France?", "an elderly person from a village, a lawyer"]
    classifier = Classifier(str(encoder), None, texts, 3, device="cpu")
    model = classifier._base.eval()
    together = classifier._logits(model, np.array([0, 1, 2])).detach().numpy()
    for i in range(3):
        alone = classifier._logits(model, np.array([i])).detach().numpy()[0]
        np.testing.assert_allclose(together[i], alone, atol=1e-5)


def test_random_numbers_outside_are_left_as_they_are(tmp_path: Path, encoder: Path) -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    predict(tmp_path, encoder, limit=1, epochs=1)
    assert torch.equal(torch.rand(2), expected)


def test_an_encoder_that_is_none_is_refused(tmp_path: Path, encoder: Path) -> None:
    def refused(name: Path, match: str) -> None:
        with pytest.raises(UserError, match=match):
            predict(tmp_path / "out", name)

    refused(tmp_path / "nowhere", "there is no such folder")
    refused(Path("roberta-bse"), "did you mean 'roberta-base'")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "no config.json")
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"x")
    refused(file, "is a file")
    refused(Path("roberta-base"), "the hub did not give it .*; check the network")
    config = tmp_path / "config-only"
    config.mkdir()
    shutil.copy(encoder / "config.json", config)
    refused(config, "cannot be loaded")
    strange = shutil.copytree(encoder, tmp_path / "strange")
    (strange / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    refused(strange, "cannot be loaded")
    wrong = shutil.copytree(encoder, tmp_path / "wrong")
    for change in ({"num_hidden_layers": 3}, {"intermediate_size": 48}):
        config_text = json.loads((encoder / "config.json").read_text())
        (wrong / "config.json").write_text(json.dumps({**config_text, **change}))
        refused(wrong, "do not fit its config.json")
    mute = shutil.copytree(encoder, tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (mute / name).unlink()
    refused(mute, "(tokenizer is missing|cannot be loaded)")


def test_too_little_or_foreign_data_is_refused(tmp_path: Path, encoder: Path) -> None:
    few = make_questions(9)
    with pytest.raises(UserError, match="9 different questions are too few"):
        predict(tmp_path, encoder, questions=few)
    same = make_questions(20).assign(text="the same")
    with pytest.raises(UserError, match="1 different questions are too few"):
        predict(tmp_path, encoder, questions=same)
    with pytest.raises(UserError, match="1 of 80 questions of the experiment have no text here"):
        predict(tmp_path, encoder, questions=make_questions(79), dataset=make_dataset(make_questions(80)))
    for change in ({"epochs": 0}, {"learning_rate": -1.0}, {"threshold": 1.0}, {"limit": 0}):
        with pytest.raises(UserError, match=next(iter(change))):
            predict(tmp_path, encoder, **change)
    with pytest.raises(UserError, match="device: 'tpu9' is not there"):
        predict(tmp_path, encoder, device="tpu9")


def command(*arguments: str) -> Any:
    from click.testing import CliRunner

    from persona_mlflow.cli.predict import predict as predict_command

    return CliRunner().invoke(predict_command, arguments)


def write_ledger(folder: Path, questions: pd.DataFrame) -> Path:
    """What a run leaves: the plan, the questions and the cells."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    dataset = make_dataset(questions)
    cells = []
    (folder / "cells").mkdir(parents=True)
    for persona in PERSONAS:
        for ppf in FACTORS["ppf"]:
            for temperature in FACTORS["temperature"]:
                slug = f"{persona[2:]}-{ppf}-{temperature:g}"
                cells.append({"key": slug, "slug": slug, "name": slug})
                right = dataset["correct"].sel(persona=persona, ppf=ppf, temperature=temperature)
                rows = {"question_id": questions["id"], "correct": right.values, "status": "ok"}
                pq.write_table(pa.table(pd.DataFrame(rows)), folder / "cells" / f"{slug}.parquet")
    plan = {
        "name": "planted",
        "model": "m",
        "personas": [{"name": name, "group": "g", "subgroup": ""} for name in PERSONAS],
        "factors": FACTORS,
        "cells": cells,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    questions.to_parquet(folder / "questions.parquet", index=False)
    return folder


OPTIONS = ("--epochs", "15", "--batch-size", "16", "--learning-rate", "5e-3", "--device", "cpu")


def test_the_command_on_a_ledger(bare_workdir: Path, encoder: Path) -> None:
    ledger = write_ledger(bare_workdir / "out", make_questions())
    done = command(str(ledger), "--encoder", str(encoder), *OPTIONS, "--json")
    assert done.exit_code == 0, done.output
    levels = {row["factor_level"]: row for row in json.loads(done.stdout)["levels"]}
    assert list(levels) == ["ppf barebones", "ppf youare", "temperature 0", "temperature 1"]
    assert levels["temperature 0"]["settings"] == 2
    assert 0 <= levels["temperature 1"]["low"] <= levels["temperature 1"]["high"] <= 1
    assert "4/4 settings" in done.stderr
    kept = load_best_personas(ledger / "analyses")
    assert by_level(kept)["value"].values.tolist() == [row["value"] for row in levels.values()]
    again = command(str(ledger), "--encoder", str(encoder), *OPTIONS, "--limit-settings", "4")
    assert again.exit_code == 0, again.output
    assert "temperature 0" in again.stdout
    assert f"{levels['temperature 0']['value']:.4f}" in again.stdout
    assert "settings without" not in again.stdout
    assert "Warning: 60 training steps, 100 of them to warm up" in again.stderr
    assert (ledger / "analyses" / ROWS).read_text().count("\n") == 4
    assert not (bare_workdir / "mlflow.db").exists()


def test_the_command_on_a_parent_run_logs_the_result(workdir: Path, encoder: Path) -> None:
    from persona_mlflow import outcomes, store

    questions = make_questions(20)
    ledger = write_ledger(workdir / "ledger", questions)
    client = store.connect(None)
    experiment = client.create_experiment("planted", artifact_location=(workdir / "artifacts").as_uri())
    parent = client.create_run(experiment, tags={store.ROLE: "parent"}).info.run_id
    client.log_param(parent, "model", "m")
    for name in (outcomes.PLAN, outcomes.QUESTIONS):
        client.log_artifact(parent, str(ledger / name))
    for cell in json.loads((ledger / "plan.json").read_text())["cells"]:
        tags = {store.PARENT_RUN: parent, store.ROLE: "cell", store.CELL: cell["key"]}
        child = client.create_run(experiment, tags=tags).info.run_id
        folder = workdir / "child"
        folder.mkdir(exist_ok=True)
        shutil.copy(ledger / "cells" / f"{cell['slug']}.parquet", folder / outcomes.GENERATIONS)
        client.log_artifact(child, str(folder / outcomes.GENERATIONS))
        client.set_terminated(child, "FINISHED")
    done = command("planted", "--encoder", str(encoder), *OPTIONS[2:], "--epochs", "1")
    assert done.exit_code == 0, done.output
    assert {file.path for file in client.list_artifacts(parent, "analyses")} == {
        f"analyses/{RESULT}",
        f"analyses/{TABLE}",
    }
    logged = load_best_personas(client.download_artifacts(parent, f"analyses/{RESULT}", str(workdir)))
    assert logged["f1"].sizes == {"ppf": 2, "temperature": 2}
    assert logged.attrs["experiment"] == "planted"
    assert parent in done.stdout
    assert (workdir / "outputs" / "best-persona" / parent / ROWS).exists()


def test_the_command_refuses_with_one_message(workdir: Path, encoder: Path) -> None:
    done = command("no-such", "--encoder", str(encoder))
    assert isinstance(done.exception, UserError)
    assert "neither a run id nor an experiment" in str(done.exception)
    (workdir / "empty").mkdir()
    done = command("empty", "--encoder", str(encoder))
    assert isinstance(done.exception, UserError)
    assert "holds no plan.json" in str(done.exception)
