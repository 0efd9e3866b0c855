"""Every analysis on two personas, four settings and four questions, in numbers that can be checked by eye.

Right answers (1) to the questions 1 and 2 (History) and 3 and 4 (Math):

    setting                  an engineer   a human   right of 4    ranks       w = sd of accuracy
    justanswer, τ 0          1111          1100      4   2         1    2      1/4
    justanswer, τ 1          1110          1100      3   2         1    2      1/8
    explain-persona, τ 0     1100          1100      2   2         1.5  1.5    0
    explain-persona, τ 1     1000          1110      1   3         2    1      1/4
"""

from fractions import Fraction as F
from math import sqrt

import numpy as np
import pytest
import xarray as xr
from analyses_brute import make_dataset
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

from persona_mlflow.analyses import NotAllowed, Study
from persona_mlflow.analyses.chance import by_chance
from persona_mlflow.analyses.comparisons import (
    persona_differences,
    recommended_settings,
    setting_differences,
)
from persona_mlflow.analyses.correlations import PAIRS, correlations
from persona_mlflow.analyses.domains import (
    across_personas,
    by_category,
    by_group,
    factors_by_category,
    factors_by_group,
    subgroups_by_category,
)
from persona_mlflow.analyses.factors import all_at_once, levels, outcome_forms, single_factor
from persona_mlflow.analyses.overview import overview
from persona_mlflow.analyses.parsing import incorrect_by_level, unparsed_by_level
from persona_mlflow.analyses.selections import (
    contrast,
    question_subsets,
    setting_subsets,
    stable_and_unstable,
)
from persona_mlflow.analyses.structure import agreement, variance

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

ANSWERS = {
    "an engineer": (("1111", "1110"), ("1100", "1000")),
    "a human": (("1100", "1100"), ("1100", "1110")),
}
ENGINEER, HUMAN = "Occupational Roles", "Baselines"


def bits(rows: object) -> object:
    return [int(bit) for bit in rows] if isinstance(rows, str) else [bits(row) for row in rows]


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    right = np.array(bits(list(ANSWERS.values())), dtype=bool)[:, None]
    status = np.zeros(right.shape, dtype=np.int8)
    # Of its wrong answers, the engineer's last one has no letter in each explaining setting, the human's
    # last one in none but (explain-persona, 1).
    status[0, :, 1, :, 3] = 4
    status[1, :, 1, 1, 3] = 1
    return make_dataset(
        right,
        {"ppf": ["barebones"], "tpf": ["justanswer", "explain-persona"], "temperature": [0.0, 1.0]},
        ["History", "History", "Math", "Math"],
        [(ENGINEER, "EECS/Math"), (HUMAN, "")],
        list(ANSWERS),
        status,
    )


@pytest.fixture(scope="module")
def study(dataset: xr.Dataset) -> Study:
    return Study(dataset, draws=0, permutations=0)


def numbers(array: xr.DataArray) -> list:
    return array.values.tolist()


def test_overview(study: Study) -> None:
    found = overview(study)
    assert numbers(found["value"]) == pytest.approx(
        [
            19 / 32,  # 4 + 3 + 2 + 1 + 2 + 2 + 2 + 3 of 8 · 4
            sqrt(F(51, 8) - F(19, 8) ** 2) / 4,  # the squares of these sum to 51
            # Pairs of 4 3 2 1 differ by 1 2 3 1 2 1, of 2 2 2 3 by 0 0 1 0 1 1: 10/6 and 3/6 of 4.
            (10 / 24 + 3 / 24) / 2,
            # The ranks 1 1 1.5 2 with the weights 2 1 0 2: mean 7/5, variance (3 · .4² + 2 · .6²)/5 = .24;
            # the ranks 2 2 1.5 1 as well. The mean weight is 5/32.
            sqrt(0.24) * 5 / 32,
            # The engineer is always right on 1 of 4, the human on 2 of 3.
            (3 / 4 + 1 / 3) / 2,
        ]
    )
    assert np.isnan(found["low"]).all()
    assert set(numbers(found["reason"])) == {""}


