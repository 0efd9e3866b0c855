"""Findings of the shapes that the analyses give, with invented numbers, for the tests of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.analyses.entry import Entry, Finding

if TYPE_CHECKING:
    import xarray as xr

METRICS = ("accuracy", "outcome", "question")
FACTORS = ("ppf", "tpf", "temperature")
LEVELS = (
    *(f"ppf {name}" for name in ("barebones", "youare", "youareknowledge", "identitynature")),
    *(f"tpf {name}" for name in ("justanswer", "justanswer-persona", "explain", "explain-persona")),
    *(f"temperature {value}" for value in ("0", "0.5", "1")),
)
CATEGORIES = (
    "History",
    "Politics and Law",
    "Social Science",
    "Business/Accounting and Economics",
    "EECS",
    "Math",
    "Natural Science",
    "Human Health and Medicine",
    "Cultural Awareness and Understanding",
    "Commonsense Reasoning/Social Awareness",
)
GROUPS = (
    "Gender",
    "Sexuality",
    "Race/Ethnicity",
    "Age",
    "Disabilities",
    "Religious Beliefs",
    "Political Beliefs",
    "Occupational Roles",
    "Occupational Roles · EECS/Math",
    "Occupational Roles · History/Politics and Law",
    "Occupational Roles · Natural Science/Human Health and Medicine",
    "Occupational Roles · Misc.",
    "Baselines",
)
HOSTILE = (
    "<script>alert(1)</script>",
    "a & b | c",
    "$x_1^2$ costs 5 % #1 \\alpha {~}",
    "“quotes” \"'`*[link](http://example.org)*`",
    "a persona with a name so long that no column of any table or figure could ever hold it on one line " * 2,
    "Aword" + "withoutanyspace" * 12,
    "персона 人格 शख़्स",
    "👩‍🔬 scientist 🧪",
    "line\nbreak\ttab\x00null\x1b[31m",
    " ",
)


def unused(study: object) -> xr.Dataset:
    """Stands where an entry names its analysis."""
    raise AssertionError("the report computes nothing")


def array(
    coordinates: Mapping[str, Sequence[Any]], seed: int = 0, scale: float = 0.1, offset: float = 0.0
) -> xr.Dataset:
    """Random values with intervals around them."""
    import xarray as xr

    rng = np.random.default_rng(seed)
    shape = tuple(len(values) for values in coordinates.values())
    value = offset + scale * rng.normal(size=shape)
    spread = 0.2 * scale * (1 + rng.random(shape))
    dims = tuple(coordinates)
    return xr.Dataset(
        {"value": (dims, value), "low": (dims, value - spread), "high": (dims, value + spread)},
        coords={name: list(values) for name, values in coordinates.items()},
    )


def finding(key: str, data: xr.Dataset | None, **entry: Any) -> Finding:
    """A finding whose entry has what the test does not name."""
    reasons = entry.pop("reasons", {})
    notes = entry.pop("notes", {})
    defaults: dict[str, Any] = {
        "reference": "P1 Fig. 0",
        "title": key.replace("-", " ").capitalize(),
        "caption": "What is shown, how it was computed, and in which unit.",
        "compute": unused,
        "rows": (),
        "columns": (),
    }
    return Finding(Entry(key=key, **{**defaults, **entry}), data, reasons, notes)


def paper_scale(models: Sequence[str]) -> list[Finding]:
    """One finding of every shape, as large as the paper's grid makes it."""
    import xarray as xr

    model = {"model": list(models)}
    quantities = ["accuracy, mean", "accuracy, sd over runs", "I_A accuracy", "I_O outcome", "I_Q question"]
    overview = array({**model, "quantity": quantities}, 1, 0.02, 0.3)
    factors = array({**model, "metric": METRICS, "factor": FACTORS}, 2, 0.3, 0.5)
    factors = factors.assign(instability=factors["value"] * 0.1, delta=factors["value"] * 0.05)
    categories = array({**model, "metric": METRICS, "category": CATEGORIES}, 4, 0.3)
    categories["value"][0, 1, 3] = np.nan
    categories["reason"] = categories["value"].isnull().astype(object)
    categories["reason"] = xr.where(categories["value"].isnull(), "no question is right in any setting", "")
    personas = [f"persona {i}" if i % 7 else f"a rather long persona name {i}" for i in range(41)]
    settings = [
        f"{p} · {t} · τ {v}"
        for p in ("barebones", "youare", "youareknowledge", "identitynature")
        for t in ("justanswer", "justanswer-persona", "explain", "explain-persona")
        for v in ("0", "0.5", "1")
    ]
    pairs = array({**model, "setting": settings, "other": settings}, 9, 0.2, 0.3)
    pairs["value"] = pairs["value"].clip(0, 1)
    chance = array({**model, "metric": METRICS}, 8, 0.01, 0.05)
    chance = chance.assign(floor=chance["value"] * 0.5, p=abs(chance["value"]) * 0.01)
    claims = array(
        {
            **model,
            "claim": [
                "τ = 0 is the most stable",
                "barebones is the most stable PPF",
                "larger models are more stable",
            ],
        },
        10,
    )
    claims["verdict"] = (("model", "claim"), [["holds", "fails", "undecided"]] * len(models))
    return [
        finding(
            "overview",
            overview,
            rows=(),
            columns=("quantity",),
            figure="intervals",
            panels="quantity",
            reference="P1 Table 1",
            title="The experiment as a whole",
        ),
        finding(
            "single-factor",
            factors,
            rows=("metric",),
            columns=("factor",),
            figure="heatmap",
            brighter="more stable",
            unit="share of the baseline",
            show={"instability": "instability", "delta": "delta"},
            reference="P1 Fig. 4",
            title="Which factor causes the instability",
        ),
        finding(
            "levels",
            array({**model, "metric": METRICS, "level": LEVELS}, 3, 0.3, 0.2),
            rows=("metric",),
            columns=("level",),
            figure="heatmap",
            brighter="more stable",
            unit="share of the baseline",
            reference="P1 Fig. 3",
            title="Which level is the most stable",
        ),
        finding(
            "categories",
            categories,
            rows=("metric", "category"),
            columns=("model",),
            figure="heatmap",
            brighter="more stable",
            unit="share of the baseline",
            reference="P1 Fig. 5",
        ),
        finding(
            "groups",
            array({**model, "metric": METRICS, "group": GROUPS}, 5, 0.3),
            rows=("metric", "group"),
            columns=("model",),
            figure="heatmap",
            brighter="more stable",
            reference="P1 Fig. 5",
        ),
        finding(
            "factors-by-category",
            array({**model, "metric": METRICS, "category": CATEGORIES, "factor": FACTORS}, 6, 0.3),
            rows=("metric", "category"),
            columns=("factor",),
            figure="heatmap",
            brighter="more stable",
            reference="P1 Fig. 11",
        ),
        finding(
            "factors-by-group",
            array({**model, "metric": METRICS, "group": GROUPS, "factor": FACTORS}, 6, 0.3),
            rows=("metric", "group"),
            columns=("factor",),
            figure="heatmap",
            brighter="more stable",
            reference="P1 Fig. 11",
        ),
        finding(
            "subgroups",
            array(
                {
                    **model,
                    "metric": METRICS,
                    "subgroup": [g.rpartition(" · ")[2] for g in GROUPS[8:12]],
                    "category": CATEGORIES,
                },
                7,
                0.3,
            ),
            rows=("metric", "subgroup"),
            columns=("category",),
            figure="heatmap",
            brighter="more stable",
            reference="P1 Fig. 8",
        ),
        finding(
            "contrast",
            array(
                {
                    **model,
                    "setting": ["τ 0 · barebones · justanswer", "τ 1 · identitynature · explain-persona"],
                    "persona": personas,
                },
                11,
                0.02,
                0.5,
            ),
            rows=("setting",),
            columns=("persona",),
            figure="distribution",
            panels="model",
            reference="P1 Fig. 6, 12",
        ),
        finding(
            "chance",
            chance,
            rows=("metric",),
            columns=(),
            figure="intervals",
            show={"floor": "by chance", "p": "p"},
            reference="beyond the paper",
            title="More than chance?",
        ),
        finding(
            "variance",
            array(
                {
                    **model,
                    "term": [
                        "persona",
                        "ppf",
                        "tpf",
                        "temperature",
                        "ppf × tpf",
                        "ppf × temperature",
                        "residual",
                    ],
                },
                12,
                0.05,
                0.2,
            ),
            rows=("term",),
            columns=(),
            figure="intervals",
            unit="share of the variance",
        ),
        finding(
            "rates",
            array({**model, "level": ["all answers", *LEVELS]}, 13, 5, 20),
            rows=("level",),
            columns=(),
            figure="intervals",
            unit="percent",
            reference="P1 Table 11",
        ),
        finding(
            "pairwise",
            pairs,
            rows=("setting",),
            columns=("other",),
            figure="heatmap",
            unit="p, corrected",
            brighter="more alike",
        ),
        finding(
            "claims",
            claims,
            rows=("claim",),
            columns=(),
            show={"verdict": "verdict"},
            title="What the paper claims",
        ),
        finding(
            "repeat", None, reasons=dict.fromkeys(models, "takes a repeat factor with two levels or more")
        ),
    ]


def about(models: Sequence[str], **changes: Any) -> dict[str, dict[str, Any]]:
    """What the page says of each model."""
    return {
        name: {
            "experiment": "paper",
            "run_id": "0123456789abcdef0123456789abcdef",
            "runs": 1968,
            "personas": 41,
            "settings": 48,
            "questions": 5008,
            "factors": {"ppf": ["barebones", "youare"], "temperature": [0.0, 0.5, 1.0]},
            "draws": 1000,
            "permutations": 1000,
            "seed": 0,
            "level": 0.95,
            "warnings": ["incomplete: 3 of 1,968 runs are unfinished"],
            **changes,
        }
        for name in models
    }
