"""The published sources in their layouts; the public data's counted traps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from question_rows import mmlu_rows, normad_rows, social_rows

from persona_mlflow.errors import UserError
from persona_mlflow.questions import load_questions, mmlu, normad, social_iqa
from persona_mlflow.questions.reading import csv_rows
from persona_mlflow.questions.social_iqa import gold_index, question_type

# ── MMLU ────────────────────────────────────────────────────────────────────────────────────────────────


def test_S1_cells_that_look_missing_stay_options(write_mmlu):
    row = ["Which of these is no number?", "None", "NA", "null", "N/A", "D"]
    (got,) = mmlu.load(write_mmlu({"prehistory": [row]}))
    assert got.options == ("None", "NA", "null", "N/A")
    assert got.answer == 3


def test_S1_an_empty_option_is_refused_with_its_place(write_mmlu):
    folder = write_mmlu({"prehistory": [["Q1", "a", "b", "c", "d", "A"], ["Q2", "a", "", "c", "d", "A"]]})
    with pytest.raises(UserError, match=r"prehistory_test\.csv:2: option B is empty"):
        mmlu.load(folder)


def test_S2_a_ragged_row_is_refused_with_its_place(write_mmlu):
    folder = write_mmlu({"prehistory": [["Two\nlines", "a", "b", "c", "d", "A"], ["Q2", "a", "b", "A"]]})
    # The first row covers lines 1 and 2 of the file.
    with pytest.raises(UserError, match=r"prehistory_test\.csv:3: 4 fields where 6 are expected"):
        mmlu.load(folder)


def test_mmlu_line_breaks_quotes_and_line_ends(tmp_path: Path):
    folder = tmp_path / "test"
    folder.mkdir()
    content = (
        b'"One\r\ntwo ""three""", a ,b,c,d,C\r\n"One\ntwo ""three""",a,b,c,d,C\nCaf\xc3\xa9?,1,2,3,4,a\n\n'
    )
    (folder / "virology_test.csv").write_bytes(content)
    first, second, third = mmlu.load(tmp_path)
    assert first.text == 'One\ntwo "three"'
    assert first == second, "line ends and outer blanks are no content"
    assert (third.text, third.answer) == ("Café?", 0)


def test_mmlu_an_answer_that_is_no_letter_is_refused(write_mmlu):
    with pytest.raises(UserError, match=r":1: the answer \(column 6\) is 'E', .* choose from A, B, C, D"):
        mmlu.load(write_mmlu({"virology": [["Q", "a", "b", "c", "d", "E"]]}))


def test_mmlu_an_unclosed_quote_does_not_swallow_the_rest(tmp_path: Path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "virology_test.csv").write_text('Q1,a,b,c,d,A\n"Q2,a,b,c,d,A\nQ3,a,b,c,d,A\n')
    with pytest.raises(UserError, match=r"virology_test\.csv:2: not valid CSV"):
        mmlu.load(tmp_path)


def test_mmlu_wrong_encoding_names_the_line(tmp_path: Path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "virology_test.csv").write_bytes(b"Q1,a,b,c,d,A\nCaf\xe9,a,b,c,d,A\n")
    with pytest.raises(UserError, match=r"virology_test\.csv:2: byte 0xe9 is not UTF-8"):
        mmlu.load(tmp_path)


@pytest.mark.parametrize("layout", ["subjects", "all"])
def test_mmlu_the_hubs_parquet_gives_the_ids_of_the_csv(write_mmlu, tmp_path: Path, layout: str):
    import pyarrow as pa
    import pyarrow.parquet as pq

    subjects = {s: mmlu_rows(s, 5) for s in ("virology", "anatomy")}
    hub = tmp_path / "hub_layout"
    records = {
        subject: [
            {"question": r[0], "subject": subject, "choices": r[1:5], "answer": "ABCD".index(r[5])}
            for r in rows
        ]
        for subject, rows in subjects.items()
    }
    if layout == "all":
        records = {"all": records["virology"] + records["anatomy"]}
    for folder, rows in records.items():
        (hub / folder).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), hub / folder / "test-00000-of-00001.parquet")
    by_csv, by_parquet = load_questions(write_mmlu(subjects)), load_questions(hub)
    assert [q.id for q in by_parquet] == [q.id for q in by_csv]
    assert by_parquet.fingerprint == by_csv.fingerprint
    assert by_parquet.labels == ("anatomy", "virology")


def test_mmlu_alone_puts_subjects_of_no_category_in_other(write_mmlu):
    found = load_questions(
        write_mmlu({s: mmlu_rows(s, 2) for s in ("world_religions", "virology", "prehistory")})
    )
    assert found.name == "mmlu"
    assert found.categories == ("History", "Human Health and Medicine", "Other")


