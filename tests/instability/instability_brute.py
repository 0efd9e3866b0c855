"""The metrics once more, from the paper's formulas alone: plain loops over lists, no array code."""

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import xarray as xr
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

FACTORS = ("ppf", "tpf", "temperature")


def grid(values, *factors: str) -> xr.DataArray:
    """Label a nested list persona × factors × question."""
    array = np.asarray(values, dtype=bool)
    dims = ("persona", *factors, "question")
    return xr.DataArray(
        array,
        dims=dims,
        coords={d: [f"{d}{i}" for i in range(n)] for d, n in zip(dims, array.shape, strict=True)},
    )


@st.composite
def grids(draw, factors: tuple[str, ...] = FACTORS, min_side: int = 1) -> xr.DataArray:
    """Small grids with dims in any order: ties, all right, all wrong and single levels are common."""
    shape = draw(st.tuples(*[st.integers(min_side, 3)] * (len(factors) + 1), st.integers(1, 4)))
    values = draw(hnp.arrays(bool, shape, elements=st.booleans()))
    return grid(values, *factors).transpose(*draw(st.permutations(("persona", *factors, "question"))))


def entries(correct: xr.DataArray, over: tuple[str, ...]):
    """Yield (kept labels, personas, settings, answers) where answers[p, s] is a list over questions."""
    kept = [d for d in correct.dims if d not in ("persona", "question", *over)]
    cells = correct.transpose(*kept, "persona", *over, "question").values.tolist()
    personas = list(range(correct.sizes["persona"]))
    settings = list(product(*(range(correct.sizes[d]) for d in over)))
    for level in product(*(range(correct.sizes[d]) for d in kept)):
        answers = {}
        for p, s in product(personas, settings):
            cell = cells
            for i in (*level, p, *s):
                cell = cell[i]
            answers[p, s] = cell
        labels = tuple(str(correct[d].values[i]) for d, i in zip(kept, level, strict=True))
        yield labels, personas, settings, answers


def accuracy(personas, settings, answers) -> tuple[Fraction, list[Fraction]]:
    acc = {key: Fraction(sum(row), len(row)) for key, row in answers.items()}
    per_persona = []
    for p in personas:
        gaps = [abs(acc[p, a] - acc[p, b]) for a, b in combinations(settings, 2)]
        per_persona.append(sum(gaps, Fraction(0)) / len(gaps))
    return sum(per_persona, Fraction(0)) / len(per_persona), per_persona


def rank(personas, s, answers, p, ties: str) -> Fraction:
    mine = sum(answers[p, s])
    better = sum(sum(answers[o, s]) > mine for o in personas)
    tied = [o for o in personas if sum(answers[o, s]) == mine]
    if ties == "ordinal":
        return Fraction(better + 1 + tied.index(p))
    return better + Fraction(len(tied) + 1, 2)


def outcome(personas, settings, answers, ties="average", weighted=True, normalized=True):
    """Return I_O, I_O(p) for each p, w(s) for each s."""
    w = []
    for s in settings:
        acc = [Fraction(sum(answers[p, s]), len(answers[p, s])) for p in personas]
        mean = sum(acc, Fraction(0)) / len(acc)
        w.append(math.sqrt(sum(((a - mean) ** 2 for a in acc), Fraction(0)) / len(acc)))
    used = w if weighted else [1.0] * len(w)
    per_persona = []
    for p in personas:
        ranks = [float(rank(personas, s, answers, p, ties)) for s in settings]
        if sum(used) == 0:
            per_persona.append(0.0)
            continue
        mean_rank = sum(u * r for u, r in zip(used, ranks, strict=True)) / sum(used)
        variance = sum(u * (r - mean_rank) ** 2 for u, r in zip(used, ranks, strict=True)) / sum(used)
        per_persona.append(math.sqrt(variance))
    value = sum(per_persona) / len(per_persona)
    return (value * sum(w) / len(w) if normalized else value), per_persona, w


def question(personas, settings, answers) -> tuple[Fraction | None, list[Fraction | None]]:
    per_persona: list[Fraction | None] = []
    for p in personas:
        sets = [{q for q, right in enumerate(answers[p, s]) if right} for s in settings]
        union = set.union(*sets)
        per_persona.append(1 - Fraction(len(set.intersection(*sets)), len(union)) if union else None)
    defined = [v for v in per_persona if v is not None]
    return (sum(defined, Fraction(0)) / len(defined) if defined else None), per_persona
