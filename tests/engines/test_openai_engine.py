"""The engine on an OpenAI-compatible server, against a real HTTP server of the test's own."""

from __future__ import annotations

import email.utils
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chat_server import Reply, Server, answer
from persona_mlflow.engines.base import Completion, Decoding, Draw, Request
from persona_mlflow.engines.openai import OpenAIEngine
from persona_mlflow.engines.openai_client import ChatClient
from persona_mlflow.engines.openai_connection import Call
from persona_mlflow.engines.pacing import (
    LONGEST_BACKOFF_S,
    CostCapReached,
    Pace,
    Prices,
    backoff,
    retry_after,
)
from persona_mlflow.errors import UserError
from servers import free_port

pytest.importorskip("openai")

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(
        respond: Callable[[dict[str, Any], int], Reply],
        models: Reply = (200, {"object": "list", "data": [{"id": "m", "object": "model"}]}, {}),
    ) -> Server:
        servers.append(Server(respond, models))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def echo(body: dict[str, Any], tries: int) -> Reply:
    return 200, answer(f"re: {body['messages'][-1]['content']}"), {}


def engine(server: Server, **settings: Any) -> OpenAIEngine:
    settings = {"base_url": server.url, "backoff_s": 0.0, "decoding": Decoding(16, 0, 1.0), **settings}
    return OpenAIEngine("m", **settings)


def requests(count: int, temperature: float = 0.5) -> list[Request]:
    return [Request("sys", f"q{i}", (Draw(i, temperature, 1000 + i),)) for i in range(count)]


def collect(made: OpenAIEngine, asked: list[Request], done: list[Completion]) -> None:
    for batch in made.generate(asked):
        done += batch


def run(made: OpenAIEngine, asked: list[Request]) -> dict[Any, Completion]:
    return {c.key: c for batch in made.generate(asked) for c in batch}


def test_each_draw_is_one_request_with_explicit_settings_and_its_own_seed(
    serve: Callable[..., Server],
) -> None:
    server = serve(echo)
    asked = [
        Request("sys", "a", (Draw("a0", 0.5, 7), Draw("a1", 0.5, 2**62 + 9))),
        Request("", "b", (Draw("b", 0, 1),)),
    ]
    done = run(engine(server), asked)
    assert {key: c.text for key, c in done.items()} == {"a0": "re: a", "a1": "re: a", "b": "re: b"}
    assert all(
        (c.prompt_tokens, c.completion_tokens, c.finish_reason) == (10, 4, "stop") for c in done.values()
    )
    sent = sorted(server.asked, key=lambda b: (b["messages"][-1]["content"], b["seed"]))
    for body in sent:
        assert {"model": "m", "top_p": 1.0, "max_tokens": 16}.items() <= body.items()
        assert "top_k" not in body
        assert 0 <= body["seed"] < 2**31
    assert [b["temperature"] for b in sent] == [0.5, 0.5, 0.0]
    assert len({b["seed"] for b in sent}) == 3
    assert [len(b["messages"]) for b in sent] == [2, 2, 1]  # an empty system message is none
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_requests_run_at_once_up_to_the_limit(serve: Callable[..., Server]) -> None:
    barrier = threading.Barrier(3, timeout=20)

    def together(body: dict[str, Any], tries: int) -> Reply:
        barrier.wait()  # passes only where three are in flight
        return echo(body, tries)

    server = serve(together)
    assert len(run(engine(server, concurrency=3), requests(9))) == 9
    assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ((429, {"error": {"message": "slow down"}}, {}), "rate limit"),
        ((500, {"error": {"message": "oops"}}, {}), "server error"),
        ((503, "overloaded", {"content-type": "text/plain"}), "overloaded"),
        ((200, '{"choices": [', {}), "JSON that breaks off"),
        ((200, "<html>gateway</html>", {"content-type": "text/html"}), "a page"),
        ((200, {"error": {"message": "upstream failed", "code": 502}}, {}), "an error with status 200"),
        ((200, {"choices": []}, {}), "no choice"),
        ((200, answer("half", "error"), {}), "an answer that ended in an error"),
    ],
)
def test_P10_what_passes_is_retried_and_never_an_answer(
    serve: Callable[..., Server], first: Reply, why: str
) -> None:
    def respond(body: dict[str, Any], tries: int) -> Reply:
        return first if tries <= 2 else echo(body, tries)

    server = serve(respond)
    made = engine(server)
    done = run(made, requests(2))
    assert {c.text for c in done.values()} == {"re: q0", "re: q1"}, why
    assert len(server.asked) == 6
    assert (made.usage.answers, made.usage.retries) == (2, 4)
    # A repetition is the same request: same seed, same settings.
    assert len({json.dumps(b, sort_keys=True) for b in server.asked}) == 2