def test_single_factor(study: Study) -> None:
    found = single_factor(study)
    assert numbers(found["factor"]) == ["tpf", "temperature"]  # ppf has one level
    expected = {
        # tpf at τ 0: |4 − 2| and 0, at τ 1: |3 − 1| and |2 − 3|; of 4, mean over personas and τ.
        # temperature at justanswer: |4 − 3| and 0, at explain-persona: |2 − 1| and |2 − 3|.
        "accuracy": (13 / 48, 5 / 16, 3 / 16),
        # tpf at τ 0: the second weight is 0. At τ 1: ranks 1 2 with weights 1 2, variance 2/9, w 3/16.
        # temperature at justanswer: ranks 1 1; at explain-persona: the first weight is 0.
        "outcome": (sqrt(0.24) * 5 / 32, (0 + sqrt(2) / 3 * 3 / 16) / 2, 0),
        # tpf: 1 − 2/4 and 0; 1 − 1/3 and 1 − 2/3. temperature: 1 − 3/4 and 0; 1 − 1/2 and 1 − 2/3.
        "question": (13 / 24, (1 / 4 + 1 / 2) / 2, (1 / 8 + 5 / 12) / 2),
    }
    for metric, (baseline, *values) in expected.items():
        row = found.sel(metric=metric)
        assert row["baseline"].item() == pytest.approx(baseline)
        assert numbers(row["instability"]) == pytest.approx(values)
        assert numbers(row["delta"]) == pytest.approx([baseline - v for v in values])
        assert numbers(row["value"]) == pytest.approx([1 - v / baseline for v in values])
    # In words: with tpf alone I_A is 2/13 less stable than with all settings, with temperature 4/13 more.
    assert numbers(found["value"].sel(metric="accuracy")) == pytest.approx([-2 / 13, 4 / 13])


def test_levels_in_both_readings(study: Study) -> None:
    # With two varied factors the readings coincide: one other factor is all other factors.
    for found in (levels(study), all_at_once(study)):
        assert numbers(found["level"]) == [
            "tpf justanswer",
            "tpf explain-persona",
            "temperature 0",
            "temperature 1",
        ]
        assert numbers(found["instability"].sel(metric="accuracy")) == pytest.approx(
            [1 / 8, 1 / 4, 1 / 4, 3 / 8]
        )
        assert numbers(found["value"].sel(metric="accuracy")) == pytest.approx(
            [7 / 13, 1 / 13, 1 / 13, -5 / 13]
        )
        assert numbers(found["instability"].sel(metric="question")) == pytest.approx(
            [1 / 8, 5 / 12, 1 / 4, 1 / 2]
        )


def test_the_readings_of_levels_differ_with_three_factors() -> None:
    # One persona, one question, right at (a, x) and (b, y), whatever the third factor is.
    right = np.zeros((1, 2, 2, 2, 1), dtype=bool)
    right[:, 0, 0] = right[:, 1, 1] = True
    grid = {"one": ["a", "b"], "two": ["x", "y"], "three": [0, 1]}
    both = Study(make_dataset(right, grid), draws=0)
    # Within "one a", two varies: 1; three varies: 0. Mean 1/2. Jointly: of the 6 pairs 4 differ.
    assert levels(both)["instability"].sel(metric="accuracy", level="one a").item() == pytest.approx(1 / 2)
    assert all_at_once(both)["instability"].sel(metric="accuracy", level="one a").item() == pytest.approx(
        4 / 6
    )


def test_categories_and_groups(study: Study) -> None:
    found = by_category(study)
    assert numbers(found["category"]) == ["History", "Math"]
    # History: the engineer 2 2 2 1, the human 2 2 2 2, of 2. Math: 2 1 0 0 and 0 0 0 1.
    assert numbers(found["instability"].sel(metric="accuracy")) == pytest.approx([1 / 8, 5 / 12])
    assert numbers(found["instability"].sel(metric="question")) == pytest.approx([1 / 4, 1])
    assert numbers(found["value"].sel(metric="question")) == pytest.approx([7 / 13, -11 / 13])
    found = by_group(study)
    assert numbers(found["group"]) == [ENGINEER, HUMAN, f"{ENGINEER} · EECS/Math"]
    assert numbers(found["instability"].sel(metric="accuracy")) == pytest.approx([5 / 12, 1 / 8, 5 / 12])
    assert numbers(found["instability"].sel(metric="question")) == pytest.approx([3 / 4, 1 / 3, 3 / 4])
    # A persona alone is always the first.
    assert numbers(found["instability"].sel(metric="outcome")) == [0, 0, 0]
    assert numbers(found["value"].sel(metric="outcome")) == [1, 1, 1]


