"""One grid small enough to work through on paper: two personas, three settings, four questions."""

import math

import pytest
from instability_brute import grid

from persona_mlflow.instability import (
    accuracy_instability,
    outcome_instability,
    question_instability,
    summary_metrics,
)

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

#            setting 0     setting 1     setting 2
HAND = grid(
    [
        [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]],  # 3, 2, 1 of 4 right
        [[1, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]],  # 1, 2, 4 of 4 right
    ],
    "setting",
)


def test_accuracy_by_hand():
    result = accuracy_instability(HAND, over="setting")
    # persona 0: (|3−2| + |3−1| + |2−1|) / 3 pairs / 4 questions = 4/12
    # persona 1: (|1−2| + |1−4| + |2−4|) / 3 / 4 = 6/12
    assert result.per_persona.values == pytest.approx([1 / 3, 1 / 2])
    assert result.value == pytest.approx(5 / 12)
    assert isinstance(result.value, float)
    assert result.reason is None
    assert result.over == ("setting",)


def test_outcome_by_hand():
    result = outcome_instability(HAND)
    # w: sd(.75, .25) = .25; sd(.5, .5) = 0; sd(.25, 1) = .375. Sum .625, mean .625/3
    # ranks of persona 0: 1, 1.5, 2; weighted mean (.25·1 + .375·2)/.625 = 1.6;
    # variance (.25·.6² + .375·.4²)/.625 = .24. Persona 1 mirrors it: mean 1.4, variance .24
    assert result.weights.values == pytest.approx([0.25, 0, 0.375])
    assert result.ranks.values.tolist() == [[1, 1.5, 2], [2, 1.5, 1]]
    assert result.per_persona.values == pytest.approx([math.sqrt(0.24)] * 2)
    assert result.raw == pytest.approx(math.sqrt(0.24))
    assert result.normaliser == pytest.approx(0.625 / 3)
    assert result.value == pytest.approx(math.sqrt(0.24) * 0.625 / 3)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"weighted": False, "normalized": False}, math.sqrt(1 / 6)),  # sd(1, 1.5, 2)
        ({"weighted": False}, math.sqrt(1 / 6) * 0.625 / 3),
        ({"normalized": False}, math.sqrt(0.24)),
        # catalogue order breaks the tie of setting 1: ranks 1, 1, 2 and 2, 2, 1, sd sqrt(2/9)
        ({"ties": "ordinal", "weighted": False, "normalized": False}, math.sqrt(2 / 9)),
        # the tied setting has no weight, so its ranks do not matter
        ({"ties": "ordinal"}, math.sqrt(0.24) * 0.625 / 3),
    ],
)
def test_forms_of_outcome_by_hand(options, value):
    assert outcome_instability(HAND, **options).value == pytest.approx(value)


def test_question_by_hand():
    result = question_instability(HAND)
    # persona 0: ∩ = {0}, ∪ = {0, 1, 2}: 1/3. Persona 1: {0} ∩ {2, 3} = ∅: 0/4. 1 − mean = 5/6
    assert result.per_persona.values == pytest.approx([2 / 3, 1])
    assert result.value == pytest.approx(5 / 6)
    assert result.left_out_count == 0


def test_persona_as_the_varied_factor_by_hand():
    # per setting: |3−1|/4, |2−2|/4, |1−4|/4
    accuracy = accuracy_instability(HAND, over="persona")
    assert accuracy.value.dims == ("setting",)
    assert accuracy.value.values == pytest.approx([0.5, 0, 0.75])
    assert accuracy.average == pytest.approx(5 / 12)
    assert accuracy.per_persona.equals(accuracy.value)
    # per setting: {0} of {0, 1, 2}; ∅ of all four; {0} of all four
    question = question_instability(HAND, over="persona")
    assert question.value.values == pytest.approx([2 / 3, 1, 3 / 4])
    assert question.average == pytest.approx(29 / 36)


def test_persona_and_settings_varied_together_by_hand():
    # counts 3, 2, 1, 1, 2, 4: Σ|x − y| over the 15 pairs = 1+2+2+1+1 + 1+1+0+2 + 0+1+3 + 1+3 + 2 = 21
    result = accuracy_instability(HAND, over=["setting", "persona"])
    assert result.value == pytest.approx(21 / 15 / 4)
    assert result.per_persona.dims == ()
    # nothing is right in all six cells, everything in one
    assert question_instability(HAND, over=["setting", "persona"]).value == 1


def test_summary_by_hand():
    # counts 3, 2, 1, 1, 2, 4: mean 13/6, mean of squares 35/6, variance 35/6 − 169/36 = 41/36
    summary = summary_metrics(HAND)
    assert summary["metrics"] == pytest.approx(
        {
            "accuracy/mean": 13 / 24,
            "accuracy/std": math.sqrt(41 / 36) / 4,
            "instability/accuracy": 5 / 12,
            "instability/outcome": math.sqrt(0.24) * 0.625 / 3,
            "instability/question": 5 / 6,
        }
    )
    assert summary["reasons"] == {}
    assert summary["left_out"] == []


def test_summary_across_personas_by_hand():
    summary = summary_metrics(HAND, over="persona")
    assert summary["metrics"]["instability/accuracy"] == pytest.approx(5 / 12)
    assert summary["metrics"]["instability/question"] == pytest.approx(29 / 36)
    assert summary["metrics"]["instability/outcome"] is None
    assert list(summary["reasons"]) == ["instability/outcome"]
