"""P2's analyses against plain loops from its equations, scikit-learn, and hand-counted cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from persona_mlflow.analyses.entry import Finding
from persona_mlflow.errors import UserError
from persona_mlflow.prism.analyses import Collection, method_metrics, run_analyses
from persona_mlflow.prism.analyses.catalogue import CATALOGUE
from persona_mlflow.prism.dimensions import DIMENSIONS
from persona_mlflow.prism.ranking import METRICS, NOT_COMPARABLE, group_draws, ranking_metrics
from persona_mlflow.prism.ranking_comparison import compare_methods
from persona_mlflow.prism.results import MethodRun

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
quick = settings(max_examples=40, deadline=None)

DRAWS = 25
ALPHA = 0.05


# ------------------------------------------------------------------------------------ synthetic method runs


def examples(groups: int = 6, negatives: Sequence[str] = ("opposite level",)) -> pd.DataFrame:
    """The examples of a benchmark: a positive and some negatives in each group, of four profiles."""
    profiles = ("high openness", "low openness", "low neuroticism", "high neuroticism")
    rows = []
    for g in range(groups):
        rows.append((f"{g}+", f"g{g}", True, "positive", profiles[g % 4]))
        rows += [
            (f"{g}-{k}", f"g{g}", False, kind, profiles[(g + k + 1) % 4]) for k, kind in enumerate(negatives)
        ]
    return pd.DataFrame(rows, columns=["id", "group", "positive", "kind", "profile"])


def scored(
    base: pd.DataFrame, seed: int, seeds: Sequence[int] = (0,), levels: int | None = 5, missing: float = 0.0
) -> pd.DataFrame:
    """Random scores of each seed, leaning to the positives; a rating of so many levels, or continuous."""
    rng = np.random.default_rng(seed)
    parts = []
    for s in seeds:
        score = np.clip(rng.random(len(base)) * 0.8 + 0.2 * base["positive"], 0, 1)
        score = score if levels is None else np.round(score * (levels - 1)) / (levels - 1)
        gone = rng.random(len(base)) < missing
        reason = np.where(gone, rng.choice(["no_rating", "off_scale"], len(base)), "")
        parts.append(base.assign(score=np.where(gone, np.nan, score), reason=reason, seed=s))
    return pd.concat(parts).sort_values(["id", "seed"], kind="stable").reset_index(drop=True)


def prism(base: pd.DataFrame, seed: int, evaluator: str = "m", **changes: Any) -> MethodRun:
    """A run of PRISM with its dimensions."""
    frame = scored(base, seed, levels=None)
    rng = np.random.default_rng(seed)
    for dimension in DIMENSIONS:
        frame[dimension] = np.clip(rng.random(len(frame)) * 0.8 + 0.2 * frame["positive"], 0, 1)
    frame["score"] = frame[list(DIMENSIONS)].mean(axis=1)
    return MethodRun("big5-easy", "f1", evaluator, "prism", frame, layout="labels-last", **changes)


def judge(
    base: pd.DataFrame, seed: int, method: str = "vanilla", evaluator: str = "m", **changes: Any
) -> MethodRun:
    """A run of a direct judge, greedy or, with a temperature, over three seeds."""
    points = changes.setdefault("points", 5)
    seeds = (0, 1, 2) if changes.get("temperature") else (0,)
    missing = changes.pop("missing", 0.0)
    frame = scored(base, seed, seeds, points, missing)
    return MethodRun("big5-easy", "f1", evaluator, method, frame, **changes)


def full() -> list[MethodRun]:
    """Every kind of method run, with two evaluators, on one benchmark."""
    base = examples(8, ("opposite level", "other trait"))
    runs = []
    for i, evaluator in enumerate(("m", "n")):
        order = {"cases": 4, "spread": 0.25, "deviation": 0.1, "flips": 0.5, "letters": {"A": 0.5, "B": 0.3}}
        runs.append(prism(base, i, evaluator, facts={"label_mass": 0.9, "order_sensitivity": order}))
        for points in (5, 7):
            for temperature in (0.0, 0.5, 1.0):
                seed = 100 * i + 10 * points + int(2 * temperature)
                runs.append(
                    judge(
                        base, seed, evaluator=evaluator, points=points, temperature=temperature, missing=0.1
                    )
                )
    pandalm = MethodRun("big5-easy", "f1", "PandaLM", "pandalm", scored(base, 7, levels=3), comparable=False)
    return [*runs, pandalm]


def found(runs: Sequence[MethodRun], key: str, draws: int = DRAWS, seed: int = 0) -> Finding:
    (analysis,) = [item for item in CATALOGUE if item.entry.key == key]
    return analysis.run(Collection(runs, draws=draws, seed=seed, alpha=ALPHA))


def data_of(runs: Sequence[MethodRun], key: str, draws: int = DRAWS) -> Any:
    finding = found(runs, key, draws)
    assert finding.data is not None, finding.reasons
    return finding.data


# ---------------------------------------------------------------------------------------------- brute force


def brute(rows: Sequence[tuple[Any, bool, float]]) -> list[float]:
    """P2 eq. 4–7 by loops over (group, positive, score); NaN where there is nothing to compare."""
    rows = [row for row in rows if not math.isnan(row[2])]

    def share(pairs: list[tuple[float, float]]) -> float:
        wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
        return sum(wins) / len(wins) if wins else math.nan

    everywhere = [(a, b) for _, p, a in rows for _, q, b in rows if p and not q]
    within = [(a, b) for g, p, a in rows for h, q, b in rows if p and not q and g == h]
    right = []
    for group in {row[0] for row in rows}:
        good = [s for g, p, s in rows if g == group and p]
        bad = [s for g, p, s in rows if g == group and not p]
        if good and bad:
            right.append(all(a > b for a in good for b in bad))
    return [share(everywhere), share(within), sum(right) / len(right) if right else math.nan]


def brute_frame(frame: pd.DataFrame, column: str = "score") -> list[float]:
    return brute(list(zip(frame["group"], frame["positive"], frame[column], strict=True)))


def brute_run(run: MethodRun, column: str = "score") -> np.ndarray:
    """Mean over seeds of each seed's metrics."""
    return np.mean([brute_frame(run.of_seed(seed), column) for seed in run.seeds], axis=0)