def test_P10_after_the_last_try_the_run_ends_and_keeps_what_was_answered(
    serve: Callable[..., Server],
) -> None:
    def respond(body: dict[str, Any], tries: int) -> Reply:
        return (500, {"error": {"message": f"broken {KEY}"}}, {}) if "q2" in str(body) else echo(body, tries)

    server = serve(respond)
    made = engine(server, retries=2, concurrency=1)
    done: list[Completion] = []
    with pytest.raises(
        UserError, match=r"no answer after 3 tries \(status 500: broken …\).*run again"
    ) as info:
        collect(made, requests(5), done)
    assert KEY not in str(info.value)
    assert [c.text for c in done] == ["re: q0", "re: q1"]
    assert len(server.asked) == 2 + 3


def test_retry_after_is_kept_to(serve: Callable[..., Server]) -> None:
    def respond(body: dict[str, Any], tries: int) -> Reply:
        return (
            (429, {"error": {"message": "wait"}}, {"Retry-After": "1"}) if tries == 1 else echo(body, tries)
        )

    server = serve(respond)
    assert len(run(engine(server), requests(1))) == 1
    assert server.times[1] - server.times[0] >= 0.99


def test_a_very_long_retry_after_is_said_instead_of_slept(serve: Callable[..., Server]) -> None:
    server = serve(lambda body, tries: (429, {"error": {"message": "daily limit"}}, {"Retry-After": "86400"}))
    with pytest.raises(UserError, match="asks to wait 86400 s"):
        run(engine(server), requests(1))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, {}), "refuses the key"),
        ((403, {"error": {"message": "no access"}}, {}), "refuses the key"),
        ((404, {"error": {"message": "no such model", "code": "model_not_found"}}, {}), "did you mean 'm'"),
        ((400, {"detail": "pinned to another"}, {}), "refuses the request for 'mm'.*pinned to another"),
        (
            (429, {"error": {"message": "quota", "code": "insufficient_quota"}}, {}),
            "quota is used up",
        ),
    ],
)
def test_what_does_not_pass_is_one_clear_error_at_once(
    serve: Callable[..., Server], reply: Reply, message: str
) -> None:
    server = serve(lambda body, tries: reply)
    made = OpenAIEngine("mm", base_url=server.url, concurrency=1)
    with pytest.raises(UserError, match=message) as info:
        run(made, requests(3))
    assert KEY not in str(info.value)
    assert len(server.asked) == 1


def test_check_reaches_the_server_and_shows_the_key(serve: Callable[..., Server]) -> None:
    engine(serve(echo)).check(requests(1))
    engine(serve(echo, (404, {"detail": "Not Found"}, {}))).check(requests(1))  # no list of models
    engine(serve(echo, (200, "no list", {"content-type": "text/plain"}))).check(requests(1))
    refusing = serve(echo, (401, {"error": {"message": f"bad key {KEY}"}}, {}))
    with pytest.raises(UserError, match="refuses the key") as info:
        engine(refusing).check(requests(1))
    assert KEY not in str(info.value)


def test_no_server(serve: Callable[..., Server]) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    made = OpenAIEngine("m", base_url=url, retries=1, backoff_s=0.0)
    with pytest.raises(UserError, match=f"{url}: no server answers"):
        made.check(requests(1))
    with pytest.raises(UserError, match="no answer after 2 tries \\(no connection"):
        run(made, requests(1))


def test_a_timeout_is_retried_and_counted_as_charged(serve: Callable[..., Server]) -> None:
    release = threading.Event()

    def respond(body: dict[str, Any], tries: int) -> Reply:
        if tries == 1:
            release.wait(10)
        return echo(body, tries)

    made = engine(serve(respond), timeout_s=1.5, prices=Prices(0.0, 1e6))
    assert run(made, requests(1))[0].text == "re: q0"
    release.set()
    assert made.usage.retries == 1
    assert made.usage.cost == 16 + 4  # the most that the lost one can have cost, then 4 tokens


