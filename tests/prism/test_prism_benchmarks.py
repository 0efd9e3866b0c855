"""The benchmark builders on scenarios and items that can be counted by hand, and on the pilot data."""

import copy
import csv
import json
from collections import Counter

import pytest

from persona_mlflow.errors import UserError
from persona_mlflow.prism.benchmarks import load_benchmark
from persona_mlflow.prism.benchmarks.checks import IDENTICAL, NEAR_DUPLICATE, alike, is_null, is_refusal
from persona_mlflow.prism.benchmarks.social import sections
from persona_mlflow.prism.cases import POSITIVE, Case, Profile

FIELDS = [
    *("original_index", "env_idx", "trait", "level", "relation", "head", "tail", "literal", "narrative"),
    *("personx", "persony", "train_instruction", "train_input", "train_output"),
]

LONG = "I would rather stay at home tonight and read the new novel that my sister gave me for my birthday"
AI = "I'm sorry, but as an AI language model I cannot continue this conversation."
ROWS = [
    # Scenario 1: six sound rows.
    ("1", "openness", "high", "Shall we go?", "A new place, how thrilling, let us wander off the path."),
    ("1", "openness", "low", "Shall we go?", "Only if it is where we always go."),
    ("1", "conscientiousness", "high", "Shall we go?", "I have checked the timetable and packed lunch."),
    ("1", "conscientiousness", "low", "Shall we go?", "Sure, whenever. Did I lock my door? Never mind."),
    ("1", "extraversion", "high", "Shall we go?", "Yes! Call everybody, the more the merrier!"),
    ("1", "extraversion", "low", "Shall we go?", "Perhaps just the two of us, somewhere quiet."),
    # Scenario 2: three sound rows, one of them worded differently; a refusal; a null.
    ("2", "openness", "high", "Try this dish?", "I have never tasted anything like it, what is the spice?"),
    ("2", "openness", "low", '"Try this dish? ', "No thanks, bread and butter will do for me."),
    ("2", "Conscientiousness", " High", "Will you taste it?", "Once my list is done, with pleasure."),
    ("2", "extraversion", "low", "Try this dish?", AI),
    ("2", "agreeableness", "high", "Try this dish?", "None"),
    # Scenario 3: one sound row; two that are identical, two near-duplicates, and three that cannot be used.
    ("3", "openness", "high", "Any plans?", "I shall see. Perhaps a walk."),
    ("3", "openness", "low", "Any plans?", "i shall see; perhaps a walk"),
    ("3", "agreeableness", "high", "Any plans?", f"{LONG}."),
    ("3", "neuroticism", "high", "Any plans?", f"{LONG} last year."),
    ("3", "extraversion", "low", "Any plans?", "Staying in with a book."),
    ("3", "conscientiousness", "low", "Any plans?", "  "),
    ("3", "extraversion", "low", "Any plans?", "Staying in with a book."),
    ("3", "extraversion", "low", "Any plans?", "Nothing that needs company."),
]  # fmt: skip


def write_csv(path, rows, fields=FIELDS):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, restval="", extrasaction="ignore")
        writer.writeheader()
        names = ("original_index", "trait", "level", "train_input", "train_output")
        writer.writerows(dict(zip(names, row, strict=True)) for row in rows)
    return path


@pytest.fixture
def big5(tmp_path):
    return write_csv(tmp_path / "big5.csv", ROWS)


def by_group(benchmark):
    groups = {}
    for example in benchmark:
        groups.setdefault(example.group, []).append(example)
    return groups


LEFT_OUT = {
    "refused": 1,
    "null": 1,
    "identical": 2,
    "near-duplicate": 2,
    "empty response": 1,
    "repeated row": 1,
    "further response of the same scenario, trait and level": 1,
}


@pytest.mark.parametrize(
    ("name", "swap", "groups", "examples", "incomplete", "differing"),
    [
        ("big5-easy", "profile", 10, 20, {}, 0),
        ("big5-easy", "response", 8, 16,
         {"no row of the same scenario and trait at the opposite level": 2}, 0),
        ("big5-hard", "profile", 8, 24,
         {"no row of the same scenario and level with another trait": 2}, 2),
    ],
)  # fmt: skip
def test_counts_by_hand(big5, name, swap, groups, examples, incomplete, differing):
    benchmark = load_benchmark(name, big5, swap=swap)
    report = benchmark.report
    assert (len(benchmark.groups), len(benchmark)) == (groups, examples)
    assert report.read == len(ROWS) == 19
    assert report.left_out == LEFT_OUT
    assert report.incomplete == incomplete
    assert report.notes.get("groups whose contexts differ", 0) == differing
    assert report.notes["scenarios worded differently across rows"] == 1
    assert report.notes["contexts with an odd number of double quotes"] == 1
    assert report.groups == report.available == groups
    # Every row that was read is somewhere.
    assert report.read == groups + sum(report.left_out.values()) + sum(report.incomplete.values())


