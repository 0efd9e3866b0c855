"""Annotation sheets: the draw, what the sheets show and hide, and reading them back from spreadsheets."""

import csv
import json
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persona_mlflow.errors import UserError
from persona_mlflow.prism.annotation import (
    FIDELITY,
    KEY,
    LABELLING,
    SHEETS,
    Key,
    draw_pairs,
    guard,
    make_key,
    unguard,
    write_sheets,
)
from persona_mlflow.prism.annotation_reading import holds_answers, read_annotations
from persona_mlflow.prism.benchmarks import load_benchmark
from persona_mlflow.prism.cases import POSITIVE, TRAITS, Benchmark, Case, Example, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES, label_space

KINDS = ("other trait, response", "other trait, profile")
STRATA = [(trait, level) for trait in TRAITS for level in ("high", "low")]


def benchmark_of(sizes, kinds=KINDS, text="Reply"):
    """Groups of Big Five profiles: as many of each stratum as ``sizes`` says, one negative of each kind."""
    examples = []
    for (trait, level), size in zip(STRATA, sizes, strict=False):
        for number in range(size):
            group = f"{trait}-{level}-{number}"
            for kind in (POSITIVE, *kinds):
                case = Case(
                    f"{group}-{kind}", Profile("big5", trait, level), "So?", f"{text} {group}, {kind}."
                )
                examples.append(Example(case, group, kind == POSITIVE, kind))
    return Benchmark("big5-hard", tuple(examples))


def read_sheet(path, **options):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, **options))


def fill(path, answers, columns=None, encoding="utf-8-sig", **options):
    """Write answers into a sheet: a function of row number and row gives what to change."""
    rows = read_sheet(path)
    for number, row in enumerate(rows):
        row.update(answers(number, row))
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore", **options)
        writer.writeheader()
        writer.writerows(rows)
    return rows


def message(call, *arguments, **options):
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------- draw


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 7), min_size=2, max_size=10).filter(any),
    groups=st.integers(1, 50),
    seed=st.integers(0, 5),
)
def test_groups_are_even_over_strata_and_kinds(sizes, groups, seed):
    pairs = draw_pairs(benchmark_of(sizes), groups, seed)
    assert len(pairs) == min(groups, sum(sizes))
    strata = Counter(stratum for stratum, _, _ in pairs)
    most = max(strata.values())
    for (trait, level), size in zip(STRATA, sizes, strict=False):
        # A stratum has as many as any other, but for one, or all that there are of it.
        assert strata[f"{level} {trait}"] >= min(size, most - 1)
    kinds = Counter(negative.kind for _, _, negative in pairs)
    assert abs(kinds[KINDS[0]] - kinds[KINDS[1]]) <= 1
    within = Counter((stratum, negative.kind) for stratum, _, negative in pairs)
    assert all(abs(within[s, KINDS[0]] - within[s, KINDS[1]]) <= 1 for s in strata)
    assert len({positive.group for _, positive, _ in pairs}) == len(pairs)
    for stratum, positive, negative in pairs:
        assert positive.positive
        assert not negative.positive
        assert positive.group == negative.group
        assert positive.case.profile.label == stratum


def test_groups_without_a_choice_of_kind_are_made_up_for():
    whole = benchmark_of([6])
    fixed = {f"openness-high-{n}" for n in range(3)}
    kept = tuple(e for e in whole if e.group not in fixed or e.kind != KINDS[1])
    pairs = draw_pairs(Benchmark("big5-hard", kept), 6)
    assert Counter(negative.kind for _, _, negative in pairs) == {KINDS[0]: 3, KINDS[1]: 3}


def test_characters_are_strata_also_without_a_name():
    profiles = [Profile("free", name="", sections={"style": text}) for text in ("curt", "flowery")]
    profiles.append(Profile("free", name="Ann", sections={"style": "dry"}))
    examples = []
    for p, profile in enumerate(profiles):
        for n in range(4):
            for kind in (POSITIVE, "distractor"):
                case = Case(f"{p}-{n}-{kind}", profile, "", f"Reply {p} {n} {kind}")
                examples.append(Example(case, f"{p}-{n}", kind == POSITIVE, kind))
    strata = Counter(stratum for stratum, _, _ in draw_pairs(Benchmark("social", tuple(examples)), 6))
    assert sorted(strata.values()) == [2, 2, 2]
    assert "Ann" in strata


