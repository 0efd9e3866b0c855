"""Identity, sampling, limits and the report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from question_rows import mmlu_rows, normad_rows, social_rows

from persona_mlflow.errors import UserError
from persona_mlflow.questions import (
    CategoryTable,
    DataReport,
    Question,
    QuestionSet,
    SourceRow,
    load_questions,
)
from persona_mlflow.questions.base import content_id, number
from persona_mlflow.questions.categories import Category
from persona_mlflow.questions.composite import per_label, sample


def row(text: str, label: str = "l", category: str = "c", source: str = "s", answer: int = 0) -> SourceRow:
    return SourceRow(text, ("yes", "no"), answer, label, source, category)


def numbered(rows: list[SourceRow]) -> list[Question]:
    return number(rows, lambda source, label: "Other")


def make_set(sizes: dict[str, dict[str, int]]) -> QuestionSet:
    """Category → label → how many questions."""
    rows = [
        row(f"{category} {label} {i}", label, category)
        for category, labels in sizes.items()
        for label, n in labels.items()
        for i in range(n)
    ]
    return QuestionSet.of("made", numbered(rows))


# ── Identity ────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_depend_on_content_alone():
    one, other = numbered([row("Q", label="x", source="s1")]), numbered([row("P"), row("Q", label="y")])
    assert one[0].id == other[1].id
    assert (
        len({content_id("Q", ["a", "b"], 0), content_id("Q", ["a", "b"], 1), content_id("Q", ["b", "a"], 0)})
        == 3
    )


def test_S4_repeated_questions_are_numbered_in_source_order():
    found = numbered([row("Q"), row("P"), row("Q"), row("Q", label="other")])
    x = content_id("Q", ("yes", "no"), 0)
    assert [q.id for q in found] == [x, content_id("P", ("yes", "no"), 0), f"{x}~2", f"{x}~3"]
    made = QuestionSet.of("made", found)
    assert len(made) == len(made.by_id) == 4
    assert made.report.repeated == ((x, f"{x}~2", f"{x}~3"),)
    assert [q.id for q in made.drop_duplicates()] == [q.id for q in found[:2]]
    assert made.drop_duplicates().report.dropped == {"duplicates": (f"{x}~2", f"{x}~3")}


def test_S4_across_the_sources_of_a_composite(tmp_path, write_mmlu, write_social):
    # The published sources cannot share a question (their options differ): two subjects stand for them.
    same = ["Same question?", "a", "b", "c", "d", "A"]
    write_mmlu({"virology": [same], "anatomy": [same]}, at="data/mmlu")
    write_social(social_rows(1), at="data/social_iqa")
    found = load_questions(tmp_path / "data")
    ids = {q.label: q.id for q in found}
    assert ids["virology"] == f"{ids['anatomy']}~2"
    two_sources = numbered([row("Q", source="mmlu"), row("Q", source="normad")])
    assert two_sources[1].id == f"{two_sources[0].id}~2"


def test_S4_ids_are_given_before_sampling_so_they_stay(tmp_path, write_mmlu):
    rows = mmlu_rows("virology", 8) * 2
    folder = write_mmlu({"virology": rows})
    everything = load_questions(folder)
    assert len(everything) == 16
    for limit in (1, 5, 11, 16):
        some = load_questions(folder, limit=limit)
        assert len(some) == limit
        assert all(everything.by_id[q.id] == q for q in some)


def test_S4_dropping_is_asked_for_and_happens_before_sampling(tmp_path, write_mmlu):
    rows = mmlu_rows("prehistory", 3) * 2 + mmlu_rows("more", 3)
    twins = [["Twins?", "same", "same", "c", "d", "A"], ["Others?", "a", "same", "same", "d", "A"]]
    write_mmlu({"prehistory": rows + twins}, at="data/mmlu")
    kept = load_questions(tmp_path / "data", per_category=4 * 11)
    assert (len(kept), len(kept.report.repeated), len(kept.report.equal_options)) == (11, 3, 2)
    assert not kept.report.dropped
    dropped = load_questions(tmp_path / "data", per_category=4 * 8, drop=("duplicates", "equal_options"))
    # 8 asked of this label, 6 different ones without equal options are there.
    assert len(dropped) == 6
    assert [(s.asked, s.got) for s in dropped.report.shortfalls if s.label == "prehistory"] == [(8, 6)]
    assert {why: len(ids) for why, ids in dropped.report.dropped.items()} == {
        "duplicates": 3,
        "equal_options": 2,
    }


def test_the_fingerprint_is_the_same_in_another_process(tmp_path, write_mmlu):
    folder = write_mmlu({"virology": mmlu_rows("virology", 30)})
    here = load_questions(folder, limit=7, seed=3)
    code = (
        "import sys; from persona_mlflow.questions import load_questions; "
        "s = load_questions(sys.argv[1], limit=7, seed=3); print(s.fingerprint, *(q.id for q in s))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
    )
    assert run.stdout.split() == [here.fingerprint, *(q.id for q in here)]


def test_the_fingerprint_sees_content_category_and_label_but_not_order():
    base = [row("Q"), row("P")]
    prints = [
        QuestionSet.of("n", numbered(rows)).fingerprint
        for rows in (
            base,
            base[::-1],
            [row("Q"), row("P", label="x")],
            [row("Q"), row("P", category="x")],
            base[:1],
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


def test_import_is_light():
    heavy = ("pandas", "pyarrow", "torch", "mlflow", "huggingface_hub")
    code = f"import sys, persona_mlflow.questions; print([m for m in {heavy} if m in sys.modules])"
    env = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=env).strip() == "[]"


# ── Limit ───────────────────────────────────────────────────────────────────────────────────────────────


def test_limit_is_balanced_nested_and_repeatable():
    made = make_set({"a": {"x": 9, "y": 9}, "b": {"x": 30}, "c": {"z": 2}})
    before: set[str] = set()
    for n in range(1, len(made) + 1):
        some = made.limit(n)
        assert len(some) == n
        assert some.questions == made.limit(n).questions
        ids = set(some.by_id)
        assert before < ids
        before = ids
        sizes = Counter(q.category for q in some)
        available = {"a": 18, "b": 30, "c": 2}
        # As equal as can be: a smaller category than the largest (by more than one turn) is used up.
        for category, size in sizes.items():
            assert size == available[category] or size >= max(sizes.values()) - 1
        assert list(some.categories) == [c for c in "abc" if c in sizes]
        assert [q.id for q in some] == [q.id for q in made if q.id in ids]


def test_limit_spreads_over_the_labels_of_a_category():
    made = make_set({"a": {"x": 50, "y": 5, "z": 5}})
    assert Counter(q.label for q in made.limit(12)) == {"x": 4, "y": 4, "z": 4}
    assert made.limit(12).report.limited_from == 60


def test_limit_depends_on_the_seed_only():
    made = make_set({"a": {"x": 50}, "b": {"y": 50}})
    assert made.limit(20, seed=1).questions != made.limit(20, seed=2).questions
    # What else is in the set changes nothing: b's questions are the same without a.
    alone = QuestionSet.of("b", [q for q in made if q.category == "b"])
    assert set(alone.limit(10, seed=1).by_id) == {q.id for q in made.limit(20, seed=1) if q.category == "b"}


def test_limit_beyond_the_set_is_all_of_it():
    made = make_set({"a": {"x": 3}})
    assert made.limit(3) is made
    assert made.limit(99) is made


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_limit_refuses_other_values(n):
    with pytest.raises(UserError, match="limit must be a whole number of at least 1"):
        make_set({"a": {"x": 3}}).limit(n)


# ── Composite sampling ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("labels", "asked"), [(4, 125), (7, 71), (5, 100), (8, 62), (75, 7)])
def test_per_label_is_the_papers(labels: int, asked: int):
    assert per_label(500, labels) == asked


@pytest.mark.parametrize("n", [0, -5, 2.5, True, None])
def test_per_category_refuses_other_values(n):
    with pytest.raises(UserError, match="per_category must be"):
        per_label(n, 4)


def test_a_labels_sample_does_not_depend_on_other_labels_or_row_order():
    table = CategoryTable((Category("C", "s", ("x", "y")),))
    xs = numbered([row(f"x {i}", "x", "C") for i in range(40)])
    ys = numbered([row(f"y {i}", "y", "C") for i in range(40)])
    chosen, shortfalls = sample(xs + ys, table, per_category=20, seed=5)
    assert Counter(q.label for q in chosen) == {"x": 10, "y": 10}
    assert not shortfalls
    fewer, _ = sample(ys[:3] + xs[::-1], table, per_category=20, seed=5)
    assert {q.id for q in fewer if q.label == "x"} == {q.id for q in chosen if q.label == "x"}
    # Asking for more keeps what was chosen.
    more, _ = sample(xs + ys, table, per_category=30, seed=5)
    assert {q.id for q in chosen} < {q.id for q in more}


def test_sampling_is_uniform():
    table = CategoryTable((Category("C", "s", ("x",)),))
    pool = numbered([row(f"x {i}", "x", "C") for i in range(10)])
    seeds = 3_000
    hits = Counter(q.id for seed in range(seeds) for q in sample(pool, table, per_category=3, seed=seed)[0])
    # Each of the 10 is chosen with probability 0.3; five standard errors of a binomial share.
    error = (0.3 * 0.7 / seeds) ** 0.5
    assert all(abs(hits[q.id] / seeds - 0.3) < 5 * error for q in pool)


def test_a_shortfall_gives_all_and_is_reported(tmp_path, write_mmlu, write_normad):
    write_mmlu({"prehistory": mmlu_rows("prehistory", 3)}, at="data/mmlu")
    write_normad(normad_rows(["egypt", "NA"], 5), at="data/normad")
    found = load_questions(tmp_path / "data", per_category=20)
    assert found.report.counts == {
        "History": {"prehistory": 3},
        "Cultural Awareness and Understanding": {"NA": 5, "egypt": 5},
    }
    short = {s.label: (s.asked, s.got) for s in found.report.shortfalls if s.category == "History"}
    assert short["prehistory"] == (5, 3)
    assert short["high_school_us_history"] == (5, 0)
    assert {s.label: (s.asked, s.got) for s in found.report.shortfalls if s.label in ("egypt", "NA")} == {
        "NA": (10, 5),
        "egypt": (10, 5),
    }
    assert list(found.report.absent) == ["social_iqa"]
    assert {s.category for s in found.only(["History"]).report.shortfalls} == {"History"}


# ── Report and frame ────────────────────────────────────────────────────────────────────────────────────


def test_S9_the_report_is_valid_json_and_readable(tmp_path, write_mmlu):
    twin = ["Twins?", "same", "same", "c", "d", "A"]
    conflict = ["Which?", "a", "b", "c", "d"]
    rows = [twin, twin, [*conflict, "A"], [*conflict, "B"], ["Fine?", "x", "y", "y", "z", "A"]]
    write_mmlu({"prehistory": rows}, at="data/mmlu")
    report = load_questions(tmp_path / "data").report
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["counts"] == {"History": {"prehistory": 5}}
    assert [len(ids) for ids in data["repeated"]] == [2]
    assert [len(ids) for ids in data["conflicting"]] == [2]
    assert [(e["letters"], e["correct"]) for e in data["equal_options"]] == [
        ("AB", True),
        ("AB", True),
        ("BC", False),
    ]
    assert data["absent"].keys() == {"social_iqa", "normad"}
    text = "\n".join(report.lines())
    for part in (
        "5 questions in 1 category",
        "History: 5 (prehistory 5)",
        "absent source normad",
        "prehistory has 5 of 125 asked",
        "1 question repeated",
        "1 question with contradictory answers",
        "3 questions with equal options, the correct one among them in 2",
    ):
        assert part in text


def test_the_report_of_nothing_is_quiet():
    assert DataReport().lines() == ["0 questions in 0 categories"]


def test_the_frame_round_trips_through_every_format(tmp_path, write_mmlu):
    found = load_questions(
        write_mmlu({"virology": [*mmlu_rows("virology", 3), ["Qé\n2", "None", "NA", "1", "2", "B"]]})
    )
    frame = found.to_frame()
    assert list(frame.columns) == ["id", "category", "label", "text", "options", "answer", "source"]
    frame.to_parquet(tmp_path / "q.parquet")
    frame.to_json(tmp_path / "q.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "q.json", orient="records")
    frame.assign(options=frame["options"].map(json.dumps)).to_csv(tmp_path / "q.csv", index=False)
    for suffix in ("parquet", "jsonl", "json", "csv"):
        again = load_questions(tmp_path / f"q.{suffix}")
        assert again.fingerprint == found.fingerprint, suffix
        assert [q.lettered for q in again] == [q.lettered for q in found], suffix


def test_an_empty_set_is_refused():
    with pytest.raises(UserError, match="empty"):
        QuestionSet.of("none", [])


def test_only_keeps_categories_and_refuses_unknown_ones():
    made = make_set({"a": {"x": 3}, "b": {"y": 2}})
    assert made.only(["b"]).categories == ("b",)
    assert made.only(["b"]).report.total == 2
    with pytest.raises(UserError, match=r"unknown category 'c'; .*choose from a, b"):
        made.only(["c"])