def test_factors_within_categories_and_groups(study: Study) -> None:
    found = factors_by_category(study).sel(metric="accuracy")
    # History: tpf at τ 0: 0 0, at τ 1: 1 0; temperature at justanswer: 0 0, at explain-persona: 1 0; of 2.
    assert numbers(found["instability"].sel(category="History")) == pytest.approx([1 / 8, 1 / 8])
    # Math: tpf: 2 0, 1 1; temperature: 1 0, 0 1.
    assert numbers(found["instability"].sel(category="Math")) == pytest.approx([1 / 2, 1 / 4])
    assert numbers(found["value"].sel(category="Math")) == pytest.approx([-1 / 5, 2 / 5])
    found = factors_by_group(study).sel(metric="accuracy")
    assert numbers(found["instability"].sel(group=ENGINEER)) == pytest.approx([1 / 2, 1 / 4])
    assert numbers(found["instability"].sel(group=HUMAN)) == pytest.approx([1 / 8, 1 / 8])
    assert numbers(found["value"].sel(group=HUMAN)) == pytest.approx([0, 0])


def test_subgroups_in_categories(study: Study) -> None:
    found = subgroups_by_category(study)
    assert numbers(found["subgroup"]) == ["EECS/Math"]
    row = found.sel(subgroup="EECS/Math", metric="accuracy")
    # The engineer alone: History 2 2 2 1, Math 2 1 0 0, of 2; against 10/24.
    assert numbers(row["instability"]) == pytest.approx([1 / 4, 7 / 12])
    assert numbers(row["value"]) == pytest.approx([2 / 5, -2 / 5])


def test_across_personas(study: Study) -> None:
    found = across_personas(study)
    assert numbers(found["metric"]) == ["accuracy", "question"]
    assert numbers(found["group"]) == ["all personas"]  # no group has two
    # Differences 2 1 0 2 of 4; shared of 4, of 3, all, and 1 of 3.
    assert numbers(found["value"]) == pytest.approx(np.array([[5 / 16], [(1 / 2 + 1 / 3 + 0 + 2 / 3) / 4]]))


def test_stable_and_unstable(study: Study) -> None:
    found = stable_and_unstable(study)
    # Here (justanswer, τ 0): 4 and 2 of 4, against (justanswer, τ 1): 3 and 2.
    assert numbers(found["value"]) == [[3 / 4, 1], [5 / 8, 3 / 4], [1 / 8, 1 / 4]]
    assert "justanswer-persona" in found.attrs["note"]
    assert "youare" in found.attrs["note"]


def test_contrast(study: Study) -> None:
    found = contrast(study)
    assert numbers(found["setting"]) == [
        "barebones · justanswer · τ 0",
        "barebones · explain-persona · τ 1",
    ]
    assert numbers(found["value"]) == [[1, 1 / 2], [1 / 4, 3 / 4]]
    assert numbers(found["rank"]) == [[1, 2], [2, 1]]
    assert "first level" in found.attrs["note"]  # identitynature is not here


def test_contrast_of_the_paper_s_settings_wherever_they_stand() -> None:
    right = np.zeros((2, 2, 2, 2, 2), dtype=bool)
    right[0, 1, 1, 1] = True  # the first persona in (1.0, identitynature, explain-persona)
    right[1, 0, 0, 0, 0] = True  # the second, on one question, in (0.0, barebones, justanswer)
    grid = {
        "temperature": [0.0, 1.0],
        "ppf": ["barebones", "identitynature"],
        "tpf": ["justanswer", "explain-persona"],
    }
    found = contrast(Study(make_dataset(right, grid), draws=0))
    assert "note" not in found.attrs
    assert numbers(found["value"]) == [[0, 1 / 2], [1, 0]]
    # The same with the levels the other way round: the first level is not the plainest setting here.
    turned = {name: levels[::-1] for name, levels in grid.items()}
    found = contrast(Study(make_dataset(right[:, ::-1, ::-1, ::-1], turned), draws=0))
    assert numbers(found["value"]) == [[0, 1 / 2], [1, 0]]


