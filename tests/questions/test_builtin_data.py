"""The shipped question set: well formed, balanced, without cues, right wherever an answer can be computed."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from importlib.resources import files
from typing import Any

import pytest

LETTERS = "ABCDE"
CULTURE = "Cultural Awareness and Understanding"
COMMONSENSE = "Commonsense Reasoning/Social Awareness"
CATEGORY_LABELS: dict[str, str] = {
    "History": "high_school_european_history high_school_us_history high_school_world_history prehistory",
    "Politics and Law": "high_school_government_and_politics us_foreign_policy security_studies "
    "public_relations international_law jurisprudence professional_law",
    "Social Science": "high_school_geography high_school_psychology professional_psychology sociology "
    "human_sexuality",
    "Business/Accounting and Economics": "business_ethics management marketing professional_accounting "
    "econometrics high_school_macroeconomics high_school_microeconomics",
    "EECS": "college_computer_science high_school_computer_science computer_security machine_learning "
    "electrical_engineering",
    "Math": "abstract_algebra college_mathematics elementary_mathematics high_school_mathematics "
    "high_school_statistics",
    "Natural Science": "astronomy college_physics conceptual_physics high_school_physics college_chemistry "
    "high_school_chemistry college_biology high_school_biology",
    "Human Health and Medicine": "anatomy clinical_knowledge college_medicine human_aging medical_genetics "
    "nutrition professional_medicine virology",
    COMMONSENSE: "wants reactions descriptions motivations needs effects misc.",
}
LEGEND = "(Neither: the story has no bearing on it.)"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read() -> list[dict[str, Any]]:
    text = (files("persona_mlflow") / "questions" / "data" / "builtin.jsonl").read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=_no_constant) for line in text.splitlines()]


QUESTIONS = _read()
CATEGORIES = [*CATEGORY_LABELS, CULTURE]


def _in(category: str) -> list[dict[str, Any]]:
    return [q for q in QUESTIONS if q["category"] == category]


def _right(question: dict[str, Any]) -> str:
    option: str = question["options"][LETTERS.index(question["answer"])]
    return option


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q["text"][:40])
def test_question_is_well_formed(question: dict[str, Any]) -> None:
    assert set(question) == {"text", "options", "answer", "category", "label"}
    options = question["options"]
    assert 3 <= len(options) <= 5
    assert len({option.casefold() for option in options}) == len(options)
    assert question["answer"] in tuple(LETTERS[: len(options)])
    for string in (question["text"], question["category"], question["label"], *options):
        assert isinstance(string, str)
        assert string
        assert string == string.strip()
        assert "  " not in string
        assert string.isprintable()


def test_counts() -> None:
    counts = Counter(q["category"] for q in QUESTIONS)
    assert set(counts) == set(CATEGORIES)
    assert min(counts.values()) >= 20
    assert len(QUESTIONS) >= 200
    option_counts = Counter(len(q["options"]) for q in QUESTIONS)
    assert set(option_counts) == {3, 4, 5}
    assert option_counts[4] > len(QUESTIONS) / 2


@pytest.mark.parametrize("category", CATEGORY_LABELS)
def test_every_label_of_the_category_is_used(category: str) -> None:
    assert {q["label"] for q in _in(category)} == set(CATEGORY_LABELS[category].split())


def test_culture_spans_countries_and_all_three_golds() -> None:
    assert len({q["label"] for q in _in(CULTURE)}) >= 20
    graded = [q for q in _in(CULTURE) if "Neither" in q["options"]]
    assert {_right(q) for q in graded} == {"Yes", "No", "Neither"}
    for question in graded:
        assert question["options"] == ["Yes", "No", "Neither"]
        assert question["text"].endswith(LEGEND)


def test_S4_no_duplicates_or_near_duplicates() -> None:
    words = [set(re.findall(r"\w+", q["text"].removesuffix(LEGEND).casefold())) for q in QUESTIONS]
    assert len({q["text"].casefold() for q in QUESTIONS}) == len(QUESTIONS)
    close = [
        (QUESTIONS[i]["text"], QUESTIONS[j]["text"])
        for i, j in itertools.combinations(range(len(words)), 2)
        if len(words[i] & words[j]) / len(words[i] | words[j]) > 0.5
    ]
    assert close == []


def test_letters_are_balanced_overall() -> None:
    # A letter is expected once in n wherever it is one of n options. Pearson's statistic then has about
    # chi-square's law with 4 degrees of freedom if letters were drawn at random, and 0.711 is its 5 %
    # quantile: only one random set in twenty would be as even as this one is required to be.
    observed = Counter(q["answer"] for q in QUESTIONS)
    statistic = 0.0
    for k, letter in enumerate(LETTERS):
        expected = sum(1 / len(q["options"]) for q in QUESTIONS if len(q["options"]) > k)
        statistic += (observed[letter] - expected) ** 2 / expected
    assert statistic < 0.711


@pytest.mark.parametrize("size", [3, 4, 5])
def test_letters_are_balanced_for_each_number_of_options(size: int) -> None:
    counts = Counter(q["answer"] for q in QUESTIONS if len(q["options"]) == size)
    assert max(counts[x] for x in LETTERS[:size]) - min(counts[x] for x in LETTERS[:size]) <= 1


@pytest.mark.parametrize("category", CATEGORIES)
def test_letters_are_balanced_within_the_category(category: str) -> None:
    counts = Counter(q["answer"] for q in _in(category) if len(q["options"]) == 4)
    assert max(counts[x] for x in "ABCD") - min(counts[x] for x in "ABCD") <= 1


@pytest.mark.parametrize("extreme", [max, min], ids=["longest", "shortest"])
def test_length_does_not_give_the_answer_away(extreme: Callable[..., int]) -> None:
    # Always choosing the longest (or shortest) option, ties at random, may not beat blind guessing by
    # more than two standard errors of the guesser's own score.
    hits = 0.0
    for question in QUESTIONS:
        lengths = [len(option) for option in question["options"]]
        if len(_right(question)) == extreme(lengths):
            hits += 1 / lengths.count(extreme(lengths))
    chances = [1 / len(q["options"]) for q in QUESTIONS]
    assert hits < sum(chances) + 2 * math.sqrt(sum(p * (1 - p) for p in chances))


def _partitions(n: int, largest: int) -> int:
    return 1 if n == 0 else sum(_partitions(n - k, k) for k in range(1, min(n, largest) + 1))


def _simpson(f: Callable[[float], float], steps: int = 200) -> float:
    values = [f(i / steps) * (1 if i in (0, steps) else 4 if i % 2 else 2) for i in range(steps + 1)]
    return sum(values) / (3 * steps)


def _appended(x: int, a: list[int] = []) -> int:  # noqa: B006 - the shared default is what is asked about
    a.append(x)
    return len(a)


COMPUTED: dict[str, str] = {
    # Math
    "Seven boxes hold": f"{7 * 8 - 9}",
    "leaves at 9:40": "{} h {} min".format(*divmod((11 * 60 + 15) - (9 * 60 + 40), 60)),
    "perimeter of 30 cm": f"{9 * (15 - 9)}",
    "3(x - 2) = x + 8": "{}".format(*[x for x in range(-99, 99) if 3 * (x - 2) == x + 8]),
    "first 40 positive odd": f"{sum(range(1, 80, 2))}",
    "log₂(x) + log₂(x - 2) = 3": "{} only".format(*[x for x in range(3, 99) if x * (x - 2) == 2**3]),
    "letters of LEVEL": f"{len(set(itertools.permutations('LEVEL')))}",
    "3 to the power 100": f"{pow(3, 100, 13)}",
    "A linear map": f"{(7 + math.isqrt(7**2 - 4 * (4 * 3 - 2 * 1))) // 2}",
    "integral of xeˣ": f"{_simpson(lambda x: x * math.exp(x)):.4g}",
    "A 3 by 3 matrix": f"{2 * (2 * 2 - 1 * 1) - 1 * (1 * 2 - 1 * 0)}",
    "(sin x - x)/x³": f"{Fraction((math.sin(0.01) - 0.01) / 0.01**3).limit_denominator(20)}",
    "sum of n/3ⁿ": f"{sum((Fraction(n, 3**n) for n in range(1, 60)), Fraction(0)).limit_denominator(50)}",
    "cyclic group of order 12": f"{sum(math.gcd(k, 12) == 1 for k in range(12))}",
    "permutation (1 2 3)(4 5)": f"{math.lcm(3, 2)}",
    "exactly 400 elements": f"{_partitions(4, 4) * _partitions(2, 2)}",  # 400 = 2⁴ · 5²
    "median of the numbers": f"{sorted([3, 9, 4, 8, 21])[2]}",
    "One person in 100": f"{round(100 * 0.01 * 0.9 / (0.01 * 0.9 + 0.99 * 0.08))}%",
    "divisible by 3 or by 5": f"{sum((n % 3 == 0) != (n % 5 == 0) for n in range(1, 1000))}",
    "preserve addition": f"{sum(12 * x % 18 == 0 for x in range(18))}",
    "three fair dice": f"{sum(max(roll) == 4 for roll in itertools.product(range(1, 7), repeat=3))}/216",
    # EECS
    "binary number 1011": f"{0b1011}",
    "A binary search": f"{(1000).bit_length()}",
    "line of Python print": f"{[3, 1, 2][-1]}",
    "5% that miss": f"{1 + 0.05 * 100:g} ns",
    "Diffie-Hellman exchange": f"{pow(2, 5 * 12, 29)}",
    "What is the recall": f"{40 / (40 + 60):.2f}",
    "trainable parameters": f"{64 * 10 + 10}",
    "characteristic impedance": f"{(150 - 50) / (150 + 50):g}",
    "A Python file reads": f"{sum(_appended(x) for x in (1, 2, 3))}",
    "Two 6-ohm resistors": f"{6 * 6 // (6 + 6) + 2} ohms",
    "What is the time constant": f"{2e3 * 5e-6 * 1e3:g} ms",
    # Business/Accounting and Economics
    "straight-line depreciation": f"${(50_000 - 5_000) // 9:,}",
    "to break even": f"{84_000 // (30 - 18):,}",
    "spending multiplier": f"{1 / (1 - Fraction(4, 5))}",
    "price elasticity of demand": f"{(10 / 100) / (2 / 10):g}",
    "A monopolist faces": f"{max(range(51), key=lambda q: (100 - 2 * q) * q - 20 * q)}",
    "utility U = xy": f"{max(range(61), key=lambda x: x * (120 - 2 * x) / 3)}",
    # Natural Science
    "three times as far away": f"{3**2}",
    "4 astronomical units": f"{math.isqrt(4**3)}",
    "speed steadily at 3 m/s²": f"{3 * 4**2 // 2} m",
    "a 2 kg ball": f"{2 * 3**2 // 2} J",
    "between 600 K and 300 K": f"{100 * (600 - 300) // 600}%",
    "A muon passes": f"{Fraction(1 / math.sqrt(1 - 0.8**2)).limit_denominator(20)}",
    "pH of a 0.001": f"{-math.log10(0.001):g}",
    "de Broglie wavelength": f"{math.sqrt(1836.15):.0f}",
    "acetate as acetic acid": f"{4.76 + math.log10(10):.2f}",
    "first-order kinetics": f"{Fraction(1, 2) ** (60 // 20)}",
    "Hardy-Weinberg": f"{2 * math.isqrt(4) * (10 - math.isqrt(4))}%",  # q = √0.04, in tenths
    # Human Health and Medicine
    "with cystic fibrosis": f"{Fraction(2, 3) ** 2 / 4}",
    "anion gap": f"{140 - 100 - 14} mmol/L",
}


@pytest.mark.parametrize("fragment", COMPUTED)
def test_computed_answer(fragment: str) -> None:
    (question,) = [q for q in QUESTIONS if fragment in q["text"]]
    assert _right(question) == COMPUTED[fragment]