def brute_draws(run: MethodRun, column: str = "score", seed: int = 0) -> np.ndarray:
    """The same in each bootstrap draw: drawn groups written out, each copy under a name of its own."""
    first = run.of_seed(run.seeds[0])
    names = list(dict.fromkeys(first["group"]))
    out = []
    for counts in group_draws(len(names), DRAWS, seed):
        of_seeds = []
        for s in run.seeds:
            frame = run.of_seed(s)
            rows = []
            for name, count in zip(names, counts, strict=True):
                part = frame[frame["group"] == name]
                for copy in range(count):
                    rows += [
                        ((name, copy), p, v) for p, v in zip(part["positive"], part[column], strict=True)
                    ]
            of_seeds.append(brute(rows))
        out.append(np.mean(of_seeds, axis=0))
    return np.array(out)


def bounds(draws: np.ndarray) -> np.ndarray:
    """The percentile interval of each metric, shaped (2, metric)."""
    return np.nanquantile(draws, [ALPHA / 2, 1 - ALPHA / 2], axis=0)


# ------------------------------------------------------------------------------------------- method_metrics


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """Up to six groups of random sizes and sides, with ties and missing scores."""
    values = [0.0, 0.25, 0.5, 0.75, 1.0, math.nan]
    row = st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from(values))
    rows = draw(st.lists(row, min_size=1, max_size=20))
    frame = pd.DataFrame(rows, columns=["group", "positive", "score"])
    return frame.assign(id=[str(i) for i in range(len(frame))], kind="x", profile="y", reason="", seed=0)