def test_contrast_shows_two_settings_where_half_of_the_paper_s_pair_is_there() -> None:
    # The plainest setting is the last one here, and the most elaborate is not in the grid.
    grid = {"temperature": [1.0, 0.0], "ppf": ["barebones"], "tpf": ["explain", "justanswer"]}
    right = np.zeros((2, 2, 1, 2, 2), dtype=bool)
    right[0, 1, 0, 1] = True
    found = contrast(Study(make_dataset(right, grid), draws=0))
    assert numbers(found["setting"]) == ["τ 1 · barebones · explain", "τ 0 · barebones · justanswer"]
    assert numbers(found["value"]) == [[0, 0], [1, 0]]


def test_correlations(dataset: xr.Dataset, study: Study) -> None:
    found = correlations(study)
    assert numbers(found["pair"]) == list(PAIRS)
    # The sets: justanswer, explain-persona, τ 0, τ 1. I_A: 1/8 1/4 1/4 3/8. Mean accuracies of the settings
    # are 6 5 4 4 of 8, so that the spreads are 1/8 0 1/4 1/8: no correlation.
    assert found["value"].values[0] == pytest.approx(0, abs=1e-12)
    assert found["p"].values[0] == pytest.approx(1)
    # I_O in ranks: 0 0 0 √2/3. Different best personas (a tie goes to the engineer): 1 2 1 2.
    assert found["value"].values[1] == pytest.approx(1 / sqrt(3))
    # I_Q's delta: 13/24 less 1/8 5/12 1/4 1/2, with the mean of the kappas.
    deltas = [13 / 24 - 1 / 8, 13 / 24 - 5 / 12, 13 / 24 - 1 / 4, 13 / 24 - 1 / 2]
    right = dataset["correct"].values[:, 0]
    kappas = []
    for part in (right[:, 0], right[:, 1], right[:, :, 0], right[:, :, 1]):
        kappas.append(np.mean([fleiss_kappa(aggregate_raters(rows.T.astype(int))[0]) for rows in part]))
    assert found["value"].values[2] == pytest.approx(np.corrcoef(deltas, kappas)[0, 1])
    # By hand, justanswer: the engineer 4 of 4 and 3 of 4: P̄ = 3/4, P̄e = (7/8)² + (1/8)²; the human agrees.
    assert kappas[0] == pytest.approx((1 + (3 / 4 - 50 / 64) / (1 - 50 / 64)) / 2)


def test_outcome_forms(study: Study) -> None:
    found = outcome_forms(study)
    assert numbers(found["form"]) == [
        "weighted, normalised",
        "weighted, in ranks",
        "unweighted, normalised",
        "unweighted, in ranks",
        "normalisation alone",
    ]
    # Ranks 1 1 1.5 2 without weights: mean 11/8, squares 33/4 of 4: variance 33/16 − 121/64 = 11/64.
    plain = sqrt(11) / 8
    whole = found["absolute"].sel(level="all settings")
    assert numbers(whole) == pytest.approx([sqrt(0.24) * 5 / 32, sqrt(0.24), plain * 5 / 32, plain, 5 / 32])
    assert numbers(found["value"].sel(level="all settings")) == [0] * 5
    # τ 1: ranks 1 2, weights 1/8 1/4.
    hot = found["absolute"].sel(level="temperature 1")
    assert numbers(hot) == pytest.approx([sqrt(2) / 16, sqrt(2) / 3, 3 / 32, 1 / 2, 3 / 16])
    assert found["value"].sel(level="temperature 1").values[-1] == pytest.approx(1 - (3 / 16) / (5 / 32))


def test_question_subsets(study: Study) -> None:
    found = question_subsets(study, seeds=6)
    assert numbers(found["share"]) == ["all questions", "75% of the questions", "50% of the questions"]
    whole = [13 / 48, sqrt(0.24) * 5 / 32, 13 / 24]
    # 75 % of two questions is two.
    assert found["value"].values == pytest.approx(np.array([whole, whole, found["value"].values[2]]))
    assert (found["sd"].values[:2] < 1e-12).all()
    # Half: one of 1 and 2, with one of 3 and 4. I_A of the engineer is then, with question 1: 3/6 + pairs …
    # counts 2 2 1 1 or 2 1 1 1 (with 1), 2 2 1 0 or 2 1 1 0 (with 2), of 2 questions.
    by_hand = {(0, 2): [4, 3], (0, 3): [3, 0], (1, 2): [7, 3], (1, 3): [6, 0]}
    possible = {(a + b) / 6 / 2 / 2 for a, b in by_hand.values()}
    half = found.sel(metric="accuracy").isel(share=2)
    for name in ("low", "high"):
        assert any(half[name].item() == pytest.approx(v) for v in possible)
    assert half["low"] <= half["value"] <= half["high"]


