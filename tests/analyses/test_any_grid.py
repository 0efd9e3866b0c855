"""All analyses on grids of any shape: none fails or warns, and what is undefined says why."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import xarray as xr
from analyses_brute import make_dataset

from persona_mlflow.analyses import Finding, NotAllowed, Study, run_analyses
from persona_mlflow.analyses.catalogue import CATALOGUE
from persona_mlflow.analyses.chance import by_chance
from persona_mlflow.analyses.comparisons import recommended_settings
from persona_mlflow.analyses.domains import subgroups_by_category
from persona_mlflow.outcomes import complete_part

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

GROUPS = [("Occupation", "Law"), ("Occupation", "EECS"), ("Baselines", "")]
PAPER = {
    "temperature": [0.0, 1.0],
    "ppf": ["barebones", "identitynature"],
    "tpf": ["justanswer", "explain-persona"],
}


PLAIN = {"ppf": ["barebones", "youare"], "temperature": [0.0, 1.0]}


def grid(
    factors: dict, personas: int = 3, questions: int = 24, share: float = 0.6, seed: int = 0, **more
) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    sizes = [len(levels) for levels in factors.values()]
    right = rng.random((personas, *sizes, questions)) < share
    more.setdefault("categories", [("Math", "History")[i % 2] for i in range(questions)])
    more.setdefault("groups", GROUPS[:personas])
    return make_dataset(right, factors, **more)


def alike(dataset: xr.Dataset, *dims: str) -> xr.Dataset:
    """The first level's answers throughout."""
    first = dataset["correct"].isel(dict.fromkeys(dims, 0), drop=True).broadcast_like(dataset["correct"])
    return dataset.assign(correct=first.transpose(*dataset["correct"].dims))


GRIDS = {
    "the paper's factors": grid(PAPER),
    "no factor": grid({}),
    "no varied factor": grid({"ppf": ["youare"], "temperature": [0.0]}),
    "one factor": grid({"ppf": ["barebones", "youare", "identitynature"], "tpf": ["explain"]}),
    "one persona": grid(PLAIN, personas=1),
    "one persona in one setting": grid({"ppf": ["youare"]}, personas=1),
    "one question": grid(PLAIN, questions=1),
    "few questions": grid(PLAIN, questions=3),
    "one category, one group": grid(PLAIN, categories=["Math"] * 24, groups=[("everyone", "")] * 3),
    "a small category": grid(PLAIN, categories=["Math"] * 22 + ["History", "EECS"]),
    "groups called as categories": grid(PLAIN, groups=[("Math", ""), ("Math", ""), ("History", "")]),
    "sub-groups called alike": grid(PLAIN, groups=[("Work", "Misc."), ("Play", "Misc."), ("Rest", "")]),
    "all right": grid(PLAIN, share=2),
    "all wrong": grid(PLAIN, share=-1),
    "all wrong, few questions": grid(PLAIN, share=-1, questions=3),
    "one right answer": grid(PLAIN, share=0.006, seed=2),
    "personas alike": alike(grid(PLAIN), "persona"),
    "settings alike": alike(grid(PLAIN), *PLAIN),
    "repeat": grid({"temperature": [0.0, 0.7], "repeat": [0, 1, 2]}),
    "further factors, levels turned": grid({"option_order": ["reversed", "given"], "temperature": [1, 0]}),
}


def unexplained(finding: Finding) -> list[str]:
    """Models whose value is undefined somewhere without a reason."""
    data = finding.data
    assert data is not None
    undefined = np.isnan(data["value"].values)
    if undefined.any() and "reason" in data:
        undefined &= data["reason"].transpose(*data["value"].dims).values == ""
    return data["model"].values[undefined.reshape(len(undefined), -1).any(axis=1)].tolist()


def check(findings: list[Finding], models: list[str]) -> dict[str, Finding]:
    assert [finding.entry.key for finding in findings] == [
        CATALOGUE[0].key,
        "claims",
        *(entry.key for entry in CATALOGUE[1:]),
    ]
    for finding in findings:
        there = [] if finding.data is None else finding.data["model"].values.tolist()
        assert sorted([*there, *finding.reasons]) == sorted(models), finding.entry.key
        assert all(finding.reasons.values()), finding.entry.key
        assert all(finding.notes.values())
        if finding.data is None:
            continue
        data = finding.data
        assert not unexplained(finding), finding.entry.key
        for dim in data["value"].dims:
            assert data.get_index(dim).is_unique, (finding.entry.key, dim)
        # What is shown and has a value has every number that is not set aside.
        for name in finding.entry.show:
            assert name in data, (finding.entry.key, name)
        for name, array in data.data_vars.items():
            if array.dtype.kind == "f":
                assert not np.isinf(array.values).any(), (finding.entry.key, name)
            else:
                assert array.dtype.kind in "OUbi", (finding.entry.key, name)
        value, low, high = (data[name].values for name in ("value", "low", "high"))
        bounded = ~np.isnan(low)
        assert (bounded == ~np.isnan(high)).all()
        assert not np.isnan(value[bounded]).any(), finding.entry.key
        # Bounds stand around their value, but for rounding.
        assert (low[bounded] <= value[bounded] + 1e-9).all()
        assert (value[bounded] <= high[bounded] + 1e-9).all()
    return {finding.entry.key: finding for finding in findings}