@quick
@given(frames(), st.booleans())
def test_with_one_seed_the_metrics_are_those_of_ranking_metrics(
    table: pd.DataFrame, comparable: bool
) -> None:
    run = MethodRun("b", "f", "m", "vanilla", table, comparable=comparable)
    got = method_metrics(run, draws=DRAWS, seed=3)
    expected = ranking_metrics(table, draws=DRAWS, seed=3, comparable=comparable)
    for name in METRICS:
        assert got[name] == expected[name]
    assert got.intervals == expected.intervals
    assert got.reasons == expected.reasons
    assert (got.examples, got.groups, got.unscored) == (
        expected.examples,
        expected.groups,
        expected.unscored,
    )
    assert set(got.sd.values()) == {None}
    assert "nan" not in str(got.as_dict()).lower()


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.15]))
def test_several_seeds_are_averaged_and_share_the_drawn_groups(seed: int, missing: float) -> None:
    run = judge(examples(6, ("a", "b")), seed, temperature=0.5, missing=missing)
    got = method_metrics(run, draws=DRAWS, seed=seed)
    assert [got[name] for name in METRICS] == pytest.approx(list(brute_run(run)), abs=1e-12)
    low, high = bounds(brute_draws(run, seed=seed))
    by_seed = [brute_frame(run.of_seed(s)) for s in run.seeds]
    for i, name in enumerate(METRICS):
        assert got.intervals[name] == pytest.approx((low[i], high[i]), abs=1e-12)
        assert got.by_seed[name] == pytest.approx([values[i] for values in by_seed], abs=1e-12)
        assert got.sd[name] == pytest.approx(statistics.stdev(v[i] for v in by_seed), abs=1e-12)
    assert got.unscored_share == pytest.approx(run.frame["score"].isna().mean())


def test_the_metrics_of_two_seeds_by_hand() -> None:
    base = examples(2)  # 0+, 0-0, 1+, 1-0
    frame = pd.concat(
        [
            base.assign(score=[1.0, 0.0, 0.5, 0.5], seed=0),
            base.assign(score=[0.0, 1.0, math.nan, 0.5], seed=1),
        ]
    ).assign(reason="")
    got = method_metrics(MethodRun("b", "f", "m", "cot", frame, points=5, temperature=1.0), draws=0)
    # Seed 0: 1 beats 0 and 0.5, 0.5 beats 0 and ties 0.5; a group is right, one is tied. Seed 1: all lost.
    assert (got.auc, got.pair_auc, got.group_accuracy) == (3.5 / 4 / 2, 1.5 / 2 / 2, 0.25)
    assert got.sd["group_accuracy"] == pytest.approx(math.sqrt(0.125))
    assert (got.examples, got.groups, got.unscored, got.unscored_share) == (4, 2, 1, 1 / 8)
    assert got.reasons["auc"] == "no interval: there are no bootstrap draws"


def test_T3_a_seed_of_one_class_makes_the_mean_undefined_and_says_why() -> None:
    run = judge(examples(4), 0, temperature=0.5)
    hurt = run.frame.assign(score=run.frame["score"].where((run.frame["seed"] != 1) | ~run.frame["positive"]))
    got = method_metrics(replace(run, frame=hurt), draws=DRAWS)
    assert (got.auc, got.pair_auc, got.group_accuracy) == (None, None, None)
    assert got.reasons["auc"] == "in 1 of 3 seeds: no scored positive"
    assert set(got.intervals.values()) == {None}
    assert got.by_seed["auc"][1] is None
    assert got.by_seed["auc"][0] is not None


def test_T3_nothing_scored_gives_none_with_a_reason_in_every_analysis() -> None:
    base = examples(5)
    runs = [
        replace(judge(base, 0), frame=scored(base, 0).assign(score=math.nan, reason="no_rating")),
        replace(prism(base, 1), frame=prism(base, 1).frame.assign(score=math.nan)),
        judge(base, 3, points=7),
        judge(base, 4, temperature=0.5),
    ]
    for finding in run_analyses(Collection(runs, draws=DRAWS)):
        if finding.data is None:
            assert all(finding.reasons.values())
            continue
        if finding.entry.key in ("benchmarks", "unscored"):
            continue
        undefined = np.isnan(finding.data["value"].values)
        reason = np.broadcast_to(finding.data["reason"].values, undefined.shape)
        assert all(reason[undefined] != ""), finding.entry.key