def test_T7_a_question_subset_without_a_right_answer_counts_towards_no_mean() -> None:
    # One of two questions is ever right, in one of two settings: I_Q is 1, or undefined without it.
    right = np.zeros((1, 2, 2), dtype=bool)
    right[0, 0, 0] = True
    found = question_subsets(Study(make_dataset(right, {"ppf": ["a", "b"]}), draws=0), seeds=20)
    half = found.sel(metric="question").isel(share=2)
    assert (half["value"], half["low"], half["high"], half["sd"]) == (1, 1, 1, 0)
    # I_A is 1 with the question and 0 without it.
    assert (found["low"].values[2, 0], found["high"].values[2, 0]) == (0, 1)


def test_setting_subsets() -> None:
    # One persona and one question, right with explain-persona alone.
    grid = {"ppf": ["barebones", "identitynature"], "tpf": ["justanswer", "explain", "explain-persona"]}
    right = np.zeros((1, 2, 3, 1), dtype=bool)
    right[:, :, 2] = True
    found = setting_subsets(Study(make_dataset(right, grid), draws=0))
    assert numbers(found["subset"]) == ["all settings", "B (12 settings)"]
    # 2 of 6 settings are right: 8 of 15 pairs differ. In B 2 of 4: 4 of 6.
    assert numbers(found["value"].sel(metric="accuracy")) == pytest.approx([8 / 15, 2 / 3])
    assert numbers(found["relative"].sel(metric="accuracy")) == pytest.approx([0, -1 / 4])
    assert "youareknowledge" in found.attrs["note"]


def test_setting_subsets_say_what_they_lack(study: Study) -> None:
    with pytest.raises(NotAllowed, match="ppf identitynature"):
        setting_subsets(study)


def test_unparsed_and_incorrect(study: Study) -> None:
    found = incorrect_by_level(study)
    labels = ["all answers", "ppf barebones", "tpf justanswer", "tpf explain-persona"]
    assert numbers(found["level"]) == [*labels, "temperature 0", "temperature 1"]
    # Wrong: 13 of 32; 5 and 8 of 16; 6 and 7 of 16.
    assert numbers(found["value"]) == [40.625, 40.625, 31.25, 50, 37.5, 43.75]
    # No letter: 3 of 32, all where it explains; 1 and 2 of 16.
    assert numbers(unparsed_by_level(study)["value"]) == [9.375, 9.375, 0, 18.75, 6.25, 12.5]


def test_variance(study: Study) -> None:
    found = variance(study)
    # Right of 4, squared deviations of means: persona 5/2 9/4, tpf 11/4 2, temperature 5/2 9/4 around 19/8.
    # Interactions: (3.5 − 1.5 − 2 + 2.5)/4, (3 − 2 − 2 + 2.5)/4, (3 − 2.5 − 2 + 2)/4 in each of 8 runs.
    squares = [8 * d**2 for d in (1 / 8, 3 / 8, 1 / 8, 5 / 8, 3 / 8, 1 / 8)]
    total = 51 - 8 * (19 / 8) ** 2
    shares = dict(zip(found["term"].values.tolist(), found["value"].values, strict=True))
    assert list(shares) == [
        "persona",
        "tpf",
        "temperature",
        "persona × tpf",
        "persona × temperature",
        "tpf × temperature",
        "higher interactions",
    ]
    assert list(shares.values()) == pytest.approx([*(s / total for s in squares), 1 - sum(squares) / total])


def test_agreement(study: Study) -> None:
    found = agreement(study)
    assert numbers(found["part"]) == ["all questions", "History", "Math"]
    # Rank sums 5.5 and 6.5 around 6; three settings tell the two apart: W = .5 / (4 · 3 · .5).
    # History: ties but for the last, where the human is first: .5 / (4 · .5). Math: 1 1 1.5 2, as a whole.
    assert numbers(found["value"]) == pytest.approx([1 / 12, 1 / 4, 1 / 12])
    assert np.isnan(found["p"]).all()  # no permutations were asked for


