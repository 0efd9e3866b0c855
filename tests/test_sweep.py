"""The sweep, end to end: real engine, real MLflow on SQLite, one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from brute_force import metrics, read_children
from experiments import ANSWERS, RUNS, call, read_ledger, summary, write_spec
from persona_mlflow.errors import UserError
from persona_mlflow.outcomes import load_outcomes
from persona_mlflow.store import resolve_tracking_uri


def open_store() -> MlflowClient:
    """The store of the working directory."""
    return MlflowClient(resolve_tracking_uri(None))


@pytest.fixture(scope="module")
def finished(lettered_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The small experiment, run once: its working directory and what `run --json` printed."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        spec = write_spec(folder, lettered_model)
        assert call("run", "-e", str(spec), "--output", "out", "--model", str(lettered_model)) == 0
        (parent,) = open_store().search_runs(["1"], "tags.`persona_mlflow.role` = 'parent'")
    return folder, {"parent": parent.info.run_id, "spec": spec}


@pytest.fixture
def store(finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.chdir(finished[0])
    return open_store()


@pytest.fixture
def parent_id(finished: tuple[Path, dict[str, Any]]) -> str:
    return str(finished[1]["parent"])


def children(store: MlflowClient, parent_id: str) -> list[Any]:
    return list(store.search_runs(["1"], f"tags.mlflow.parentRunId = '{parent_id}'"))


def test_the_parent_carries_the_contract(store: MlflowClient, parent_id: str) -> None:
    run = store.get_run(parent_id)
    assert run.info.status == "FINISHED"
    assert set(run.data.metrics) >= {
        "accuracy/mean",
        "accuracy/std",
        "instability/accuracy",
        "instability/outcome",
        "instability/question",
        "parse_errors/rate",
    }
    assert run.data.params["resolved.revision"].startswith("files:")
    assert run.data.params["temperature"] == "0.0, 1.0"
    assert run.data.tags["persona_mlflow.spec_hash"]
    assert run.data.tags["engine.batch_size"].isdecimal()
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.digest == run.data.params["dataset_fingerprint"][:36]
    names = {artifact.path for artifact in store.list_artifacts(parent_id)}
    assert names == {
        "plan.json",
        "questions.parquet",
        "spec.yaml",
        "prompts.yaml",
        "data_report.json",
        "engine.json",
        "summary.json",
        "outcomes.npz",
        "runs.csv",
    }


def test_G14_the_effective_decoding_is_an_artifact(
    store: MlflowClient, parent_id: str, tmp_path: Path
) -> None:
    settings = json.loads(Path(store.download_artifacts(parent_id, "engine.json", str(tmp_path))).read_text())
    expected = {"top_k": 50, "top_p": 1.0, "max_new_tokens": 1, "dtype": "float32", "device": "cpu"}
    assert expected.items() <= settings.items()


def test_M17_M25_every_child_carries_the_contract(store: MlflowClient, parent_id: str) -> None:
    parent = store.get_run(parent_id)
    runs = children(store, parent_id)
    assert len(runs) == RUNS
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.info.experiment_id == parent.info.experiment_id
        assert run.info.start_time <= run.info.end_time
        assert set(run.data.params) >= {
            "persona",
            "persona_group",
            "ppf",
            "tpf",
            "temperature",
            "model",
            "dataset_fingerprint",
        }
        assert run.data.params["model"] == parent.data.params["model"]
        assert run.data.tags["persona_mlflow.spec_hash"] == parent.data.tags["persona_mlflow.spec_hash"]
        assert {"accuracy", "parse_error_rate", "tokens/prompt", "tokens/completion"} <= set(run.data.metrics)
        names = {artifact.path for artifact in store.list_artifacts(run.info.run_id)}
        assert names == {"generations.parquet", "parse_errors.jsonl", "answers.json"}
    combinations = {
        (r.data.params["persona"], r.data.params["ppf"], r.data.params["temperature"]) for r in runs
    }
    assert len(combinations) == RUNS


def test_a_child_s_numbers_are_those_of_its_generations(
    store: MlflowClient, parent_id: str, tmp_path: Path
) -> None:
    statuses = set()
    for i, run in enumerate(children(store, parent_id)):
        folder = tmp_path / str(i)
        folder.mkdir()
        path = Path(store.download_artifacts(run.info.run_id, "", str(folder)))
        rows = pq.read_table(path / "generations.parquet").to_pylist()
        assert run.data.metrics["accuracy"] == sum(r["letter"] == r["gold"] for r in rows) / len(rows)
        unparsed = [r for r in rows if r["status"] != "ok"]
        assert run.data.metrics["parse_error_rate"] == pytest.approx(len(unparsed) / len(rows))
        lines = (path / "parse_errors.jsonl").read_text().splitlines()
        assert [json.loads(line)["question_id"] for line in lines] == [r["question_id"] for r in unparsed]
        table = json.loads((path / "answers.json").read_text())
        position = table["columns"].index("text")
        assert [line[position] for line in table["data"]] == [r["text"] for r in rows]
        statuses |= {r["status"] for r in rows}
    assert len(statuses) > 1, "the model's answers are too alike to show anything"


def test_summarize_agrees_with_brute_force_over_the_children_s_parquet(
    store: MlflowClient, parent_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_children(resolve_tracking_uri(None), parent_id, ["ppf", "tpf", "temperature"], tmp_path)
    assert found["runs"] == RUNS
    expected = metrics(found)
    assert 0 < expected["instability/accuracy"] < 1
    for source in ((), (parent_id,), ("small",)):
        (row,) = summary(capsys, *source)
        assert row["runs"] == row["runs_planned"] == RUNS
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, abs=1e-12), name


def test_outcomes_are_the_same_from_ledger_run_and_experiment(store: MlflowClient, parent_id: str) -> None:
    from_ledger = load_outcomes("out")
    assert dict(from_ledger.sizes) == {"persona": 3, "ppf": 2, "tpf": 1, "temperature": 2, "question": 6}
    assert from_ledger["correct"].dtype == bool
    assert from_ledger["persona_group"].sel(persona="a chef").item() == "Occupational Roles"
    for source in (parent_id, "small"):
        assert from_ledger.equals(load_outcomes(source))
    for run in children(store, parent_id):
        where = {k: run.data.params[k] for k in ("persona", "ppf", "tpf")}
        accuracy = (
            from_ledger["correct"].sel(where).sel(temperature=float(run.data.params["temperature"])).mean()
        )
        assert accuracy.item() == pytest.approx(run.data.metrics["accuracy"])


def test_R3_a_finished_experiment_runs_again_without_a_model(
    store: MlflowClient,
    parent_id: str,
    finished: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import persona_mlflow.engines.hf

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(persona_mlflow.engines.hf, "load_engine", refuse)
    before = store.get_run(parent_id)
    spec = finished[1]["spec"]
    model = before.data.params["model"]
    assert call("run", "-e", str(spec), "--output", "out", "--model", model) == 0
    after = store.get_run(parent_id)
    assert after.data.metrics == before.data.metrics
    assert after.info.end_time == before.info.end_time
    assert len(children(store, parent_id)) == RUNS


def test_an_unknown_source_of_outcomes_is_named(store: MlflowClient, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'nothing'.*experiments: small"):
        load_outcomes("nothing")
    with pytest.raises(UserError, match=r"holds no plan\.json"):
        load_outcomes(tmp_path)


def run_small(folder: Path, model: Path, *arguments: str, **changes: Any) -> Path:
    spec = write_spec(folder, model, **changes)
    assert call("run", "-e", str(spec), "--output", "out", *arguments) == 0
    return folder / "out"


def test_R5_R10_a_raised_limit_reuses_the_answers_that_are_there(
    workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(workdir, lettered_model, "--limit", "2")
    first = read_ledger(workdir / "out")
    times = {p: pq.read_table(p)["time"].to_pylist() for p in (workdir / "out" / "cells").glob("*.parquet")}
    run_small(workdir, lettered_model)
    second = read_ledger(workdir / "out")
    assert first.keys() == second.keys()
    for cell, answers in first.items():
        assert len(answers) == 2
        assert len(second[cell]) == 6
        assert answers.items() <= second[cell].items()
    for path, old in times.items():
        assert set(old) <= set(pq.read_table(path)["time"].to_pylist()), "an answer on record was made again"
    rows = summary(capsys, "small")
    assert [row["questions"] for row in rows] == [6, 2]
    assert all(row["runs"] == RUNS for row in rows)


def test_R2_another_temperature_or_token_limit_is_another_answer(workdir: Path, lettered_model: Path) -> None:
    run_small(workdir, lettered_model, "--limit", "2")
    before = set(read_ledger(workdir / "out"))
    run_small(workdir, lettered_model, "--limit", "2", "--temperature", "0,0.7")
    after = set(read_ledger(workdir / "out"))
    assert before < after
    assert len(after - before) == 6
    run_small(workdir, lettered_model, "--limit", "2", "--max-new-tokens", "2")
    assert len(set(read_ledger(workdir / "out")) - after) == 12


def test_R1_a_model_folder_with_other_weights_is_another_model(
    workdir: Path, lettered_model: Path, tmp_path: Path
) -> None:
    import shutil

    from experiments import save_lettered_model

    folder = tmp_path / "model"
    shutil.copytree(lettered_model, folder)
    run_small(workdir, folder, "--limit", "2")
    before = set(read_ledger(workdir / "out"))
    save_lettered_model(folder, seed=1)
    run_small(workdir, folder, "--limit", "2")
    assert len(set(read_ledger(workdir / "out")) - before) == RUNS


def test_answers_do_not_depend_on_batch_size_nor_on_what_else_is_asked(
    workdir: Path, lettered_model: Path
) -> None:
    found = []
    for batch_size, personas in ((1, "a man,a chef"), (7, "a chef"), (32, "a biologist,a man,a chef")):
        spec = write_spec(workdir, lettered_model)
        output = f"out-{batch_size}"
        assert (
            call("run", "-e", str(spec), "-o", output, "-p", personas, "--batch-size", str(batch_size)) == 0
        )
        found.append({cell: rows for cell, rows in read_ledger(workdir / output).items() if "chef" in cell})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4


def test_repeats_are_equal_at_temperature_0_and_differ_above(workdir: Path, lettered_model: Path) -> None:
    run_small(workdir, lettered_model, "--repeat", "0,1,2", "--ppf", "youare")
    outcomes = load_outcomes("out")
    assert outcomes.sizes["repeat"] == 3
    status = outcomes["status"]
    assert (status.sel(temperature=0.0, repeat=0) == status.sel(temperature=0.0)).all()
    assert (status.sel(temperature=1.0, repeat=0) != status.sel(temperature=1.0)).any()


def test_M5_an_undefined_metric_is_a_tag_with_its_reason_and_never_nan(
    workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(workdir, lettered_model, "--limit", "2", "--temperature", "0", "--ppf", "youare")
    (row,) = summary(capsys)
    assert row["instability/accuracy"] is None
    assert "setting" in row["undefined"]["instability/accuracy"]
    run = open_store().get_run(row["run_id"])
    assert "instability/accuracy" not in run.data.metrics
    assert all(value == value for value in run.data.metrics.values())


def test_M2_a_long_parameter_becomes_its_hash_and_stands_in_an_artifact(
    workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(workdir, lettered_model, "--limit", "1", "-p", "all", "--temperature", "0", "--ppf", "youare")
    (row,) = summary(capsys)
    run = open_store().get_run(row["run_id"])
    assert run.data.params["personas"].startswith("sha256:")
    plan = json.loads((workdir / "out" / "plan.json").read_text())
    assert len(plan["personas"]) == row["runs"] == 41


def test_ANSWERS_is_what_the_spec_asks_for(store: MlflowClient, parent_id: str) -> None:
    assert load_outcomes("out")["correct"].size == ANSWERS


def test_M12_a_lost_ledger_is_made_again_and_leaves_the_finished_runs_as_they_are(
    workdir: Path, lettered_model: Path
) -> None:
    import shutil

    run_small(workdir, lettered_model, "--limit", "2")
    answers = read_ledger(workdir / "out")
    client = open_store()
    before = {run.info.run_id: run.info.end_time for run in client.search_runs(["1"])}
    shutil.rmtree(workdir / "out")
    run_small(workdir, lettered_model, "--limit", "2")
    assert read_ledger(workdir / "out") == answers
    after = {run.info.run_id: run.info.end_time for run in client.search_runs(["1"])}
    assert before.items() <= after.items()
    assert len(after) == 2 * len(before)


def test_the_same_spec_with_another_output_or_store_is_logged_apart(
    workdir: Path, lettered_model: Path
) -> None:
    spec = write_spec(workdir, lettered_model)
    common = ("run", "-e", str(spec), "--limit", "2")
    assert call(*common, "-o", "one") == 0
    assert call(*common, "-o", "two") == 0
    assert call(*common, "-o", "one", "--tracking-uri", f"sqlite:///{workdir}/other.db") == 0
    for client, parents in ((open_store(), 2), (MlflowClient(f"sqlite:///{workdir}/other.db"), 1)):
        runs = client.search_runs(["1"])
        assert len(runs) == parents * (RUNS + 1)
        assert {run.info.status for run in runs} == {"FINISHED"}