def test_a_run_without_rows_is_refused() -> None:
    run = judge(examples(2), 0)
    with pytest.raises(UserError, match="holds no scores"):
        method_metrics(replace(run, frame=run.frame.iloc[:0]))


# ------------------------------------------------------------------------------------------- the main table


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000))
def test_the_main_table_is_that_of_loops_and_of_scikit_learn(seed: int) -> None:
    base = examples(7, ("a", "b"))
    runs = [prism(base, seed), judge(base, seed + 1, missing=0.1), judge(base, seed + 2, method="cot")]
    data = data_of(runs, "main-table")
    assert data["metric"].values.tolist() == list(METRICS)
    for i, run in enumerate(runs):
        assert data["value"].values[i] == pytest.approx(brute_run(run), abs=1e-12)
        low, high = bounds(brute_draws(run))
        assert data["low"].values[i] == pytest.approx(low, abs=1e-12)
        assert data["high"].values[i] == pytest.approx(high, abs=1e-12)
        known = run.frame[run.frame["score"].notna()]
        if known["positive"].nunique() == 2:
            expected = roc_auc_score(known["positive"], known["score"])
            assert float(data["value"][i].sel(metric="auc")) == pytest.approx(expected, abs=1e-12)


def test_the_main_table_has_the_greedy_runs_at_five_points_in_order() -> None:
    data = data_of(full(), "main-table")
    assert data["run"].values.tolist() == [
        ("big5-easy", "m", "PRISM"),
        ("big5-easy", "m", "vanilla, 5 points"),
        ("big5-easy", "n", "PRISM"),
        ("big5-easy", "n", "vanilla, 5 points"),
        ("big5-easy", "PandaLM", "pandalm"),
    ]
    assert data["chance"].values[0] == pytest.approx([0.5, 0.5, 1 / 3])  # a positive and two negatives
    last = data.isel(run=-1)
    assert math.isnan(last["value"].values[0])
    assert last["reason"].values.tolist() == [NOT_COMPARABLE, "", ""]
    assert math.isnan(last["chance"].values[0])
    assert "vanilla, 5 points: " in found(full(), "main-table").notes["big5-easy"]


def test_a_run_whose_rows_are_in_another_order_gives_the_same_draws() -> None:
    base = examples(6)
    runs = [prism(base, 1), judge(base, 2)]
    mixed = replace(runs[1], frame=runs[1].frame.sample(frac=1, random_state=0))
    one, two = data_of(runs, "main-table"), data_of([runs[0], mixed], "main-table")
    assert one.equals(two)


def test_the_benchmarks_are_counted() -> None:
    base = examples(3, ("a", "a", "b"))
    other = replace(judge(examples(2), 1), benchmark="social", fingerprint="f2")
    data = data_of([judge(base, 0), other], "benchmarks")
    assert data["benchmark"].values.tolist() == ["big5-easy", "social"]
    assert data["value"].values.tolist() == [3, 2]
    assert data["positives"].values.tolist() == [3, 2]
    assert data["negatives"].values.tolist() == [9, 2]
    assert data["ratio"].values.tolist() == ["1 : 3", "1 : 1"]
    assert data["profiles"].values.tolist() == [3, 2]
    assert data["kinds"].values.tolist() == ["a: 6; b: 3", "opposite level: 2"]


def test_the_paired_tests_are_those_of_compare_methods() -> None:
    base = examples(9, ("a", "b"))
    runs = [prism(base, 1), judge(base, 2, missing=0.1), judge(base, 3, method="cot")]
    data = data_of(runs, "paired-tests")
    frames = {run.label: run.frame for run in runs}
    expected = compare_methods(frames, draws=DRAWS)
    bootstrap = expected[expected["test"] == "bootstrap"]
    assert data.sizes["pair"] == 3
    for row in bootstrap.itertuples():
        cell = data.sel(pair=("big5-easy", "m", row.first, row.second), metric=row.metric)
        got = [float(cell[name]) for name in ("value", "low", "high", "p", "p_raw", "unpaired")]
        assert got == pytest.approx(
            [row.difference, row.low, row.high, row.p_adjusted, row.p, row.unpaired], nan_ok=True
        )
    exact = expected[expected["test"] == "mcnemar"]["p_adjusted"].tolist()
    assert data["p_mcnemar"].sel(metric="group_accuracy").values.tolist() == pytest.approx(exact)