def texts(case):
    return case.profile.label, case.context, case.response


def test_easy_swaps_the_profile_as_in_the_papers_text(big5):
    for positive, negative in by_group(load_benchmark("big5-easy", big5)).values():
        (p, c, r), (opposite, c2, r2) = texts(positive.case), texts(negative.case)
        assert (c, r) == (c2, r2)
        assert p.split()[1] == opposite.split()[1]
        assert {p.split()[0], opposite.split()[0]} == {"high", "low"}
        assert (positive.positive, negative.positive) == (True, False)
        assert (positive.kind, negative.kind) == (POSITIVE, "opposite level")


def test_easy_swaps_the_response_as_in_the_released_data(big5):
    positives = {}
    benchmark = load_benchmark("big5-easy", big5, swap="response")
    for example in benchmark:
        if example.positive:
            positives[example.case.profile.label, example.case.response] = example
    for positive, negative in by_group(benchmark).values():
        assert negative.case.profile == positive.case.profile
        level, trait = positive.case.profile.label.split()
        other = ("low " if level == "high" else "high ") + trait
        assert (other, negative.case.response) in positives


def test_hard_takes_another_trait_at_the_same_level_and_a_reply_keeps_its_context(big5):
    context_of = {row[4].strip(): row[3].strip() for row in ROWS}
    profile_of = {row[4]: f"{row[2].strip().lower()} {row[1].lower()}" for row in ROWS}
    for positive, response, profile in by_group(load_benchmark("big5-hard", big5)).values():
        p, _, r = texts(positive.case)
        assert profile_of[r] == p
        assert response.kind == "other trait, response"
        assert response.case.profile == positive.case.profile
        other = profile_of[response.case.response]
        assert profile.kind == "other trait, profile"
        assert texts(profile.case) == (other, positive.case.context, r)
        assert other.split()[0] == p.split()[0]
        assert other.split()[1] != p.split()[1]
        for example in (positive, response, profile):
            assert example.case.context == context_of[example.case.response]


