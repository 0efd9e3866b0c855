"""`persona-mlflow prism bench` and `score`: real tiny models, real MLflow, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bench_parts import save_judging_model, write_big5
from mlflow import MlflowClient

from experiments import call, start
from persona_mlflow.errors import UserError
from persona_mlflow.prism.bench import PROBABILITIES, REPLY_LOG, SCORE_LOG
from persona_mlflow.prism.bench_spec import MethodPlan, load_bench_spec, plan_methods
from persona_mlflow.prism.benchmarks import load_benchmark
from persona_mlflow.prism.ranking import METRICS, ranking_metrics
from persona_mlflow.prism.results import COLUMNS, MethodRun, find_method_runs
from persona_mlflow.store import PARENT_RUN, ROLE, resolve_tracking_uri

ROOT = Path(__file__).parents[2]
METHODS = ("prism", "vanilla-5", "vanilla-5-t0.5")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_judging_model(tmp_path_factory.mktemp("models") / "judging")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_big5(tmp_path_factory.mktemp("data"))


@pytest.fixture
def arguments(model: Path, data: Path) -> tuple[str, ...]:
    return (
        *("prism", "bench", "--benchmark", "big5-easy", "--data", str(data), "--evaluator", str(model)),
        *("--methods", "prism,vanilla", "--temperature", "0,0.5", "--seeds", "2", "--max-new-tokens", "6"),
        *("--order-cases", "4", "--draws", "50", "--output", "out"),
    )


def runs_of(role: str) -> list[Any]:
    client = MlflowClient(resolve_tracking_uri(None))
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(ids, f"tags.`{ROLE}` = '{role}'"))


def loaded(output: Path) -> dict[str, MethodRun]:
    return {folder.name: MethodRun.load(folder) for folder in find_method_runs(output)}


# ------------------------------------------------------------------------------------------------ the whole


def test_a_benchmark_run_from_the_command_line_to_mlflow(
    workdir: Path, arguments: tuple[str, ...], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    benchmark = load_benchmark("big5-easy", data)
    assert (printed["groups"], printed["examples"]) == (18, 36)
    found = loaded(Path("out"))
    assert set(found) == set(METHODS)
    for run in found.values():
        assert set(COLUMNS) <= set(run.frame.columns)
        assert run.fingerprint == benchmark.fingerprint
        assert list(dict.fromkeys(run.frame["id"])) == [case.id for case in benchmark.cases]
    assert found["vanilla-5-t0.5"].seeds == [0, 1]
    assert (found["prism"].frame["score"].notna() == (found["prism"].frame["reason"] == "")).all()

    by_method = {(m["method"], m["temperature"]): m for m in printed["methods"]}
    expected = ranking_metrics(found["vanilla-5"].frame, draws=50)
    for name in METRICS:
        assert by_method["vanilla", 0.0][name] == pytest.approx(expected[name], abs=1e-12, nan_ok=False)

    (parent,) = runs_of("benchmark")
    assert (parent.info.status, parent.data.params["benchmark"]) == ("FINISHED", "big5-easy")
    assert parent.data.params["dataset_fingerprint"] == benchmark.fingerprint
    assert {parent.data.params[k] for k in ("groups", "positives", "negatives")} == {"18"}
    children = runs_of("method")
    assert len(children) == 3
    for child in children:
        assert child.data.tags[PARENT_RUN] == parent.info.run_id
        assert child.info.status == "FINISHED"
        assert child.info.experiment_id == parent.info.experiment_id
        assert child.data.params["evaluator"] == "judging"
    greedy = next(
        c for c in children if c.data.params["method"] == "vanilla" and c.data.params["seeds"] == "1"
    )
    for name in METRICS:
        assert greedy.data.metrics[name] == pytest.approx(expected[name])
        assert parent.data.metrics[f"{name}/judging/vanilla-5"] == pytest.approx(expected[name])
        low, high = expected.intervals[name]  # type: ignore[misc]
        assert greedy.data.metrics[f"{name}/low"] == pytest.approx(low)
        assert greedy.data.metrics[f"{name}/high"] == pytest.approx(high)
    assert greedy.data.metrics["unscored_rate"] == pytest.approx(
        found["vanilla-5"].frame["score"].isna().mean()
    )
    prism = next(c for c in children if c.data.params["method"] == "prism")
    assert 0.01 < prism.data.metrics["label_mass"] <= 1

    client = MlflowClient(resolve_tracking_uri(None))
    names = {file.path for file in client.list_artifacts(prism.info.run_id)}
    assert {"scores.parquet", "method_run.json", PROBABILITIES, "metrics.json", "examples.json"} <= names
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} >= {
        "benchmark.json",
        "examples.parquet",
    }

    # A benchmark is no experiment of the sweep.
    assert call("summarize", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_the_table_is_printed_with_intervals(
    workdir: Path,
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert call(*arguments) == 0
    printed = capsys.readouterr()
    assert "18 groups, 18 positives, 18 negatives" in printed.err
    for text in ("AUC", "Pair-AUC", "group accuracy", "PRISM", "vanilla, 5 points, T 0.5", "label mass"):
        assert text in printed.out
    assert printed.out.count("[0.") + printed.out.count("[1.") >= 6
    assert "by chance 0.5, 0.5 and 0.50" in printed.out


def test_a_finished_benchmark_is_not_run_again_and_loads_no_model(
    workdir: Path,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(*arguments, "--json") == 0
    before = json.loads(capsys.readouterr().out)
    ids = {run.info.run_id for run in runs_of("method")}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("persona_mlflow.engines.models.load_model", refuse)
    assert call(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out) == before
    assert {run.info.run_id for run in runs_of("method")} == ids
    assert len(runs_of("benchmark")) == 1


def test_more_methods_join_the_same_parent(
    workdir: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--methods", "vanilla", "--temperature", "0") == 0
    assert call(*arguments, "--methods", "vanilla", "--temperature", "0", "--points", "5,7") == 0
    assert {run.data.params["points"] for run in runs_of("method")} == {"5", "7"}
    (parent,) = runs_of("benchmark")
    assert parent.data.tags["persona_mlflow.methods"] == "2"
    assert "pair_auc/judging/vanilla-7" in parent.data.metrics


def test_a_larger_size_reuses_what_is_on_record(workdir: Path, arguments: tuple[str, ...]) -> None:
    few = (*arguments, "--methods", "prism", "--size", "6")
    assert call(*few) == 0
    log = Path("out/judging/prism") / SCORE_LOG
    first = log.read_bytes()
    assert first.count(b"\n") == 1 + 12
    assert call(*arguments, "--methods", "prism", "--size", "9") == 0
    assert log.read_bytes().startswith(first)
    assert log.read_bytes().count(b"\n") == 1 + 18
    assert len(loaded(Path("out"))["prism"].frame) == 18


@pytest.mark.slow
def test_mlflow_run_makes_the_parent_of_a_benchmark(workdir: Path, model: Path, data: Path) -> None:
    parameters = {
        **{"benchmark": "big5-hard", "evaluator": model, "data": data, "methods": "prism,vanilla"},
        **{"max_new_tokens": 4, "order_cases": 0, "draws": 20, "output": workdir / "out"},
    }
    done = subprocess.run(
        [
            *("mlflow", "run", str(ROOT), "--env-manager", "local", "-e", "prism"),
            *[part for name, value in parameters.items() for part in ("-P", f"{name}={value}")],
        ],
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": f"sqlite:///{workdir / 'mlflow.db'}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (parent,) = runs_of("benchmark")
    assert parent.data.tags["mlflow.source.type"] == "PROJECT"
    assert (parent.info.status, parent.data.params["benchmark"]) == ("FINISHED", "big5-hard")
    assert {run.data.tags[PARENT_RUN] for run in runs_of("method")} == {parent.info.run_id}


# ------------------------------------------------------------------------------------------------ interrupted


def frames(output: Path) -> Mapping[str, pd.DataFrame]:
    return {name: run.frame for name, run in loaded(output).items()}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_killed_benchmark_goes_on_to_the_same_scores(
    workdir: Path, arguments: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    slow = (*arguments, "--batch-size", "1", "--order-cases", "0")
    process = start(*slow, cwd=workdir)
    log = Path("out/judging/vanilla-5") / REPLY_LOG
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_bytes().count(b"\n") > 8):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    kept = log.read_bytes().count(b"\n") - 1
    assert 8 <= kept < 36
    if number != signal.SIGKILL:
        assert "To go on: persona-mlflow prism bench" in error
        assert runs_of("benchmark")[0].info.status == "KILLED"
    assert call(*slow) == 0
    replies = [json.loads(line) for line in log.read_bytes().splitlines()[1:]]
    assert len({(reply["id"], reply["seed"]) for reply in replies}) == len(replies) == 36
    (parent,) = runs_of("benchmark")
    assert parent.info.status == "FINISHED"
    assert len(runs_of("method")) == 3
    assert call(*slow, "--output", "undisturbed") == 0
    undisturbed = frames(Path("undisturbed"))
    for name, frame in frames(Path("out")).items():
        pd.testing.assert_frame_equal(frame, undisturbed[name])


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--benchmark", "big5"), "--benchmark: 'big5'"),
        (("--votes", "3"), "is for a model behind an endpoint"),
        (("--methods", "prism,vanila"), "'vanila'"),
        (("--points", "6"), "--points"),
        (("--points", "five"), "--points"),
        (("--temperature", "-1"), "must be numbers from 0"),
        (("--temperature", "warm"), "--temperatures"),
        (("--methods", "prism,prism"), "names 'prism' twice"),
        (("--size", "0"), "--size"),
        (("--evaluator", ""), "--evaluators: is empty"),
        (("--evaluator", "no/such/model"), "no/such/model"),
        (("--evaluator", "./nowhere"), "there is no such folder"),
        (("--methods", "alignscore"), "judges.alignscore: names no checkpoint"),
        (("--data", "nowhere.csv"), "nowhere.csv"),
        (("--draws", "5"), "--draws 5"),
        (("--layout", "labels"), "--layouts"),
        (("--experiment", "nothing"), "no such file"),
        (("--device", "warp"), "warp"),
    ],
)
def test_bad_calls_exit_with_2_and_leave_no_run(
    workdir: Path,
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    changes: tuple[str, ...],
    message: str,
) -> None:
    assert call(*arguments, *changes) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert runs_of("benchmark") == []


def test_another_seed_in_the_same_folder_is_refused_and_mixes_nothing(
    workdir: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--methods", "prism") == 0
    before = (Path("out/judging/prism") / SCORE_LOG).read_bytes()
    assert call(*arguments, "--methods", "prism", "--seed", "3") == 2
    assert "another setting" in capsys.readouterr().err
    assert (Path("out/judging/prism") / SCORE_LOG).read_bytes() == before


def test_a_group_whose_scores_are_all_missing_is_told_and_not_scored(
    workdir: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose replies are never a rating: no default score, and the reason in the table."""
    from tiny_models import build

    model, tokenizer = build("llama", context=2048)
    model.save_pretrained(tmp_path / "mute")
    tokenizer.save_pretrained(tmp_path / "mute")
    arguments = (
        *(
            "prism",
            "bench",
            "--data",
            str(data),
            "--evaluator",
            str(tmp_path / "mute"),
            "--methods",
            "vanilla",
        ),
        *("--max-new-tokens", "3", "--draws", "0", "--output", "out"),
    )
    assert call(*arguments) == 0
    printed = capsys.readouterr().out
    assert "0.0%" in printed
    assert "nan" not in printed.lower()
    (child,) = runs_of("method")
    assert set(METRICS).isdisjoint(child.data.metrics)
    assert {f"metric_undefined.{name}" for name in METRICS} <= set(child.data.tags)
    assert child.data.metrics["unscored_rate"] == 1


