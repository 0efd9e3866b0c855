"""The paper's statements on experiments built to bear each out, to contradict it, or to leave it open."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import xarray as xr
from analyses_brute import (
    METRICS,
    Table,
    average,
    interval,
    make_dataset,
    mean,
    one_at_a_time,
    repeated,
    same,
)

from persona_mlflow.analyses import Study, run_analyses
from persona_mlflow.analyses.claims import HARDLY, LEAST_STABLE, MOST_STABLE, check_claims, model_size

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

FACTORS = {
    "ppf": ("barebones", "youare"),
    "tpf": ("justanswer", "explain", "explain-persona"),
    "temperature": (0.0, 0.5, 1.0),
}
CATEGORIES = (*LEAST_STABLE, *MOST_STABLE, "EECS")
GROUPS = [("Gender", ""), ("Gender", ""), ("Age", ""), ("Age", "")]
SYMBOLS = {"accuracy": "I_A", "outcome": "I_O", "question": "I_Q"}

Level = Mapping[str, object]


def experiment(
    noise: Callable[[Level, str, str], float],
    *,
    varied: tuple[str, ...] = tuple(FACTORS),
    skill: Callable[[Level], float] = lambda level: 0.5,
    factors: Mapping[str, tuple] = FACTORS,
    categories: tuple[str, ...] = CATEGORIES,
    groups: list[tuple[str, str]] = GROUPS,
    per_category: int = 24,
    model: str = "a model",
    seed: int = 0,
) -> xr.Dataset:
    """Answers that are drawn anew, with some probability, in each combination of levels of ``varied``.

    Args:
        noise: From a setting, a category and a group to that probability; 0 gives a persona the same answers
            in all settings of which this is true.
    """
    rng = np.random.default_rng(seed)
    labels = [name for name in categories for _ in range(per_category)]
    sizes = [len(levels) for levels in factors.values()]
    right = np.zeros((len(groups), *sizes, len(labels)), dtype=bool)
    thresholds = rng.random((len(groups), len(labels)))
    # Personas differ a little, so that noise moves their ranks.
    ability = np.linspace(-0.02, 0.02, len(groups))
    fresh: dict[tuple, np.ndarray] = {}
    for place in np.ndindex(*sizes):
        level = {name: levels[i] for (name, levels), i in zip(factors.items(), place, strict=True)}
        key = tuple(level[name] for name in factors if name in varied)
        if key not in fresh:
            fresh[key] = rng.random((2, len(groups), len(labels)))
        again, draw = fresh[key]
        for p, (group, _) in enumerate(groups):
            chance = np.array([noise(level, category, group) for category in labels])
            latent = np.where(again[p] < chance, draw[p], thresholds[p])
            right[(p, *place)] = latent < skill(level) + ability[p]
    return make_dataset(right, factors, labels, groups, model=model)


def claims(dataset: xr.Dataset, draws: int = 60) -> xr.Dataset:
    return check_claims({"m": Study(dataset, draws=draws)}).sel(model="m")


def verdicts(found: xr.Dataset, text: str) -> dict[str, str]:
    """Metric → the verdict on a claim."""
    rows = found["claim"].values.tolist()
    return {
        metric: str(found["verdict"].sel(claim=f"{text} ({symbol})").item())
        for metric, symbol in SYMBOLS.items()
        if f"{text} ({symbol})" in rows
    }


def at(name: str, *levels: object) -> Callable[[Level, str, str], float]:
    return lambda level, category, group: 0.6 * (level[name] in levels)


def in_categories(*names: str) -> Callable[[Level, str, str], float]:
    return lambda level, category, group: 0.6 * (category in names)


def everywhere(level: Level, category: str, group: str) -> float:
    return 0.5


# Claim → settings or parts with noise if it is true, and if the contrary is.
BUILT: dict[str, tuple] = {
    "Temperature 0 is the most stable": (at("temperature", 0.5, 1.0), at("temperature", 0.0)),
    "barebones is the most stable persona prompt format": (at("ppf", "youare"), at("ppf", "barebones")),
    "Explaining task prompt formats are the least stable": (
        at("tpf", "explain", "explain-persona"),
        at("tpf", "justanswer"),
    ),
    "Math and commonsense are the least stable domains": (
        in_categories(*LEAST_STABLE),
        in_categories(*MOST_STABLE, "EECS"),
    ),
    "History and culture are the most stable domains": (
        in_categories(*LEAST_STABLE, "EECS"),
        in_categories(*MOST_STABLE),
    ),
}


@pytest.mark.parametrize("text", BUILT)
@pytest.mark.parametrize(("which", "verdict"), [(0, "holds"), (1, "fails")])
def test_a_claim_holds_where_it_is_built_in_and_fails_where_its_contrary_is(
    text: str, which: int, verdict: str
) -> None:
    found = claims(experiment(BUILT[text][which]))
    assert verdicts(found, text) == dict.fromkeys(METRICS, verdict)
    margin = found["value"].sel(claim=[f"{text} ({symbol})" for symbol in SYMBOLS.values()])
    assert (margin > 0).all() if verdict == "holds" else (margin < 0).all()


@pytest.mark.parametrize(
    ("varied", "verdict"), [(("tpf",), "holds"), (("ppf",), "fails"), (("temperature",), "fails")]
)
def test_the_most_influential_factor(varied: tuple[str, ...], verdict: str) -> None:
    # Eight personas: among four, ranks move too little to decide.
    found = claims(experiment(everywhere, varied=varied, groups=GROUPS * 2))
    text = "The task prompt format is the most influential factor"
    assert verdicts(found, text) == dict.fromkeys(METRICS, verdict)


def test_persona_groups() -> None:
    text = "Persona group hardly matters"
    # Equal answers in both groups: no difference, and so the whole margin.
    dataset = experiment(everywhere)
    correct = dataset["correct"].copy()
    correct[2:] = correct.values[:2]
    found = claims(dataset.assign(correct=correct))
    assert verdicts(found, text) == {"accuracy": "holds", "question": "holds"}
    assert found["value"].sel(claim=f"{text} (I_A)").item() == pytest.approx(HARDLY)
    found = claims(experiment(lambda level, category, group: 0.6 * (group == "Age")))
    assert verdicts(found, text) == {"accuracy": "fails", "question": "fails"}
    # One group has all of it: twice the mean of both.
    assert found["value"].sel(claim=f"{text} (I_A)").item() == pytest.approx(HARDLY - 2)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "fails")])
def test_stable_settings_are_more_accurate(sign: int, verdict: str) -> None:
    dataset = experiment(
        lambda *where: 0.0, skill=lambda level: 0.5 + sign * 0.2 * (0.5 - float(str(level["temperature"])))
    )
    found = claims(dataset).sel(claim="Stable settings are more accurate (mean accuracy)")
    assert found["verdict"] == verdict
    # Stable: temperature 0, justanswer, both persona formats; unstable: the same at 1.
    accuracy = dataset["correct"].mean(["persona", "question", "ppf"]).sel(tpf="justanswer")
    assert found["value"].item() == pytest.approx(
        (accuracy.sel(temperature=0) - accuracy.sel(temperature=1)).item()
    )


def test_equal_parts_leave_everything_open() -> None:
    found = claims(experiment(lambda *where: 0.0))
    decided = found["claim"].values[found["verdict"].values != "undecided"].tolist()
    assert decided == []
    for text in BUILT:
        for symbol in SYMBOLS.values():
            row = found.sel(claim=f"{text} ({symbol})")
            assert (row["value"], row["low"], row["high"]) == (0, 0, 0)
            assert row["reason"] == ""
    # No group has any instability, so that there is nothing to take a share of.
    assert "undefined" in found["reason"].sel(claim="Persona group hardly matters (I_A)").item()
    # The same noise everywhere: of the 15 claims on levels and domains hardly one is borne out.
    found = claims(experiment(everywhere, per_category=12))
    assert sum([*verdicts(found, text).values()].count("holds") for text in BUILT) <= 1


def test_margins_equal_brute_force_in_every_draw() -> None:
    dataset = experiment(everywhere, per_category=2, groups=GROUPS[1:])
    study, table = Study(dataset, draws=3, few=1), Table(dataset)
    found = check_claims({"m": study}).sel(model="m")
    asked = [repeated(study.weights, draw) for draw in range(4)]
    gender, age = table.groups["Gender"], table.groups["Age"]

    def level_margin(name: str, factor: str, inside: Callable[[object], bool], q: list[int]) -> float:
        values = {v: one_at_a_time(table, name, factor, v, questions=q) for v in table.factors[factor]}
        outer = [float(v) for level, v in values.items() if not inside(level)]
        return min(outer) - max(float(v) for level, v in values.items() if inside(level))

    def category_margin(name: str, low: tuple[str, ...], q: list[int]) -> float:
        """The least among ``low`` less the greatest among the others."""
        values = {c: float(average(table, name, questions=table.of(c, q))) for c in CATEGORIES}
        return min(values[c] for c in low) - max(v for c, v in values.items() if c not in low)

    def factor_margin(name: str, q: list[int]) -> float:
        values = {f: float(average(table, name, [f], questions=q)) for f in FACTORS}
        return values["tpf"] - max(values["ppf"], values["temperature"])

    def group_margin(name: str, q: list[int]) -> float:
        values = [float(average(table, name, questions=q, people=people)) for people in (gender, age)]
        return HARDLY - abs(values[0] - values[1]) / float(average(table, name, questions=q))

    margins = {
        "Temperature 0 is the most stable": lambda n, q: level_margin(n, "temperature", lambda v: v == 0, q),
        "barebones is the most stable persona prompt format": lambda n, q: level_margin(
            n, "ppf", lambda v: v == "barebones", q
        ),
        "Explaining task prompt formats are the least stable": lambda n, q: level_margin(
            n, "tpf", lambda v: v == "justanswer", q
        ),
        "The task prompt format is the most influential factor": factor_margin,
        "Math and commonsense are the least stable domains": lambda n, q: category_margin(n, LEAST_STABLE, q),
        "History and culture are the most stable domains": lambda n, q: category_margin(
            n, (*LEAST_STABLE, "EECS"), q
        ),
        "Persona group hardly matters": group_margin,
    }
    for text, margin in margins.items():
        for name, symbol in SYMBOLS.items():
            if f"{text} ({symbol})" not in found["claim"]:
                assert (text, name) == ("Persona group hardly matters", "outcome")
                continue
            row = found.sel(claim=f"{text} ({symbol})")
            expected = interval([margin(name, q) for q in asked])
            for key, bound in zip(("value", "low", "high"), expected, strict=True):
                assert same(row[key], bound, 1e-7), (text, name, key)
            _, low, high = (float(bound) for bound in expected)
            assert row["verdict"] == ("holds" if low > 0 else "fails" if high < 0 else "undecided")
    runs = {t: [(p, (f, "justanswer", t)) for p in table.people for f in FACTORS["ppf"]] for t in (0.0, 1.0)}
    row = found.sel(claim="Stable settings are more accurate (mean accuracy)")
    expected = interval(
        [
            mean(table.score(*r, q) for r in runs[0.0]) - mean(table.score(*r, q) for r in runs[1.0])
            for q in asked
        ]
    )
    for key, bound in zip(("value", "low", "high"), expected, strict=True):
        assert same(row[key], bound, 1e-7)


# Grids that do not allow a claim.


def undecided(found: xr.Dataset, text: str) -> str:
    rows = found.isel(claim=[str(claim).startswith(text) for claim in found["claim"].values])
    assert rows.sizes["claim"]
    assert set(rows["verdict"].values.tolist()) == {"undecided"}
    assert rows["value"].isnull().all()
    (reason,) = set(rows["reason"].values.tolist())
    assert reason
    return str(reason)


def test_a_grid_without_the_levels_leaves_a_claim_open_and_says_why() -> None:
    some = {"ppf": ("youare", "identitynature"), "temperature": (0.5, 1.0), "repeat": (0, 1)}
    found = claims(experiment(everywhere, factors=some, varied=("ppf",), categories=("Math", "EECS")))
    assert "temperature 0.5, temperature 1" in undecided(found, "Temperature 0 is")
    assert "ppf youare, ppf identitynature" in undecided(found, "barebones is")
    assert "one tpf" in undecided(found, "Explaining")
    assert "takes tpf and another factor" in undecided(found, "The task prompt format")
    assert "Commonsense" in undecided(found, "Math and commonsense")
    assert "History" in undecided(found, "History and culture")
    assert "takes temperature 0" in undecided(found, "Stable settings")
    assert "two models" in undecided(found, "Larger models")
    bare = experiment(
        everywhere, factors={"tpf": ("justanswer", "explain")}, varied=("tpf",), groups=[("one", "")] * 2
    )
    found = claims(bare)
    assert "takes 2 factors" in undecided(found, "Temperature 0 is")
    assert "varied here: tpf" in undecided(found, "The task prompt format")
    assert "two groups" in undecided(found, "Persona group")
    assert verdicts(found, "Math and commonsense are the least stable domains")
    found = claims(experiment(everywhere, categories=LEAST_STABLE))
    assert "further categories" in undecided(found, "Math and commonsense")


def test_without_draws_nothing_is_decided() -> None:
    found = claims(experiment(BUILT["Temperature 0 is the most stable"][0]), draws=0)
    assert set(found["verdict"].values.tolist()) == {"undecided"}
    assert all(found["reason"].values.tolist())
    row = found.sel(claim="Temperature 0 is the most stable (I_A)")
    assert row["value"] > 0
    assert "no draws" in row["reason"].item()


def test_an_undefined_instability_leaves_a_claim_open() -> None:
    dataset = experiment(everywhere)
    dataset["correct"][..., :24] = False  # no question of the first category is right
    found = claims(dataset)
    text = "Math and commonsense are the least stable domains (I_Q)"
    assert found["verdict"].sel(claim=text) == "undecided"
    assert "undefined" in found["reason"].sel(claim=text).item()


# Several models.


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama1b", 1),
        ("llama8b", 8),
        ("qwen1.5b", 1.5),
        ("smollm2", 0.135),
        ("Qwen2.5-14B-Instruct", 14),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7),
        ("org-70b/a-model-3.5B", 3.5),
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", 0.135),
        ("a model of 4bit weights", None),
        ("gpt-4", None),
        ("Llama-3.1", None),
    ],
)
def test_sizes_of_models(name: str, billions: float | None) -> None:
    assert model_size(name) == billions


def several(noises: Mapping[str, float]) -> dict[str, Study]:
    small = {"ppf": ("barebones", "youare"), "temperature": (0.0, 1.0)}
    return {
        f"study of {name}": Study(
            experiment(
                lambda level, category, group, size=size: size,
                varied=("ppf", "temperature"),
                factors=small,
                categories=("Math", "EECS"),
                per_category=80,
                model=name,
            ),
            draws=60,
        )
        for name, size in noises.items()
    }


@pytest.mark.parametrize(
    ("noises", "verdict"),
    [
        ({"llama1b": 0.8, "llama8b": 0.1}, "holds"),
        ({"llama1b": 0.1, "llama8b": 0.8}, "fails"),
        ({"llama1b": 0.9, "an unknown one": 0.5, "llama8b": 0.5, "qwen14b": 0.1}, "holds"),
    ],
)
def test_larger_models(noises: Mapping[str, float], verdict: str) -> None:
    studies = several(noises)
    found = check_claims(studies)
    assert found["model"].values.tolist() == list(studies)
    for metric in ("accuracy", "question"):
        claim = f"Larger models are more stable ({SYMBOLS[metric]}, per tenfold size)"
        rows = found.sel(claim=claim)
        # It speaks of all models, and stands at each.
        assert set(rows["verdict"].values.tolist()) == {verdict}
        sizes = [model_size(name) for name in noises]
        known = [(np.log10(s), study) for s, study in zip(sizes, studies.values(), strict=True) if s]
        values = [float(study.average(metric)[0]) for _, study in known]
        slope = np.polyfit([x for x, _ in known], values, 1)[0]
        assert rows["value"].values == pytest.approx(-slope)


def test_models_of_one_size_or_of_none_say_nothing_of_size() -> None:
    for noises in (
        {"llama8b": 0.8, "another-8B": 0.1},
        {"llama8b": 0.8, "unknown": 0.1},
        {"a": 0.8, "b": 0.1},
    ):
        found = check_claims(several(noises))
        rows = found.isel(claim=[str(claim).startswith("Larger") for claim in found["claim"].values])
        assert set(rows["verdict"].values.ravel().tolist()) == {"undecided"}
        assert all("known size" in text for text in rows["reason"].values.ravel())


def test_models_without_draws_or_with_different_ones_are_not_compared() -> None:
    studies = several({"llama1b": 0.8, "llama8b": 0.1})
    first, second = studies.values()
    found = check_claims({"one": first, "two": Study(second.dataset, draws=7)})
    row = found.sel(claim="Larger models are more stable (I_A, per tenfold size)", model="one")
    assert row["verdict"] == "undecided"
    assert row["reason"] != ""


def test_claims_are_the_second_finding_of_a_report() -> None:
    dataset = experiment(everywhere, factors={"ppf": ("barebones", "youare")}, per_category=2)
    studies = {"m": Study(dataset, draws=0, permutations=0)}
    finding = run_analyses(studies)[1]
    assert finding.entry.key == "claims"
    assert finding.data is not None
    xr.testing.assert_identical(finding.data, check_claims(studies))
    alone = finding.entry.compute(next(iter(studies.values())))
    assert alone["verdict"].dims == ("claim",)