def test_the_other_trait_is_drawn_by_the_seed(big5):
    first, again, second = (load_benchmark("big5-hard", big5, seed=s) for s in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != second.fingerprint
    assert first.groups == second.groups
    drawn = Counter()
    for seed in range(60):
        group = by_group(load_benchmark("big5-hard", big5, seed=seed))[first.groups[0]]
        drawn[group[2].case.profile.trait] += 1
    assert set(drawn) == {"conscientiousness", "extraversion"}
    assert min(drawn.values()) >= 15


def test_ids_do_not_depend_on_the_order_of_the_rows(big5, tmp_path):
    mixed = write_csv(tmp_path / "mixed.csv", [*ROWS[:11][::-1], *ROWS[11:]])
    for name in ("big5-easy", "big5-hard"):
        a, b = load_benchmark(name, big5), load_benchmark(name, mixed)
        assert a.fingerprint == b.fingerprint
        assert {e.case.id for e in a} == {e.case.id for e in b}
        assert set(a.subset(4).groups) == set(b.subset(4).groups)
    assert set(load_benchmark("big5-hard", big5).groups) < set(load_benchmark("big5-easy", big5).groups)


def test_ids_are_those_of_earlier_versions(big5):
    # Stored scores join on ids; a change of these values orphans them.
    assert load_benchmark("big5-easy", big5).fingerprint == "7519ab6ad4c6514b"
    assert load_benchmark("big5-hard", big5).fingerprint == "3f2cd12ba37b265e"


@pytest.mark.parametrize(
    ("keep", "rows"),
    [("refused", 1), ("null", 1), ("identical", 2), ("near-duplicate", 2)],
)
def test_doubtful_rows_are_kept_on_request(big5, keep, rows):
    report = load_benchmark("big5-easy", big5, keep=(keep,)).report
    assert report.groups == 10 + rows
    assert report.kept == {keep: rows}
    assert report.left_out == {what: n for what, n in LEFT_OUT.items() if what != keep}
    assert report.options["keep"] == [keep]


def test_identical_responses_that_are_kept_make_examples_with_ids_of_their_own(big5):
    benchmark = load_benchmark("big5-easy", big5, swap="response", keep=("identical",))
    assert len(benchmark.groups) == 10


def test_a_subset_is_drawn_with_the_seed(big5):
    small, large = (load_benchmark("big5-easy", big5, size=n, seed=3) for n in (4, 7))
    assert set(small.groups) < set(large.groups)
    assert (small.report.available, small.report.groups) == (10, 4)
    assert load_benchmark("big5-easy", big5, size=99).report.shortfall == 89


def test_cells_that_look_missing_stay_text(tmp_path):
    rows = [("NA", "openness", "high", "Well?", "Nan is my grandmother."),
            ("007", "openness", "low", "Well?", "NA")]  # fmt: skip
    path = write_csv(tmp_path / "x.csv", [*rows, ("nan", *rows[0][1:])])
    report = load_benchmark("big5-easy", path, keep=("null",)).report
    # A scenario named NA is a missing cell; a reply that is just NA is kept on request, as that text.
    assert report.left_out == {"null scenario, trait or level": 2}
    assert (report.groups, report.kept) == (1, {"null": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: write_csv(p, ROWS, [f for f in FIELDS if f not in ("level", "train_input")]),
         "no column 'level', 'train_input'; BIG5-CHAT has original_index, trait"),
        (lambda p: write_csv(p, [*ROWS, ("4", "opennes", "high", "c", "r")]),
         r"x.csv:21: profile: unknown trait 'opennes'; did you mean 'openness'"),
        (lambda p: write_csv(p, [*ROWS, ("4", "openness", "medium", "c", "r")]),
         "x.csv:21: profile: unknown level 'medium'; choose from high, low"),
        (lambda p: write_csv(p, []), "holds a header, but no row"),
        (lambda p: p.write_text(""), "the file is empty"),
        (lambda p: p.write_bytes(b"PK\x03\x04\xff\xfe"), "is not UTF-8"),
        (lambda p: write_csv(p, [("1", "openness", "high", "c", " ")]), "no complete group: empty resp"),
    ],
)  # fmt: skip
def test_unusable_big5_files_are_refused(tmp_path, change, message):
    change(tmp_path / "x.csv")
    with pytest.raises(UserError, match=message):
        load_benchmark("big5-easy", tmp_path / "x.csv")


def test_a_folder_is_searched_for_the_file(big5, tmp_path):
    assert len(load_benchmark("big5-easy", tmp_path).groups) == 10
    write_csv(tmp_path / "second.csv", ROWS[:6])
    with pytest.raises(UserError, match=r"has no big5_chat_dataset.csv, but big5.csv, second.csv"):
        load_benchmark("big5-easy", tmp_path)
    nested = tmp_path / "snapshots" / "abc"
    nested.mkdir(parents=True)
    write_csv(nested / "big5_chat_dataset.csv", ROWS[:2])
    assert len(load_benchmark("big5-easy", tmp_path).groups) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "big5-medium", "data": "x.csv"}, "unknown benchmark 'big5-medium'"),
        ({"name": "big5-easy", "data": "x.csv", "swap": "context"}, "unknown swap 'context'"),
        ({"name": "big5-easy", "data": "x.csv", "keep": ("refusal",)}, "did you mean 'refused'"),
        ({"name": "big5-easy", "data": "nowhere.csv"}, "BIG5-CHAT: no file or folder 'nowhere.csv'"),
        ({"name": "big5-easy", "data": "nobody/nothing"}, "cannot get the data set nobody/nothing"),
        ({"name": "big5-easy"}, "cannot get the data set wenkai-li/big5_chat"),
        ({"name": "social"}, "SocialBench: no data given; give data/self_awareness.json"),
        ({"name": "social", "data": "big5.csv"}, "SocialBench is read from a .json or .jsonl file"),
    ],
)
def test_unusable_arguments_are_refused(big5, monkeypatch, arguments, message):
    monkeypatch.chdir(big5.parent)
    with pytest.raises(UserError, match=message):
        load_benchmark(**arguments)


def test_the_pilot_data_give_a_group_for_each_reply(shared_data):
    folder = shared_data / "big5_chat"
    for name, swap, size in (("big5-easy", "profile", 2), ("big5-easy", "response", 2), ("big5-hard", "", 3)):
        benchmark = load_benchmark(name, folder, **({"swap": swap} if swap else {}))
        assert len(benchmark.groups) == 160
        assert len(benchmark) == 160 * size
        report = benchmark.report
        assert (report.read, report.left_out, report.incomplete) == (160, {}, {})
        assert Counter(e.case.profile.level for e in benchmark if e.positive) == {"high": 80, "low": 80}


