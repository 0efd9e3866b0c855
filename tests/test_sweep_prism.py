"""`run --prism`: the explaining runs' texts scored, logged, resumed and summed up, with tiny models."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from scipy.stats import pearsonr

from brute_force import metrics as brute_metrics
from experiments import call, read_ledger, start, summary, write_spec
from persona_mlflow.errors import UserError
from persona_mlflow.plan import make_plan
from persona_mlflow.prism.cases import Case, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS
from persona_mlflow.prism.evaluators import load_evaluator
from persona_mlflow.prism.scoring import score_cases
from persona_mlflow.spec import parse_spec
from persona_mlflow.store import resolve_tracking_uri
from persona_mlflow.tracking import Tracker

EXPLAINED: dict[str, Any] = {
    "limit": 20,
    "personas": ["a man", "a biologist", "a chef"],
    "factors": {"ppf": ["barebones", "youare"], "tpf": ["justanswer", "explain"], "temperature": [0.0, 1.0]},
}
RUNS, SCORED_RUNS, SAMPLE = 24, 12, 12


def save_talker(folder: Path) -> Path:
    """A model that often answers with a letter, and now and then with nothing."""
    import torch

    from tiny_models import build_model, build_tokenizer

    tokenizer, model = build_tokenizer("chatml"), build_model("qwen2")
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[tokenizer.convert_tokens_to_ids(list("ABCD"))] *= 5.0
        weight[tokenizer.eos_token_id] *= 3.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_evaluator(folder: Path, lean: float) -> Path:
    """A model whose first channel is the same everywhere, and by which A, B and C are likely or not."""
    import torch

    from tiny_models import build_model, build_tokenizer

    tokenizer, model = build_tokenizer("chatml"), build_model("qwen2", seed=1, context=4096)
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 20.0
        weight = model.get_output_embeddings().weight
        weight[:, 0] = 0.0
        letters = tokenizer.convert_tokens_to_ids(list("ABC"))
        weight[letters] *= 8.0
        weight[letters, 0] = lean
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_talker(tmp_path_factory.mktemp("models") / "talker")


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_evaluator(tmp_path_factory.mktemp("models") / "evaluator", 2.0)


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a model was loaded")


def open_store() -> MlflowClient:
    return MlflowClient(resolve_tracking_uri(None))


def find_runs() -> tuple[Any, list[Any]]:
    """The parent, and its children."""
    client = open_store()
    (experiment,) = [e for e in client.search_experiments() if e.name == "small"]
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    (parent,) = [run for run in runs if run.data.tags["persona_mlflow.role"] == "parent"]
    return parent, [run for run in runs if run is not parent]


def read_scores(output: Path) -> dict[str, bytes]:
    """Every score on record: file → its bytes."""
    return {
        str(path.relative_to(output)): path.read_bytes() for path in sorted(output.glob("prism/*/*.jsonl"))
    }


def count_scores(output: Path) -> int:
    return sum(content.count(b"\n") - 1 for content in read_scores(output).values())


@pytest.fixture(scope="module")
def experiment(
    talker: Path, evaluator: Path, new_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """An experiment that is run without an evaluator, and then scored."""
    folder = tmp_path_factory.mktemp("scored")
    shutil.copyfile(new_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        arguments = ("run", "-e", str(write_spec(folder, talker, **EXPLAINED)), "-o", "out")
        assert call(*arguments) == 0
        found: dict[str, Any] = {"before": find_runs(), "answers": read_ledger(folder / "out")}
        patch.setattr("persona_mlflow.engines.hf.load_engine", refuse)
        scoring = (*arguments, "--prism", str(evaluator), "--prism-sample", str(SAMPLE))
        assert call(*scoring) == 0
        parent, children = find_runs()
    return {**found, "folder": folder, "arguments": scoring, "parent": parent, "children": children}


@pytest.fixture
def here(experiment: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(experiment["folder"])
    return Path(experiment["folder"])


def explaining(experiment: dict[str, Any]) -> list[Any]:
    return [run for run in experiment["children"] if run.data.params["tpf"] == "explain"]


def artifact(run: Any, name: str, folder: Path) -> Path:
    target = folder / run.info.run_id
    target.mkdir(exist_ok=True)
    return Path(open_store().download_artifacts(run.info.run_id, name, str(target)))


# ---------------------------------------------------------------------------------------------- an experiment


def test_an_experiment_that_was_run_is_scored_without_being_run_again(
    here: Path, experiment: dict[str, Any]
) -> None:
    parent, children = experiment["before"]
    assert read_ledger(here / "out") == experiment["answers"]
    assert experiment["parent"].info.run_id == parent.info.run_id
    assert experiment["parent"].info.status == "FINISHED"
    assert experiment["parent"].info.end_time == parent.info.end_time
    assert experiment["parent"].data.metrics.items() >= parent.data.metrics.items()
    assert {run.info.run_id for run in experiment["children"]} == {run.info.run_id for run in children}
    assert {run.info.status for run in experiment["children"]} == {"FINISHED"}
    assert len(explaining(experiment)) == SCORED_RUNS
    for run in experiment["children"]:
        logged = [name for name in run.data.metrics if name.startswith("prism/")]
        assert bool(logged) == (run.data.params["tpf"] == "explain")


def test_every_run_is_scored_on_the_same_balanced_sample(
    here: Path, experiment: dict[str, Any], tmp_path: Path
) -> None:
    samples = set()
    for run in explaining(experiment):
        frame = pq.read_table(artifact(run, "prism.parquet", tmp_path)).to_pandas()
        assert len(frame) == 3 * SAMPLE
        assert frame["dimension"].tolist() == list(DIMENSIONS) * SAMPLE
        samples.add(tuple(frame["question_id"][::3]))
        counts = Counter(frame["category"][::3])
    assert len(samples) == 1
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_child_s_numbers_are_those_of_its_cases_and_empty_texts_are_unscored(
    here: Path, experiment: dict[str, Any], tmp_path: Path
) -> None:
    empty = 0
    for run in explaining(experiment):
        frame = pq.read_table(artifact(run, "prism.parquet", tmp_path)).to_pandas()
        texts = pq.read_table(artifact(run, "generations.parquet", tmp_path)).to_pandas()
        texts = texts.set_index("question_id")["text"]
        cases = {q: part.set_index("dimension") for q, part in frame.groupby("question_id", sort=False)}
        unscored = {q for q in cases if not texts[q].strip()}
        empty += len(unscored)
        assert {q for q, part in cases.items() if (part["reason"] != "").any()} == unscored
        found = run.data.metrics
        assert (found["prism/scored"], found["prism/unscored"]) == (SAMPLE - len(unscored), len(unscored))
        scored = [part["q_aligned"] for q, part in cases.items() if q not in unscored]
        for dimension in DIMENSIONS:
            mean = sum(part[dimension] for part in scored) / len(scored)
            assert found[f"prism/{dimension}"] == pytest.approx(mean)
        means = [sum(part[d] for d in DIMENSIONS) / 3 for part in scored]
        assert found["prism/fidelity"] == pytest.approx(sum(means) / len(means))
        masses = frame["label_mass"].dropna().tolist()
        assert found["prism/label_mass"] == pytest.approx(sum(masses) / len(masses))
    assert empty, "the model never says nothing"


def test_what_is_scored_is_the_persona_the_question_as_presented_and_the_text(
    here: Path, experiment: dict[str, Any], evaluator: Path, tmp_path: Path
) -> None:
    (run,) = [
        run
        for run in explaining(experiment)
        if [run.data.params[k] for k in ("persona", "ppf", "temperature")] == ["a chef", "youare", "0.0"]
    ]
    frame = pq.read_table(artifact(run, "prism.parquet", tmp_path)).to_pandas()
    texts = pq.read_table(artifact(run, "generations.parquet", tmp_path)).to_pandas()
    questions = pq.read_table(here / "out" / "questions.parquet").to_pandas().set_index("id")
    cases = []
    for question_id, text in zip(texts["question_id"], texts["text"], strict=True):
        if question_id in set(frame["question_id"]) and text.strip():
            row = questions.loc[question_id]
            options = [
                f"({letter}) {option}" for letter, option in zip("ABCDE", row["options"], strict=False)
            ]
            context = "\n".join([row["text"], *options])
            key = f"{run.data.tags['persona_mlflow.cell']}/{question_id}"
            cases.append(Case(key, Profile("persona", name="a chef"), context, text))
    alone = score_cases(cases, load_evaluator(str(evaluator)))
    logged = frame[frame["reason"] == ""].set_index(["question_id", "dimension"])["e"]
    assert len(alone) == len(logged)
    for case, dimension, e in zip(alone["case"], alone["dimension"], alone["e"], strict=True):
        assert logged[case.split("/")[1], dimension] == pytest.approx(e, abs=1e-5)


def brute(experiment: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fidelity and accuracy by persona and setting, from the children's artifacts."""
    levels: dict[str, dict[str, dict[tuple[str, str], float]]] = {"fidelity": {}, "accuracy": {}}
    for run in explaining(experiment):
        frame = pq.read_table(artifact(run, "prism.parquet", folder)).to_pandas()
        rows = pq.read_table(artifact(run, "generations.parquet", folder)).to_pylist()
        persona, setting = (
            run.data.params["persona"],
            (run.data.params["ppf"], run.data.params["temperature"]),
        )
        s = [
            sum(part["e"]) / 3 for _, part in frame.groupby("question_id") if not (part["reason"] != "").any()
        ]
        right = [row["letter"] == row["gold"] for row in rows]
        for what, values in (("fidelity", s), ("accuracy", right)):
            levels[what].setdefault(persona, {})[setting] = sum(values) / len(values)
    return levels


