"""The analyses once more, from the formulas alone: plain loops over a dictionary of answers.

Nothing of the analyses' code is used. A bootstrap resample is a list of questions in which some stand more
than once, so that every function here takes the list of questions to go over.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import xarray as xr
from hypothesis import strategies as st

from instability import instability_brute

METRICS = ("accuracy", "outcome", "question")
Setting = tuple[Any, ...]
Number = Fraction | float | None


# Grids.


def make_dataset(
    right: Any,
    factors: Mapping[str, Sequence[Any]],
    categories: Sequence[str] | None = None,
    groups: Sequence[tuple[str, str]] | None = None,
    personas: Sequence[str] | None = None,
    status: Any = None,
    model: str = "a model",
) -> xr.Dataset:
    """Label answers, persona × factors × question, as an experiment's outcomes are."""
    array = np.asarray(right, dtype=bool)
    codes = np.zeros(array.shape) if status is None else np.asarray(status)
    count, questions = array.shape[0], array.shape[-1]
    dims = ("persona", *factors, "question")
    groups = groups or [("everyone", "")] * count
    return xr.Dataset(
        {
            "correct": (dims, array),
            "status": (dims, codes.astype(np.int8)),
            "complete": (dims[:-1], np.ones(array.shape[:-1], dtype=bool)),
        },
        coords={
            "persona": list(personas or [f"persona {i}" for i in range(count)]),
            "persona_group": ("persona", [group for group, _ in groups]),
            "persona_subgroup": ("persona", [part for _, part in groups]),
            **{name: list(levels) for name, levels in factors.items()},
            "question": [f"q{i}" for i in range(questions)],
            "category": ("question", list(categories or ["History"] * questions)),
            "label": ("question", ["a label"] * questions),
        },
        attrs={"experiment": "made", "model": model},
    )


LEVELS = {
    "ppf": ("barebones", "youare", "identitynature"),
    "tpf": ("justanswer", "explain", "explain-persona"),
    "temperature": (0.0, 1.0, 0.5),
    "repeat": (0, 1, 2),
    "option_order": ("given", "reversed"),
}
GROUPS = (("Occupation", "Law"), ("Baselines", ""), ("Occupation", "EECS"), ("Baselines", ""))
CATEGORIES = ("Math", "History", "EECS")


@st.composite
def datasets(
    draw: Any,
    factors: Sequence[str] | None = None,
    personas: tuple[int, int] = (1, 4),
    levels: tuple[int, int] = (1, 3),
    questions: tuple[int, int] = (1, 8),
    kinds: Sequence[str] = ("random", "all right", "all wrong", "personas alike", "settings alike", "rare"),
) -> xr.Dataset:
    """Small experiments: ties, all right, all wrong and single levels are common, categories are mixed."""
    if factors is None:
        names = ("ppf", "tpf", "temperature", "repeat", "option_order")
        factors = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    sizes = [min(draw(st.integers(*levels)), len(LEVELS[name])) for name in factors]
    count, n = draw(st.integers(*personas)), draw(st.integers(*questions))
    kind = draw(st.sampled_from(kinds))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    share = {"all right": 1.0, "all wrong": 0.0, "rare": 0.15}.get(kind, 0.5)
    right = rng.random((count, *sizes, n)) < share
    if kind == "personas alike":
        right[:] = right[:1]
    if kind == "settings alike":
        right[:] = right[(slice(None), *(slice(0, 1) for _ in sizes))]
    status = np.where(right, 0, rng.integers(0, 3, right.shape))
    return make_dataset(
        right,
        {name: LEVELS[name][:size] for name, size in zip(factors, sizes, strict=True)},
        categories=rng.choice(CATEGORIES[: draw(st.integers(1, 3))], n).tolist(),
        groups=GROUPS[:count],
        status=status,
    )