def test_setting_differences(study: Study) -> None:
    found = setting_differences(study)
    names = ["justanswer · τ 0", "justanswer · τ 1", "explain-persona · τ 0", "explain-persona · τ 1"]
    assert numbers(found["setting"]) == numbers(found["other"]) == names
    right = np.array([6, 5, 4, 4]) / 8
    expected = right[:, None] - right
    off = ~np.eye(4, dtype=bool)
    assert found["value"].values == pytest.approx(expected)
    # τ 0 against τ 1 of justanswer: differences 0 0 0 1 of 2 personas: t = 1 with 3 degrees of freedom.
    p = 0.3910022
    assert found["p"].values[0, 1] == pytest.approx(min(1, 6 * p), abs=1e-6)
    assert (found["p"].values[off] == found["p"].values.T[off]).all()
    assert (found["low"].values[off] == -found["high"].values.T[off]).all()


def test_persona_differences(study: Study) -> None:
    found = persona_differences(study)
    assert numbers(found["value"]) == pytest.approx([10 / 16, 9 / 16])
    assert numbers(found["mean_rank"]) == [5.5 / 4, 6.5 / 4]
    assert numbers(found["best_in"]) == [3, 2]  # both, where they tie
    assert numbers(found["beats"]) == numbers(found["beaten_by"]) == [0, 0]
    assert "No persona is better" in found.attrs["note"]


def test_recommended_settings(study: Study) -> None:
    found = recommended_settings(study).sel(setting="justanswer · τ 1")
    assert found["value"].item() == 5 / 8
    # Neighbours: (justanswer, τ 0) and (explain-persona, τ 1), which differ by 1 0 and 2 1 of 4.
    assert found["accuracy_instability"].item() == pytest.approx((1 / 8 + 3 / 8) / 2)
    assert found["question_instability"].item() == pytest.approx((1 / 8 + 1 / 2) / 2)
    assert found["outcome_instability"].item() == pytest.approx((0 + sqrt(2) / 16) / 2)
    assert found["loss"].item() == pytest.approx(1 / 8)


def test_chance(dataset: xr.Dataset) -> None:
    found = by_chance(Study(dataset, draws=0, permutations=2000))
    parts = [
        "all settings",
        "tpf alone",
        "temperature alone",
        "History",
        "Math",
        ENGINEER,
        HUMAN,
        f"{ENGINEER} · EECS/Math",
    ]
    assert numbers(found["part"]) == parts
    assert found["value"].sel(metric="accuracy").values[:3] == pytest.approx([13 / 48, 5 / 16, 3 / 16])
    # The human: questions 1 and 2 are right throughout, 3 is right in one of four: any permutation has three
    # equal counts and one that is higher by 1, as the experiment has. So the floor is the value, and p is 1.
    human = found.sel(metric="accuracy", part=HUMAN)
    assert human["floor"].item() == pytest.approx(1 / 8)
    assert human["excess"].item() == pytest.approx(0)
    assert human["p"].item() == 1
    # The engineer: 1 is right in four, 2 in three, 3 in two, 4 in one setting.
    # tpf alone, all permutations: at τ 0 the differences of 3 and 4 are ±1 each: 2 0 0 2, mean 1; at τ 1
    # those of 2 and 3: mean 1. The human's: 0, and 1. So the floor is (1 + 1 + 0 + 1) / 4 of 4.
    tpf = found.sel(metric="accuracy", part="tpf alone")
    assert tpf["floor"].item() == pytest.approx(3 / 16, abs=0.01)
    # As high as observed (2 + 2 + 0 + 1) in 1 of 4 permutations.
    assert tpf["p"].item() == pytest.approx(1 / 4, abs=0.03)
    # I_Q if the settings were independent. The engineer: 1 − (1 · ¾ · ½ · ¼) / (1 − 0); the human:
    # 1 − (½ · ½ · ½ · ¾) / (1 − ½ · ½ · ½ · ¼).
    independent = (1 - 3 / 32 + 1 - (3 / 32) / (31 / 32)) / 2
    question = found.sel(metric="question", part="all settings")
    assert question["independent"].item() == pytest.approx(independent)
    assert question["share"].item() == pytest.approx(13 / 24 / independent)
    assert np.isnan(found["floor"].sel(metric="question")).all()