# Rules of doubt


@pytest.mark.parametrize("text", ["", " ", "None", "NULL", "nan", "N/A"])
def test_null_cells(text):
    assert is_null(text)
    assert not is_null(f"{text} of your business")


@pytest.mark.parametrize(
    "text",
    [
        AI,
        "As an AI, I don't have feelings about this.",
        "I am just a language model and cannot eat.",
        "I can’t create explicit content.",
        "I cannot fulfill this request.",
        "I'm sorry, but I can't assist with that.",
        "I will not engage in that kind of harmful roleplay.",
        "That violates my content policy.",
    ],
)
def test_refusals_of_the_model(text):
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't come tonight.",
        "Sorry, I can't help you move on Saturday, my back hurts.",
        "No. I won't do it, and you can't make me.",
        "I am an AI researcher, so I spend my days with language models.",
        "I can't write today, my hand is in a cast.",
        "It is against my nature to lie.",
        "I don't know, Anijah. I'm not really feeling up for a bike ride today.",
    ],
)
def test_a_character_who_declines_is_no_refusal(text):
    assert not is_refusal(text)


def test_responses_that_read_alike():
    words = [f"w{n}" for n in range(20)]
    one, two = ([*words[:k], *(f"x{n}" for n in range(20 - k))] for k in (19, 15))
    # 19 pairs each. One word changed at the end: 18 of 20 pairs shared; five: 14 of 24, under 0.6.
    assert alike([" ".join(words), " ".join(one)]) == [NEAR_DUPLICATE] * 2
    assert alike([" ".join(words), " ".join(two)]) == [None, None]
    assert alike(["Yes, it's fine!", "other", "yes  it’s fine"]) == [IDENTICAL, None, IDENTICAL]
    assert alike(["!", "?"]) == [None, None]
    assert alike([]) == []


# Social-Persona


ITEM = {
    "dialogue": [{"from": "Sam", "value": "How was the fight?"}, {"from": "Ada", "value": None}],
    "instruction": "Choose.",
    "choices": {
        "A": "The sums were clean and the foe was slow.",
        "B": "Oh my, I was ever so frightened of it all!",
        "C": "Bro, I totally smashed it, you had to be there.",
        "D": "I regret every blow that was struck that day.",
    },
    "label": ["A"],
    "meta": {
        "lang": "EN",
        "category": "Individual-SA-RoleStyle",
        "name": "Ada",
        "profile": {"Ada": "Personality: cool and exact.\nStyle: short sentences.", "Bo": "Loud."},
    },
}


def item(**changes):
    new = copy.deepcopy(ITEM)
    for key, value in changes.items():
        (new["meta"] if key in ITEM["meta"] else new)[key] = value
    return new


def choices(**changes):
    return {**ITEM["choices"], **changes}


@pytest.fixture
def social(tmp_path):
    def write(*items, name="self_awareness.json"):
        path = tmp_path / name
        path.write_text(json.dumps(list(items)), encoding="utf-8")
        return path

    return write


def test_social_by_hand(social):
    near = "Oh my, I was ever so frightened of it all, dear!"
    path = social(
        ITEM,
        item(),  # repeated
        item(lang="zh"),
        item(category="Individual-SA-RoleKnowledge"),
        item(label=["B", "C"], dialogue=[{"from": "Sam", "value": "And then?"}]),  # two positives
        item(choices={k: ITEM["choices"][k] for k in "ABC"}),  # two distractors
        item(label=[]),
        item(label=["E"]),
        item(label=["A", "B", "C", "D"]),
        item(choices=choices(D=AI)),
        item(choices=choices(D=None)),
        item(choices=choices(D="null")),
        item(choices=choices(D=ITEM["choices"]["A"].upper())),
        item(choices=choices(D=near)),
        item(name="Zoe"),
        item(profile={"Ada": " … "}),
        item(dialogue=[]),
    )
    benchmark = load_benchmark("social", path.parent)
    report = benchmark.report
    assert report.read == 17
    assert report.left_out == {
        "repeated item": 1,
        "another language": 1,
        "another category": 1,
        "refused": 1,
        "empty response": 1,
        "null": 2,
        "identical": 1,
        "near-duplicate": 1,
        "no profile for the character": 1,
        "no usable cue": 1,
    }
    assert report.incomplete == {"no gold choice": 1, "the label names no choice": 1, "no distractor": 1}
    assert report.notes == {
        "items with 3 distractors": 1,
        "items with 2 distractors": 2,
        "items with several gold choices": 1,
    }
    assert report.groups == 3
    assert report.read == 3 + sum(report.left_out.values()) + sum(report.incomplete.values())
    shape = [(sum(e.positive for e in g), len(g)) for g in by_group(benchmark).values()]
    assert shape == [(1, 4), (2, 4), (1, 3)]
    first = next(iter(by_group(benchmark).values()))
    profile = Profile(
        "free", name="Ada", sections={"personality": "cool and exact.", "style": "short sentences."}
    )
    assert {e.case.profile for e in first} == {profile}
    assert {e.case.context for e in first} == {"Sam: How was the fight?"}
    assert [(e.kind, e.case.response) for e in first] == [
        (POSITIVE if letter == "A" else "distractor", text) for letter, text in ITEM["choices"].items()
    ]