@cache
def found_in(name: str) -> dict[str, Finding]:
    study = Study(GRIDS[name], draws=12, permutations=9)
    return check(run_analyses({"m": study}), ["m"])


@pytest.mark.parametrize("name", GRIDS)
def test_no_analysis_fails_on_any_grid(name: str) -> None:
    assert found_in(name)


@pytest.mark.parametrize("name", ["no factor", "all wrong", "repeat"])
def test_no_analysis_needs_draws_or_permutations(name: str) -> None:
    study = Study(GRIDS[name], draws=0, permutations=0)
    found = check(run_analyses({"a model": study}), ["a model"])
    for finding in found.values():
        if finding.data is not None and finding.entry.key not in ("setting-differences", "question-subsets"):
            assert finding.data["low"].isnull().all()
    assert ("permutations" in found["chance"].reasons["a model"]) == (len(study.varied) > 0)
    assert (found["claims"].data["verdict"] == "undecided").all()


def test_reasons_say_what_an_analysis_takes() -> None:
    found = found_in("no varied factor")
    assert "varied here: none" in found["single-factor"].reasons["m"]
    assert "setting" in found["setting-differences"].reasons["m"]
    assert "setting" in found["contrast"].reasons["m"]
    assert "lacks" in found["stable-unstable"].reasons["m"]
    assert found["overview"].data["reason"].values[0, -1] == "one setting gives no pairs"
    found = found_in("one persona")
    assert "two personas" in found["across-personas"].reasons["m"]
    assert "persona" in found["persona-differences"].reasons["m"]
    found = found_in("one category, one group")
    assert "two question categories" in found["categories"].reasons["m"]
    assert "two groups" in found["groups"].reasons["m"]
    assert "sub-groups" in found_in("groups called as categories")["subgroups-by-category"].reasons["m"]
    found = found_in("all right")
    assert "equally accurate" in found["variance"].reasons["m"]


def test_a_small_category_has_no_interval_of_its_own() -> None:
    study = Study(GRIDS["a small category"], draws=30)
    found = found_in("a small category")
    data = found["categories"].data.sel(model="m", metric="accuracy")
    assert data["low"].isnull().values.tolist() == [False, True, True]
    # Both questions are resampled together, so that the whole's draws vary in them.
    assert (study.weights[22:].sum(axis=0) == 2).all()
    assert (study.weights[22] != 1).any()
    found = found_in("few questions")
    for finding in found.values():
        if finding.data is not None and finding.entry.key not in ("setting-differences", "question-subsets"):
            assert finding.data["low"].isnull().all(), finding.entry.key
    claims = found["claims"].data.sel(model="m")
    assert any("too few questions" in text for text in claims["reason"].values.tolist())
    assert not Study(GRIDS["few questions"], draws=30, few=3).metric("accuracy").isnull().any()


def test_a_repeat_factor_is_named_at_each_temperature() -> None:
    found = found_in("repeat")
    parts = found["chance"].data["part"].values.tolist()
    assert "repeat alone, temperature 0" in parts
    assert "repeat alone, temperature 0.7" in parts
    assert found["single-factor"].data["factor"].values.tolist() == ["temperature", "repeat"]


def test_repeats_of_greedy_decoding_show_no_instability() -> None:
    dataset = grid({"temperature": [0.0, 0.7], "repeat": [0, 1, 2]})
    correct = dataset["correct"].copy()
    correct.loc[{"temperature": 0.0}] = correct.sel(temperature=0.0).isel(repeat=0)
    chance = by_chance(Study(dataset.assign(correct=correct), draws=0, permutations=9))
    greedy, hot = (chance.sel(part=f"repeat alone, temperature {t}") for t in ("0", "0.7"))
    for name in ("accuracy", "outcome", "question"):
        assert greedy["value"].sel(metric=name) == 0
        assert hot["value"].sel(metric=name) > 0
    assert (greedy["p"].values[:2] == 1).all()


def test_groups_called_as_categories_keep_their_rows() -> None:
    found = found_in("groups called as categories")
    parts = found["chance"].data.sel(model="m", metric="accuracy")
    wanted = {
        "Math": found["categories"].data["instability"].sel(model="m", metric="accuracy", category="Math"),
        "Math (personas)": found["groups"]
        .data["instability"]
        .sel(model="m", metric="accuracy", group="Math"),
    }
    for part, value in wanted.items():
        assert parts["value"].sel(part=part) == value


def test_sub_groups_called_alike_keep_their_group() -> None:
    found = subgroups_by_category(Study(GRIDS["sub-groups called alike"], draws=0))
    assert found["subgroup"].values.tolist() == ["Work · Misc.", "Play · Misc."]


