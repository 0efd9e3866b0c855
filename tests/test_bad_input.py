"""Each mistake stops before any answer, with one message that names it, the place and the valid choices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments import call, write_spec

CSV = "question,A,B,C,answer,subject\nWhich?,x,y,z,B,One\nWhat?,p,q,r,A,Two\n"


def refuse(capsys: pytest.CaptureFixture[str], bare_workdir: Path, *arguments: str) -> str:
    """Run, expect exit code 2 and that nothing was generated or logged, and give the message."""
    capsys.readouterr()
    assert call("run", "-o", "out", *arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert not list(bare_workdir.glob("out/cells/*"))
    assert not (bare_workdir / "mlflow.db").exists()
    return message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-e", "papre"], ["--experiment papre", "did you mean 'paper'", "quickstart"]),
        (["-e", "nothing/here.yaml"], ["nothing/here.yaml", "no such file"]),
        (["-m", "lama8b"], ["'lama8b'", "did you mean 'llama8b'", "mistral7b"]),
        (["-m", "./no-folder"], ["./no-folder", "no such folder"]),
        (["-m", "no.gguf"], ["no.gguf", "no such GGUF file"]),
        (["-p", "a biolgist"], ["'a biolgist'", "did you mean 'a biologist'"]),
        (["-p", "none.yaml"], ["none.yaml", "cannot be read"]),
        (["--ppf", "youwere"], ["--ppf", "'youwere'", "identitynature"]),
        (["--tpf", "explain,exlain-persona"], ["--tpf", "did you mean 'explain-persona'"]),
        (["--temperature", "warm"], ["--temperature", "'warm'", "0 or more"]),
        (["--temperature", "0,-1"], ["--temperature", "'-1'", "negative"]),
        (["--temperature", "nan"], ["--temperature", "'nan'"]),
        (["--factor", "option_order=upside-down"], ["--factor option_order", "given, reversed"]),
        (["--factor", "mood=good"], ["--factor mood", "no such factor", "option_order"]),
        (["--factor", "ppf"], ["--factor 'ppf'", "NAME=LEVEL"]),
        (["--categories", "Histroy"], ["Histroy", "History", "Math"]),
        (["-q", "mmul"], ["mmul", "mmlu"]),
        (["-q", "no-such.csv"], ["no-such.csv"]),
        (["--limit", "0"], ["--limit", "0"]),
        (["--max-new-tokens", "0"], ["--max-new-tokens", "0"]),
        (["--dtype", "float8"], ["--dtype", "float8", "bfloat16"]),
        (["--quantization", "2bit"], ["--quantization", "2bit", "4bit"]),
        (["--batch-size", "0"], ["--batch-size", "0"]),
        (["--batch-size", "many"], ["--batch-size", "many"]),
        (["--device", "warp"], ["device", "warp"]),
        (["--modle", "smollm2"], ["No such option", "--modle", "--model"]),
        (["--limit", "ten"], ["--limit", "'ten'"]),
        (["--tracking-uri", "./mlruns"], ["./mlruns", "sqlite:///"]),
        (["--tracking-uri", "ftp://there"], ["ftp://there", "no such kind of store", "sqlite:///"]),
        (["--tracking-uri", "http://127.0.0.1:9"], ["http://127.0.0.1:9", "no server answers"]),
        (["--tracking-uri", "postgresql://u:pw@127.0.0.1:9/d"], ["u:***@127.0.0.1:9", "no database answers"]),
        (["--batch-size", "1" + "0" * 20], ["--batch-size", "65,536"]),
        (["--seed", "1" + "0" * 20], ["--seed"]),
        (["-m", ""], ["--model", "is empty"]),
        (["-p", ""], ["--personas", "is empty"]),
        (["-p", ","], ["--personas", "no persona given"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_option_is_named(
    bare_workdir: Path,
    lettered_model: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: list[str],
) -> None:
    spec = write_spec(bare_workdir, lettered_model)
    message = refuse(capsys, bare_workdir, "-e", str(spec), *arguments)
    for part in named:
        assert part in message, message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"columns": {"answer": "key"}}, ["mine.csv", "'key'", "answer"]),
        ({"columns": {"question": "Question"}}, ["mine.csv", "'Question'", "did you mean 'question'"]),
        ({"columns": {"options": ["A", "E"]}}, ["mine.csv", "'E'"]),
        ({"columns": {"answers": "answer"}}, ["columns", "'answers'", "did you mean 'answer'"]),
        ({"columns": {"answer_as": "number"}}, ["answer_as", "'number'", "index1"]),
        ({"text": CSV.replace(",B,One", ",D,One")}, ["mine.csv:2", "'D'"]),
        ({"text": CSV.replace(",B,One", ",,One")}, ["mine.csv:2", "answer"]),
        ({"text": CSV.replace("x,y,z", "x,,z")}, ["mine.csv:2", "empty"]),
        ({"text": CSV + "Short,row\n"}, ["mine.csv:4"]),
        ({"text": ""}, ["mine.csv"]),
        ({"bytes": b"question,A,B,answer\n\xff\xfe,1,2,A\n"}, ["mine.csv", "UTF-8"]),
    ],
)
def test_a_wrong_table_is_named_by_file_and_line(
    bare_workdir: Path,
    lettered_model: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    named: list[str],
) -> None:
    path = bare_workdir / "mine.csv"
    path.write_bytes(changes.get("bytes") or changes.get("text", CSV).encode())
    source = {"source": "table", "path": str(path), "columns": changes.get("columns", {})}
    spec = write_spec(bare_workdir, lettered_model, questions=source)
    message = refuse(capsys, bare_workdir, "-e", str(spec))
    for part in named:
        assert part in message, message


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        ("ppf: {youare: You are someone.}", ["ppf.youare", "{persona}"]),
        ("tpf: {justanswer: Answer now.}", ["tpf.justanswer", "{question}"]),
        ("tpf: {justanswer: ['{question}']}", ["tpf.justanswer", "text"]),
    ],
)
def test_a_template_without_its_placeholder_is_named(
    bare_workdir: Path,
    lettered_model: Path,
    capsys: pytest.CaptureFixture[str],
    prompts: str,
    named: list[str],
) -> None:
    (bare_workdir / "prompts.yaml").write_text(prompts)
    spec = write_spec(bare_workdir, lettered_model)
    message = refuse(capsys, bare_workdir, "-e", str(spec), "--prompts", "prompts.yaml")
    for part in ["prompts.yaml", *named]:
        assert part in message


def test_a_prompt_longer_than_the_context_is_named_before_anything_is_generated(
    bare_workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "Why? " * 400
    (bare_workdir / "mine.csv").write_text(CSV + f"{long},a,b,c,A,Two\n")
    spec = write_spec(bare_workdir, lettered_model, questions="mine.csv", limit=None)
    message = refuse(capsys, bare_workdir, "-e", str(spec))
    for part in ("Why? Why?", "tokens", "512", "context"):
        assert part in message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name: x\nlimit: 2\nlimit: 5\n", ["bad.yaml:3", "'limit'", "twice"]),
        ("name: x\nfactors: {ppf: [youare], ppf: [barebones]}\n", ["bad.yaml:2", "'ppf'", "twice"]),
        ("name: x\nseed: " + "9" * 5000, ["bad.yaml"]),
        ("name: x\nquestions: nope\n", ["bad.yaml: questions", "'nope'"]),
        ("name: x\ncatalog: {personas: nope.yaml}\n", ["bad.yaml: catalog", "nope.yaml"]),
        ("", ["bad.yaml", "mapping"]),
    ],
)
def test_a_wrong_experiment_file_is_named_with_the_place(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str], text: str, named: list[str]
) -> None:
    (bare_workdir / "bad.yaml").write_text(text)
    message = refuse(capsys, bare_workdir, "-e", "bad.yaml")
    for part in named:
        assert part in message, message


def test_a_model_without_a_tokenizer_is_named(
    bare_workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bare_workdir / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        shutil.copyfile(lettered_model / name, folder / name)
    spec = write_spec(bare_workdir, folder)
    message = refuse(capsys, bare_workdir, "-e", str(spec))
    assert "tokenizer is missing" in message
    assert str(folder) in message


def test_reading_an_empty_folder_makes_no_store(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("summarize") == 0
    assert "No experiment" in capsys.readouterr().out
    assert list(bare_workdir.iterdir()) == []


@pytest.mark.parametrize("content", [None, "weights"])
def test_a_folder_that_is_no_model_is_named(
    bare_workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    folder = bare_workdir / "model"
    folder.mkdir()
    if content:
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    spec = write_spec(bare_workdir, lettered_model)
    message = refuse(capsys, bare_workdir, "-e", str(spec), "-m", str(folder))
    assert str(folder) in message


def test_a_second_process_on_the_same_output_is_refused(
    bare_workdir: Path, lettered_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from persona_mlflow.ledger import Ledger

    spec = write_spec(bare_workdir, lettered_model)
    with Ledger(bare_workdir / "out").lock():
        assert "another process" in refuse(capsys, bare_workdir, "-e", str(spec))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["summarize", "nothing"], ["'nothing'", "experiments"]),
        (["questions", "-q", "builtin", "--categories", "Maths"], ["Maths", "Math"]),
        (["personas", "-p", "a doctr"], ["did you mean 'a doctor'"]),
        (["plan", "-e", "papers"], ["did you mean 'paper'"]),
        (["rum"], ["No such command", "run"]),
    ],
)
def test_the_other_commands_name_mistakes_too(
    bare_workdir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: list[str]
) -> None:
    assert call(*arguments) == 2
    message = capsys.readouterr().err
    for part in named:
        assert part in message