def test_the_parent_s_numbers_are_brute_force_over_the_children_s_artifacts(
    here: Path, experiment: dict[str, Any], tmp_path: Path
) -> None:
    levels = brute(experiment, tmp_path)
    found = experiment["parent"].data.metrics
    everything = [value for by in levels["fidelity"].values() for value in by.values()]
    assert found["prism/fidelity"] == pytest.approx(sum(everything) / SCORED_RUNS)
    for dimension in DIMENSIONS:
        mean = sum(run.data.metrics[f"prism/{dimension}"] for run in explaining(experiment)) / SCORED_RUNS
        assert found[f"prism/{dimension}"] == pytest.approx(mean)
    gender = list(levels["fidelity"]["a man"].values())
    assert found["prism/fidelity/Gender"] == pytest.approx(sum(gender) / 4)
    unscored = sum(run.data.metrics["prism/unscored"] for run in explaining(experiment))
    assert found["prism/unscored_rate"] == pytest.approx(unscored / (SCORED_RUNS * SAMPLE))
    by_persona = {}
    for what, place in (("fidelity", "instability"), ("accuracy", "reference")):
        i_a, i_o, per_persona = brute_instabilities(levels[what])
        assert found[f"prism/{place}/accuracy"] == pytest.approx(i_a, abs=1e-12)
        assert found[f"prism/{place}/outcome"] == pytest.approx(i_o, abs=1e-9)
        by_persona[what] = per_persona
    for i, name in enumerate(("accuracy", "outcome")):
        r = pearsonr(by_persona["accuracy"][i], by_persona["fidelity"][i]).statistic
        assert found[f"prism/correlation/{name}"] == pytest.approx(r, abs=1e-6)
    paired = [
        (levels["accuracy"][p][s], levels["fidelity"][p][s])
        for p in levels["accuracy"]
        for s in levels["accuracy"][p]
    ]
    r = pearsonr(*zip(*paired, strict=True)).statistic
    assert found["prism/correlation/runs"] == pytest.approx(r, abs=1e-9)
    assert all(value == value for value in found.values())