def test_mmlu_an_unknown_split_lists_the_splits(write_mmlu):
    with pytest.raises(UserError, match=r"no split 'tests'.*'test'.*validation"):
        load_questions(
            {"source": "mmlu", "path": str(write_mmlu({"virology": mmlu_rows("v", 2)})), "split": "tests"}
        )


@pytest.mark.parametrize(("split", "rows"), [("test", 14_042), ("val", 1_531), ("dev", 285)])
def test_mmlu_published_row_counts(shared_data: Path, split: str, rows: int):
    found = mmlu.load(shared_data / "mmlu", split)
    assert len(found) == rows
    assert len({row.label for row in found}) == 57


def test_mmlu_traps_that_were_counted(shared_data: Path):
    files = mmlu.find_files(shared_data / "mmlu")
    raw = [fields for file in files for _, fields in csv_rows(file)]
    assert sum(any("\n" in field for field in fields) for fields in raw) == 1_127
    assert sum(any('"' in field for field in fields) for fields in raw) == 1_346
    assert sum(any(not field.isascii() for field in fields) for fields in raw) == 1_821
    found = load_questions(shared_data / "mmlu")
    look_missing = {"None", "N/A", "NA", "null", "nan", "NaN", "NULL", "n/a", ""}
    assert sum(any(t in look_missing for t in (q.text, *q.options)) for q in found) == 10
    assert len(found.report.equal_options) == 9
    assert sum(equal.correct for equal in found.report.equal_options) == 4
    assert not found.report.conflicting


def test_mmlu_agrees_with_pandas_in_every_cell(shared_data: Path):
    import pandas as pd

    ours = iter(mmlu.load(shared_data / "mmlu"))
    for file in sorted((shared_data / "mmlu" / "test").iterdir()):
        frame = pd.read_csv(file, header=None, dtype=str, keep_default_na=False)
        for text, *options, letter in frame.itertuples(index=False):
            row = next(ours)
            assert row.label == file.name.removesuffix("_test.csv")
            assert row.text.split() == text.split()
            assert [option.split() for option in row.options] == [option.split() for option in options]
            assert "ABCD"[row.answer] == letter
    assert next(ours, None) is None


def test_mmlu_repetitions_across_all_splits(shared_data: Path):
    splits = {s: mmlu.load(shared_data / "mmlu", s) for s in ("test", "val", "dev")}
    where: dict[object, list[str]] = {}
    for split, rows in splits.items():
        for row in rows:
            where.setdefault((row.text, row.options), []).append(split)
    twice = [s for s in where.values() if len(s) > 1]
    assert len(twice) == 141
    assert {len(s) for s in twice} == {2}
    assert sum(len(set(s)) == 2 for s in twice) == 33


# ── Social IQa ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("label", "index"), [("1", 0), ("2", 1), ("3", 2), ("3\n", 2), (" 1\r", 0)])
def test_S5_labels_count_from_one(label: str, index: int):
    assert gold_index(label, "here:1") == index


@pytest.mark.parametrize("label", ["0", "4", "", "A", "1.0", "-1"])
def test_S5_other_labels_are_refused(label: str):
    with pytest.raises(UserError, match=r"here:1: label .* is not 1, 2 or 3"):
        gold_index(label, "here:1")


def test_S5_a_zero_in_the_file_is_refused_with_its_line(write_social):
    rows = social_rows(1)
    rows[2][5] = "0"
    with pytest.raises(UserError, match=r"dev-labels\.lst:3: label '0'.*count from 0"):
        social_iqa.load(write_social(rows))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What will Mo want to do next?", "wants"),
        ("What will others want to do after?", "wants"),
        ("How would Mo feel as a result?", "reactions"),
        ("how would you describe Mo's mood?", "descriptions"),
        ("Why did Mo want to do this?", "motivations"),
        ("Why does Mo feel bad?", "motivations"),
        ("What does Mo need to do before this?", "needs"),
        ("What's going to happen to Mo?", "effects"),
        ("What happened to Mo?", "effects"),
        ("What will Mo do next?", "misc."),
        ("Where did the wanted poster hang?", "misc."),
    ],
)
def test_social_question_types(question: str, expected: str):
    assert question_type(question) == expected


def test_social_text_options_and_labels(write_social):
    rows = social_iqa.load(write_social(social_rows(3)))
    assert rows[0].text == "Mo mended 0 old bikes. What will Mo want to do next?"
    assert rows[0].options == ("ride", "rest", "wave")
    assert [row.answer for row in rows[:3]] == [0, 1, 2]
    assert Counter(row.label for row in rows) == dict.fromkeys(
        ("wants", "reactions", "descriptions", "motivations", "needs", "effects", "misc."), 3
    )