class Table:
    """An experiment as a dictionary: (persona, setting, question) → right or not."""

    def __init__(self, dataset: xr.Dataset) -> None:
        dims = [str(dim) for dim in dataset["correct"].dims]
        self.factors = {d: dataset[d].values.tolist() for d in dims if d not in ("persona", "question")}
        self.personas = [str(name) for name in dataset["persona"].values]
        self.categories = [str(name) for name in dataset["category"].values]
        self.people = list(range(len(self.personas)))
        self.questions = list(range(len(self.categories)))
        ordered = ("persona", *self.factors, "question")
        right = dataset["correct"].transpose(*ordered).values.tolist()
        status = dataset["status"].transpose(*ordered).values.tolist()
        self.right: dict[tuple[int, Setting, int], bool] = {}
        self.unparsed: dict[tuple[int, Setting, int], bool] = {}
        places = [range(len(levels)) for levels in self.factors.values()]
        for p, place in product(self.people, product(*places)):
            setting = tuple(levels[i] for levels, i in zip(self.factors.values(), place, strict=True))
            mine, codes = right[p], status[p]
            for i in place:
                mine, codes = mine[i], codes[i]
            for q in self.questions:
                self.right[p, setting, q] = mine[q]
                self.unparsed[p, setting, q] = codes[q] != 0
        self.memo: dict[Any, Number] = {}
        self.groups: dict[str, list[int]] = {}
        pairs = zip(dataset["persona_group"].values, dataset["persona_subgroup"].values, strict=True)
        for p, (group, part) in enumerate(pairs):
            self.groups.setdefault(str(group), []).append(p)
            if part:
                self.groups.setdefault(f"{group} · {part}", []).append(p)

    @property
    def varied(self) -> list[str]:
        return [name for name, levels in self.factors.items() if len(levels) > 1]

    def level(self, setting: Setting, factor: str) -> Any:
        return setting[list(self.factors).index(factor)]

    def settings(self, where: Mapping[str, Sequence[Any]] | None = None) -> list[Setting]:
        """The settings with these levels, the first factor outermost."""
        chosen = {name: list((where or {}).get(name, levels)) for name, levels in self.factors.items()}
        return list(product(*chosen.values()))

    def of(self, category: str | None, questions: Iterable[int] | None = None) -> list[int]:
        """Those of the questions that are of a category."""
        asked = self.questions if questions is None else questions
        return [q for q in asked if category is None or self.categories[q] == category]

    def level_sets(self) -> dict[str, dict[str, list[Any]]]:
        """Label → the settings with one level, of each level of each varied factor."""
        return {label(name, v): {name: [v]} for name in self.varied for v in self.factors[name]}

    def score(self, p: int, setting: Setting, questions: Sequence[int]) -> Fraction:
        return Fraction(sum(self.right[p, setting, q] for q in questions), len(questions))


def label(factor: str, level: Any) -> str:
    return f"{factor} {level:g}" if isinstance(level, float) else f"{factor} {level}"


def repeated(weights: np.ndarray, draw: int) -> list[int]:
    """The questions of one draw, each as often as it counts."""
    return [q for q, times in enumerate(weights[:, draw].tolist()) for _ in range(round(times))]


# Metrics.


def metric(
    table: Table,
    name: str,
    over: Sequence[str],
    *,
    questions: Sequence[int] | None = None,
    people: Sequence[int] | None = None,
    where: Mapping[str, Sequence[Any]] | None = None,
) -> dict[Setting, Number]:
    """Levels of the factors that are not varied → the metric over those that are."""
    questions = table.questions if questions is None else questions
    people = table.people if people is None else people
    kept = [factor for factor in table.factors if factor not in over]
    lines: dict[Setting, list[Setting]] = {}
    for setting in table.settings(where):
        lines.setdefault(tuple(table.level(setting, factor) for factor in kept), []).append(setting)
    found: dict[Setting, Number] = {}
    for levels, settings in lines.items():
        if "persona" in over:
            units: list[Any] = ["everyone"]
            compared: list[Any] = [(p, s) for p in people for s in settings]
            answers = {("everyone", (p, s)): [table.right[p, s, q] for q in questions] for p, s in compared}
        else:
            units, compared = list(people), settings
            answers = {(p, s): [table.right[p, s, q] for q in questions] for p in people for s in settings}
        if len(compared) < 2 or (name == "outcome" and "persona" in over):
            found[levels] = None
        else:
            found[levels] = getattr(instability_brute, name)(units, compared, answers)[0]
    return found


def mean(values: Iterable[Number]) -> Number:
    """Mean of what is defined."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def average(table: Table, name: str, over: Sequence[str] | None = None, **part: Any) -> Number:
    """The metric, averaged over the fixed combinations where it is defined."""
    key = repr((name, over, sorted(part.items())))
    if key not in table.memo:
        found = metric(table, name, list(table.factors) if over is None else over, **part)
        table.memo[key] = mean(found.values())
    return table.memo[key]


def one_at_a_time(table: Table, name: str, factor: str, level: Any, **part: Any) -> Number:
    """Vary one other factor within a level, average over the fixed combinations, then over the factors."""
    others = [other for other in table.varied if other != factor]
    return mean(average(table, name, [other], where={factor: [level]}, **part) for other in others)


def relative(baseline: Number, new: Number) -> Number:
    """(baseline − new) / baseline; a baseline that is 0 but for the rounding of its roots has none."""
    if baseline is None or new is None or abs(baseline) < 1e-12:
        return None
    return (baseline - new) / baseline


def outcome_form(
    table: Table, weighted: bool, normalized: bool, where: Any, questions: Sequence[int] | None = None
) -> tuple[Number, Number]:
    """I_O in one of four forms, and the mean of w(s)."""
    settings = table.settings(where)
    asked = table.questions if questions is None else questions
    answers = {(p, s): [table.right[p, s, q] for q in asked] for p in table.people for s in settings}
    value, _, w = instability_brute.outcome(
        table.people, settings, answers, weighted=weighted, normalized=normalized
    )
    return value, sum(w) / len(w)


# Agreement, correlation, variance.


def kappa(table: Table, p: int, settings: Sequence[Setting], questions: Sequence[int]) -> Number:
    """Fleiss' kappa (1971): questions are subjects, settings raters, right and wrong the categories."""
    n = len(settings)
    rows = [[sum(table.right[p, s, q] for s in settings)] for q in questions]
    rows = [[yes[0], n - yes[0]] for yes in rows]
    agreement = mean(Fraction(sum(k * (k - 1) for k in row), n * (n - 1)) for row in rows)
    shares = [Fraction(sum(row[j] for row in rows), n * len(rows)) for j in (0, 1)]
    expected = sum(share**2 for share in shares)
    assert isinstance(agreement, Fraction)
    return None if expected == 1 else (agreement - expected) / (1 - expected)