def test_judges_of_their_own_model_are_compared_with_every_evaluator() -> None:
    data = data_of(full(), "paired-tests")
    assert [pair[1:] for pair in data["pair"].values.tolist()] == [
        (evaluator, first, second)
        for evaluator in ("m", "n")
        for first, second in (
            ("PRISM", "vanilla, 5 points"),
            ("PRISM", "pandalm"),
            ("vanilla, 5 points", "pandalm"),
        )
    ]
    with_pandalm = [pair[3] == "pandalm" for pair in data["pair"].values.tolist()]
    assert np.isnan(data["value"].sel(metric="auc").values).tolist() == with_pandalm


# -------------------------------------------------------------------------------------------- sensitivities


def test_the_spread_over_evaluators_is_that_of_loops() -> None:
    runs = full()
    values = data_of(runs, "backbones")
    spread = data_of(runs, "backbone-spread")
    assert values["evaluator"].values.tolist() == ["m", "n"]
    assert spread["run"].values.tolist() == [("big5-easy", "PRISM"), ("big5-easy", "vanilla, 5 points")]
    for i, label in enumerate(("PRISM", "vanilla, 5 points")):
        both = [run for run in runs if run.label == label]
        metrics = np.array([brute_run(run) for run in both])
        np.testing.assert_allclose(values["value"].values[i].T, metrics, atol=1e-12)
        assert spread["value"].values[i] == pytest.approx(metrics.max(0) - metrics.min(0), abs=1e-12)
        assert spread["mean"].values[i] == pytest.approx(metrics.mean(0))
        assert spread["sd"].values[i] == pytest.approx([statistics.stdev(c) for c in metrics.T])
        draws = np.array([brute_draws(run) for run in both])
        low, high = bounds(draws.max(0) - draws.min(0))
        assert spread["low"].values[i] == pytest.approx(low, abs=1e-12)
        assert spread["high"].values[i] == pytest.approx(high, abs=1e-12)
        names = ["mn"[k] for k in metrics.argmax(0)]
        assert spread["highest"].values[i].tolist() == names


def test_the_difference_between_rubrics_is_that_of_loops() -> None:
    runs = full()
    values, delta = data_of(runs, "rubrics"), data_of(runs, "rubric-delta")
    assert values["points"].values.tolist() == [5, 7]
    assert delta.sizes["run"] == 6  # two evaluators, three temperatures
    key = ("big5-easy", "n", "vanilla, T 0.5")
    five, seven = (
        next(r for r in runs if (r.evaluator, r.points, r.temperature) == ("n", p, 0.5)) for p in (5, 7)
    )
    expected = np.array([brute_run(five), brute_run(seven)])
    np.testing.assert_allclose(values["value"].sel(run=key).values.T, expected, atol=1e-12)
    assert delta["value"].sel(run=key).values == pytest.approx(brute_run(seven) - brute_run(five), abs=1e-12)
    low, high = bounds(brute_draws(seven) - brute_draws(five))
    assert delta["low"].sel(run=key).values == pytest.approx(low, abs=1e-12)
    assert delta["high"].sel(run=key).values == pytest.approx(high, abs=1e-12)