def test_the_seed_decides_and_nothing_else():
    benchmark = benchmark_of([4] * 10)
    shuffled = Benchmark(benchmark.name, tuple(reversed(benchmark.examples)))
    key = make_key(benchmark, groups=20, seed=3)
    assert make_key(shuffled, groups=20, seed=3) == key
    other = make_key(benchmark, groups=20, seed=4)
    assert {item.id for item in other.items} != {item.id for item in key.items}


def test_a_further_annotator_changes_nothing_for_the_others():
    two, three = (make_key(benchmark_of([4] * 10), groups=10, annotators=n) for n in (2, 3))
    assert two.items == three.items
    for name in two.annotators:
        assert two.orders[name] == three.orders[name]
        assert two.options[name] == three.options[name]
    assert len(set(three.orders.values())) == 3
    assert three.draw == two.draw


@pytest.mark.parametrize(("what", "value"), [("groups", 0), ("annotators", 0), ("groups", True)])
def test_a_draw_of_nothing_is_refused(what, value):
    assert f"{what} must be a whole number" in message(make_key, benchmark_of([2]), **{what: value})


# -------------------------------------------------------------------------------------------------- sheets


@pytest.fixture
def benchmark():
    return benchmark_of([3] * 10)


@pytest.fixture
def folder(tmp_path, benchmark):
    write_sheets(benchmark, tmp_path / "sheets", groups=20, annotators=2)
    return tmp_path / "sheets"


def test_sheets_show_the_items_and_hide_which_is_which(folder, benchmark):
    key = Key.load(folder)
    examples = {example.case.id: example for example in benchmark}
    items = {item.item: item for item in key.items}
    assert len(items) == 40
    for annotator in key.annotators:
        rows = read_sheet(folder / annotator / FIDELITY)
        assert list(rows[0]) == ["item", "profile", "context", "response", "rating"]
        assert [row["item"] for row in rows] == list(key.orders[annotator])
        for row in rows:
            case = examples[items[row["item"]].id].case
            assert (row["profile"], row["context"], row["response"]) == (
                case.profile.describe(),
                case.context,
                case.response,
            )
            assert row["rating"] == ""
        # Either half has every group once, and as many positives as the other.
        for half in (rows[:20], rows[20:]):
            assert len({items[row["item"]].group for row in half}) == 20
            assert sum(items[row["item"]].positive for row in half) == 10
    # Neither the number of an item nor its file says which is the positive.
    positions = [item.positive for item in key.items]
    assert 5 <= sum(positions[:20]) <= 15
    names = {path.name for path in (folder / "annotator-1").iterdir()}
    assert names == {"README.txt", FIDELITY, LABELLING}


def test_dimension_sheets_show_the_label_space_in_the_keys_order(folder, benchmark):
    key = Key.load(folder)
    examples = {example.case.id: example for example in benchmark}
    items = {item.item: item for item in key.items}
    orders = Counter()
    for annotator in key.annotators:
        rows = read_sheet(folder / annotator / LABELLING)
        assert list(rows[0]) == list(SHEETS[LABELLING])
        expected = [(item, d) for item in key.orders[annotator] for d in DIMENSIONS]
        assert [(row["item"], row["dimension"]) for row in rows] == expected
        for row in rows:
            case = examples[items[row["item"]].id].case
            space = label_space(case.profile, row["dimension"])
            states = key.options[annotator][row["item"]][row["dimension"]]
            assert sorted(states) == sorted(STATES)
            assert [row[letter] for letter in "ABC"] == [space[state] for state in states]
            assert row["choice"] == row["second_choice"] == ""
            assert case.profile.describe() not in row.values()
            orders[tuple(states)] += 1
    assert len(orders) == 6


