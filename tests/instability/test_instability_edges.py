"""Undefined values, ties, degenerate sizes and bad input."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from instability_brute import FACTORS, grid
from statsmodels.stats.weightstats import DescrStatsW

from persona_mlflow.errors import UserError
from persona_mlflow.instability import (
    accuracy_instability,
    outcome_instability,
    question_instability,
    summary_metrics,
)
from persona_mlflow.instability.outcome import weighted_std

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

METRICS = (accuracy_instability, outcome_instability, question_instability)


def sized(personas: int, settings: int, questions: int, seed: int = 0) -> xr.DataArray:
    return grid(np.random.default_rng(seed).random((personas, settings, questions)) < 0.5, "setting")


def test_T4_weights_all_zero_give_zero_where_statsmodels_gives_nan():
    # Both personas have 1 of 2 right everywhere, on different questions.
    correct = grid([[[1, 0], [0, 1], [1, 0]], [[0, 1], [0, 1], [1, 0]]], "setting")
    result = outcome_instability(correct)
    assert result.weights.values.tolist() == [0, 0, 0]
    with np.errstate(invalid="ignore"):
        assert np.isnan(DescrStatsW(result.ranks.values[0], weights=result.weights.values).std)
    assert (result.value, result.raw, result.normaliser, result.reason) == (0, 0, 0, None)
    assert result.per_persona.values.tolist() == [0, 0]


def test_T4_kept_level_with_zero_weights_does_not_touch_its_neighbour():
    swap = [[[1, 1], [0, 0]], [[0, 0], [1, 1]]]
    tie = [[[1, 0], [1, 0]], [[0, 1], [0, 1]]]
    correct = grid(np.stack([swap, tie], axis=1), "ppf", "tpf")
    # swap: w = .5 and .5, ranks 1, 2 and 2, 1: sd .5, times .5
    assert outcome_instability(correct, over="tpf").value.values.tolist() == [0.25, 0]


@pytest.mark.parametrize("ties", ["average", "ordinal"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_T5_personas_that_all_tie_give_exactly_zero(ties, weighted, right):
    # 7 personas, 11 settings, 3 questions: thirds and sevenths are where rounding would show.
    correct = grid(np.zeros((7, 11, 3)), "setting") | right
    correct[:, :, 0] = True
    result = outcome_instability(correct, ties=ties, weighted=weighted, normalized=False)
    assert result.value == 0
    assert set(result.ranks.values.ravel()) == ({4.0} if ties == "average" else set(range(1, 8)))


def test_T5_ties_are_exact_on_counts():
    # Every persona has 7 of 10 right, each on questions of its own.
    rng = np.random.default_rng(1)
    row = np.arange(10) < 7
    correct = grid([[rng.permutation(row) for _ in range(6)] for _ in range(5)], "setting")
    assert outcome_instability(correct, normalized=False).value == 0
    assert accuracy_instability(correct).value == 0
    assert question_instability(correct).value > 0


def test_equal_ranks_give_exactly_zero_under_any_weights():
    weights = np.random.default_rng(2).random((50, 9))
    ranks = np.full((50, 9), 10.5)
    assert not weighted_std(ranks, weights).any()
    # ... also where a value without weight differs
    weights[:, 0] = 0
    ranks[:, 0] = 1
    assert not weighted_std(ranks, weights).any()


def test_T7_persona_never_right_is_left_out_of_question_instability_and_counted():
    correct = grid([[[1, 1, 0], [1, 0, 0]], [[0, 0, 0], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]], "setting")
    result = question_instability(correct)
    # 1 − mean(1/2, 1): the one that is never right counts neither as stable nor as unstable
    assert result.value == pytest.approx(0.25)
    assert result.reason is None
    assert result.left_out_count == 1
    assert result.left_out_personas == ("persona1",)
    assert result.per_persona.values == pytest.approx([0.5, np.nan, 0], nan_ok=True)
    assert summary_metrics(correct)["left_out"] == ["persona1"]


def test_T7_persona_always_right_has_no_instability():
    correct = sized(3, 4, 6)
    correct[1] = True
    assert accuracy_instability(correct).per_persona.values[1] == 0
    assert question_instability(correct).per_persona.values[1] == 0
    ranks = outcome_instability(correct).ranks
    assert np.isfinite(ranks.values).all()
    assert ranks.values[1].tolist() == [1, 1, 1, 1]


def test_T7_left_out_at_one_kept_level_only():
    correct = grid(np.ones((2, 2, 3, 2)), "ppf", "tpf")
    correct.loc["persona1", "ppf0"] = False
    result = question_instability(correct, over="tpf")
    assert result.value.values.tolist() == [0, 0]
    assert (result.left_out_count, result.left_out_personas) == (1, ("persona1",))
    correct.loc["persona0", "ppf0"] = False
    result = question_instability(correct, over="tpf")
    assert result.value.values == pytest.approx([np.nan, 0], nan_ok=True)
    assert list(result.reasons) == [("ppf0",)]
    assert "union is empty" in result.reasons["ppf0",]
    assert "1 of 2" in result.reason
    assert result.average == 0


def test_nobody_ever_right_is_undefined_with_reason():
    correct = sized(3, 4, 5) & False
    result = question_instability(correct)
    assert result.value is None
    assert "union is empty" in result.reason
    assert result.left_out_personas == ("persona0", "persona1", "persona2")
    across = question_instability(correct, over="persona")
    assert across.average is None
    assert "in any persona" in across.reasons["setting0",]
    assert across.left_out_personas == ()
    summary = summary_metrics(correct)
    assert summary["metrics"] == {
        "accuracy/mean": 0,
        "accuracy/std": 0,
        "instability/accuracy": 0,
        "instability/outcome": 0,
        "instability/question": None,
    }
    assert list(summary["reasons"]) == ["instability/question"]


@pytest.mark.parametrize("questions", [0, 1, 2])
@pytest.mark.parametrize("settings", [0, 1, 2])
@pytest.mark.parametrize("personas", [0, 1, 2])
def test_T9_sizes_of_zero_one_and_two(personas, settings, questions):
    correct = sized(personas, settings, questions) | True
    why = (
        "no questions" if questions == 0
        else "no personas" if personas == 0
        else "no settings" if settings == 0
        else "one setting gives no pairs" if settings == 1
        else None
    )  # fmt: skip
    for metric in METRICS:
        result = metric(correct)
        assert result.per_persona.dims == ("persona",)
        if why:
            assert result.value is None
            assert result.average is None
            assert why in result.reason
            assert np.isnan(result.per_persona.values).all()
        else:
            assert result.value == 0
            assert result.reason is None
    summary = summary_metrics(correct)
    assert (summary["metrics"]["accuracy/mean"] is None) == (personas * settings * questions == 0)
    assert all(value is None or np.isfinite(value) for value in summary["metrics"].values())
    assert set(summary["reasons"]) == {k for k, v in summary["metrics"].items() if v is None}


def test_T9_one_persona_is_compared_across_settings_but_has_no_rank_to_lose():
    correct = grid([[[1, 1], [0, 1]]], "setting")
    assert accuracy_instability(correct).value == 0.5
    assert question_instability(correct).value == 0.5
    assert outcome_instability(correct).value == 0
    with pytest.raises(UserError):
        outcome_instability(correct, over="persona")
    across = accuracy_instability(correct, over="persona")
    assert "one persona" in across.reason
    assert set(across.reasons) == {("setting0",), ("setting1",)}
    assert across.average is None


def test_T9_undefined_with_kept_dims_is_nan_with_a_reason_for_each_entry():
    correct = grid(np.ones((2, 3, 1, 2)), "ppf", "tpf")
    for metric in METRICS:
        result = metric(correct, over="tpf")
        assert result.value.dims == ("ppf",)
        assert np.isnan(result.value.values).all()
        assert set(result.reasons) == {("ppf0",), ("ppf1",), ("ppf2",)}
        assert result.average is None
    assert outcome_instability(correct, over="tpf").normaliser.dims == ("ppf",)


def test_empty_kept_dim_is_undefined():
    correct = grid(np.ones((2, 0, 3, 2)), "ppf", "tpf")
    for metric in METRICS:
        result = metric(correct, over="tpf")
        assert result.value.shape == (0,)
        assert "'ppf' is empty" in result.reason


def test_no_factor_at_all_is_one_setting():
    correct = grid(np.ones((2, 3)))
    for metric in METRICS:
        assert "one setting" in metric(correct).reason
        assert "one setting" in metric(grid(np.ones((2, 2, 3)), "tpf"), over=[]).reason


def test_coordinates_along_persona_and_kept_dims_survive():
    correct = grid(np.random.default_rng(3).random((3, 2, 4, 5)) < 0.5, "ppf", "tpf").assign_coords(
        group=("persona", ["a", "a", "b"]),
        abstract=("ppf", [0, 1]),
        category=("question", list("vwxyz")),
        model="m",
    )
    result = outcome_instability(correct, over="tpf")
    assert set(result.value.coords) == {"ppf", "abstract", "model"}
    assert set(result.per_persona.coords) == {"persona", "group", "ppf", "abstract", "model"}
    assert set(result.ranks.dims) == {"persona", "ppf", "tpf"}


def test_grid_without_labels_and_grid_with_a_stacked_setting():
    bare = xr.DataArray(np.eye(4, dtype=bool).reshape(2, 2, 4), dims=("persona", "setting", "question"))
    assert accuracy_instability(bare).value == 0
    correct = grid(np.random.default_rng(4).random((3, 2, 4, 5)) < 0.5, "ppf", "tpf")
    stacked = correct.stack(setting=["ppf", "tpf"])
    for metric in METRICS:
        assert metric(stacked).value == pytest.approx(metric(correct).value)
    across = accuracy_instability(stacked, over="persona").value
    assert isinstance(across.get_index("setting"), pd.MultiIndex)


def test_input_is_not_changed():
    correct = sized(3, 4, 5)
    before = correct.copy(deep=True)
    for metric in METRICS:
        metric(correct)
    xr.testing.assert_identical(correct, before)


@pytest.mark.parametrize("metric", [*METRICS, summary_metrics])
@pytest.mark.parametrize(
    ("change", "over", "words"),
    [
        (lambda c: c.rename(persona="who"), None, ["no dim 'persona'", "who, setting, question"]),
        (lambda c: c.isel(question=0), None, ["no dim 'question'"]),
        (lambda c: c.astype(int), None, ["boolean", "int64", "astype(bool)"]),
        (lambda c: c.astype(float), None, ["boolean", "float64"]),
        (lambda c: c.astype(object), None, ["boolean", "object"]),
        (lambda c: c.values, None, ["xarray.DataArray", "ndarray"]),
        (lambda c: c.to_dataset(name="correct"), None, ["Dataset", '["correct"]']),
        (lambda c: c, "seting", ["'seting'", "did you mean 'setting'?"]),
        (lambda c: c, ["setting", "tau"], ["'tau'", "choose from persona, setting"]),
        (lambda c: c, "question", ["'question'", "choose from persona, setting"]),
        (lambda c: c, ["setting", "question"], ["'question'"]),
        (lambda c: c, 3, ["over", "3"]),
        (lambda c: c, ["setting", 3], ["over", "3"]),
    ],
)
def test_bad_input_is_refused(metric, change, over, words):
    with pytest.raises(UserError) as error:
        metric(change(sized(2, 3, 4)), over)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("over", ["persona", ["setting", "persona"]])
def test_outcome_across_personas_is_refused(over):
    with pytest.raises(UserError, match=r"not defined across them.*choose from setting"):
        outcome_instability(sized(2, 3, 4), over=over)


def test_unknown_ties_is_refused():
    with pytest.raises(UserError, match="did you mean 'ordinal'"):
        outcome_instability(sized(2, 3, 4), ties="ordinals")


def test_paper_scale_takes_less_memory_than_the_array_itself():
    # P1's grid for one model: 41 personas × 48 settings × 5,008 questions, 9.9 million answers.
    values = np.random.default_rng(5).integers(0, 2, (41, 4, 4, 3, 5008), dtype=np.uint8).view(bool)
    correct = xr.DataArray(values, dims=("persona", *FACTORS, "question"))
    summary = summary_metrics(correct)
    assert summary["metrics"]["accuracy/mean"] == values.mean()
    tracemalloc.start()
    summary_metrics(correct)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes / 2
