"""The user's own questions: column mapping, and errors that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persona_mlflow.errors import UserError
from persona_mlflow.questions import load_questions


def table(path: Path, **columns: Any) -> Any:
    return load_questions({"source": "table", "path": str(path), "columns": columns})


def test_default_columns_letters_and_byte_order_mark(write_table):
    path = write_table(
        "q.csv", b"\xef\xbb\xbfquestion,A,B,C,answer,category\r\nOne?,x,y,z,b,Cat\r\n".replace(b"\r", b"")
    )
    (question,) = load_questions(path)
    assert (question.text, question.options, question.answer) == ("One?", ("x", "y", "z"), 1)
    assert (question.category, question.label, question.source) == ("Cat", "Cat", "q.csv")


def test_without_category_and_label_all_are_other(write_table):
    (question,) = load_questions(write_table("q.jsonl", {"text": "Q?", "options": ["x", "y"], "answer": "A"}))
    assert (question.category, question.label) == ("Other", "Other")


@pytest.mark.parametrize(
    ("answer_as", "answer", "index"),
    [
        ("letter", "C", 2),
        ("letter", "c", 2),
        ("index0", 2, 2),
        ("index0", "0", 0),
        ("index0", 1.0, 1),
        ("index1", 1, 0),
        ("index1", "3", 2),
        ("text", "sun", 0),
        ("text", " 5 ", 2),
    ],
)
def test_answer_forms(write_table, answer_as: str, answer: Any, index: int):
    path = write_table("q.json", [{"stem": "Q?", "alternatives": ["sun", "moon", 5], "key": answer}])
    (question,) = table(path, question="stem", options="alternatives", answer="key", answer_as=answer_as)
    assert (question.answer, question.options) == (index, ("sun", "moon", "5"))


@pytest.mark.parametrize(
    ("answer_as", "answer", "hint"),
    [
        ("letter", "D", "choose from A, B, C"),
        ("letter", "AB", "choose from A, B, C"),
        ("letter", 1, "index1"),
        ("index0", 3, "choose from 0, 1, 2"),
        ("index0", -1, "choose from 0, 1, 2"),
        ("index0", 1.5, "choose from 0, 1, 2"),
        ("index1", 0, "choose from 1, 2, 3"),
        ("index1", "A", "choose from 1, 2, 3"),
        ("text", "moons", "did you mean 'moon'"),
        ("letter", None, "missing"),
        ("letter", "", "empty"),
        ("letter", True, "boolean"),
    ],
)
def test_unknown_answers_are_refused(write_table, answer_as: str, answer: Any, hint: str):
    good = '{"question": "P?", "options": ["sun", "moon", "5"], "answer": '
    first = {"letter": '"A"', "index0": "0", "index1": "1", "text": '"sun"'}[answer_as]
    import json

    path = write_table("q.jsonl", f"{good}{first}}}\n\n{good}{json.dumps(answer)}}}\n")
    with pytest.raises(UserError, match=r"q\.jsonl:3: the answer \(column 'answer'") as error:
        table(path, answer_as=answer_as)
    assert hint in str(error.value)


def test_a_text_answer_that_fits_two_options_is_refused(write_table):
    path = write_table("q.json", [{"question": "Q?", "options": ["same", "same", "other"], "answer": "same"}])
    with pytest.raises(UserError, match=r"item 1: .*'same', which is the text of 2 options"):
        table(path, answer_as="text")


def test_S1_options_that_look_missing_stay_in_every_format(write_table, tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = ["None", "NA", "null", "N/A", "nan", "NaN", "-"]
    record = {
        "question": "Q?",
        **dict(zip("ABCDEFG", options, strict=True)),
        "answer": "A",
        "category": "NA",
        "label": "None",
    }
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "q.parquet")
    write_table("q.csv", ",".join(record) + "\n" + ",".join(record.values()) + "\n")
    write_table("q.json", [record])
    for suffix in ("parquet", "csv", "json"):
        (question,) = load_questions(tmp_path / f"q.{suffix}")
        assert list(question.options) == options, suffix
        assert (question.category, question.label) == ("NA", "None")


@pytest.mark.parametrize("value", ["", "  ", None, float("nan")])
def test_S1_an_empty_option_is_refused(tmp_path: Path, value: Any):
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = "y" if not isinstance(value, float) else 1.0
    rows = [{"question": "Q?", "A": "x", "B": b, "answer": "A"} for b in (first, value)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    with pytest.raises(UserError, match=r"q\.parquet, row 2: option B \(column 'B'\) is (empty|missing)"):
        load_questions(tmp_path / "q.parquet")


def test_S1_an_empty_option_of_a_csv_is_refused(write_table):
    path = write_table("q.csv", 'question,A,B,answer\n"Q\n1?",x,y,A\nQ2?,x,,A\n')
    with pytest.raises(UserError, match=r"q\.csv:4: option B \(column 'B'\) is empty"):
        load_questions(path)


@pytest.mark.parametrize("line", ["Q2?,x,A", "Q2?,x,y,z,A", "Q2?"])
def test_S2_a_ragged_row_is_refused(write_table, line: str):
    path = write_table("q.csv", f"question,A,B,answer\nQ1?,x,y,A\n{line}\n")
    with pytest.raises(UserError, match=rf"q\.csv:3: {line.count(',') + 1} fields where 4 are expected"):
        load_questions(path)


def test_S2_ids_follow_the_question_wherever_it_stands(write_table):
    header, lines = "question,A,B,answer", [f"Q{i}?,x,y,A" for i in range(5)]
    ids = {}
    for name, order in (("one.csv", lines), ("two.csv", lines[::-1])):
        ids[name] = {
            q.text: q.id for q in load_questions(write_table(name, "\n".join([header, *order]) + "\n"))
        }
    assert ids["one.csv"] == ids["two.csv"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question": "stem"}, r"q\.csv:2: no column 'stem'; choose from question, A, B, answer"),
        ({"options": ["A", "b"]}, r"no column 'b'; did you mean|no column 'b'; choose from"),
        ({"answer": "answr"}, r"no column 'answr'; did you mean 'answer'\?"),
        ({"category": "topic"}, r"no column 'topic'"),
        ({"options": "A"}, r"column 'A' must hold a list"),
        ({"options": ["A"]}, r"options must name two columns or more"),
        ({"answer_as": "number"}, r"unknown answer_as 'number'; choose from letter, index0, index1, text"),
        ({"answers": "answer"}, r"unknown key 'answers'; did you mean 'answer'\?"),
        ({"label": True}, r"label is the boolean True; write it in quotes"),
        ({"question": 3}, r"question must name a column"),
    ],
)
def test_a_wrong_mapping_is_refused(write_table, columns: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        table(write_table("q.csv", "question,A,B,answer\nQ?,x,y,A\n"), **columns)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.csv", b"question,A,B,answer\nQ?,caf\xe9,y,A\n", r"q\.csv:2: byte 0xe9 is not UTF-8"),
        ("q.csv", "question,A,B,answer\n'Q?',\"x,y,A\n", r"q\.csv:2: not valid CSV"),
        ("q.csv", "", r"q\.csv: the file is empty"),
        ("q.csv", "question,A,B,answer\n", r"q\.csv: holds no question"),
        ("q.csv", "question,A,A,answer\nQ?,x,y,A\n", r"column 'A' occurs twice"),
        ("q.csv", "question,answer\nQ?,A\n", r"q\.csv:2: no options: neither"),
        ("q.jsonl", '{"question": "Q?"\n', r"q\.jsonl:1: not valid JSON"),
        ("q.jsonl", '["Q?"]\n', r"q\.jsonl:1: must be a JSON object"),
        (
            "q.jsonl",
            '{"question": "Q?", "options": ["a", NaN], "answer": "A"}\n',
            r"q\.jsonl:1: NaN is not valid JSON",
        ),
        (
            "q.jsonl",
            '{"question": "Q?", "options": ["a"], "answer": "A"}',
            r"holds 1 options; it needs 2 to 26",
        ),
        ("q.jsonl", '{"question": "Q?", "options": ["a", ["b"]], "answer": "A"}', r"option B .*is a list"),
        ("q.json", '{"question": "Q?"}', r"q\.json: must hold a list of objects"),
        ("q.json", "[]", r"q\.json: holds no question"),
        ("q.parquet", "no parquet", r"q\.parquet: not a readable Parquet file"),
        ("q.xlsx", "text", r"q\.xlsx: no reader for '\.xlsx'; choose from \.csv"),
    ],
)
def test_an_unreadable_file_is_refused(write_table, name: str, content: Any, message: str):
    with pytest.raises(UserError, match=message):
        load_questions(write_table(name, content))


def test_S6_a_boolean_option_is_refused_with_the_hint(write_table):
    path = write_table("q.jsonl", '{"question": "Q?", "options": [true, false], "answer": "A"}\n')
    with pytest.raises(UserError, match=r"q\.jsonl:1: option A .*boolean True; write it in quotes, as 'yes'"):
        load_questions(path)


def test_a_list_column_of_a_csv_is_json(write_table):
    path = write_table("q.csv", 'question,options,answer\nQ?,"[""a, b"", ""c""]",B\n')
    (question,) = load_questions(path)
    assert question.lettered == {"A": "a, b", "B": "c"}