def test_a_rewritten_folder_is_the_same_to_the_byte(folder, benchmark, tmp_path):
    write_sheets(benchmark, tmp_path / "again", groups=20, annotators=2)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert len(files) == 7
    for name in files:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    before = (folder / KEY).read_bytes()
    assert write_sheets(benchmark, folder, groups=20, annotators=2).kept == ()
    assert (folder / KEY).read_bytes() == before


def test_instructions_name_the_scale_the_sheets_and_the_dimensions(folder):
    text = (folder / "annotator-1" / "README.txt").read_text(encoding="utf-8")
    for word in (FIDELITY, LABELLING, "rating", "choice", "second_choice", *DIMENSIONS, " 1  ", " 5  "):
        assert word in text


def test_the_key_is_checked(folder):
    path = folder / KEY
    plain = json.loads(path.read_text(encoding="utf-8"))
    plain["annotators"]["annotator-1"]["order"].pop()
    path.write_text(json.dumps(plain), encoding="utf-8")
    assert "annotator-1" in message(Key.load, folder)
    path.write_text("{", encoding="utf-8")
    assert "damaged" in message(Key.load, folder)
    path.unlink()
    assert "no such file" in message(Key.load, folder)


@given(st.text(alphabet="'=+-@\t\rab ", max_size=5))
def test_formula_guard_comes_off_again(text):
    assert unguard(guard(text)) == text
    assert not guard(text).startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x")', "+1", "-ok, fine", "@SUM(A1)", "'=1", "'tis"])
def test_no_cell_is_a_formula_and_texts_survive(tmp_path, text):
    written = write_sheets(benchmark_of([2], text=text), tmp_path, groups=2, annotators=1)
    rows = read_sheet(tmp_path / "annotator-1" / FIDELITY)
    for row in rows:
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())
        assert unguard(row["response"]).startswith(text)
    assert (tmp_path / "annotator-1" / FIDELITY).read_bytes().startswith(b"\xef\xbb\xbf")
    assert written.shortfall == 0


def test_a_shortfall_is_told(tmp_path):
    written = write_sheets(benchmark_of([2, 3]), tmp_path, groups=8, annotators=1)
    assert (written.shortfall, written.key.drawn, len(written.key.items)) == (3, 5, 10)
    assert dict(written.strata) == {"high openness": 2, "low openness": 3}
    assert written.kinds[POSITIVE] == 5


def test_sheets_with_answers_are_never_overwritten(folder, benchmark):
    path = folder / "annotator-1" / FIDELITY
    fill(path, lambda n, row: {"rating": "4"} if n == 3 else {})
    before = path.read_bytes()
    text = message(write_sheets, benchmark, folder, groups=20, annotators=2)
    assert str(path) in text
    assert "1 of 4 sheets" in text
    # A further annotator: what is filled in stays.
    written = write_sheets(benchmark, folder, groups=20, annotators=3)
    assert written.kept == (path,)
    assert (folder / "annotator-3" / FIDELITY).exists()
    assert path.read_bytes() == before
    # Fewer annotators: the key keeps all.
    (folder / "annotator-2" / FIDELITY).unlink()
    assert len(write_sheets(benchmark, folder, groups=20, annotators=1).key.annotators) == 3
    assert (folder / "annotator-2" / FIDELITY).exists()
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", [{"groups": 10}, {"groups": 20, "seed": 1}])
def test_sheets_of_another_draw_are_never_overwritten(folder, benchmark, options):
    assert "another draw" in message(write_sheets, benchmark, folder, **options)


def test_sheets_without_their_key_are_never_overwritten(folder, benchmark):
    (folder / KEY).unlink()
    assert "not their key" in message(write_sheets, benchmark, folder, groups=20)


def test_an_unreadable_sheet_counts_as_filled_in(tmp_path):
    path = tmp_path / FIDELITY
    for content, answer in (
        (b"item,rating\r\na,\r\n", False),
        (b"item;rating\r\na;3\r\n", True),
        (b"item,rating\r\na,\xff\r\n", True),
        (b"item,score\r\na,\r\n", True),
        (b"", True),
    ):
        path.write_bytes(content)
        assert holds_answers(path) is answer


