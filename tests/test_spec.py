"""Specs: what they accept, and the one message that each mistake gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persona_mlflow.catalog import load_catalogue
from persona_mlflow.cli.options import shipped_experiments
from persona_mlflow.errors import UserError
from persona_mlflow.spec import ExperimentSpec, load_spec, parse_spec

CATALOGUE = load_catalogue()


def spec(**content: Any) -> ExperimentSpec:
    return parse_spec({"name": "x", **content}, source="x.yaml")


def test_the_paper_s_grid_is_41_personas_in_9_groups_by_48_settings() -> None:
    paper = load_spec(shipped_experiments()["paper"])
    personas = paper.select_personas(CATALOGUE)
    factors = paper.select_factors(CATALOGUE)
    assert len(personas) == 41
    groups = {}
    for persona in personas:
        groups[persona.group] = groups.get(persona.group, 0) + 1
    assert groups == {
        "Gender": 5,
        "Sexuality": 3,
        "Race/Ethnicity": 6,
        "Age": 3,
        "Disabilities": 2,
        "Religious Beliefs": 4,
        "Political Beliefs": 4,
        "Occupational Roles": 12,
        "Baselines": 2,
    }
    assert [len(levels) for levels in factors.values()] == [4, 4, 3]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("paper", 48), ("stable-vs-unstable", 8), ("subset-a", 27), ("subset-b", 12), ("quickstart", 8)],
)
def test_shipped_experiments_have_the_settings_of_the_paper(name: str, settings: int) -> None:
    factors = load_spec(shipped_experiments()[name]).select_factors(CATALOGUE)
    product = 1
    for levels in factors.values():
        product *= len(levels)
    assert product == settings


def test_G5_integer_temperatures_become_floats() -> None:
    factors = spec(factors={"temperature": [0, 1, "2"]}).select_factors(CATALOGUE)
    assert factors["temperature"] == (0.0, 1.0, 2.0)
    assert all(isinstance(level, float) for level in factors["temperature"])


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"temprature": 1}, ["temprature", "no such key", "factors"]),
        ({"decoding": {"max_tokens": 3}}, ["decoding.max_tokens", "max_new_tokens"]),
        ({"decoding": {"max_new_tokens": 0}}, ["decoding.max_new_tokens", "0"]),
        ({"limit": "many"}, ["limit", "'many'"]),
        ({"name": "a b"}, ["name", "'a b'"]),
        ({"engine": {"dtype": "float8"}}, ["engine.dtype", "'float8'", "bfloat16"]),
        ({"engine": {"batch_size": 0}}, ["engine.batch_size", "0"]),
        ({"drop": ["everything"]}, ["drop", "duplicates"]),
    ],
)
def test_a_wrong_key_or_value_is_named_with_the_choices(content: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        spec(**content)
    message = str(caught.value)
    assert "x.yaml" in message
    for name in names:
        assert name in message


@pytest.mark.parametrize(
    ("factors", "names"),
    [
        ({"temperature": ["hot"]}, ["factors.temperature", "'hot'", "0 or more"]),
        ({"temperature": [-0.5]}, ["factors.temperature", "-0.5", "negative"]),
        ({"temperature": [True]}, ["factors.temperature", "True"]),
        ({"temperature": [float("nan")]}, ["factors.temperature", "nan"]),
        ({"temperature": [0, 0.0]}, ["factors.temperature", "twice"]),
        ({"ppf": ["youar"]}, ["factors.ppf", "'youar'", "did you mean 'youare'", "identitynature"]),
        ({"tpf": [True]}, ["factors.tpf", "True", "quotes"]),
        ({"tpf": []}, ["factors.tpf", "no levels"]),
        ({"tempo": [1]}, ["factors.tempo", "no such factor", "temperature"]),
        ({"repeat": [0.5]}, ["factors.repeat", "0.5"]),
    ],
)
def test_a_wrong_factor_or_level_is_named_with_the_choices(factors: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        spec(factors=factors).select_factors(CATALOGUE)
    for name in names:
        assert name in str(caught.value)


def test_an_unknown_persona_is_named_with_the_closest() -> None:
    with pytest.raises(UserError, match="no persona 'a biologst'; did you mean 'a biologist'"):
        spec(personas=["a biologst"]).select_personas(CATALOGUE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ppf: {plain: You are someone}", r"ppf\.plain.*no \{persona\}"),
        ("tpf: {plain: Answer}", r"tpf\.plain.*no \{question\}"),
        ("ptf: {plain: Answer}", r"unknown key 'ptf'"),
        ("tpf: {yes: '{question}'}", r"tpf\.True.*quotes"),
        ("tpf: [", r"prompts\.yaml:1: not valid YAML"),
    ],
)
def test_a_wrong_prompts_file_is_named_with_the_entry(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_catalogue(prompts=path)


def test_a_prompts_file_replaces_entries_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text("ppf: {youare: 'Be {persona}!', pirate: 'Arr, {persona}'}")
    catalogue = load_catalogue(prompts=path)
    assert catalogue.ppf["youare"] == "Be {persona}!"
    assert catalogue.ppf["barebones"] == "{persona}"
    assert list(catalogue.tpf) == list(CATALOGUE.tpf)
    assert spec(factors={"ppf": ["pirate"]}).select_factors(catalogue) == {"ppf": ("pirate",)}


def test_a_personas_file_replaces_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("Crew:\n  - a pirate\n  - a ship's cook\nShore:\n  Law: [a judge]\n")
    catalogue = load_catalogue(personas=path)
    assert [(p.name, p.group, p.subgroup) for p in catalogue.personas.values()] == [
        ("a pirate", "Crew", ""),
        ("a ship's cook", "Crew", ""),
        ("a judge", "Shore", "Law"),
    ]


def test_catalogue_files_are_looked_up_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("Crew: [a pirate]")
    (tmp_path / "e.yaml").write_text("name: e\ncatalog: {personas: mine.yaml}\n")
    catalogue = load_spec(tmp_path / "e.yaml").load_catalogue()
    assert list(catalogue.personas) == ["a pirate"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"- a list", b"name: ["])
def test_an_unreadable_spec_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.yaml"):
        load_spec(path)
