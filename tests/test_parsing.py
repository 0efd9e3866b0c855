"""Replies and the right reading of each; the pitfall rows (P…) by name."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persona_mlflow.errors import UserError
from persona_mlflow.parsing import STATUSES, ParsedAnswer, parse_answer
from persona_mlflow.parsing.rules import PATTERNS, Pattern, compile_patterns

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases" / "parsing.jsonl").read_text("utf-8").split("\n")
    if line
]
REPLIES = Path(__file__).parents[1].parent / "shared" / "data" / "replies" / "replies.jsonl"
CITIES = {"A": "Paris", "B": "Berlin", "C": "Rome", "D": "Madrid"}
WALL = "Let me think about walls, as any engineer would. The cork (a light thing) is not an option here. "


def read(text: str, options: Any = "ABCD", *, finished: bool = True) -> tuple[str | None, str]:
    answer = parse_answer(text, options, finished=finished)
    return answer.letter, answer.status


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c['why']}" for i, c in enumerate(CASES)])
def test_case(case: dict[str, Any]) -> None:
    answer = parse_answer(case["text"], case["options"], finished=case["finished"])
    assert (answer.letter, answer.status) == (case["letter"], case["status"])
    assert (answer.span is None) == (answer.letter is None)
    if answer.span is not None:
        start, end = answer.span
        assert 0 <= start < end <= len(case["text"])


def test_cases_cover_every_status() -> None:
    assert {case["status"] for case in CASES} == set(STATUSES)
    assert len(CASES) >= 120


def test_real_replies_read_as_the_readers_did() -> None:
    if not REPLIES.exists():
        pytest.skip("../shared/data/replies/replies.jsonl is not here")
    rows = [json.loads(line) for line in REPLIES.read_text("utf-8").split("\n") if line]
    assert len(rows) == 93
    wrong = {
        row["id"]: (got, (row["letter"], row["status"]))
        for row in rows
        if (got := read(row["text"], row["options"], finished=row["finished"]))
        != (row["letter"], row["status"])
    }
    assert wrong == {}


@pytest.mark.parametrize("text", ["ANSWER: $B$", "**Answer: B**", "Answer: (B)."])
def test_P1_wrapped_letters(text: str) -> None:
    assert read(text) == ("B", "ok")


def test_P2_none_of_the_above_and_dont_know_are_no_letters() -> None:
    assert read("ANSWER: None of the above") == (None, "no_answer")
    assert read("ANSWER: None of the above", CITIES) == (None, "no_answer")
    assert read("Don't know") == (None, "refusal")


def test_P3_lower_case_and_last_explicit_answer_wins() -> None:
    assert read("ANSWER: b") == ("B", "ok")
    assert read("Answer: this asks for a colour\n...\nanswer: b") == ("B", "ok")
    assert read("Answer: A\n...\nanswer: b") == ("B", "ok")


def test_P5_empty_and_unparsable_differ() -> None:
    assert read("") == (None, "empty")
    assert read("   ") == (None, "empty")
    assert read("Paris is nice", CITIES) == (None, "no_answer")


def test_P6_reasoning_that_lists_all_options() -> None:
    text = "A) Paris is west.\nB) Berlin is north.\nC) Rome is south.\nD) Madrid is far.\nANSWER: C"
    assert read(text, CITIES) == ("C", "ok")
    assert read(text) == ("C", "ok")


def test_P8_patterns_are_tried_and_fail_loudly() -> None:
    assert read("The answer is (A)") == ("A", "ok")
    with pytest.raises(RuntimeError, match="'twice escaped' does not find its example"):
        compile_patterns([Pattern("twice escaped", r"answer is \\(([A-D])\\)", ("answer is (A)",))])
    with pytest.raises(RuntimeError, match="'broken' does not compile"):
        compile_patterns([Pattern("broken", r"answer is \\(([A-D]", ("answer is (A)",))])
    with pytest.raises(RuntimeError, match="'greedy' finds its counter-example"):
        compile_patterns([Pattern("greedy", r".*([A-E])", ("B",), ("Error",))])
    assert all(pattern.accepts for pattern in PATTERNS)


def test_P9_other_language_and_refusal() -> None:
    assert read("정답: C") == ("C", "ok")
    assert read("I refuse.") == (None, "refusal")


@pytest.mark.parametrize("text", ["Actually, I am unsure", "Error: rate limited"])
@pytest.mark.parametrize("options", ["ABCD", "ABCDEFGHIJ", CITIES])
def test_P10_stray_capitals_and_infrastructure_errors(text: str, options: Any) -> None:
    assert read(text, options) == (None, "no_answer")


def test_P11_explicit_line_over_box() -> None:
    assert read("\\boxed{\\Delta E} ... **Answer: D**", "ABCDE") == ("D", "ok")


@pytest.mark.parametrize("finished", [True, False])
def test_P13_cut_reasoning_is_no_answer(finished: bool) -> None:
    assert read("<think>Maybe A, or B", finished=finished) == (None, "unclosed_thinking")


def test_P14_text_after_the_last_closing_tag() -> None:
    assert read("Maybe A. The answer is A.</think>\nANSWER: B") == ("B", "ok")
    assert read("<think>A</think> ANSWER: A <think>no</think> ANSWER: C") == ("C", "ok")
    assert read("<think>The answer is A") == (None, "unclosed_thinking")


def test_P15_cut_and_refused_are_counted_apart() -> None:
    assert read("", finished=False) == (None, "truncated")
    assert read("I am an AI and cannot name...") == (None, "refusal")


@pytest.mark.parametrize(
    ("text", "letter"),
    [("**ANSWER: C**", "C"), ("***B***", "B"), ("***Answer***: ***B***", "B"), ("ANSWER: (B)", "B")],
)
def test_P17_bold_and_italic(text: str, letter: str) -> None:
    assert read(text) == (letter, "ok")


@pytest.mark.parametrize("text", ["The answer is B", "**B**", "B. Berlin"])
def test_P20_plain_phrasings(text: str) -> None:
    assert read(text, CITIES) == ("B", "ok")
    assert read(text) == ("B", "ok")


def test_P20_roman_numeral_is_out_of_range() -> None:
    assert read("(i)") == (None, "out_of_range")
    assert read("(i)", CITIES) == (None, "out_of_range")


def test_span_points_at_the_answer_in_the_reply() -> None:
    for text, options, said in (
        ("<think>A</think>\u200b***Answer***: ***B***", "ABCD", "B"),
        ("Answer: A\n\n**Answer:** `c`", "ABCD", "c"),
        ("The answer is **Rome**.", CITIES, "Rome"),
        ("정답은 $\\boxed{\\text{D}}$ 입니다", "ABCD", "D"),
    ):
        answer = parse_answer(text, options)
        assert answer.status == "ok"
        assert answer.span is not None
        assert text[slice(*answer.span)] == said


def test_statuses_are_the_contract() -> None:
    assert STATUSES == (
        "ok",
        "empty",
        "refusal",
        "ambiguous",
        "out_of_range",
        "truncated",
        "unclosed_thinking",
        "no_answer",
    )
    assert parse_answer("B", ["A", "B"]) == ParsedAnswer("B", "ok", (0, 1))


@pytest.mark.parametrize("options", ["", "AA", ["A", "b"], ["AB"], {"A": 3}])
def test_bad_options_are_the_callers_error(options: Any) -> None:
    with pytest.raises(UserError, match="options: "):
        parse_answer("B", options)


LONG = 300_000
RUNAWAYS = {
    unit: unit * (LONG // len(unit))
    for unit in (
        "A",
        " ",
        "\n",
        "*",
        "(",
        "<",
        "\\",
        "_",
        "~",
        "\r\n",
        "\u200b",
        "A ",
        "A\n",
        "(A) ",
        "A and ",
        "* a ",
        "answer ",
        "answer:",
        "the answer is ",
        "the answer is not ",
        "The answer is (D) ",
        "option A or ",
        "no, ",
        "wait, actually ",
        "i think ",
        "I would choose ",
        "so ",
        " is the best",
        "B is correct. ",
        "\\boxed{",
        "<think></think>",
        "I don't know ",
        "I'm sorry, ",
        "Paris ",
        "Paris\n",
        "answer: Paris is ",
        "A) x\nB) y\nC) z\nD) w\n",
        "정답",
        "\nQuestion: ",
        "Answer: maybe\nQuestion: ",
        "many people often answer ",
        "answer is not a but ",
        "A, ",
    )
}


@pytest.fixture
def hang_guard() -> Iterator[None]:
    """Fail instead of hanging for hours, should a pattern take more than linear time."""

    def give_up(number: int, frame: FrameType | None) -> None:
        pytest.fail("parsing a long reply did not end within a minute")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("unit", RUNAWAYS, ids=repr)
def test_runaway_reply_is_parsed(unit: str, hang_guard: None) -> None:
    assert parse_answer("answer:" + RUNAWAYS[unit], CITIES, finished=False).status in STATUSES


OPTIONS = st.one_of(
    st.sampled_from(["AB", "ABC", "ABCD", "ABCDEFGHIJ"]),
    st.lists(
        st.sampled_from(["Yes", "No", "5", "A", "a dog", "answer: B", "I only", "None of the above"]),
        min_size=2,
        max_size=6,
    ).map(lambda texts: dict(zip("ABCDEF", texts, strict=False))),
)
PIECES = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            [
                "answer",
                "Answer: ",
                " is ",
                "A",
                "(B)",
                "C) ",
                "\n",
                "**",
                "$",
                "\\boxed{",
                "}",
                "not ",
                "I",
                " or ",
                "the ",
                "</think>",
                "<think>",
                "option ",
                "i ",
                "I think ",
                "Yes",
                "a dog",
                "정답",
                "答案是",
                "\u200b",
                "E",
                "wrong",
                "~~",
            ]
        ),
    ),
    max_size=25,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(text=PIECES, options=OPTIONS, finished=st.booleans())
def test_any_text_gives_a_consistent_answer(text: str, options: Any, finished: bool) -> None:
    answer = parse_answer(text, options, finished=finished)
    assert answer.status in STATUSES
    assert (answer.letter is None) == (answer.status != "ok") == (answer.span is None)
    if answer.letter is not None and answer.span is not None:
        assert answer.letter in options
        start, end = answer.span
        assert 0 <= start < end <= len(text)


@settings(max_examples=400, deadline=None)
@given(text=PIECES, options=OPTIONS, finished=st.booleans(), data=st.data())
def test_an_appended_answer_line_is_the_answer(
    text: str, options: Any, finished: bool, data: st.DataObject
) -> None:
    letter = data.draw(st.sampled_from(list(options)))
    text = text.replace("think>", "")
    assert read(f"{text}\n\nANSWER: {letter}", options, finished=finished) == (letter, "ok")