def test_a_group_does_not_depend_on_the_order_of_choices(social):
    letters = {"A": "D", "B": "C", "C": "B", "D": "A"}
    mixed = item(choices={letters[k]: v for k, v in ITEM["choices"].items()}, label=["D"])
    first = load_benchmark("social", social(ITEM))
    assert load_benchmark("social", social(mixed)).fingerprint == first.fingerprint


def test_kept_identical_distractors_have_ids_of_their_own(social):
    path = social(item(choices=choices(D=ITEM["choices"]["C"])))
    benchmark = load_benchmark("social", path, keep=("identical",))
    assert len({e.case.id for e in benchmark}) == 4
    assert benchmark.report.kept == {"identical": 1}


def test_an_item_of_which_an_unkept_doubt_remains_is_left_out(social):
    doubtful = item(choices=choices(C=AI, D=ITEM["choices"]["B"]))
    with pytest.raises(UserError, match="no complete group: identical: 1"):
        load_benchmark("social", social(doubtful), keep=("refused",))


def test_items_are_read_from_lines_too(tmp_path):
    (tmp_path / "items.jsonl").write_text("\n".join(json.dumps(i) for i in (ITEM, item(lang="zh"))))
    assert load_benchmark("social", tmp_path).report.read == 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({k: v for k, v in ITEM.items() if k != "meta"}, "item 1: no field meta"),
        (item(profile="cool"), "item 1: meta.profile must be an object"),
        (item(profile={"Ada": ["cool"]}), "meta.profile must give a text for 'Ada'"),
        (item(choices=["x", "y"]), "item 1: choices must be an object"),
        (item(choices=choices(A=3)), "choice A must be a text"),
        (item(label=[1]), "label must be a list of letters"),
        (item(dialogue="Hello"), "dialogue must be a list"),
        (item(dialogue=[{"text": "Hello"}]), "a turn of dialogue needs 'from' and 'value'"),
        (
            item(lang="zh"),
            r"no item of category Individual-SA-RoleStyle in en; it holds 1 × Individual.*\(zh\)",
        ),
    ],
)
def test_unusable_items_are_refused(social, broken, message):
    with pytest.raises(UserError, match=message):
        load_benchmark("social", social(broken))


def test_other_files_are_refused(social, tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UserError, match="must hold a list of objects"):
        load_benchmark("social", tmp_path / "a.json")
    (tmp_path / "a.json").write_text("original_index,trait")
    with pytest.raises(UserError, match="not valid JSON"):
        load_benchmark("social", tmp_path / "a.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Driven and direct.", {"profile": "Driven and direct."}),
        ("A knight.\n**Speaking Style**: curt\nand dry.\n",
         {"profile": "A knight.", "speaking style": "curt\nand dry."}),
        ("## Personality\nWarm.\n\n## Style:\nSings.", {"personality": "Warm.", "style": "Sings."}),
        ("[Personality]: warm\nStyle:\n- sings\n- hums", {"personality": "warm", "style": "- sings\n- hums"}),
        ("Style: a\nBackground: b\nStyle: c", {"style": "a\nc", "background": "b"}),
        ("He said: no. At 5:30 he left.", {"profile": "He said: no. At 5:30 he left."}),
        ("Style:", {"profile": "Style:"}),
    ],
)  # fmt: skip
def test_a_description_is_split_at_its_headings(text, expected):
    assert sections(text) == expected


def test_every_example_is_a_case_that_json_can_hold(big5, social):
    for benchmark in (load_benchmark("big5-hard", big5), load_benchmark("social", social(ITEM))):
        for example in benchmark:
            assert Case.from_dict(json.loads(json.dumps(example.case.as_dict()))) == example.case
        json.dumps(benchmark.report.as_dict())