@pytest.mark.parametrize(
    ("body", "text", "finish", "notes"),
    [
        (answer("", "length"), "", "length", ""),
        (answer(None, "length"), "", "length", ""),  # a reasoning model, cut before it spoke
        (answer(None, "content_filter"), "", "stop", "content_filter"),
        (answer(None, "stop", refusal="I can't help with that."), "I can't help with that.", "stop", ""),
        (answer("Error: rate limited"), "Error: rate limited", "stop", ""),
    ],
)
def test_answers_that_look_odd_are_answers(
    serve: Callable[..., Server], body: Any, text: str, finish: str, notes: str
) -> None:
    done = run(engine(serve(lambda *_: (200, body, {}))), requests(1))[0]
    assert (done.text, done.finish_reason, done.notes) == (text, finish, notes)


def test_a_filtered_prompt_is_a_note_not_an_error(serve: Callable[..., Server]) -> None:
    def respond(body: dict[str, Any], tries: int) -> Reply:
        if "q1" in str(body):
            return 400, {"error": {"message": "filtered", "code": "content_filter"}}, {}
        return echo(body, tries)

    done = run(engine(serve(respond)), requests(3))
    assert [done[i].notes for i in range(3)] == ["", "content_filter", ""]


def test_the_limits_other_name_is_learnt_from_the_server(serve: Callable[..., Server]) -> None:
    def respond(body: dict[str, Any], tries: int) -> Reply:
        if "max_tokens" in body:
            return 400, {"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'."}}, {}
        return echo(body, tries)

    server = serve(respond)
    made = engine(server, concurrency=1)
    assert len(run(made, requests(3))) == 3
    assert len(server.asked) == 4
    assert server.asked[-1]["max_completion_tokens"] == 16
    assert made.describe()["limit_field"] == "max_completion_tokens"


def test_the_cost_cap_is_never_exceeded_and_what_was_done_is_kept(serve: Callable[..., Server]) -> None:
    server = serve(echo)
    prices = Prices(prompt=1.0, completion=3.0)
    answered = prices.cost(10, 4)
    worst = prices.cost(len(b"sys") + len(b"q0") + 64, 16)
    cap = 5 * answered + worst * 1.0001  # room for the sixth to be sent, not for the seventh
    made = engine(server, concurrency=4, prices=prices, cost_cap=cap)
    done: list[Completion] = []
    with pytest.raises(CostCapReached, match="could exceed it"):
        collect(made, requests(20), done)
    assert len(done) == len(server.asked) == 6
    assert made.usage.cost == pytest.approx(6 * answered)
    assert made.usage.cost <= cap


def test_the_cost_cap_counts_tries_that_were_charged(serve: Callable[..., Server]) -> None:
    server = serve(lambda body, tries: (200, "{", {}))
    prices = Prices(0.0, 1e6)
    made = engine(server, prices=prices, cost_cap=40.0)
    with pytest.raises(CostCapReached):
        run(made, requests(1))
    assert len(server.asked) == 2  # 16 each: a third could exceed 40
    assert made.usage.cost == 32


def test_without_reported_tokens_the_most_that_an_answer_can_cost_counts(
    serve: Callable[..., Server],
) -> None:
    made = engine(serve(lambda *_: (200, answer("x", usage={}), {})), prices=Prices(0.0, 1e6))
    run(made, requests(2))
    assert (made.usage.unreported, made.usage.cost) == (2, 32)


def test_tokens_are_accounted_for(serve: Callable[..., Server]) -> None:
    made = engine(serve(echo), prices=Prices(2.0, 5.0))
    run(made, requests(7))
    assert (made.usage.answers, made.usage.prompt_tokens, made.usage.completion_tokens) == (7, 70, 28)
    assert made.usage.cost == pytest.approx((70 * 2 + 28 * 5) / 1e6)