def test_temperatures_have_the_mean_and_standard_deviation_over_seeds() -> None:
    runs = full()
    data = data_of(runs, "temperatures")
    assert data["temperature"].values.tolist() == [0.0, 0.5, 1.0]
    assert data.sizes["run"] == 4  # two evaluators, two rubrics
    for run in runs:
        if run.points is None:
            continue
        cell = data.sel(
            run=("big5-easy", run.evaluator, f"vanilla, {run.points} points"), temperature=run.temperature
        )
        assert cell["value"].values == pytest.approx(brute_run(run), abs=1e-12)
        by_seed = np.array([brute_frame(run.of_seed(s)) for s in run.seeds])
        assert cell["seeds"].values.tolist() == [float(len(by_seed))] * 3
        if run.temperature == 0:
            assert np.isnan(cell["sd"].values).all()
        else:
            assert cell["sd"].values == pytest.approx([statistics.stdev(column) for column in by_seed.T])


# ---------------------------------------------------------------------------------------- inside the scores


def test_single_dimensions_are_ranked_by_their_own_score_on_the_same_examples() -> None:
    run = prism(examples(7, ("a", "b")), 5)
    frame = run.frame.assign(score=run.frame["score"].where(run.frame.index != 4))
    run = replace(run, frame=frame)
    data = data_of([run], "dimensions").isel(run=0)
    labels = ["task framing", "interpersonal stance", "linguistic style", "S, their mean"]
    assert data["score"].values.tolist() == labels
    known = run.frame[run.frame["score"].notna()]
    whole = brute_run(run)
    assert data["value"].sel(score=labels[3]).values == pytest.approx(whole)
    assert np.isnan(data["gain"].sel(score=labels[3]).values).all()
    for label, dimension in zip(labels, DIMENSIONS, strict=False):
        alone = np.array(brute_frame(known, dimension))
        cell = data.sel(score=label)
        assert cell["value"].values == pytest.approx(alone, abs=1e-12)
        assert cell["gain"].values == pytest.approx(whole - alone, abs=1e-12)
        masked = replace(
            run, frame=run.frame.assign(alone=run.frame[dimension].where(frame["score"].notna()))
        )
        low, high = bounds(brute_draws(run) - brute_draws(masked, "alone"))
        assert cell["gain_low"].values == pytest.approx(low, abs=1e-12)
        assert cell["gain_high"].values == pytest.approx(high, abs=1e-12)