def brute_instabilities(levels: dict[str, dict[Any, float]]) -> tuple[float, float, tuple[list, list]]:
    """I_A, I_O, and both by persona."""
    personas = sorted(levels)
    matrix = np.array([[levels[p][s] for s in sorted(levels[p])] for p in personas])
    n = matrix.shape[1]
    i_a = [
        sum(abs(row[i] - row[j]) for i in range(n) for j in range(i)) / (n * (n - 1) / 2) for row in matrix
    ]
    w = matrix.std(axis=0)
    ranks = np.array(
        [
            [1 + sum(matrix[:, s] > v) + (sum(matrix[:, s] == v) - 1) / 2 for s, v in enumerate(row)]
            for row in matrix
        ]
    )
    centre = (ranks * w).sum(axis=1, keepdims=True) / w.sum()
    i_o = np.sqrt((w * (ranks - centre) ** 2).sum(axis=1) / w.sum())
    return float(np.mean(i_a)), float(i_o.mean() * w.mean()), (i_a, i_o.tolist())


def test_the_reference_is_the_product_s_own_instability_of_the_explaining_settings(
    here: Path, experiment: dict[str, Any], tmp_path: Path
) -> None:
    right: dict[str, dict[tuple[str, str], set[str]]] = {}
    for run in explaining(experiment):
        rows = pq.read_table(artifact(run, "generations.parquet", tmp_path)).to_pylist()
        setting = (run.data.params["ppf"], run.data.params["temperature"])
        right.setdefault(run.data.params["persona"], {})[setting] = {
            row["question_id"] for row in rows if row["letter"] == row["gold"]
        }
    expected = brute_metrics({"right": right, "n": 20, "unparsed": 0, "runs": SCORED_RUNS})
    for name in ("accuracy", "outcome"):
        value = experiment["parent"].data.metrics[f"prism/reference/{name}"]
        assert value == pytest.approx(expected[f"instability/{name}"], abs=1e-9)


