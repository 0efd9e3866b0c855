"""`persona-mlflow prism report` on method runs in folders and in MLflow: page, files, and bad input."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bench_parts import save_judging_model, write_big5
from mlflow import MlflowClient

from experiments import call
from persona_mlflow.errors import UserError
from persona_mlflow.prism.analyses import Collection, run_analyses
from persona_mlflow.prism.analyses.catalogue import CATALOGUE
from persona_mlflow.prism.dimensions import DIMENSIONS
from persona_mlflow.prism.ranking import METRICS, ranking_metrics
from persona_mlflow.prism.report_sources import describe, find_collections
from persona_mlflow.prism.results import FACTS, SCORES, MethodRun
from persona_mlflow.report import write_report
from persona_mlflow.report.write import report_files
from persona_mlflow.store import CELL, PARENT_RUN, ROLE

FAST = ("--draws", "25")


def method_run(
    evaluator: str,
    method: str,
    seed: int = 0,
    groups: int = 6,
    benchmark: str = "big5-easy",
    fingerprint: str = "f1",
    **changes: Any,
) -> MethodRun:
    """Random scores of a benchmark of pairs; PRISM's with dimensions, sampled ones over two seeds."""
    rng = np.random.default_rng(seed)
    rows = []
    for g in range(groups):
        for positive, kind in ((True, "positive"), (False, "opposite level")):
            profile = ("high openness", "low openness")[(g + positive) % 2]
            rows.append((f"{g}{kind[0]}", f"g{g}", positive, kind, profile))
    base = pd.DataFrame(rows, columns=["id", "group", "positive", "kind", "profile"])
    parts = []
    for s in (0, 1) if changes.get("temperature") else (0,):
        frame = base.assign(score=rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], len(base)), reason="", seed=s)
        if method == "prism":
            frame = frame.assign(**{name: rng.random(len(base)) for name in DIMENSIONS})
            frame["score"] = frame[list(DIMENSIONS)].mean(axis=1)
        else:
            frame.loc[0, ["score", "reason"]] = [np.nan, "no_rating"]
        parts.append(frame)
    if method == "prism":
        changes.setdefault("layout", "labels-last")
    changes.setdefault("facts", {"ended": 100.0})
    return MethodRun(benchmark, fingerprint, evaluator, method, pd.concat(parts), **changes)


def everything() -> list[MethodRun]:
    """Two evaluators, two rubrics, two temperatures, a pairwise judge; a second benchmark with one run."""
    runs = []
    for i, evaluator in enumerate(("m <b>&amp;", "n")):
        runs.append(
            method_run(evaluator, "prism", i, facts={"label_mass": 0.4, "warnings": ["low label mass"]})
        )
        for points in (5, 7):
            for temperature in (0.0, 0.5):
                seed = 10 * points + i
                runs.append(method_run(evaluator, "vanilla", seed, points=points, temperature=temperature))
    runs.append(method_run("PandaLM", "pandalm", 3, comparable=False))
    runs.append(method_run("n", "prism", 4, groups=4, benchmark="social", fingerprint="f2"))
    return runs


def uri() -> str:
    """The store of the working directory; MLflow keeps stores open by their URI, whatever folder is meant."""
    return f"sqlite:///{Path('mlflow.db').absolute()}"


def save(folder: Path, runs: Sequence[MethodRun]) -> Path:
    for run in runs:
        place = folder if run.benchmark == "big5-easy" else folder / run.benchmark
        run.save(place / re.sub(r"\W+", "-", run.evaluator) / run.slug)
    return folder