@pytest.mark.parametrize(("points", "missing"), [(5, 0.0), (7, 0.2), (11, 0.2)])
def test_the_histograms_count_each_score_once(points: int, missing: float) -> None:
    base = examples(30, ("a", "b"))
    run = MethodRun("big5-easy", "f1", "m", "selene", scored(base, 1, levels=points, missing=missing))
    data = data_of([run], "score-histograms").isel(run=0)
    assert data["bin"].values == pytest.approx([i / 20 for i in range(20)])
    for side, positive in (("positives", True), ("negatives", False)):
        part = run.frame[(run.frame["positive"] == positive) & run.frame["score"].notna()]
        counts = [0] * 20
        for value in part["score"]:
            numerator = round(value * (points - 1))  # exact: the score is this many steps
            counts[min(numerator * 20 // (points - 1), 19)] += 1
        assert data["value"].sel(side=side).values == pytest.approx([n / len(part) for n in counts])


def test_the_histograms_reach_to_scores_beyond_one() -> None:
    base = examples(4)
    run = MethodRun("big5-easy", "f1", "m", "selene", scored(base, 1).assign(score=np.linspace(-1, 3, 8)))
    data = data_of([run], "score-histograms")
    assert float(data["bin"][0]) == -1.0
    assert data["value"].sum("bin").values == pytest.approx(np.ones((1, 2)))


def test_the_quantiles_by_hand() -> None:
    base = examples(5)
    score = np.where(base["positive"], [0.0, 0, 0.25, 0, 0.5, 0, 0.75, 0, 1.0, 0], 0.5)
    run = MethodRun("big5-easy", "f1", "m", "selene", scored(base, 1).assign(score=0.0))
    run = replace(run, frame=base.assign(score=score, reason="", seed=0))
    data = data_of([run], "score-quantiles").isel(run=0)
    positives = dict(
        zip(data["statistic"].values.tolist(), data["value"].sel(side="positives").values, strict=True)
    )
    assert positives == pytest.approx(
        {
            "mean": 0.5,
            "sd": statistics.stdev([0, 0.25, 0.5, 0.75, 1]),
            "lowest": 0,
            "5 %": 0.05,
            "25 %": 0.25,
            "median": 0.5,
            "75 %": 0.75,
            "95 %": 0.95,
            "highest": 1,
        }
    )
    assert data["value"].sel(side="negatives", statistic="sd") == 0.0


def test_T3_a_side_without_scores_has_no_distribution_and_says_so() -> None:
    run = judge(examples(4), 0)
    run = replace(run, frame=run.frame.assign(score=run.frame["score"].where(run.frame["positive"])))
    for key in ("score-histograms", "score-quantiles"):
        data = data_of([run], key).isel(run=0)
        assert np.isnan(data["value"].sel(side="negatives").values).all()
        assert set(data["reason"].sel(side="negatives").values.tolist()) == {"no scored negative"}
        assert set(data["reason"].sel(side="positives").values.tolist()) == {""}


def test_kinds_and_profiles_are_those_of_loops() -> None:
    base = examples(9, ("opposite level", "other trait"))
    runs = [prism(base, 3), judge(base, 4, missing=0.15)]
    kinds, profiles = data_of(runs, "kinds"), data_of(runs, "profiles")
    assert kinds["kind"].values.tolist() == ["opposite level", "other trait"]
    assert profiles["profile"].values.tolist() == [
        "high openness",
        "low openness",
        "high neuroticism",
        "low neuroticism",
    ]
    for i, run in enumerate(runs):
        for kind in kinds["kind"].values.tolist():
            part = run.frame[run.frame["positive"] | (run.frame["kind"] == kind)]
            assert float(kinds["value"][i].sel(kind=kind)) == pytest.approx(brute_frame(part)[1], nan_ok=True)
        for profile in profiles["profile"].values.tolist():
            of = run.frame[run.frame["positive"] & (run.frame["profile"] == profile)]["group"]
            part = run.frame[run.frame["group"].isin(of)]
            got = float(profiles["value"][i].sel(profile=profile))
            assert got == pytest.approx(brute_frame(part)[1], nan_ok=True)


def test_a_kind_that_a_benchmark_lacks_is_no_number() -> None:
    other = replace(judge(examples(3, ("x",)), 0), benchmark="big5-hard", fingerprint="f2")
    data = data_of([judge(examples(3, ("y",)), 0), other], "kinds")
    assert np.isnan(data["value"].values).tolist() == [[False, True], [True, False]]
    assert data["reason"].values[0, 1] == "the benchmark has no such negatives"


def test_what_was_left_unscored_is_counted_by_reason() -> None:
    base = examples(3)
    frame = scored(base, 0, seeds=(0, 1)).assign(reason="")
    frame.loc[[0, 3, 5], "score"] = math.nan
    frame.loc[[0, 3], "reason"] = "no_rating"
    run = MethodRun("big5-easy", "f1", "m", "cot", frame, points=5, temperature=0.5)
    data = data_of([run, judge(base, 1)], "unscored")
    assert data["why"].values.tolist() == ["all", "no rating", "no reason on record"]
    assert data["run"].values.tolist()[0][2] == "vanilla, 5 points"
    assert data["value"].values[1] == pytest.approx([3 / 12, 2 / 12, 1 / 12])
    assert data["value"].values[0].tolist() == [0, 0, 0]
    assert data["count"].values[1].tolist() == [3, 2, 1]


def test_the_use_of_the_labels_is_that_of_the_records() -> None:
    base = examples(3)
    order = {"spread": 0.25, "deviation": 0.125, "flips": None, "letters": {"A": 0.5, "B": 0.25, "C": 0.25}}
    runs = [
        prism(base, 0, facts={"label_mass": 0.75, "order_sensitivity": order}),
        prism(base, 1, "n", facts={}),
    ]
    data = data_of(runs, "labels")
    assert data["value"].values[0].tolist()[:3] == [0.75, 0.25, 0.125]
    assert math.isnan(data["value"].values[0, 3])
    assert data["reason"].values[0, 3] == "no case was scored in several orders"
    assert data["value"].values[0].tolist()[4:] == [0.5, 0.25, 0.25]
    assert np.isnan(data["value"].values[1]).all()
    assert "--order-cases" in data["reason"].values[1, 1]


# -------------------------------------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("main-table", "no method run is greedy and, where it has a rubric, of 5 points"),
        ("paired-tests", "no method run is greedy"),
        ("backbones", "no method run is greedy"),
        ("rubrics", "direct judges were run with 7 points alone; run them with --points 5,7"),
        ("rubric-delta", "direct judges were run with 7 points alone"),
        ("dimensions", "PRISM was not run"),
        ("labels", "PRISM was not run"),
        ("temperatures", "direct judges were run at temperature 1 alone"),
        ("profiles", "no method run is greedy"),
    ],
)
def test_what_the_runs_do_not_allow_is_said(key: str, reason: str) -> None:
    finding = found([judge(examples(3), 0, points=7, temperature=1.0)], key)
    assert finding.data is None
    assert finding.reasons["big5-easy"].startswith(reason)