def test_the_parent_carries_tables_and_the_evaluator_s_settings(
    here: Path, experiment: dict[str, Any], tmp_path: Path
) -> None:
    folder = artifact(experiment["parent"], "prism", tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"by_persona.csv", "by_group.csv", "by_setting.csv", "fidelity.json", "fidelity.npz"}
    document = json.loads((folder / "fidelity.json").read_text())
    assert (document["questions"], document["runs"], document["layout"]) == (
        SAMPLE,
        SCORED_RUNS,
        "labels-last",
    )
    assert document["settings"]["engine"] == "transformers"
    assert document["metrics"].items() <= experiment["parent"].data.metrics.items()
    assert experiment["parent"].data.tags["prism.evaluator"] == document["evaluator"]


def test_summarize_shows_fidelity_where_there_is_some(
    here: Path, experiment: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = summary(capsys)
    for name in ("prism/fidelity", "prism/instability/accuracy", "prism/instability/outcome"):
        assert row[name] == experiment["parent"].data.metrics[name]
    assert call("summarize", "--schema") == 0
    jsonschema.validate([row], json.loads(capsys.readouterr().out))
    assert call("summarize") == 0
    shown = capsys.readouterr().out
    assert f"{row['prism/fidelity']:.4f}" in shown
    assert "I_O of fidelity" in shown
    assert call("summarize", "--format", "csv") == 0
    assert "prism/instability/accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_the_report_shows_fidelity_and_reads_the_same_from_run_and_ledger(
    here: Path, experiment: dict[str, Any], tmp_path: Path
) -> None:
    from persona_mlflow.report.sources import find_sources, load_fidelity

    options = ("--no-log", "--draws", "20", "--permutations", "0", "-o", str(tmp_path))
    assert call("report", "out", *options) == 0
    assert "Do the explanations fit the persona?" in (tmp_path / "report.html").read_text()
    for name, quantity, metric in (
        ("fidelity", "fidelity", "prism/fidelity"),
        ("fidelity-instability", "I_A of fidelity", "prism/instability/accuracy"),
    ):
        with (tmp_path / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
            rows = {(row["part"], row["quantity"]): row for row in csv.DictReader(file)}
        value = experiment["parent"].data.metrics[metric]
        assert float(rows["all explaining runs", quantity]["value"]) == pytest.approx(value)
    found = []
    for name in ("out", experiment["parent"].info.run_id):
        (source,) = find_sources([name], None).values()
        found.append(load_fidelity(source, None))
    assert found[0].identical(found[1])
    assert found[0].sizes["question"] == SAMPLE


def test_scored_once_it_is_not_scored_again_and_no_model_is_loaded(
    here: Path,
    experiment: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("persona_mlflow.engines.models.load_model", refuse)
    scores, (parent, _) = read_scores(here / "out"), find_runs()
    assert call(*experiment["arguments"]) == 0
    assert "Every score is on record and logged already." in capsys.readouterr().err
    assert read_scores(here / "out") == scores
    assert find_runs()[0].data.metrics == parent.data.metrics


# ---------------------------------------------------------------------------------------- in one go, resumed


@pytest.mark.slow
def test_R6_killed_while_scoring_it_goes_on_and_scores_nothing_twice(
    workdir: Path, talker: Path, evaluator: Path, experiment: dict[str, Any]
) -> None:
    output = workdir / "out"
    spec = write_spec(workdir, talker, **EXPLAINED)
    arguments = (
        "run",
        "-e",
        str(spec),
        "-o",
        "out",
        "--prism",
        str(evaluator),
        "--prism-sample",
        str(SAMPLE),
    )
    cases = SCORED_RUNS * SAMPLE - int(
        sum(run.data.metrics["prism/unscored"] for run in explaining(experiment))
    )
    before: dict[str, bytes] = {}
    for number, enough in ((signal.SIGKILL, 5), (signal.SIGINT, cases // 2)):
        process = start(*arguments, cwd=workdir)
        wait_until(lambda enough=enough: count_scores(output) >= enough, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        scores = read_scores(output)
        assert count_scores(output) < cases, "the signal came too late"
        for name, content in before.items():
            assert scores[name].startswith(content[: content.rfind(b"\n") + 1])
        before = scores
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "To go on: persona-mlflow run" in errors
    assert find_runs()[0].info.status == "KILLED"
    assert call(*arguments) == 0
    parent, children = find_runs()
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    assert len(children) == RUNS
    after = read_scores(output)
    for name, content in before.items():
        assert after[name].startswith(content)
    ids = [json.loads(line)["case"] for text in after.values() for line in text.splitlines()[1:]]
    assert len(ids) == len(set(ids)) == cases
    # What was scored after a kill was in other batches, so its last digits may differ.
    assert parent.data.metrics == pytest.approx(experiment["parent"].data.metrics, abs=1e-5)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"the process ended with {process.returncode} too early: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "the process made no progress"
        time.sleep(0.002)


SMALL: dict[str, Any] = {
    "limit": 4,
    "personas": ["a man", "a chef"],
    "factors": {"ppf": ["youare"], "tpf": ["explain"], "temperature": [0.0, 1.0]},
}


def test_M5_what_is_undefined_is_a_tag_and_a_larger_sample_takes_over_the_scores(
    workdir: Path, talker: Path, evaluator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "run",
        "-e",
        str(write_spec(workdir, talker, **SMALL)),
        "-o",
        "out",
        "--prism",
        str(evaluator),
    )
    assert call(*arguments, "--prism-sample", "2") == 0
    parent, _ = find_runs()
    tag = parent.data.tags["metric_undefined.prism/correlation/accuracy"]
    assert tag == "takes at least three personas; here: 2"
    assert "prism/correlation/accuracy" not in parent.data.metrics
    small = read_scores(workdir / "out")
    assert call(*arguments, "--prism-sample", "all") == 0
    large = read_scores(workdir / "out")
    assert small.keys() == large.keys()
    assert all(large[name].startswith(content) for name, content in small.items())
    after, children = find_runs()
    assert after.data.tags["persona_mlflow.prism"] != parent.data.tags["persona_mlflow.prism"]
    for run in children:
        assert run.data.metrics["prism/scored"] + run.data.metrics["prism/unscored"] == 4
    (row,) = summary(capsys)
    assert row["prism/fidelity"] == after.data.metrics["prism/fidelity"]


def test_L4_an_evaluator_that_gives_no_letters_stops_the_scoring_but_loses_no_answer(
    workdir: Path, talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = save_evaluator(tmp_path / "silent", -4.0)
    arguments = ("run", "-e", str(write_spec(workdir, talker, **SMALL)), "-o", "out")
    assert call(*arguments, "--prism", str(silent)) == 2
    error = capsys.readouterr().err
    assert f"--prism {silent}: the evaluator puts" in error
    assert "Use another evaluator" in error
    parent, children = find_runs()
    assert parent.info.status == "FAILED"
    assert not [run for run in children if any(name.startswith("prism/") for name in run.data.metrics)]
    assert call(*arguments) == 0
    assert find_runs()[0].info.status == "FINISHED"
    # A complete experiment stays so, whatever becomes of its scoring.
    assert call(*arguments, "--prism", str(silent)) == 2
    assert find_runs()[0].info.status == "FINISHED"


def test_the_sweep_s_own_model_can_be_the_evaluator_of_its_texts(
    workdir: Path, evaluator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from persona_mlflow.engines.hf import HFEngine

    closed: list[bool] = []
    close = HFEngine.close

    def closing(self: HFEngine) -> None:
        closed.append(True)
        close(self)

    def loading(*arguments: Any, **options: Any) -> Any:
        assert closed, "two models are in memory"
        return load_evaluator(*arguments, **options)

    monkeypatch.setattr(HFEngine, "close", closing)
    monkeypatch.setattr("persona_mlflow.prism.evaluators.load_evaluator", loading)
    spec = write_spec(workdir, evaluator, **SMALL)
    assert call("run", "-e", str(spec), "-o", "out", "--prism", str(evaluator)) == 0
    assert "prism/unscored_rate" in find_runs()[0].data.metrics


# ------------------------------------------------------------------------------------------------ bad input


def test_without_an_explaining_run_nothing_is_begun(
    workdir: Path, talker: Path, evaluator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(workdir, talker)
    assert call("run", "-e", str(spec), "-o", "out", "--prism", str(evaluator)) == 2
    error = capsys.readouterr().err
    for words in ("no run explains its answers", "justanswer", "explain-persona", "--tpf", "prism.tpf"):
        assert words in error
    assert not (workdir / "out").exists()
    assert not [e for e in open_store().search_experiments() if e.name == "small"]


def test_an_evaluator_that_cannot_be_had_is_said_before_anything_is_generated(
    workdir: Path, talker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("persona_mlflow.engines.hf.load_engine", refuse)
    spec = write_spec(workdir, talker, **SMALL)
    for reference, words in (
        ("./nowhere", "--prism ./nowhere: model './nowhere'"),
        ("openai:gpt", "OPENAI_API_KEY"),
        ("openai:", "--prism openai:"),
    ):
        assert call("run", "-e", str(spec), "-o", "out", "--prism", reference) == 2
        assert words in capsys.readouterr().err
    assert not [e for e in open_store().search_experiments() if e.name == "small"]


@pytest.mark.parametrize(
    ("prism", "message"),
    [
        ({"sample": -1}, r"the spec: prism\.sample: -1 must be a whole number from 0, or all"),
        ({"sample": True}, r"prism\.sample: True must be a whole number"),
        ({"layout": "labels"}, r"prism\.layout: 'labels'.*labels-last"),
        ({"evaluatr": "m"}, r"prism\.evaluatr: no such key; did you mean 'evaluator'"),
        ({"base_url": "http://me:secret@host/v1"}, r"prism\.base_url.*no user and no password"),
        ({"evaluator": ""}, r"prism\.evaluator"),
    ],
)
def test_a_wrong_prism_key_is_named(prism: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_spec({"name": "x", "prism": prism}, "the spec")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prism", "smollm2", "--prism-sample", "few"), "--prism-sample: 'few'"),
        (("--prism-sample", "3"), "--prism-sample: nothing is scored"),
        (("--prism-base-url", "http://x"), "--prism-base-url: nothing is scored"),
        (("--prism", ""), "--prism: is empty"),
    ],
)
def test_a_wrong_prism_option_is_named_as_it_was_given(
    workdir: Path, talker: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert call("run", "-e", str(write_spec(workdir, talker, **SMALL)), *options) == 2
    assert words in capsys.readouterr().err


def test_an_evaluator_changes_no_cell_and_no_hash_of_the_plan_and_a_format_of_one_s_own_can_explain(
    talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"name": "x", "model": str(talker), **SMALL}
    prism = {"evaluator": "smollm2", "sample": 3, "seed": 5, "layout": "labels-first"}
    plain, scored = (make_plan(parse_spec(c, "the spec")) for c in (content, {**content, "prism": prism}))
    assert plain.spec_hash == scored.spec_hash
    assert [cell.key for cell in plain.grid.cells] == [cell.key for cell in scored.grid.cells]
    (tmp_path / "own.yaml").write_text("tpf: {essay: '{question} Write an essay.'}")
    own = write_spec(
        tmp_path,
        talker,
        **{**SMALL, "factors": {"tpf": ["essay", "explain"]}, "catalog": {"prompts": "own.yaml"}},
        prism={"evaluator": "smollm2", "tpf": ["essay"], "sample": 3},
    )
    assert call("plan", "-e", str(own), "--json") == 0
    assert json.loads(capsys.readouterr().out)["scored answers"] == 2 * 3
    assert (
        call(
            "plan", "-e", str(write_spec(tmp_path, talker, **SMALL, prism={"tpf": ["essy"]})), "--prism", "m"
        )
        == 2
    )
    assert "prism.tpf: no task prompt format 'essy'" in capsys.readouterr().err


def test_a_metric_that_is_defined_now_loses_the_tag_that_says_why_it_was_not(
    workdir: Path, tmp_path: Path
) -> None:
    tracker = Tracker.open(None, "e", run_name="p", spec_hash="h", params={}, ledger="l")
    client, files = tracker.client, tmp_path / "files"
    files.mkdir()

    def log(metrics: dict[str, float], undefined: dict[str, str]) -> Any:
        run = client.get_run(tracker.parent_id)
        tracker.log_later(run, metrics=metrics, undefined=undefined, tags={"t": 1}, files=files)
        return client.get_run(tracker.parent_id).data

    found = log({"a": 1.0}, {"b": "because"})
    assert found.tags["metric_undefined.b"] == "because"
    found = log({"a": 1.0, "b": 2.0}, {})
    assert "metric_undefined.b" not in found.tags
    assert (found.metrics, found.tags["t"]) == ({"a": 1.0, "b": 2.0}, "1")
