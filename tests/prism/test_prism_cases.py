"""Profiles, cases and benchmarks: what they hold, what they refuse, and that ids depend on content alone."""

import json
import pickle
from itertools import product

import pytest

from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import (
    LEVELS,
    POSITIVE,
    TRAITS,
    Benchmark,
    BenchmarkReport,
    Case,
    Example,
    Profile,
    read_cases,
)

FREE = {"kind": "free", "name": "Ada", "sections": {"personality": "Curious.", "style": "Short sentences."}}


def test_every_big_five_profile_has_its_own_description():
    profiles = [Profile("big5", trait, level) for trait, level in product(TRAITS, LEVELS)]
    texts = [profile.describe() for profile in profiles]
    assert len(set(texts)) == 10
    for profile, text in zip(profiles, texts, strict=True):
        assert profile.label == f"{profile.level} {profile.trait}"
        assert profile.label in text


def test_free_profiles_and_personas_are_described_by_their_own_words():
    free = Profile.from_dict(FREE)
    assert free.label == "Ada"
    assert free.describe() == "Character: Ada\nPersonality: Curious.\nStyle: Short sentences."
    persona = Profile("persona", name="a biologist")
    assert (persona.label, persona.describe()) == ("a biologist", "The speaker is a biologist.")
    assert Profile("free", sections={"style": "Curt."}).describe() == "Style: Curt."


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"trait": "Openness ", "level": "HIGH"}, Profile("big5", "openness", "high")),
        ("low neuroticism", Profile("big5", "neuroticism", "low")),
        ("a biologist", Profile("persona", name="a biologist")),
        ("high priest", Profile("persona", name="high priest")),
        ({"name": "a chef"}, Profile("persona", name="a chef")),
        ({"name": "A", "sections": {"style": "x"}}, Profile("free", name="A", sections={"style": "x"})),
    ],
)  # fmt: skip
def test_a_profile_is_read_without_its_kind(value, expected):
    assert Profile.from_dict(value) == expected


@pytest.mark.parametrize("value", [{"trait": "openness", "level": "low"}, {"name": "a chef"}, FREE])
def test_profiles_and_cases_survive_json_and_pickle(value):
    case = Case.of(Profile.from_dict(value), "Hello", "Hi")
    again = Case.from_dict(json.loads(json.dumps(case.as_dict())))
    assert again == case == pickle.loads(pickle.dumps(case))
    assert hash(again.profile) == hash(case.profile)
    assert again.content == case.content


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"trait": "opennes", "level": "high"}, "unknown trait 'opennes'; did you mean 'openness'"),
        ({"trait": "openness", "level": "mid"}, "unknown level 'mid'; choose from high, low"),
        ({"trait": "openness"}, "unknown level ''; choose from high, low"),
        ("low opennes", "unknown trait 'opennes'"),
        ("medium openness", "unknown level 'medium'"),
        ({"kind": "trait", "name": "x"}, "unknown kind 'trait'"),
        ({"nme": "x"}, "unknown profile field 'nme'; did you mean 'name'"),
        ({"name": "Ada", "sections": {"style": " … "}}, r"no usable cue: none of its sections \(style\)"),
        ({"kind": "free", "name": "Ada"}, "no usable cue: none of its sections"),
        ({"name": "?!"}, "no usable cue: the persona's name"),
        ("", "no usable cue"),
        ({"name": 3}, "the profile's name must be a text, but is a number"),
        ({"name": "Ada", "sections": "curious"}, "sections must be an object"),
        ({"kind": "persona", "name": "a chef", "trait": "openness"}, "has no trait or level"),
        (["a chef"], "must be an object or a text, but is a list"),
    ],
)
def test_unusable_profiles_are_refused_with_the_place(value, message):
    with pytest.raises(UserError, match=f"^cases.jsonl:3: .*{message}"):
        Profile.from_dict(value, "cases.jsonl:3")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"response": "Hi"}, "no profile"),
        ({"profile": "a chef"}, "no response"),
        ({"profile": "a chef", "response": " \n"}, "the response is empty"),
        ({"profile": "a chef", "response": None}, "no response"),
        ({"profile": "a chef", "response": 4}, "the response must be a text, but is a number"),
        ({"profile": "a chef", "response": "Hi", "context": ["x"]}, "the context must be a text, but is"),
        ({"profile": "a chef", "response": "Hi", "id": ""}, "the id must be a text or a whole number"),
    ],
)  # fmt: skip
def test_unusable_cases_are_refused_with_the_place(value, message):
    with pytest.raises(UserError, match=f"^f:1: {message}"):
        Case.from_dict(value, "f:1")