def test_one_evaluator_gives_no_spread_and_one_method_no_test() -> None:
    runs = [prism(examples(3), 0)]
    for key in ("backbones", "backbone-spread"):
        assert found(runs, key).reasons == {
            "big5-easy": "no method was run with two evaluators (m alone); run one with --evaluator A,B"
        }
    assert found(runs, "paired-tests").reasons == {"big5-easy": "no evaluator has two methods to compare"}
    assert found(runs, "rubrics").reasons["big5-easy"].startswith("no direct judge was run with two rubrics")
    two = [*runs, judge(examples(3), 1)]
    assert "bootstrap draws" in found(two, "paired-tests", draws=0).reasons["big5-easy"]


def test_a_reason_is_of_the_benchmark_that_it_is_about() -> None:
    alone = replace(prism(examples(3), 4), benchmark="social", fingerprint="f2")
    finding = found([*full(), alone], "backbones")
    assert finding.data is not None
    assert list(finding.reasons) == ["social"]
    assert {key[0] for key in finding.data["run"].values.tolist()} == {"big5-easy"}


def test_many_profiles_are_not_set_side_by_side() -> None:
    base = examples(30)
    base["profile"] = base["group"]
    finding = found([judge(base, 0)], "profiles")
    assert finding.reasons == {
        "big5-easy": "its positives are of 30 profiles; 24 at most are set side by side"
    }
    one = found([judge(base.assign(profile="a chef"), 0)], "profiles")
    assert one.reasons == {"big5-easy": "all its positives are of one profile (a chef)"}


# ------------------------------------------------------------------------------------------- the collection


def test_a_collection_refuses_what_cannot_be_compared() -> None:
    run = judge(examples(4), 0)
    with pytest.raises(UserError, match="no method run to report"):
        Collection([])
    with pytest.raises(UserError, match="two method runs of this name"):
        Collection([run, judge(examples(4), 1)])
    with pytest.raises(UserError, match="its examples are not those of m, vanilla, 5 points"):
        Collection([run, judge(examples(3), 1, method="cot")])


def test_benchmarks_of_one_name_are_told_apart() -> None:
    large = replace(judge(examples(5), 1), fingerprint="f2")
    same = replace(judge(examples(4), 1), fingerprint="abcdefghijkl")
    assert Collection([judge(examples(4), 0), large]).benchmarks == (
        "big5-easy · 4 groups",
        "big5-easy · 5 groups",
    )
    assert Collection([judge(examples(4), 0), same]).benchmarks == ("big5-easy · abcdefgh", "big5-easy · f1")


def test_every_analysis_has_a_key_of_its_own_and_a_finding() -> None:
    said: list[str] = []
    findings = run_analyses(Collection(full(), draws=DRAWS), progress=said.append)
    keys = [finding.entry.key for finding in findings]
    assert len(set(keys)) == len(keys) == len(CATALOGUE)
    assert said == [finding.entry.title for finding in findings]
    assert all(finding.data is not None for finding in findings)
