"""A planted effect is found by the analysis that exists for it, and by no other.

What each is for. The levels of chance take settings to be exchangeable within persona and question: they find
a factor that moves accuracy, and neither noise, however much of it, nor a better persona. Noise in one domain
is found by the instabilities within categories. A better persona is found by the differences between
personas, by the agreement of their rankings, and by persona's share of the variance.
"""

from functools import cache

import numpy as np
import pytest
import xarray as xr

from persona_mlflow.analyses import Study
from persona_mlflow.analyses.chance import by_chance
from persona_mlflow.analyses.comparisons import (
    persona_differences,
    recommended_settings,
    setting_differences,
)
from persona_mlflow.analyses.domains import across_personas, by_category
from persona_mlflow.analyses.factors import single_factor
from persona_mlflow.analyses.structure import agreement, variance
from persona_mlflow.simulate import simulate_dataset

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

FACTORS = {
    "ppf": ["barebones", "youare"],
    "tpf": ["justanswer", "explain"],
    "temperature": [0.0, 0.5, 1.0],
}
CATEGORIES = ("History", "Social Science", "EECS", "Math")
BEST = "an engineer"
SEEDS = range(20)


def planted(seed: int = 0, questions: int = 600, small: bool = False, **effects: str) -> Study:
    factors = {name: FACTORS[name] for name in ("ppf", "tpf")} if small else FACTORS
    personas = 4 if small else 6
    dataset = simulate_dataset(personas, factors, questions, CATEGORIES, effects=effects or "none", seed=seed)
    return Study(dataset, draws=100, permutations=499, seed=seed)


@cache
def one_factor() -> Study:
    return planted(factor="tpf")


@cache
def one_domain() -> Study:
    return planted(domain="Math")


@cache
def one_persona() -> Study:
    return planted(questions=1500, persona=BEST)


def found_by_chance(study: Study) -> dict[str, set[str]]:
    """Metric → the parts whose instability is more than chance, after the correction."""
    data = by_chance(study)
    return {
        name: set(data["part"].values[data["p_adjusted"].sel(metric=name).values <= 0.05].tolist())
        for name in ("accuracy", "outcome")
    }


def found_settings(study: Study) -> int:
    return int((setting_differences(study)["p"] <= 0.05).sum())


def names_a_best(study: Study) -> bool:
    return "Best persona" in persona_differences(study).attrs["note"]


def shares(study: Study) -> dict[str, float]:
    data = variance(study)
    return dict(zip(data["term"].values.tolist(), data["value"].values.tolist(), strict=True))


def noisier(study: Study) -> set[str]:
    """Categories whose I_Q is above the whole's, by their interval."""
    delta = by_category(study)["delta_high"].sel(metric="question")
    return set(delta["category"].values[delta.values < 0].tolist())


# One factor is moved.


def test_a_moved_factor_is_more_than_chance_and_the_others_are_not() -> None:
    study = one_factor()
    found = found_by_chance(study)
    # Whatever holds all settings holds the factor too: the categories and the groups of personas do.
    assert {"all settings", "tpf alone", *CATEGORIES} <= found["accuracy"]
    assert not {"ppf alone", "temperature alone"} & found["accuracy"]
    # All personas move alike, so that their ranking does not.
    assert not found["outcome"]
    data = by_chance(study).sel(metric="accuracy")
    assert data["excess"].sel(part="tpf alone") > 5 * data["floor"].sel(part="tpf alone")
    for other in ("ppf alone", "temperature alone"):
        assert abs(data["excess"].sel(part=other)) < data["floor"].sel(part=other)


def test_a_moved_factor_has_the_variance_and_the_single_factor_instability() -> None:
    terms = shares(one_factor())
    assert terms.pop("tpf") > 0.9
    assert max(terms.values()) < 0.05
    found = single_factor(one_factor())["value"].sel(metric="accuracy")
    assert (
        found.sel(factor="tpf") < 0
    )  # less stable than all settings jointly, half of whose pairs agree in it
    assert (found.sel(factor=["ppf", "temperature"]) > 0.5).all()


def test_a_moved_factor_separates_the_settings_that_differ_in_it_and_no_others() -> None:
    p = setting_differences(one_factor())["p"]
    for a in p["setting"].values.tolist():
        for b in p["other"].values.tolist():
            differ = ("justanswer" in a) != ("justanswer" in b)
            assert (p.sel(setting=a, other=b).item() <= 0.05) == differ, (a, b)
    advice = recommended_settings(one_factor())
    chosen = advice["setting"].values[advice["recommended"].values == "yes"].tolist()
    assert chosen
    assert all("explain" in name for name in chosen)  # which the simulation makes the better half