def test_a_damaged_result_is_one_message(
    workdir: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--methods", "prism") == 0
    (Path("out/judging/prism") / "method_run.json").write_text("{")
    assert call(*arguments, "--methods", "prism") == 2
    assert "holds no readable scores" in capsys.readouterr().err


def test_a_refused_call_changes_nothing_in_the_folder(
    workdir: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    few = (*arguments, "--methods", "prism", "--size", "4", "--order-cases", "0")
    assert call(*few) == 0
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    for change, message in (
        (("--seed", "3"), "name another --output"),
        (("--swap", "response"), "holds big5-easy (swap profile), not big5-easy (swap response)"),
        (("--benchmark", "big5-hard"), "not big5-hard; name another --output"),
    ):
        assert call(*few, *change) == 2
        assert message in capsys.readouterr().err
        assert {path: path.read_bytes() for path in before} == before


def test_T3_groups_that_a_metric_cannot_use_are_counted(
    workdir: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments, "--methods", "vanilla", "--temperature", "0.5", "--seeds", "1", "--json") == 0
    (method,) = json.loads(capsys.readouterr().out)["methods"]
    frame = loaded(Path("out"))["vanilla-5-t0.5"].frame
    scored = (
        frame[frame["score"].notna()].groupby("group")["positive"].agg(lambda sides: len(set(sides)) == 2)
    )
    assert method["groups"] == 18
    assert method["groups_used"]["pair_auc"] == int(scored.sum()) < 18


# ------------------------------------------------------------------------------------------------ the spec


def test_methods_multiply_only_over_what_shapes_them() -> None:
    spec = load_bench_spec(
        None,
        {
            "evaluators": ["a", "openai:b"],
            "methods": ["prism", "cot", "selene"],
            "points": [5, 7],
            "temperatures": [0.0, 0.5],
            "layouts": ["labels-last", "labels-first"],
            "judges.selene": "c",
        },
    )
    plans = plan_methods(spec)
    assert len(plans) == 2 * (2 + 4) + 1
    assert plans[0] == MethodPlan("a", "prism", layout="labels-last")
    assert plans[-1] == MethodPlan("c", "selene")
    assert len({(p.evaluator, p.method, p.points, p.temperature, p.layout) for p in plans}) == len(plans)


def test_every_shipped_benchmark_file_is_valid_and_is_no_experiment_of_the_sweep() -> None:
    from persona_mlflow.cli.options import shipped_experiments

    folder = Path(__file__).parents[2] / "experiments"
    files = sorted(folder.glob("prism-*.yaml"))
    assert len(files) >= 4
    for path in files:
        assert load_bench_spec(path, {}).title == path.stem
        assert plan_methods(load_bench_spec(path, {}))
    assert not [name for name in shipped_experiments() if name.startswith("prism-")]


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("benchmark: big5-easy\nendpoint: {base_ulr: x}\nmethod: [prism]\n")
    with pytest.raises(UserError) as caught:
        load_bench_spec(path, {})
    assert "did you mean 'base_url'" in str(caught.value)
    assert "did you mean 'methods'" in str(caught.value)


def test_data_is_looked_up_beside_the_file(tmp_path: Path, data: Path) -> None:
    shutil.copyfile(data, tmp_path / "mine.csv")
    path = tmp_path / "bench.yaml"
    path.write_text("benchmark: big5-easy\ndata: mine.csv\n")
    assert load_bench_spec(path, {}).data == str(tmp_path / "mine.csv")


# ------------------------------------------------------------------------------------------------ prism score


CASES = [
    {"profile": "high openness", "context": "A new place?", "response": "How thrilling!"},
    {
        "id": "low",
        "profile": {"trait": "openness", "level": "low"},
        "response": "I stay where I know my way.",
    },
    {
        "id": "pirate",
        "profile": {"name": "Anne", "sections": {"personality": "fierce", "style": "speaks like a sailor"}},
        "context": "Who are you?",
        "response": "Arr!",
    },
]


def write_cases(folder: Path, cases: list[dict[str, Any]]) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def test_three_hand_written_cases_are_scored(
    workdir: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from persona_mlflow.prism.cases import read_cases
    from persona_mlflow.prism.hf_evaluator import load_evaluator
    from persona_mlflow.prism.scoring import score_cases

    path = write_cases(workdir, CASES)
    table = workdir / "all.csv"
    arguments = ("prism", "score", str(path), "--evaluator", str(model), "--table", str(table))
    assert call(*arguments, "--json") == 0
    printed = json.loads(capsys.readouterr().out)["cases"]
    direct = score_cases(read_cases(path), load_evaluator(str(model)))
    assert [case["id"] for case in printed] == list(dict.fromkeys(direct["case"]))
    for row in direct.to_dict("records"):
        case = next(c for c in printed if c["id"] == row["case"])
        shown = case["e"][row["dimension"]]
        assert (shown is None) == bool(row["reason"])
        if shown is not None:
            assert shown == pytest.approx(row["e"])
    assert len(pd.read_csv(table)) == 9
    assert call(*arguments) == 0
    out = capsys.readouterr().out
    assert "pirate" in out
    assert "Anne" in out
    assert "nan" not in out


def test_scored_cases_are_kept_and_taken_over(workdir: Path, model: Path) -> None:
    path = write_cases(workdir, CASES)
    arguments = ("prism", "score", str(path), "--evaluator", str(model), "-o", "scores.jsonl")
    assert call(*arguments) == 0
    first = Path("scores.jsonl").read_bytes()
    assert call(*arguments) == 0
    assert Path("scores.jsonl").read_bytes() == first


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"profile": "high openness", "response": "  "}, "the response is empty"),
        ({"profile": "high opennes", "response": "x"}, "did you mean 'openness'"),
        ({"profile": "highest openness", "response": "x"}, "unknown level"),
        ({"profile": {"name": "X", "sections": {"style": " "}}, "response": "x"}, "no usable cue"),
        ({"response": "x"}, "no profile"),
        ({"profile": "a chef"}, "no response"),
        ({"profile": 3, "response": "x"}, "must be an object or a text"),
    ],
)
def test_a_bad_case_is_named_by_its_line(
    workdir: Path, model: Path, capsys: pytest.CaptureFixture[str], case: dict[str, Any], message: str
) -> None:
    path = write_cases(workdir, [CASES[0], case])
    assert call("prism", "score", str(path), "--evaluator", str(model)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "cases.jsonl:2" in error


def test_an_evaluator_that_does_not_answer_with_letters_is_refused(
    workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """L4: probabilities that look fine after normalising, of a model that would write something else."""
    save_judging_model(tmp_path / "mute", mute=True)
    path = write_cases(workdir, CASES)
    assert call("prism", "score", str(path), "--evaluator", str(tmp_path / "mute")) == 2
    assert "Use another evaluator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "cases.jsonl"), "--table cases.jsonl: is FILE too"),
        (("-o", "cases.jsonl"), "--output cases.jsonl: is FILE too"),
        (("--table", "link.csv"), "is FILE too"),
        (("-o", "new.jsonl", "--table", "new.jsonl"), "is --output too"),
        (("--table", "nowhere/x.csv"), "there is no such folder"),
        (("-o", "/proc/x.jsonl"), "cannot be written"),
        (("-o", "other.jsonl"), "not a file of PRISM scores"),
        (("--cost-cap", "1"), "is for a model behind an endpoint"),
    ],
)
def test_nothing_is_written_over(
    workdir: Path, model: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    path = write_cases(workdir, CASES[:1])
    path.write_text(path.read_text().strip())
    Path("link.csv").symlink_to(path)
    Path("other.jsonl").write_text('{"somebody": "else\'s", "line": 1}')
    before = {name: Path(name).read_bytes() for name in ("cases.jsonl", "other.jsonl")}
    assert call("prism", "score", "cases.jsonl", "--evaluator", str(model), *options) == 2
    assert message in capsys.readouterr().err
    assert {name: Path(name).read_bytes() for name in before} == before


def test_half_of_a_surrogate_pair_is_scored_as_any_odd_character(workdir: Path, model: Path) -> None:
    path = write_cases(workdir, [{"profile": "a chef", "context": "\udc00", "response": "\ud800 \x00 x"}])
    assert call("prism", "score", str(path), "--evaluator", str(model)) == 0
