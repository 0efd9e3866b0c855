"""Recommended settings against the public metrics on pairs of settings, and planted levels."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from instability_brute import FACTORS, grid, grids
from scipy import stats
from test_pairwise import each_setting, holm

from persona_mlflow.analyses.study import NotAllowed
from persona_mlflow.errors import UserError
from persona_mlflow.instability import accuracy_instability, outcome_instability, question_instability
from persona_mlflow.instability.recommend import METRICS, recommend_settings

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _little_garbage():
    """statsmodels collects garbage in each correction; what is already there need not be searched again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


PUBLIC = (accuracy_instability, outcome_instability, question_instability)


def local(correct, place: dict) -> list[float | None]:
    """Mean of each public metric over the two-setting grids of a setting and each of its neighbours."""
    means = []
    for metric in PUBLIC:
        values = []
        for factor, level in place.items():
            rest = {f: i for f, i in place.items() if f != factor}
            for other in range(correct.sizes[factor]):
                if other != level:
                    values.append(metric(correct.isel(rest).isel({factor: [level, other]})).value)
        defined = [v for v in values if v is not None]
        means.append(sum(defined) / len(defined) if defined else None)
    return means


@settings(max_examples=40, deadline=None)
@given(grids())
def test_agrees_with_the_public_metrics_and_scipy(correct):
    cells = dict(each_setting(correct))
    n, personas = correct.sizes["question"], correct.sizes["persona"]
    if len(cells) < 2 or n < 2:
        with pytest.raises(NotAllowed):
            recommend_settings(correct)
        return
    alpha = 0.3
    result = recommend_settings(correct, alpha)
    assert result["setting"].values.tolist() == list(cells)
    for i in range(len(cells)):
        row = result.isel(setting=i)
        place = {f: correct[f].values.tolist().index(row[f].item()) for f in FACTORS}
        expected = local(correct, place)
        mine = [row[name].item() for name in METRICS]
        assert mine == pytest.approx([np.nan if v is None else v for v in expected], nan_ok=True, abs=1e-12)
        assert (row["reason"].item() != "") == (None in expected)

    right = {label: cell.sum(axis=0) for label, cell in cells.items()}
    accuracy = {label: x.sum() / (n * personas) for label, x in right.items()}
    best = max(cells, key=lambda label: right[label].sum())
    p = {}
    for label in cells:
        d = right[best] - right[label]
        if label == best:
            continue
        if len(set(d.tolist())) == 1:
            p[label] = 1.0 if d[0] == 0 else 0.5**n
        else:
            p[label] = stats.ttest_rel(right[best], right[label], alternative="greater").pvalue
    p_loss = {best: 1.0, **holm(p)}
    assert result.attrs["most_accurate"] == best
    assert result["accuracy"].values == pytest.approx([accuracy[label] for label in cells])
    assert result["loss"].values == pytest.approx([accuracy[best] - accuracy[label] for label in cells])
    assert result["p_loss"].values == pytest.approx([p_loss[label] for label in cells])
    assert result["no_loss"].values.tolist() == [p_loss[label] > alpha for label in cells]

    rows = [
        [np.inf if np.isnan(v) else round(v, 9) for v in (result[name].values[i] for name in METRICS)]
        for i in range(len(cells))
    ]
    ranks = [stats.rankdata([row[m] for row in rows]) for m in range(3)]
    score = [sum(rank[i] for rank in ranks) / 3 for i in range(len(cells))]
    assert result["score"].values == pytest.approx(score)
    kept = [i for i, label in enumerate(cells) if p_loss[label] > alpha]
    free = {
        i
        for i in kept
        if not any(
            rows[j] != rows[i] and all(a <= b for a, b in zip(rows[j], rows[i], strict=True)) for j in kept
        )
    }
    assert set(np.flatnonzero(result["recommended"].values)) == free
    lowest = min(kept, key=lambda i: (round(score[i], 9), -right[list(cells)[i]].sum(), i))
    assert result.attrs["best"] == list(cells)[lowest]
    assert lowest in free


def noisy_grid(seed: int):
    """Accuracy is alike everywhere; at ppf2 each answer is drawn anew, elsewhere nine in ten are shared."""
    rng = np.random.default_rng(seed)
    chance = rng.random(400) * 0.6 + 0.2
    shared = np.broadcast_to((rng.random((4, 1, 1, 1, 400)) < chance), (4, 3, 2, 2, 400))
    fresh = rng.random(shared.shape) < chance
    anew = rng.random(shared.shape) < np.where(np.arange(3) == 2, 1.0, 0.1)[:, None, None, None]
    return grid(np.where(anew, fresh, shared), *FACTORS)


@pytest.mark.parametrize("seed", range(8))
def test_a_planted_noisy_level_is_never_recommended(seed):
    result = recommend_settings(noisy_grid(seed))
    noisy = result["ppf"] == "ppf2"
    assert not result["recommended"].where(noisy, False).any()
    assert not result.attrs["best"].startswith("ppf2")
    assert result["score"].values[noisy].min() > result["score"].values[~noisy].max()
    assert result["no_loss"].values[noisy].any(), "the noise, not a loss, must be what keeps it out"


def test_a_stable_level_that_loses_accuracy_is_not_recommended():
    rng = np.random.default_rng(1)
    right = rng.random((3, 2, 3, 200)) < 0.7
    right[:, 1] = False
    right[:, 1, :, :20] = True
    result = recommend_settings(grid(right, "ppf", "tpf"))
    at = result["ppf"] == "ppf1"
    assert result["score"].values[at].max() < result["score"].values[~at].min()
    assert not result["no_loss"].values[at].any()
    assert not result["recommended"].values[at].any()
    assert result["recommended"].any()


def test_by_hand():
    # One persona. a and b: 2 of 4 right each, one shared of three; a and c: 2 and 3, two shared of three.
    result = recommend_settings(grid([[[1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 0, 1]]], "tpf"))
    assert result["accuracy"].values.tolist() == [0.5, 0.5, 0.75]
    assert result["accuracy_instability"].values == pytest.approx([(0 + 0.25) / 2, (0 + 0.25) / 2, 0.25])
    assert result["outcome_instability"].values.tolist() == [0, 0, 0]
    # b and c share one of four.
    assert result["question_instability"].values == pytest.approx(
        [(2 / 3 + 1 / 3) / 2, (2 / 3 + 3 / 4) / 2, (1 / 3 + 3 / 4) / 2]
    )
    assert result["recommended"].values.tolist() == [True, False, False]
    assert result.attrs["best"] == "tpf0"
    assert result.attrs["most_accurate"] == "tpf2"


@pytest.mark.parametrize("value", [False, True])
def test_T9_all_answers_alike_recommend_every_setting(value):
    result = recommend_settings(grid(np.full((2, 2, 2, 3), value), "ppf", "tpf"))
    assert result["recommended"].values.all()
    assert result["p_loss"].values.tolist() == [1] * 4
    assert np.isnan(result["question_instability"].values).all() == (not value)
    assert (result["reason"].values != "").all() == (not value)


def test_grids_that_do_not_allow_it():
    correct = grid(np.ones((2, 2, 3)), "tpf")
    with pytest.raises(NotAllowed, match="1 setting: recommending settings needs at least 2"):
        recommend_settings(correct.isel(tpf=[0]))
    with pytest.raises(NotAllowed, match="no personas"):
        recommend_settings(correct.isel(persona=[]))
    with pytest.raises(NotAllowed, match="1 question"):
        recommend_settings(correct.isel(question=[0]))
    with pytest.raises(UserError, match="alpha"):
        recommend_settings(correct, alpha=0)