def test_an_id_depends_on_the_content_alone():
    profile = Profile("big5", "openness", "high")
    assert Case.of(profile, "a", "b").id == Case.of(profile, "a", "b").id
    others = [Case.of(Profile("big5", "openness", "low"), "a", "b"), Case.of(profile, "", "b")]
    others += [Case.of(profile, "a", "B"), Case.of(profile, "ab", " b"), Case.of(profile, "b", "a")]
    assert len({case.id for case in [Case.of(profile, "a", "b"), *others]}) == 6
    # Stored results join on it, so it must not change between versions.
    assert Case.of(profile, "a", "b").id == "bdd4c53a732b3761"


def test_cases_are_read_from_lines(tmp_path):
    path = tmp_path / "cases.jsonl"
    rows = [{"profile": "a chef", "response": "Hi"}, {"profile": FREE, "context": "A: Hey", "response": "Yo"}]
    rows.append({"profile": "a chef", "response": "Hi", "id": 7})
    path.write_text("\n\n".join(map(json.dumps, rows)))
    cases = read_cases(path)
    assert [case.response for case in cases] == ["Hi", "Yo", "Hi"]
    assert cases[2].id == "7"
    assert cases[0].context == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no case"),
        ('{"profile": "a chef", "response": "Hi"}\n{"profile": "a chef"}', "cases.jsonl:2: no response"),
        ('{"profile": "a chef", "response": "Hi"}\n' * 2, "cases.jsonl:2: the same id as at .*cases.jsonl:1"),
        ("not json", "cases.jsonl:1: not valid JSON"),
        ("[1]", "cases.jsonl:1: must be a JSON object"),
    ],
)
def test_unusable_files_of_cases_are_refused(tmp_path, text, message):
    path = tmp_path / "cases.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_cases(path)


def example(group, positive, response="r"):
    case = Case(f"{group}-{positive}-{response}", Profile("persona", name="a chef"), "c", response)
    return Example(case, group, positive, POSITIVE if positive else "distractor")


def pairs(n):
    return tuple(example(f"g{i}", side) for i in range(n) for side in (True, False))


@pytest.mark.parametrize(("side", "word"), [(True, "negative"), (False, "positive")])
def test_a_group_without_both_sides_is_refused(side, word):
    with pytest.raises(UserError, match=f"group 'odd' has no {word} example"):
        Benchmark("b", (*pairs(2), example("odd", side)))


def test_an_id_that_occurs_twice_is_refused():
    with pytest.raises(UserError, match="'g0-True-r' occurs more than once"):
        Benchmark("b", (*pairs(1), example("g0", True)))


def test_a_fingerprint_depends_on_the_examples_but_not_on_their_order():
    whole = Benchmark("b", pairs(3))
    assert Benchmark("b", whole.examples[::-1]).fingerprint == whole.fingerprint
    changed = (*pairs(2), example("g2", True, "other"), example("g2", False))
    others = [Benchmark("b", pairs(2)), Benchmark("c", pairs(3)), Benchmark("b", changed)]
    assert len({b.fingerprint for b in [whole, *others]}) == 4


def test_subsets_of_one_seed_are_nested_and_of_whole_groups():
    whole = Benchmark("b", pairs(40), BenchmarkReport(source="here", read=80))
    small, large, other = whole.subset(10), whole.subset(25), whole.subset(10, seed=1)
    assert (len(small.groups), len(small)) == (10, 20)
    assert set(small.groups) < set(large.groups) < set(whole.groups)
    assert large.subset(10).groups == small.groups
    assert set(other.groups) != set(small.groups)
    order = {group: n for n, group in enumerate(whole.groups)}
    assert [order[g] for g in small.groups] == sorted(order[g] for g in small.groups)
    report = small.report.as_dict()
    assert (report["available"], report["asked"], report["groups"], report["shortfall"]) == (40, 10, 10, 0)
    assert (report["source"], report["read"]) == ("here", 80)


def test_a_subset_larger_than_the_benchmark_reports_the_shortfall():
    report = Benchmark("b", pairs(3)).subset(5).report
    assert (report.groups, report.shortfall) == (3, 2)
    for size in (0, -1, True, 2.5):
        with pytest.raises(UserError, match="size must be a whole number from 1 up"):
            Benchmark("b", pairs(3)).subset(size)


def test_a_draw_takes_every_group_about_equally_often():
    whole = Benchmark("b", pairs(20))
    taken = dict.fromkeys(whole.groups, 0)
    for seed in range(200):
        for group in whole.subset(5, seed).groups:
            taken[group] += 1
    assert all(25 <= n <= 78 for n in taken.values()), taken  # 50 expected, sd 6


def test_a_frame_has_a_row_per_example():
    frame = Benchmark("b", pairs(2)).to_frame()
    assert list(frame.columns) == ["id", "group", "positive", "kind", "profile", "context", "response"]
    assert frame["positive"].tolist() == [True, False, True, False]
    assert frame["positive"].dtype == bool
    assert frame.loc[1].tolist() == ["g0-False-r", "g0", False, "distractor", "a chef", "c", "r"]
    assert Benchmark("b", ()).to_frame()["positive"].dtype == bool
