"""The label spaces of PRISM: three described states per profile and dimension."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from persona_mlflow.catalog import load_catalogue
from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import LEVELS, TRAITS, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES, label_space, load_dimensions

SHIPPED = Path(str(files("persona_mlflow.prism") / "dimensions.yaml"))


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(SHIPPED.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_big5_has_thirty_patterns_and_the_other_level_is_the_opposite() -> None:
    patterns = set()
    for dimension in DIMENSIONS:
        for trait in TRAITS:
            high = label_space(Profile("big5", trait=trait, level="high"), dimension)
            low = label_space(Profile("big5", trait=trait, level="low"), dimension)
            assert (high.aligned, high.opposite) == (low.opposite, low.aligned)
            assert high.indeterminate == low.indeterminate
            patterns |= {high.aligned, low.aligned}
    assert len(patterns) == len(DIMENSIONS) * len(TRAITS) * len(LEVELS) == 30


def test_no_pattern_names_its_trait() -> None:
    for dimension in DIMENSIONS:
        for trait in TRAITS:
            space = label_space(Profile("big5", trait=trait, level="high"), dimension)
            assert not any(trait[:6] in space[state].lower() for state in STATES)


def test_a_free_profile_shows_the_sections_that_bear_on_the_dimension() -> None:
    profile = Profile(
        "free",
        name="Mara",
        sections={"Personality": "Bold and\n  restless.", "Speaking style": "Short, dry."},
    )
    style = label_space(profile, "linguistic_style")
    framing = label_space(profile, "task_framing")
    assert "Short, dry." in style.aligned
    assert "Bold" not in style.aligned
    assert "Bold and restless." in framing.aligned
    assert "Short" not in framing.aligned
    for space in (style, framing):
        assert "Mara" in space.aligned
        assert "Mara" in space.opposite
        assert "Bold" not in space.opposite


def test_a_free_profile_without_a_fitting_section_shows_all_that_say_something() -> None:
    profile = Profile("free", sections={"Notes": "Grew up at sea.", "Else": " - ", "More": "Hates cats."})
    space = label_space(profile, "linguistic_style")
    assert "Grew up at sea. Hates cats." in space.aligned
    assert "the character" in space.aligned


def test_braces_in_a_profile_are_text() -> None:
    profile = Profile("free", name="{cues}", sections={"style": "says {name} and {x}"})
    space = label_space(profile, "linguistic_style")
    assert space.aligned.count("says {name} and {x}") == 1
    assert "{cues}" in space.aligned


def test_every_persona_has_three_distinct_states_in_every_dimension() -> None:
    seen = set()
    for name in load_catalogue().personas:
        for dimension in DIMENSIONS:
            space = label_space(Profile("persona", name=name), dimension)
            assert name in space.aligned
            assert len({space[state] for state in STATES}) == 3
            assert not any("{" in space[state] for state in STATES)
            seen.add(space.aligned)
    assert len(seen) == 41 * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Profile("persona", name=" … "),
        lambda: Profile("free", name="Mara", sections={"style": "  ", "personality": "--"}),
    ],
)
def test_a_profile_with_no_usable_cue_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="no usable cue"):
        make()


def test_an_unknown_dimension_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"did you mean 'task_framing'.*linguistic_style"):
        label_space(Profile("persona", name="a chef"), "task_frame")


def test_the_file_can_be_replaced_and_has_its_own_fingerprint(own_file: Path) -> None:
    assert load_dimensions(own_file).fingerprint == load_dimensions().fingerprint
    edit(own_file, "Explores: turns", "Turns")
    own = load_dimensions(own_file)
    assert own.fingerprint != load_dimensions().fingerprint
    space = label_space(Profile("big5", trait="openness", level="high"), "task_framing", own)
    assert space.aligned.startswith("Turns the situation")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("task_framing:", "task_frame:", "unknown key 'task_frame'; did you mean 'task_framing'"),
        ("    openness:\n", "    opennes:\n", "task_framing.big5: unknown key 'opennes'"),
        ("  about: what it makes of", "  about_it: what it makes of", "task_framing: unknown key 'about_it'"),
        ("whose profile is: {cues}", "as described", r"task_framing.free.aligned: has no \{cues\}"),
        ("the profile of {name}.", "the profile of {nom}.", r"unknown \{nom\}; did you mean '\{name\}'"),
        ('      low: "Stays with', '      high: "Stays with', "the key 'high' stands there twice"),
        ("about: its words, sentences and tone", "about: yes", "about: True is not text; put it in quotes"),
        ("sections: [personality", "sections: [", "sections: None is not text"),
        ('  indeterminate: "Takes up', '  indeterminate: " " #', "is not text"),
    ],
)
def test_a_file_that_is_not_of_the_form_is_refused(own_file: Path, old: str, new: str, message: str) -> None:
    if "None" in message:
        edit(own_file, "  sections: [personality, character, goal", "  sections: [~, character, goal")
    else:
        edit(own_file, old, new)
    with pytest.raises(UserError, match=message):
        load_dimensions(own_file)


def test_two_states_of_one_description_are_refused(own_file: Path) -> None:
    edit(
        own_file,
        "Stays level: treats the situation as manageable, expects it to turn out well, moves on.",
        "Dwells on trouble: sees what could go wrong, doubts that it can cope, takes it as a burden.",
    )
    with pytest.raises(UserError, match=r"big5\.neuroticism: two states have the same description"):
        load_dimensions(own_file)


def test_a_missing_key_is_named(own_file: Path) -> None:
    edit(own_file, "  about: its words, sentences and tone\n", "")
    with pytest.raises(UserError, match="linguistic_style: about missing"):
        load_dimensions(own_file)