def pearson(x: Sequence[Number], y: Sequence[Number]) -> Number:
    if any(v is None for v in (*x, *y)):
        return None
    mx, my = sum(x) / len(x), sum(y) / len(y)  # type: ignore[arg-type]
    sxy = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))  # type: ignore[operator]
    sxx, syy = sum((a - mx) ** 2 for a in x), sum((b - my) ** 2 for b in y)  # type: ignore[operator]
    if sxx < 1e-24 or syy < 1e-24:
        return None
    return float(sxy) / math.sqrt(float(sxx) * float(syy))


def kendall(table: Table, questions: Sequence[int]) -> Number:
    """W with Kendall's correction for ties: 12 Σ(R_p − R̄)² / (m² (n³ − n) − m Σ_s Σ(t³ − t))."""
    settings, n = table.settings(), len(table.people)
    answers = {(p, s): [table.right[p, s, q] for q in questions] for p in table.people for s in settings}
    m = len(settings)
    sums = [
        sum(instability_brute.rank(table.people, s, answers, p, "average") for s in settings)
        for p in table.people
    ]
    ties = Fraction(0)
    for s in settings:
        counts = [sum(answers[p, s]) for p in table.people]
        ties += sum(counts.count(c) ** 3 - counts.count(c) for c in set(counts))
    centre = Fraction(sum(sums), n)
    below = m**2 * (n**3 - n) - m * ties
    return None if below == 0 else 12 * sum((r - centre) ** 2 for r in sums) / below


def variance_shares(table: Table, questions: Sequence[int]) -> dict[str, Number]:
    """Sums of squares of the effects in means, of the whole."""
    axes = {"persona": list(table.people), **table.factors}
    varied = [name for name, levels in axes.items() if len(levels) > 1]
    runs = {(p, *s): table.score(p, s, questions) for p in table.people for s in table.settings()}
    names = list(axes)

    def at(run: Setting, chosen: Sequence[str]) -> Setting:
        return tuple(run[names.index(name)] for name in chosen)

    def cell(run: Setting, chosen: Sequence[str]) -> Fraction:
        alike = [v for other, v in runs.items() if at(other, chosen) == at(run, chosen)]
        return sum(alike, Fraction(0)) / len(alike)

    def main(run: Setting, name: str) -> Fraction:
        return cell(run, [name]) - cell(run, [])

    def pair(run: Setting, a: str, b: str) -> Fraction:
        return cell(run, [a, b]) - cell(run, [a]) - cell(run, [b]) + cell(run, [])

    total = sum((v - cell(run, [])) ** 2 for run, v in runs.items())
    squares = {name: sum(main(run, name) ** 2 for run in runs) for name in varied}
    squares |= {f"{a} × {b}": sum(pair(run, a, b) ** 2 for run in runs) for a, b in combinations(varied, 2)}
    if len(varied) > 2:
        squares["higher interactions"] = total - sum(squares.values())
    return {name: value / total if total else None for name, value in squares.items()}


# Intervals and tests.


def interval(values: Sequence[Number], level: float = 0.95) -> tuple[Number, Number, Number]:
    """Percentiles of the resamples, moved so that their mean is the value."""
    value, resamples = values[0], list(values[1:])
    defined = sorted(float(v) for v in resamples if v is not None)
    if value is None or not resamples or len(resamples) - len(defined) > len(resamples) / 10:
        return value, None, None
    shift = float(value) - sum(defined) / len(defined)
    bounds = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        place = share * (len(defined) - 1)
        below = min(math.floor(place), len(defined) - 1)
        above = min(below + 1, len(defined) - 1)
        bounds.append(defined[below] + (place - below) * (defined[above] - defined[below]) + shift)
    return value, bounds[0], bounds[1]


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times m − k + 1, and never below a smaller one's."""
    adjusted, floor = [0.0] * len(p), 0.0
    for k, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        floor = max(floor, min(1.0, (len(p) - k) * p[i]))
        adjusted[i] = floor
    return adjusted


# Comparing with what the analyses give.


def same(found: Any, expected: Number, tolerance: float = 1e-9) -> bool:
    """A number of an analysis against ours; undefined is NaN there and None here."""
    number = float(found)
    if expected is None:
        return math.isnan(number)
    return not math.isnan(number) and math.isclose(number, float(expected), rel_tol=1e-9, abs_tol=tolerance)