def read(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert call("prism", "report", "--json", *FAST, *arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return dict(json.loads(printed.out))


class Reader(HTMLParser):
    """Collects a page's ids, texts, links and codes, and sees that its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.codes: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [found["href"]] if tag == "a" and found.get("href") else []
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open[-1:] == ["code"]:
            self.codes.append(data)

    @property
    def text(self) -> str:
        """All of the text, one space between words."""
        return " ".join(" ".join(self.texts).split())


def parse(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


# ------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of everything."""
    folder = tmp_path_factory.mktemp("report")
    collected = find_collections([str(save(folder / "out", everything()))])
    collection = Collection(collected.runs, draws=25)
    findings = run_analyses(collection)
    from persona_mlflow.cli.prism_report import _wording

    wording = _wording(collection, findings, ["out/x is left out: it is not finished"])
    return write_report(findings, describe(collection, collected), folder / "report", wording=wording)


def test_the_page_has_every_analysis_and_names_files_that_are_there(page: Path) -> None:
    reader = parse(page)
    assert len(set(reader.ids)) == len(reader.ids)
    for analysis in CATALOGUE:
        assert analysis.entry.key in reader.ids
        assert f"#{analysis.entry.key}" in reader.links
        assert analysis.entry.title in reader.text
    named = [name for name in reader.codes if name.startswith(("figures/", "tables/"))]
    assert {page.parent / name for name in named} == set(report_files(page)[1:])
    assert all(path.stat().st_size > 100 for path in report_files(page))
    drawn = {analysis.entry.key for analysis in CATALOGUE if analysis.entry.figure is not None}
    assert {Path(name).stem for name in named if name.endswith(".png")} == drawn
    assert {Path(name).stem for name in named if name.endswith(".csv")} == {a.entry.key for a in CATALOGUE}


def test_the_page_speaks_of_fidelity_and_not_of_instability(page: Path) -> None:
    text = parse(page).text
    assert "Persona fidelity: big5-easy, social" in text
    assert "Brackets hold 95 % intervals from 25 resamples of the groups" in text
    assert "arXiv 2608.26674" in text
    for word in ("instability", "I_A", "model's grid", "this grid", "All models", "2607.00937"):
        assert word not in text
    assert "AUC" in text
    assert "Pair-AUC" in text


def test_the_page_shows_reasons_warnings_and_what_was_left_out(page: Path) -> None:
    text = parse(page).text
    assert "Not possible with these runs: social: no method was run with two evaluators (n alone)" in text
    assert "out/x is left out: it is not finished" in text
    assert "big5-easy: n, PRISM: low label mass" in text
    assert "scores of different groups are not on one scale" in text
    assert "Examples without a score are left out of a method's metrics" in text


def test_no_file_has_an_undefined_number_or_markup_of_a_name(page: Path) -> None:
    for path in report_files(page):
        if path.suffix != ".png":
            content = path.read_text(encoding="utf-8")
            assert not re.search(r"\b(nan|NaN|inf|None|undefined; the analysis)\b", content), path.name
    assert "m <b>&amp;" in parse(page).text
    assert "<b>&amp;amp" not in page.read_text(encoding="utf-8")


def test_the_tables_hold_the_labels_in_columns_of_their_own(page: Path) -> None:
    table = pd.read_csv(page.parent / "tables/main-table.csv")
    assert list(table.columns[:5]) == ["benchmark", "evaluator", "method", "metric", "value"]
    runs = {(run.benchmark, run.evaluator, run.label): run for run in everything()}
    for row in table.itertuples():
        run = runs[row.benchmark, row.evaluator, row.method]
        expected = ranking_metrics(run.frame, draws=25, comparable=run.comparable)
        value, interval = expected[row.metric], expected.intervals[row.metric]
        assert (None if np.isnan(row.value) else row.value) == value
        assert interval is None or (row.low, row.high) == interval
    markdown = (page.parent / "tables/main-table.md").read_text(encoding="utf-8")
    assert "| benchmark" in markdown
    assert "group accuracy" in markdown


def test_an_analysis_that_no_benchmark_allows_is_on_the_page_with_its_reason(tmp_path: Path) -> None:
    collection = Collection([method_run("m", "prism")], draws=0)
    from persona_mlflow.cli.prism_report import _wording

    findings = run_analyses(collection)
    target = write_report(findings, {"big5-easy": {}}, tmp_path, wording=_wording(collection, findings, ()))
    text = parse(target).text
    assert "Does it depend on the temperature? (not possible with these runs)" in text
    assert "Not possible with these runs: no direct judge was run at two temperatures" in text
    assert "this grid" not in text


# --------------------------------------------------------------------------------------------- the command


def test_a_folder_is_reported_from_the_command_line(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Path("out"), everything()[:-1])
    assert call("prism", "report", "out", *FAST) == 0
    printed = capsys.readouterr()
    target = Path(printed.out.strip())
    assert target == Path("reports/prism-big5-easy/report.html")
    assert target.is_file()
    assert "How well each method tells" in printed.err
    assert not Path("mlflow.db").exists()
    found = read(capsys, "out", "-o", "elsewhere")
    assert (found["page"], found["logged"], found["parents"]) == ("elsewhere/report.html", False, [])
    (name,) = found["benchmarks"]
    methods = {
        (m["evaluator"], m["method"], m["points"], m["temperature"]): m for m in found["benchmarks"][name]
    }
    assert len(methods) == 11
    run = everything()[1]
    expected = ranking_metrics(run.frame, draws=25)
    got = methods[run.evaluator, "vanilla", 5, 0.0]
    assert [got[metric] for metric in METRICS] == [expected[metric] for metric in METRICS]
    assert [item["key"] for item in found["analyses"]] == [analysis.entry.key for analysis in CATALOGUE]
    assert all(Path("elsewhere", file).is_file() for file in found["files"])


def test_several_folders_make_one_report_and_the_newest_run_wins(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = method_run("n", "vanilla", 1, points=5, facts={"ended": 1.0})
    new = method_run("n", "vanilla", 2, points=5, facts={"ended": 2.0})
    other = method_run("n", "prism", 3, benchmark="social", fingerprint="f2")
    save(Path("new"), [new])
    save(Path("old"), [old, other])
    found = read(capsys, "new", "old")
    assert found["page"] == "reports/prism-2-benchmarks/report.html"
    assert found["left_out"] == [
        "1 method run of old left out: a later one has the same benchmark, evaluator and method"
    ]
    (method,) = found["benchmarks"]["big5-easy"]
    assert method["auc"] == ranking_metrics(new.frame).auc != ranking_metrics(old.frame).auc
    again = read(capsys, "new", "old", "new", "-o", "again")
    assert again["benchmarks"] == found["benchmarks"]
    assert again["left_out"] == found["left_out"]


def test_what_is_not_finished_or_of_an_earlier_benchmark_is_left_out_and_said(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Path("out"), [method_run("n", "prism"), method_run("n", "vanilla", fingerprint="before", points=5)])
    Path("out/benchmark.json").write_text(json.dumps({"fingerprint": "f1"}))
    Path("out/n/cot-5").mkdir()
    Path("out/n/cot-5/replies.jsonl").write_text("{}\n")
    found = read(capsys, "out")
    assert [m["method"] for m in found["benchmarks"]["big5-easy"]] == ["prism"]
    assert found["left_out"] == [
        "out/n/cot-5 is left out: it is not finished; prism bench goes on with it",
        "out/n/vanilla-5 is left out: it is of an earlier benchmark than the rest of its folder",
    ]
    text = parse(Path(found["page"])).text
    assert "out/n/cot-5 is left out" in text


# --------------------------------------------------------------------------------------------------- MLflow


def log(
    experiment: str, runs: Sequence[MethodRun], unfinished: Sequence[str] = (), status: str = "FINISHED"
) -> tuple[str, list[str]]:
    """Log method runs as ``prism bench`` does; gives the ids of the parent and of the children."""
    client = MlflowClient(uri())
    found = client.get_experiment_by_name(experiment)
    artifacts = str(Path("artifacts").absolute())
    where = found.experiment_id if found else client.create_experiment(experiment, artifacts)
    parent = client.create_run(where, tags={ROLE: "benchmark", "persona_mlflow.methods": str(len(runs))})
    children = []
    for number, run in enumerate(runs):
        tags = {ROLE: "method", PARENT_RUN: parent.info.run_id, CELL: f"cell {number}"}
        child = client.create_run(where, tags=tags, run_name=f"{run.evaluator} · {run.label}")
        values = {
            **{name: getattr(run, name) for name in ("benchmark", "evaluator", "method", "points")},
            **{"temperature": run.temperature, "layout": run.layout, "dataset_fingerprint": run.fingerprint},
        }
        for name, value in values.items():
            if value not in (None, ""):
                client.log_param(child.info.run_id, name, value)
        folder = Path("staged") / child.info.run_id
        run.save(folder)
        client.log_artifacts(child.info.run_id, str(folder))
        client.set_terminated(child.info.run_id, "FAILED" if run.slug in unfinished else "FINISHED")
        children.append(child.info.run_id)
    client.set_terminated(parent.info.run_id, status)
    time.sleep(0.01)
    return parent.info.run_id, children


def test_the_store_is_reported_and_the_report_logged_on_its_benchmark_runs(
    workdir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = everything()
    first, _ = log("easy", runs[:-1])
    second, _ = log("social", runs[-1:])
    found = read(capsys)
    assert found["page"] == "reports/prism-2-benchmarks/report.html"
    assert set(found["parents"]) == {first, second}
    assert found["logged"]
    assert found["left_out"] == []
    client = MlflowClient(uri())
    for run_id in (first, second):
        logged = Path(client.download_artifacts(run_id, "report", str(tmp_path)))
        files = {path.relative_to(logged) for path in logged.rglob("*") if path.is_file()}
        assert files == {Path(name) for name in found["files"]}
    # A folder of the same runs gives the same numbers.
    save(Path("out"), runs)
    folder = read(capsys, "out", "-o", "folder")
    for name in folder["files"]:
        if name.startswith("tables/"):
            assert Path("folder", name).read_bytes() == Path(found["page"]).parent.joinpath(name).read_bytes()
    # One benchmark run, by its id or its experiment's name.
    by_id, by_name = read(capsys, second, "--no-log"), read(capsys, "social", "--no-log")
    assert by_id["page"] == by_name["page"] == "reports/prism-social/report.html"
    assert by_id["benchmarks"] == by_name["benchmarks"] == {"social": found["benchmarks"]["social"]}
    assert not by_id["logged"]


def test_unfinished_and_earlier_runs_of_the_store_are_left_out_and_said(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = method_run("n", "vanilla", 1, points=5)
    new = [method_run("n", "vanilla", 2, points=5), method_run("n", "cot", 3, points=5)]
    earlier, _ = log("easy", [old, method_run("n", "prism", 4)])
    later, _ = log("easy", new, unfinished=["cot-5"], status="KILLED")
    found = read(capsys, "easy")
    methods = {m["method"]: m for m in found["benchmarks"]["big5-easy"]}
    assert set(methods) == {"prism", "vanilla"}
    assert methods["vanilla"]["auc"] == ranking_metrics(new[0].frame).auc != ranking_metrics(old.frame).auc
    assert sorted(found["left_out"]) == sorted(
        [
            f"n · CoT, 5 points of benchmark run {later} is left out: it is not finished",
            f"benchmark run {later} is not finished; what it has completed is reported",
            f"1 method run of run {earlier} left out: a later one has the same benchmark, evaluator and "
            "method",
        ]
    )
    assert set(found["parents"]) == {earlier, later}


def test_M18_more_method_runs_than_a_page_of_a_search_are_all_found(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log("easy", [method_run("n", "vanilla", i, points=5, temperature=i / 10) for i in range(1, 6)])
    whole = MlflowClient.search_runs

    def small(self: MlflowClient, *arguments: Any, **options: Any) -> Any:
        return whole(self, *arguments, **{**options, "max_results": 2})

    monkeypatch.setattr(MlflowClient, "search_runs", small)
    assert len(find_collections((), uri()).runs) == 5


# ------------------------------------------------------------------------------------------------ bad input


def bad(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a call that exits with 2 before it makes a report."""
    capsys.readouterr()
    assert call("prism", "report", *FAST, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert not Path("reports").exists()
    message = printed.err.splitlines()[-1]
    assert message.startswith("Error: ")
    return message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["./missing"], "./missing: no such folder; name the --output folder of persona-mlflow prism bench"),
        (["file.txt"], "file.txt: is no folder"),
        (["empty"], "empty: holds no finished method run (no method_run.json in it or below)"),
        (["begun"], "1 left out: begun/n/cot-5 is left out: it is not finished"),
        ([], "mlflow.db: no such store; run persona-mlflow prism bench first"),
        (["out", "--draws", "3"], "--draws 3: too few"),
        (["out", "-o", "file.txt/report"], "cannot be written to"),
        (["out", "-o", "odd"], "is a folder, where the report has its own"),
    ],
)
def test_a_call_that_cannot_work_is_one_message(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    save(Path("out"), [method_run("n", "prism")])
    Path("file.txt").write_text("a file")
    for name in ("empty", "begun/n/cot-5", "odd/report.html"):
        Path(name).mkdir(parents=True)
    Path("begun/n/cot-5/replies.jsonl").write_text("{}\n")
    assert message in bad(capsys, *arguments)
    assert not Path("mlflow.db").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (FACTS, "", "holds no readable scores"),
        (FACTS, "[1]", "holds no readable scores"),
        (FACTS, {"points": "five"}, "method_run.json does not say what a method run is of"),
        (FACTS, {"facts": None}, "method_run.json does not say what a method run is of"),
        (FACTS, {"method": ""}, "method_run.json does not say what a method run is of"),
        (SCORES, "x", "holds no readable scores"),
        (SCORES, None, "no such file"),
        (SCORES, {"positive": 1}, "must be boolean"),
        (SCORES, {"score": "high"}, "must hold numbers or NaN"),
        (SCORES, {"id": "same"}, "the id 'same' occurs twice"),
    ],
)
def test_a_damaged_method_run_is_one_message_that_says_how_to_mend_it(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str], file: str, content: Any, message: str
) -> None:
    save(Path("out"), [method_run("n", "prism")])
    path = Path("out/n/prism") / file
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    elif file == FACTS:
        path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
    else:
        pd.read_parquet(path).assign(**content).to_parquet(path)
    said = bad(capsys, "out")
    assert message in said
    assert "out/n/prism: " in said
    assert said.endswith("delete its folder and give the prism bench command again")


def test_a_damaged_benchmark_file_is_one_message(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Path("out"), [method_run("n", "prism")])
    Path("out/benchmark.json").write_text("{")
    assert "out/benchmark.json: is damaged" in bad(capsys, "out")


def test_runs_that_do_not_have_the_same_examples_are_refused(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(Path("out"), [method_run("n", "prism"), method_run("n", "vanilla", groups=4, points=5)])
    assert "its examples are not those of" in bad(capsys, "out")


def test_what_the_store_does_not_hold_is_one_message(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the store: holds no benchmark run; persona-mlflow prism bench makes one" in bad(capsys)
    assert "'nothing': neither a folder, nor a run id, nor an experiment" in bad(capsys, "nothing")
    client = MlflowClient(uri())
    client.create_experiment("bare", str(Path("artifacts").absolute()))
    assert "experiment 'bare': holds no benchmark run" in bad(capsys, "bare")
    parent, (child, other) = log("easy", [method_run("n", "prism"), method_run("n", "cot", points=5)])
    assert f"not a benchmark run of persona-mlflow prism bench; its parent is {parent}" in bad(capsys, child)
    shutil.rmtree(Path("artifacts") / child)
    said = bad(capsys, parent)
    assert f"run {child}: its artifact method_run.json cannot be read" in said
    assert "delete the run and give the prism bench command again" in said
    (Path("artifacts") / other / "artifacts" / SCORES).write_text("x")
    client.delete_run(child)
    said = bad(capsys, parent)
    assert said.startswith(f"Error: run {other}: holds no readable scores")
    assert "/tmp" not in said
    client.set_terminated(other, "FAILED")
    assert "holds no finished method run (1 benchmark run); give the persona-mlflow prism" in bad(
        capsys, parent
    )


def test_M18_a_benchmark_run_that_lost_method_runs_is_said(workdir: Path) -> None:
    parent, (child, _) = log("easy", [method_run("n", "prism"), method_run("n", "cot", points=5)])
    MlflowClient(uri()).delete_run(child)
    assert find_collections((), uri()).left_out == (
        f"benchmark run {parent} had 2 method runs, of which 1 are there",
    )


def test_sources_are_read_without_a_command_line(bare_workdir: Path) -> None:
    folder = save(Path("out"), [method_run("n", "prism"), method_run("m", "prism", 1)])
    assert [run.evaluator for run in find_collections([str(folder)]).runs] == ["m", "n"]
    assert [run.evaluator for run in find_collections([str(folder / "n")]).runs] == ["n"]
    assert [run.evaluator for run in find_collections([str(folder / "n" / "prism")]).runs] == ["n"]
    with pytest.raises(UserError, match="no such folder"):
        find_collections(["/no/such/folder"])


# ---------------------------------------------------------------------------------------------- end to end


@pytest.mark.slow
def test_what_prism_bench_has_run_is_reported(
    workdir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = save_judging_model(tmp_path / "judging")
    data = write_big5(tmp_path)
    assert (
        call(
            *("prism", "bench", "--benchmark", "big5-easy", "--data", str(data), "--evaluator", str(model)),
            *(
                "--methods",
                "prism,vanilla",
                "--temperature",
                "0,0.5",
                "--seeds",
                "2",
                "--max-new-tokens",
                "6",
            ),
            *("--order-cases", "4", "--draws", "25", "--output", "out", "--json"),
        )
        == 0
    )
    bench = json.loads(capsys.readouterr().out)
    store, folder = read(capsys, "--no-log"), read(capsys, "out", "-o", "folder")
    assert store["benchmarks"] == folder["benchmarks"]
    assert len(store["benchmarks"]["big5-easy"]) == 3
    for method in store["benchmarks"]["big5-easy"]:
        (other,) = [
            m
            for m in bench["methods"]
            if (m["method"], m["temperature"]) == (method["method"], method["temperature"])
        ]
        assert method["auc"] == other["auc"]
        assert method["intervals"] == other["intervals"]
    found = {item["key"]: item["found"] for item in store["analyses"]}
    assert found["labels"]
    assert found["temperatures"]
    assert not found["rubrics"]