def test_social_more_questions_than_labels_is_refused(write_social):
    folder = write_social(social_rows(1))
    (folder / "dev-labels.lst").write_text("1\n2\n")
    with pytest.raises(UserError, match=r"dev-labels\.lst: 2 labels for the 7 questions of dev\.jsonl"):
        social_iqa.load(folder)
    (folder / "dev-labels.lst").unlink()
    with pytest.raises(UserError, match=r"dev-labels\.lst: missing"):
        social_iqa.load(folder)


@pytest.mark.parametrize(
    "file",
    ["default/validation/0000.parquet", "data/validation-00000-of-00001.parquet", "validation.parquet"],
)
def test_social_the_hubs_parquet_gives_the_ids_of_the_archive(write_social, tmp_path: Path, file: str):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = social_rows(2)
    keys = ("context", "question", "answerA", "answerB", "answerC", "label")
    path = tmp_path / "hub_layout" / file
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(keys, row, strict=True)) for row in rows]), path)
    found = load_questions(tmp_path / "hub_layout")
    assert found.name == "social_iqa"
    assert [q.id for q in found] == [q.id for q in load_questions(write_social(rows))]


def test_social_traps_that_were_counted(shared_data: Path):
    found = load_questions(shared_data / "social_iqa")
    assert len(found) == 1_954
    # 24 exact duplicate rows; 5 of them carry another label, so they contradict each other instead.
    assert (len(found.report.repeated), len(found.report.conflicting)) == (19, 5)
    assert len(found.report.equal_options) == 5
    assert {q.answer for q in found} == {0, 1, 2}


# ── NormAd ──────────────────────────────────────────────────────────────────────────────────────────────


def test_normad_question_and_gold(write_normad):
    rows = normad.load(write_normad(normad_rows(["bosnia_and_herzegovina"], 3)))
    assert "Country: Bosnia and Herzegovina\n" in rows[0].text
    assert "Guest 0 left the shoes, and a note, at the door of bosnia_and_herzegovina." in rows[0].text
    assert {row.options for row in rows} == {("Yes", "No", "Neither")}
    assert [row.answer for row in rows] == [0, 1, 2]


def test_S6_normad_country_codes_stay_text(write_normad):
    rows = normad.load(
        write_normad([["NA", "A story.", "no"], ["NO", "A story.", "yes"], ["on", "A story.", "neutral"]])
    )
    assert [row.label for row in rows] == ["NA", "NO", "on"]
    assert rows[0].text.startswith("Country: NA\n")


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("timor-leste", "Timor-Leste"),
        ("united_states_of_america", "United States of America"),
        ("türkiye", "Türkiye"),
        ("NA", "NA"),
    ],
)
def test_normad_country_names(label: str, name: str):
    assert normad.country_name(label) == name


@pytest.mark.parametrize("gold", ["True", "False", "maybe", "1"])
def test_S6_normad_other_gold_labels_are_refused(write_normad, gold: str):
    with pytest.raises(UserError, match=rf"data\.csv:2: column 'Gold Label' is '{gold}'; .*yes, no, neutral"):
        normad.load(write_normad([["egypt", "A story.", gold]]))


def test_normad_a_missing_column_lists_those_there(write_normad):
    folder = write_normad([["egypt", "A story.", "yes"]])
    file = folder / normad.FILE
    file.write_text(file.read_text().replace("Gold Label", "Label"))
    with pytest.raises(UserError, match=r"no column 'Gold Label'; did you mean 'Label'\?"):
        normad.load(folder)


# ── The composite over the public data ──────────────────────────────────────────────────────────────────


def test_composite_has_the_papers_counts(shared_data: Path):
    found = load_questions(shared_data)
    sizes = {category: sum(labels.values()) for category, labels in found.report.counts.items()}
    assert sizes == {
        "History": 500,
        "Politics and Law": 497,
        "Social Science": 500,
        "Business/Accounting and Economics": 497,
        "EECS": 500,
        "Math": 500,
        "Natural Science": 496,
        "Human Health and Medicine": 496,
        "Commonsense Reasoning/Social Awareness": 6 * 71 + 30,
    }
    per_label = {category: set(labels.values()) for category, labels in found.report.counts.items()}
    assert per_label.pop("Commonsense Reasoning/Social Awareness") == {71, 30}
    assert [n for (n,) in per_label.values()] == [125, 71, 100, 71, 100, 100, 62, 62]
    assert [(s.label, s.asked, s.got) for s in found.report.shortfalls] == [("misc.", 71, 30)]
    assert list(found.report.absent) == ["normad"]
    assert found.report.read == {"mmlu": 14_042, "social_iqa": 1_954}


def test_composite_seeds_differ_and_repeat(shared_data: Path):
    one, again, other = (load_questions(shared_data, seed=seed) for seed in (1, 1, 2))
    assert one.questions == again.questions
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert one.report.counts == other.report.counts
    shared = set(one.by_id) & set(other.by_id)
    assert 0.1 < len(shared) / len(one) < 0.9