# ------------------------------------------------------------------------------------------------- reading


def answers_of(folder, annotator="annotator-1"):
    """Deterministic answers to both sheets; returns what should be read."""
    key = Key.load(folder)
    ratings, states = {}, {}

    def rate(number, row):
        ratings[row["item"]] = number % 5 + 1
        return {"rating": str(number % 5 + 1)}

    def choose(number, row):
        order = key.options[annotator][row["item"]][row["dimension"]]
        states[row["item"], row["dimension"]] = order[number % 3], order[(number + 1) % 3]
        return {"choice": "ABC"[number % 3], "second_choice": "ABC"[(number + 1) % 3]}

    fill(folder / annotator / FIDELITY, rate)
    fill(folder / annotator / LABELLING, choose)
    return ratings, states


def test_what_is_filled_in_is_read(folder):
    ratings, states = answers_of(folder)
    found = read_annotations(folder)
    assert set(found.ratings["annotator"]) == {"annotator-1"}
    assert dict(zip(found.ratings["item"], found.ratings["rating"], strict=True)) == ratings
    read = {(r["item"], r["dimension"]): (r["state"], r["second"]) for r in found.labels.to_dict("records")}
    assert read == states
    assert (found.filled(FIDELITY), found.filled(LABELLING)) == ((40, 80), (120, 240))


def test_what_spreadsheets_make_of_a_sheet_is_read_all_the_same(folder):
    ratings, states = answers_of(folder)
    path = folder / "annotator-1" / FIDELITY
    lines = path.read_text(encoding="utf-8-sig")
    columns = ["note", "rating", "response", "item"]
    variants = [
        # Columns moved, left out and added; numbers with decimals; another separator; texts changed.
        {"columns": columns, "delimiter": ";", "more": {"note": "odd; hm", "response": "…\nchanged"}},
        {"columns": columns, "delimiter": "\t", "encoding": "utf-16", "more": {"note": "a,b"}},
        {"encoding": "utf-8", "more": {}},
    ]
    for decimal in (".0", ",0", ".00", " "):
        for variant in variants:
            path.write_text(lines, encoding="utf-8-sig")
            options = {k: v for k, v in variant.items() if k != "more"}
            fill(
                path,
                lambda _, row, v=variant, d=decimal: {**v["more"], "rating": row["rating"] + d},
                **options,
            )
            found = read_annotations(folder).ratings
            assert dict(zip(found["item"], found["rating"], strict=True)) == ratings
    # Small letters, spaces; the header in capitals; blank rows; cells at the end left out; a line for Excel.
    path = folder / "annotator-1" / LABELLING
    fill(path, lambda _, row: {"choice": f" {row['choice'].lower()} ", "second_choice": ""})
    text = path.read_bytes().decode("utf-8-sig")
    header, _, rest = text.partition("\r\n")
    rest = "\r\n".join(line.rstrip(",") for line in rest.split("\r\n"))
    path.write_bytes(f"sep=,\r\n{header.upper()}\r\n{rest},,,\r\n\r\n,,\r\n".encode())
    read = {
        (r["item"], r["dimension"]): r["state"] for r in read_annotations(folder).labels.to_dict("records")
    }
    assert read == {place: first for place, (first, _) in states.items()}


def test_blank_and_missing_rows_are_counted(folder):
    path = folder / "annotator-1" / FIDELITY
    fill(path, lambda n, row: {"rating": "3" if n < 30 else ""})
    rows = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    path.write_text("".join(rows[:-5]), encoding="utf-8")
    (folder / "annotator-2" / LABELLING).unlink()
    progress = {(p.annotator, p.sheet): p for p in read_annotations(folder).progress}
    first = progress["annotator-1", FIDELITY]
    assert (first.rows, first.filled, first.blank, first.missing) == (40, 30, 5, 5)
    lost = progress["annotator-2", LABELLING]
    assert (lost.rows, lost.filled, lost.blank, lost.missing) == (120, 0, 0, 120)