def test_unfinished_experiments_are_analysed_in_their_complete_part() -> None:
    dataset = grid(PAPER).copy(deep=True)
    dataset["status"].loc[{"persona": "persona 2", "ppf": "barebones"}] = -1
    dataset["complete"].loc[{"persona": "persona 2", "ppf": "barebones"}] = False
    part, note = complete_part(dataset)
    assert note is not None
    study = Study(part, draws=5, permutations=5)
    check(run_analyses({"m": study}), ["m"])
    assert study.correct.size < dataset["correct"].size


# Several models.


def test_models_with_different_grids_stand_side_by_side() -> None:
    wide = grid({"temperature": [0.0, 1.0], "tpf": ["justanswer", "explain", "explain-persona"]}, seed=1)
    narrow = grid(
        {"ppf": ["barebones", "youare"], "temperature": [0.0, 0.5, 1.0]},
        seed=2,
        categories=["EECS"] * 12 + ["Math"] * 12,
        groups=[("Age", ""), ("Occupation", "Law"), ("Occupation", "EECS")],
    )
    lone = grid({}, seed=3, personas=1)
    studies = {
        name: Study(dataset, draws=6, permutations=5)
        for name, dataset in (("wide", wide), ("narrow", narrow), ("lone", lone))
    }
    found = check(run_analyses(studies), ["wide", "narrow", "lone"])
    # Labels stand in the order of the first model that has them.
    levels = found["levels"].data
    assert levels["level"].values.tolist() == [
        *("temperature 0", "temperature 1"),
        *("tpf justanswer", "tpf explain", "tpf explain-persona"),
        *("ppf barebones", "ppf youare", "temperature 0.5"),
    ]
    assert levels["model"].values.tolist() == ["wide", "narrow"]
    assert levels["value"].sel(level="tpf explain", model="narrow").isnull().all()
    assert (levels["reason"].sel(level="tpf explain", model="narrow") == "not in this model's grid").all()
    assert levels["value"].sel(level="tpf explain", model="wide").notnull().all()
    assert (levels["reason"].sel(level="tpf explain", model="wide") == "").all()
    assert found["categories"].data["category"].values.tolist() == ["Math", "History", "EECS"]
    assert found["levels"].reasons["lone"]
    # Each model's numbers are those that it has alone.
    for name, finding in product(studies, found.values()):
        if finding.entry.key == "claims" or name in finding.reasons:
            continue
        assert finding.data is not None
        own = finding.entry.compute(studies[name])["value"]
        both = finding.data["value"].sel({"model": name, **{dim: own[dim].values for dim in own.dims}})
        assert both.transpose(*own.dims).values == pytest.approx(own.values, nan_ok=True)


def test_models_with_the_same_grid_whose_best_settings_differ() -> None:
    # The recommended setting stands first for each model, so that their labels are in another order.
    studies = {
        f"model {seed}": Study(grid(PAPER, seed=seed, model=f"model {seed}"), draws=3, permutations=3)
        for seed in range(3)
    }
    own = {name: recommended_settings(study) for name, study in studies.items()}
    entries = [entry for entry in CATALOGUE if entry.key in ("recommended", "overview")]
    orders = {tuple(data["setting"].values.tolist()) for data in own.values()}
    assert len(orders) > 1
    found = next(f.data for f in run_analyses(studies, entries=entries) if f.entry.key == "recommended")
    assert found["setting"].values.tolist() == own["model 0"]["setting"].values.tolist()
    for name, data in own.items():
        joined = found.sel(model=name, setting=data["setting"].values)
        for key in ("value", "score", "p"):
            assert joined[key].values == pytest.approx(data[key].values)
        assert joined["recommended"].values.tolist() == data["recommended"].values.tolist()


# Determinism.


def test_equal_seeds_give_identical_findings_and_other_seeds_other_bounds() -> None:
    dataset = grid(PLAIN, seed=4)

    def study(seed: int) -> Study:
        return Study(dataset, draws=20, permutations=19, seed=seed)

    one, again = (check(run_analyses({"m": study(5)}), ["m"]) for _ in range(2))
    for key, finding in one.items():
        assert (finding.data is None) == (again[key].data is None)
        if finding.data is not None:
            xr.testing.assert_identical(finding.data, again[key].data)
            assert dict(finding.notes) == dict(again[key].notes)
    keys = ("overview", "single-factor", "levels", "categories", "across-personas", "variance", "chance")
    entries = [entry for entry in CATALOGUE if entry.key in keys]
    for other in run_analyses({"m": study(6)}, entries=entries):
        same, key = one[other.entry.key].data, other.entry.key
        xr.testing.assert_allclose(same["value"], other.data["value"])
        assert (same["low"] != other.data["low"]).any(), key
        if key == "chance":
            assert (same["floor"] != other.data["floor"]).any()


def test_an_analysis_can_be_run_by_itself() -> None:
    titles: list[str] = []
    entry = next(entry for entry in CATALOGUE if entry.key == "variance")
    study = Study(grid(PAPER), draws=0, permutations=0)
    (found,) = run_analyses({"m": study}, entries=[entry], progress=titles.append)
    assert found.entry is entry
    assert titles == [entry.title]
    with pytest.raises(NotAllowed):
        entry.compute(Study(GRIDS["all right"], draws=0, permutations=0))