def test_a_moved_factor_is_not_found_among_personas_and_domains() -> None:
    study = one_factor()
    assert not names_a_best(study)
    assert not noisier(study)
    assert agreement(study)["p"].sel(part="all questions") > 0.05


# One domain is noisier.


def test_a_noisy_domain_stands_out_among_the_categories() -> None:
    study = one_domain()
    assert noisier(study) == {"Math"}
    found = by_category(study).sel(metric="question")
    assert found["value"].sel(category="Math") < -0.1
    assert (found["value"].drop_sel(category="Math") > 0).all()
    share = by_chance(study)["share"].sel(metric="question", part=list(CATEGORIES))
    assert share.sel(part="Math") > share.drop_sel(part="Math").max() + 0.15


def test_a_noisy_domain_has_a_higher_floor() -> None:
    floor = by_chance(one_domain())["floor"].sel(metric="accuracy", part=list(CATEGORIES))
    assert floor.sel(part="Math") > 1.2 * floor.drop_sel(part="Math").max()


def test_a_noisy_domain_is_not_found_among_factors_settings_and_personas() -> None:
    study = one_domain()
    found = found_by_chance(study)
    # Noise alone is what chance gives: not even the domain's own instability is above its floor.
    assert not found["accuracy"]
    assert not found["outcome"]
    assert not found_settings(study)
    assert not names_a_best(study)
    terms = shares(study)
    assert max(terms[name] for name in FACTORS) < 0.1


# One persona is better.


def test_a_better_persona_is_named() -> None:
    found = persona_differences(one_persona())
    assert found.attrs["note"].startswith(f"Best persona: {BEST},")
    row = found.sel(persona=BEST)
    assert (row["beats"], row["beaten_by"], row["best_in"], row["mean_rank"]) == (5, 0, 12, 1)
    others = found.drop_sel(persona=BEST)
    assert (others["beats"] == 0).all()
    assert (others["beaten_by"] == 1).all()


def test_a_better_persona_has_the_variance_and_the_agreement() -> None:
    terms = shares(one_persona())
    assert terms.pop("persona") > 0.75
    assert max(terms.values()) < 0.15
    found = agreement(one_persona()).sel(part="all questions")
    assert found["p"] <= 0.1  # one persona of six is first throughout; the order of the others is chance
    assert found["value"] > found["floor"]
    nobody = across_personas(planted(questions=1500))["value"].sel(metric="accuracy", group="all personas")
    someone = across_personas(one_persona())["value"].sel(metric="accuracy", group="all personas")
    assert someone > 1.5 * nobody


def test_a_better_persona_is_not_found_among_factors_settings_and_domains() -> None:
    study = one_persona()
    found = found_by_chance(study)
    assert not found["accuracy"]
    assert not found["outcome"]
    assert not found_settings(study)
    assert not noisier(study)
    assert max(shares(study)[name] for name in FACTORS) < 0.05


# Nothing is planted.


def test_where_nothing_is_planted_nothing_is_found() -> None:
    found: dict[str, int] = dict.fromkeys(("accuracy", "outcome", "settings", "persona", "agreement"), 0)
    for seed in SEEDS:
        study = planted(seed, questions=200, small=True)
        by_metric = found_by_chance(study)
        found["accuracy"] += bool(by_metric["accuracy"])
        found["outcome"] += bool(by_metric["outcome"])
        found["settings"] += found_settings(study) > 0
        found["persona"] += names_a_best(study)
        found["agreement"] += agreement(study)["p"].values[0] <= 0.05
    # Each errs in at most 5 % of experiments: more than 3 of 20 has a probability of 1.6 %.
    assert all(count <= 3 for count in found.values()), found
    assert found["persona"] == 0


def test_simulated_experiments_have_the_form_of_loaded_ones() -> None:
    dataset = planted(questions=40).dataset
    assert isinstance(dataset, xr.Dataset)
    assert dataset["correct"].dims == ("persona", *FACTORS, "question")
    assert not (dataset["correct"] & (dataset["status"] != 0)).any()
    assert np.array_equal(dataset["correct"].values, planted(questions=40).dataset["correct"].values)
