"""The grid: cells, shared prompts, seeds and identities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from persona_mlflow.catalog import load_catalogue
from persona_mlflow.factors import FACTORS, Factor
from persona_mlflow.grid import Grid
from persona_mlflow.questions.base import Question, content_id

CATALOGUE = load_catalogue()
PERSONAS = CATALOGUE.select_personas(["a biologist", "a man"], "test")
QUESTION = Question("What?", ("x", "y", "z"), 0, "c", "l", "s", content_id("What?", ["x", "y", "z"], 0))


def make(factors: dict[str, tuple[Any, ...]], **generation: Any) -> Grid:
    return Grid(PERSONAS, factors, CATALOGUE, {"model": "m", "seed": 0, **generation})


def test_cells_run_through_personas_then_factors_in_their_order() -> None:
    grid = make({"ppf": ("barebones", "youare"), "temperature": (0.0, 1.0)})
    assert grid.shape == (2, 2, 2)
    assert [cell.name for cell in grid.cells][:5] == [
        "a man · barebones · 0.0",
        "a man · barebones · 1.0",
        "a man · youare · 0.0",
        "a man · youare · 1.0",
        "a biologist · barebones · 0.0",
    ]
    assert len({cell.key for cell in grid.cells}) == len(grid) == 8


def test_temperatures_and_repeats_share_prompts_and_formats_do_not() -> None:
    grid = make({"tpf": ("explain", "justanswer"), "temperature": (0.0, 0.5, 1.0), "repeat": (0, 1)})
    groups = grid.prompt_groups()
    assert [len(group) for group in groups] == [6] * 4
    for group in groups:
        assert len({(cell.persona, cell.setting.levels["tpf"]) for cell in group}) == 1


def test_windows_hold_whole_groups_and_every_cell_once() -> None:
    grid = make({"tpf": ("explain", "justanswer"), "temperature": (0.0, 0.5, 1.0)})
    windows = list(grid.windows(questions=10, draws=45))
    assert [len(window) for window in windows] == [2, 2]
    cells = [cell.index for window in windows for group in window for cell in group]
    assert sorted(cells) == list(range(len(grid)))


def test_seeds_depend_on_persona_setting_question_and_experiment_seed_alone() -> None:
    grid = make({"temperature": (0.5, 1.0)})
    seeds = {cell.seed(QUESTION) for cell in grid.cells}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert {c.seed(QUESTION) for c in make({"temperature": (1.0, 0.5)}, model="other").cells} == seeds
    assert not seeds & {c.seed(QUESTION) for c in make({"temperature": (0.5, 1.0)}, seed=1).cells}
    assert not seeds & {c.seed(replace(QUESTION, id="other")) for c in grid.cells}


def test_R1_R2_identity_changes_with_model_temperature_and_template() -> None:
    keys = {cell.key for cell in make({"temperature": (0.5,)}).cells}
    assert not keys & {cell.key for cell in make({"temperature": (0.7,)}).cells}
    assert not keys & {cell.key for cell in make({"temperature": (0.5,)}, model="n").cells}
    other = replace(CATALOGUE, ppf={**CATALOGUE.ppf, "youare": "Be {persona}."})
    changed = Grid(PERSONAS, {"temperature": (0.5,)}, other, {"model": "m", "seed": 0})
    assert not keys & {cell.key for cell in changed.cells}


def test_naming_a_factor_at_its_default_keeps_the_draws_that_are_there() -> None:
    plain = make({"temperature": (0.5,)})
    named = make({"ppf": ("youare",), "temperature": (0.5,), "repeat": (0, 1), "option_order": ("given",)})
    kept = [cell for cell in named.cells if cell.setting.levels["repeat"] == 0]
    assert [cell.key for cell in kept] == [cell.key for cell in plain.cells]
    assert [cell.seed(QUESTION) for cell in kept] == [cell.seed(QUESTION) for cell in plain.cells]
    repeated = {cell.seed(QUESTION) for cell in named.cells if cell.setting.levels["repeat"] == 1}
    assert not repeated & {cell.seed(QUESTION) for cell in plain.cells}


def test_option_order_moves_the_options_and_the_right_answer_with_them() -> None:
    given, turned = (
        c.setting.draft.arrange(QUESTION) for c in make({"option_order": ("given", "reversed")}).cells[:2]
    )
    assert given == QUESTION
    assert turned.options == ("z", "y", "x")
    assert turned.options[turned.answer] == QUESTION.options[QUESTION.answer]
    assert turned.id == QUESTION.id
    assert len(make({"option_order": ("given", "reversed")}).prompt_groups()) == 4


def test_a_new_factor_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    shout = Factor(
        name="shout",
        default="no",
        parse=lambda value, catalogue: str(value),
        apply=lambda draft, level, catalogue: (
            replace(draft, task_template=draft.task_template + "!") if level == "yes" else draft
        ),
    )
    monkeypatch.setitem(FACTORS, "shout", shout)
    grid = make({"tpf": ("explain",), "shout": ("no", "yes")})
    templates = [cell.setting.draft.task_template for cell in grid.cells[:2]]
    assert templates[1] == templates[0] + "!"
    assert grid.shape == (2, 1, 2)
    assert len(grid.prompt_groups()) == 4