@pytest.mark.parametrize(
    ("sheet", "change", "parts"),
    [
        (FIDELITY, {"rating": "6"}, ["rating '6' is off the scale", "1 to 5"]),
        (FIDELITY, {"rating": "0"}, ["off the scale"]),
        (FIDELITY, {"rating": "-3"}, ["off the scale"]),
        (FIDELITY, {"rating": "4.5"}, ["off the scale"]),
        (FIDELITY, {"rating": "good"}, ["off the scale"]),
        (FIDELITY, {"item": ""}, ["the item is empty"]),
        (FIDELITY, {"item": "zzzz-001"}, ["unknown item 'zzzz-001'", "another folder"]),
        (LABELLING, {"choice": "D"}, ["choice 'D' is no option", "A, B or C"]),
        (LABELLING, {"choice": "aligned"}, ["is no option"]),
        (LABELLING, {"choice": "A", "second_choice": "a"}, ["both A"]),
        (LABELLING, {"second_choice": "B"}, ["but no choice"]),
        (LABELLING, {"dimension": "task_framin"}, ["unknown dimension", "did you mean 'task_framing'"]),
    ],
)
def test_a_wrong_cell_is_refused_by_file_and_line(folder, sheet, change, parts):
    path = folder / "annotator-2" / sheet
    # Line breaks in the cells before it: the line is still the file's.
    fill(path, lambda n, row: change if n == 4 else {"context": "one\ntwo"})
    text = message(read_annotations, folder)
    assert text.startswith(f"{path}:{1 + 2 * 4 + 1}: ")
    for part in parts:
        assert part in text


def test_a_repeated_item_is_refused(folder):
    path = folder / "annotator-1" / FIDELITY
    first = read_sheet(path)[0]["item"]
    fill(path, lambda n, row: {"item": first} if n == 2 else {})
    text = message(read_annotations, folder)
    assert text.startswith(f"{path}:4: ")
    assert "line 2" in text
    code = first.partition("-")[0]
    fill(path, lambda n, row: {"item": f"{code}-999"} if n == 2 else {})
    assert "the key has" in message(read_annotations, folder)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty"),
        (b"item,score\r\n", "no column 'rating'"),
        (b"item,rating,rating\r\n", "occurs twice"),
        (b"item,rating\r\nx-001,3,4\r\n", "3 cells under 2 columns"),
        (b'item,rating\r\n"x-001,3\r\n', "not valid CSV"),
        (b"item,rating\r\nx\xe9-001,3\r\n", "is not UTF-8"),
    ],
)
def test_a_broken_sheet_is_refused(folder, content, part):
    path = folder / "annotator-1" / FIDELITY
    path.write_bytes(content)
    text = message(read_annotations, folder)
    assert str(path) in text
    assert part in text


def test_a_workbook_in_place_of_the_sheet_is_told(folder):
    workbook = folder / "annotator-1" / "fidelity.xlsx"
    workbook.write_bytes(b"PK")
    assert f"{workbook}: is not read; save it as CSV" in message(read_annotations, folder)
    answers_of(folder)
    assert read_annotations(folder).filled(FIDELITY) == (40, 80)


def test_on_the_pilot_data(shared_data, tmp_path):
    for name, swap in (("big5-easy", "profile"), ("big5-easy", "response"), ("big5-hard", "profile")):
        benchmark = load_benchmark(name, shared_data / "big5_chat", swap=swap)
        folder = tmp_path / f"{name}-{swap}"
        written = write_sheets(benchmark, folder)
        available = defaultdict(int)
        for example in benchmark:
            available[example.case.profile.label] += example.positive
        most = max(written.strata.values())
        assert all(written.strata[s] >= min(n, most - 1) for s, n in available.items())
        assert (written.key.drawn, len(written.key.items), written.kinds[POSITIVE]) == (50, 100, 50)
        negatives = [n for kind, n in written.kinds.items() if kind != POSITIVE]
        assert max(negatives) - min(negatives) <= 1
        assert read_annotations(folder).filled(LABELLING) == (0, 900)