def test_the_pace_spaces_requests_and_holds_them_back() -> None:
    now = [100.0]
    pace = Pace(30, clock=lambda: now[0])
    assert [pace.delay() for _ in range(3)] == [0, 2, 4]
    now[0] = 200.0  # idle time is not saved up
    assert [pace.delay() for _ in range(2)] == [0, 2]
    pace.hold(9)
    assert [pace.delay() for _ in range(2)] == [9, 11]
    free = Pace(None, clock=lambda: now[0])
    assert [free.delay() for _ in range(3)] == [0, 0, 0]


def test_requests_keep_to_the_rate(serve: Callable[..., Server]) -> None:
    server = serve(echo)
    run(engine(server, requests_per_minute=600), requests(8))
    # Eight at ten a second begin within 0.7 s at the least; a busy machine may see the first one late.
    assert max(server.times) - min(server.times) >= 0.4


def test_backoff_grows_has_jitter_and_a_ceiling() -> None:
    assert [backoff(n, 1.0, None, 0.0) for n in range(4)] == [1, 2, 4, 8]
    assert backoff(3, 1.0, None, 0.5) == 6.0
    assert backoff(3, 1.0, None, 0.999) > 4.0
    assert backoff(50, 1.0, None, 0.0) == LONGEST_BACKOFF_S
    assert backoff(0, 1.0, 30.0, 0.9) == 30.0
    assert backoff(9, 1.0, 0.5, 0.0) == LONGEST_BACKOFF_S


def test_retry_after_is_read_in_all_its_forms() -> None:
    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({"retry-after-ms": "250"}) == 0.25
    soon = retry_after({"retry-after": email.utils.formatdate(time.time() + 100, usegmt=True)})
    assert soon == pytest.approx(100, abs=10)
    assert retry_after({"retry-after": email.utils.formatdate(0, usegmt=True)}) == 0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_the_key_is_never_shown(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "another-secret-value")
    caplog.set_level(logging.DEBUG)
    server = serve(echo)
    made = engine(server, api_key_env="MY_KEY")
    made.check(requests(1))
    run(made, requests(1))
    assert server.keys == ["Bearer another-secret-value"]
    shown = f"{made!r} {made} {made.describe()} {made.usage} {caplog.text}"
    assert "another-secret-value" not in shown
    assert KEY not in shown


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"api_key_env": "NOT_SET_ANYWHERE", "base_url": "http://127.0.0.1:1/v1"},
            "NOT_SET_ANYWHERE.*not set",
        ),
        ({"base_url": "127.0.0.1:8000"}, "is no address"),
        ({"base_url": "http://me:secret@127.0.0.1/v1"}, "name or password"),
        ({"concurrency": 0}, "concurrency is at least 1"),
        ({"requests_per_minute": 0}, "must be above 0"),
        ({"cost_cap": 1.0}, "takes prices"),
        ({"model": ""}, "name is empty"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as info:
        OpenAIEngine(**{"model": "m", **settings})
    assert "secret" not in str(info.value)


def test_openais_own_endpoint_needs_a_key_and_a_local_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="OPENAI_API_KEY with its key is not set"):
        OpenAIEngine("m")
    OpenAIEngine("m", base_url="http://127.0.0.1:8000/v1").close()


def test_a_stopped_run_asks_no_further(serve: Callable[..., Server]) -> None:
    server = serve(echo)
    batches = engine(server, concurrency=1).generate(requests(50))
    next(batches)
    batches.close()
    seen = len(server.asked)
    time.sleep(0.2)
    assert len(server.asked) <= seen + 1


def test_calls_are_read_as_they_are_sent_and_an_error_in_them_keeps_what_was_answered(
    serve: Callable[..., Server],
) -> None:
    server = serve(echo)
    client = ChatClient("m", base_url=server.url, concurrency=2)
    read: list[int] = []

    def calls() -> Iterator[Call]:
        for i in range(6):
            if i == 5:
                raise UserError("case 5 is empty")
            read.append(i)
            yield Call(i, "", f"q{i}", 1)

    answered: list[Any] = []

    def collect_replies() -> None:
        for replies in client.answers(calls()):
            answered.extend(reply.key for reply in replies)
            assert len(read) <= len(answered) + 2  # two in flight

    with pytest.raises(UserError, match="case 5 is empty"):
        collect_replies()
    assert sorted(answered) == [0, 1, 2, 3, 4]
    assert client.ask(Call("x", "", "one", 1)).text == "re: one"
    client.close()
