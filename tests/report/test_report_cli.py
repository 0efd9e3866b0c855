"""`persona-mlflow report` on experiments that the product has run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from mlflow import MlflowClient

from experiments import call, write_spec
from persona_mlflow.analyses.best_persona import NUMBERS, save_best_personas

OPTIONS = ("--draws", "20", "--permutations", "20")


@pytest.fixture(scope="module")
def folder(lettered_model: Path, new_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with one finished experiment in its store."""
    folder = tmp_path_factory.mktemp("reported")
    shutil.copyfile(new_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert call("run", "-e", str(write_spec(folder, lettered_model)), "-o", "out", "--json") == 0
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def client(folder: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def parent_id(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "tags.`persona_mlflow.role` = 'parent'")
    return str(run.info.run_id)


def read(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert call("report", "--json", *OPTIONS, *arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return dict(json.loads(printed.out))


@pytest.mark.slow
def test_the_stores_experiment_is_reported_and_logged_on_its_parent(
    here: Path, client: MlflowClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capsys.readouterr()
    assert call("report", *OPTIONS) == 0
    printed = capsys.readouterr()
    page = Path(printed.out.strip())
    assert page == Path("reports/small-lettered/report.html")
    assert "Accuracy and instability" in printed.err
    (page.parent / "mine.txt").write_text("not of the report")
    run_id = parent_id(client)
    logged = Path(client.download_artifacts(run_id, "report", str(tmp_path)))
    files = {path.relative_to(logged): path.read_bytes() for path in logged.rglob("*") if path.is_file()}
    assert files == {path: (page.parent / path).read_bytes() for path in files}
    assert {"report.html", "tables", "figures"} == {path.parts[0] for path in files}
    text = page.read_text(encoding="utf-8")
    assert run_id in text
    assert "questions</dt><dd>6</dd>" in text
    assert client.get_run(run_id).info.status == "FINISHED"


@pytest.mark.slow
def test_a_ledger_and_its_run_give_the_same_numbers(
    here: Path, client: MlflowClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ledger = read(capsys, "out", "-o", str(tmp_path / "ledger"))
    run = read(capsys, parent_id(client), "--no-log", "-o", str(tmp_path / "run"))
    named = read(capsys, "small", "--no-log", "-o", str(tmp_path / "named"))
    assert (ledger["logged"], run["logged"]) == (False, False)
    assert (ledger["parents"], run["parents"]) == ([], [parent_id(client)])
    assert run == {**named, "page": run["page"]}
    tables = [name for name in run["files"] if name.startswith("tables/")]
    assert len(tables) > 30
    for name in tables:
        assert (tmp_path / "ledger" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


@pytest.mark.slow
def test_several_parents_stand_side_by_side(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree("out", tmp_path / "other")
    found = read(capsys, "out", str(tmp_path / "other"), "-o", str(tmp_path / "report"))
    assert len(found["models"]) == 2
    assert all(name.startswith("lettered · small · ") for name in found["models"])
    (overview,) = [item for item in found["analyses"] if item["key"] == "overview"]
    assert overview["models"] == found["models"]


@pytest.mark.slow
def test_an_unfinished_experiment_is_reported_as_far_as_it_goes(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree("out", tmp_path / "part")
    plan = json.loads((tmp_path / "part" / "plan.json").read_text())
    for entry in plan["cells"]:
        if entry["name"].startswith("a chef"):
            (tmp_path / "part" / "cells" / f"{entry['slug']}.parquet").unlink()
    found = read(capsys, str(tmp_path / "part"), "-o", str(tmp_path / "report"))
    text = Path(found["page"]).read_text(encoding="utf-8")
    assert "4 of 12 runs are unfinished" in text
    assert "2 of 3 personas" in text
    assert "runs</dt><dd>8</dd>" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "neither a run id nor an experiment; experiments: "),
        (("--tracking-uri", "sqlite:///missing.db"), "missing.db: no such store"),
        (("--draws", "-1"), "--draws"),
    ],
)
def test_a_wrong_call_is_said_and_makes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    before = sorted(here.iterdir())
    assert call("report", *arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(here.iterdir()) == before


@pytest.mark.slow
def test_one_of_several_experiments_must_be_named(
    here: Path, client: MlflowClient, capsys: pytest.CaptureFixture[str]
) -> None:
    other = client.create_experiment("other")
    run = client.create_run(other, tags={"persona_mlflow.role": "parent"})
    client.log_param(run.info.run_id, "resolved.experiment", "other")
    client.set_terminated(run.info.run_id)
    try:
        assert call("report") == 2
        assert "the store holds several experiments; name one: " in capsys.readouterr().err
    finally:
        client.delete_experiment(other)


@pytest.mark.slow
def test_what_predict_found_is_in_the_report(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    levels = {"ppf": ["barebones", "youare"], "tpf": ["justanswer"], "temperature": [0.0, 1.0]}
    shape = (2, 1, 2)
    numbers = {name: (list(levels), np.full(shape, 0.25)) for name in NUMBERS}
    result = xr.Dataset(
        {**numbers, "reason": (list(levels), np.full(shape, "", dtype=object))}, levels, {"encoder": "tiny"}
    )
    shutil.copytree("out", tmp_path / "predicted")
    save_best_personas(result, tmp_path / "predicted" / "analyses")
    found = read(capsys, str(tmp_path / "predicted"), "-o", str(tmp_path / "report"))
    (entry,) = [item for item in found["analyses"] if item["key"] == "best-persona"]
    assert len(entry["models"]) == 1
    assert "ppf youare,0.25," in (tmp_path / "report" / "tables" / "best-persona.csv").read_text()
    without = read(capsys, "out", "-o", str(tmp_path / "without"))
    (entry,) = [item for item in without["analyses"] if item["key"] == "best-persona"]
    assert "persona-mlflow predict" in next(iter(entry["reasons"].values()))


def _damaged(source: Path, target: Path, file: str, content: str | None) -> str:
    shutil.copytree(source, target)
    path = next(target.glob(file))
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    return str(target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("plan.json", ""),
        ("plan.json", '{"a": 1}'),
        ("plan.json", None),
        ("questions.parquet", "x"),
        ("questions.parquet", None),
        ("cells/*.parquet", "x"),
    ],
)
def test_a_damaged_ledger_gives_one_message(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str | None
) -> None:
    ledger = _damaged(Path("out"), tmp_path / "hurt", file, content)
    capsys.readouterr()
    assert call("report", ledger, *OPTIONS, "-o", str(tmp_path / "report")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("Error: ")
    assert "hurt" in error
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draws", "1"], "--draws 1: too few"),
        (["--permutations", "19"], "--permutations 19: too few"),
        (["--seed", "-1"], "--seed"),
        (["-o", "taken/report"], "cannot be written to"),
        (["-o", "odd"], "is a folder, where the report has its own"),
    ],
)
def test_what_cannot_work_is_refused_before_any_analysis(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("taken").write_text("a file")
    Path("odd/report.html").mkdir(parents=True, exist_ok=True)
    capsys.readouterr()
    assert call("report", "out", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Accuracy and instability" not in error
