"""Validation against people: every number by another library, by hand or by plain resampling."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persona_mlflow.errors import UserError
from persona_mlflow.prism.annotation import Item, Key
from persona_mlflow.prism.annotation_reading import (
    Annotations,
    MethodScores,
    Progress,
    read_methods,
    read_probabilities,
)
from persona_mlflow.prism.cases import Case, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.krippendorff import LEVELS, alpha_of, coincidences, krippendorff_alpha
from persona_mlflow.prism.ranking import NOT_COMPARABLE, group_draws
from persona_mlflow.prism.results import MethodRun
from persona_mlflow.prism.scoring import score_cases
from persona_mlflow.prism.validation import ALL, validate, weighted_kendall, weighted_spearman

NAN = float("nan")


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# ------------------------------------------------------------------------------------------------------- α

# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", example C: 4 observers, 12 units.
PUBLISHED = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
    [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
]


@pytest.mark.parametrize(("level", "value"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(level, value):
    found = krippendorff_alpha(PUBLISHED, level=level)
    assert round(found.alpha, 3) == value
    assert (found.units, found.values, found.single, found.reason) == (11, 40, 1, "")


def plain_alpha(ratings, level):
    """By the definition: mean disagreement of pairs within units over that of all pairs; plain loops."""
    units = [[v for v in column if not math.isnan(v)] for column in zip(*ratings, strict=True)]
    units = [unit for unit in units if len(unit) >= 2]
    pool = [v for unit in units for v in unit]

    def distance(a, b):
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return (a - b) ** 2
        low, high = min(a, b), max(a, b)
        between = sum(low <= v <= high for v in pool)
        return (between - (pool.count(low) + pool.count(high)) / 2) ** 2

    observed = sum(
        distance(unit[i], unit[j]) / (len(unit) - 1)
        for unit in units
        for i in range(len(unit))
        for j in range(len(unit))
        if i != j
    ) / max(1, len(pool))
    expected = sum(
        distance(pool[i], pool[j]) for i in range(len(pool)) for j in range(len(pool)) if i != j
    ) / max(1, len(pool) * (len(pool) - 1))
    return 1 - observed / expected if expected else None


tables = st.integers(1, 4).flatmap(
    lambda observers: st.lists(
        st.lists(st.sampled_from([NAN, 1.0, 2.0, 3.0, 5.0]), min_size=observers, max_size=observers),
        min_size=1,
        max_size=7,
    )
)


@settings(max_examples=80, deadline=None)
@given(tables, st.sampled_from(LEVELS))
def test_T1_alpha_by_brute_force_and_by_another_library(table, level):
    ratings = np.array(table).T
    found = krippendorff_alpha(ratings, level=level)
    expected = plain_alpha(ratings.tolist(), level)
    if expected is None:
        assert found.alpha is None
        assert found.reason
        return
    assert found.alpha == pytest.approx(expected, abs=1e-12)
    krippendorff = pytest.importorskip("krippendorff")
    theirs = krippendorff.alpha(reliability_data=ratings, level_of_measurement=level)
    assert found.alpha == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("level", LEVELS)
def test_T1_alpha_without_variation_is_none_with_a_reason(level):
    same = krippendorff_alpha([[3, 3, 3], [3, 3, NAN]], level=level)
    assert (same.alpha, same.units) == (None, 2)
    assert "no variation" in same.reason
    alone = krippendorff_alpha([[1, 2, 3]], level=level)
    assert (alone.alpha, alone.units, alone.single) == (None, 0, 3)
    assert "no unit" in alone.reason
    assert krippendorff_alpha(np.full((2, 0), NAN), level=level).alpha is None
    assert krippendorff_alpha([[1, 2, 5], [1, 2, 5]], level=level).alpha == 1.0


def test_alpha_of_bad_input_is_refused():
    for ratings, options, part in (
        ([[1, 2]], {"level": "ordinel"}, "did you mean 'ordinal'"),
        ([1, 2], {}, "shaped"),
        ([[1, math.inf]], {}, "infinite"),
    ):
        with pytest.raises(UserError, match=part):
            krippendorff_alpha(ratings, **options)


@given(tables, st.data())
@settings(max_examples=30, deadline=None)
def test_weighted_coincidences_are_those_of_repeated_units(table, data):
    ratings = np.array(table).T
    domain = [1.0, 2.0, 3.0, 5.0]
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(table), max_size=len(table))))
    weighted = np.tensordot(weights.astype(float), coincidences(ratings, domain), axes=1)
    repeated = krippendorff_alpha(np.repeat(ratings, weights, axis=1))
    value = float(alpha_of(weighted, domain))
    assert (None if math.isnan(value) else pytest.approx(value, abs=1e-12)) == repeated.alpha


# ----------------------------------------------------------------------------------------------- made-up data


def annotations_of(ratings, labels, groups=None):
    """Answers of annotators.

    Args:
        ratings: Annotator → one rating (or None) per item.
        labels: Annotator → one triple of states (or None) per item.
        groups: The items' groups; two items each by default. The first of a group is its positive.
    """
    count = len(next(iter(ratings.values())))
    groups = groups or [f"g{i // 2}" for i in range(count)]
    items = tuple(
        Item(f"x-{i:03d}", f"id{i}", g, g not in groups[:i], "positive" if g not in groups[:i] else "n", "s")
        for i, g in enumerate(groups)
    )
    names = [item.item for item in items]
    key = Key(
        "big5-easy", "f", len(set(groups)), 0, "d", items, dict.fromkeys({**ratings, **labels}, names), {}
    )
    rated = [
        (a, n, r) for a, row in ratings.items() for n, r in zip(names, row, strict=True) if r is not None
    ]
    labelled = [
        (a, n, d, state, "")
        for a, row in labels.items()
        for n, triple in zip(names, row, strict=True)
        for d, state in zip(DIMENSIONS, triple, strict=True)
        if state is not None
    ]
    return Annotations(
        key,
        pd.DataFrame(rated, columns=["annotator", "item", "rating"]),
        pd.DataFrame(labelled, columns=["annotator", "item", "dimension", "state", "second"]),
        tuple(Progress(a, "fidelity.csv", count, count, 0, 0) for a in ratings),
    )


def method_of(q, scores=None, **options):
    """PRISM's probabilities: item → dimension → three numbers."""
    rows = [
        (f"id{i}", d, *triple) for i, item in enumerate(q) for d, triple in zip(DIMENSIONS, item, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["case", "dimension", *(f"q_{state}" for state in STATES)])
    if scores is None:
        scores = [sum(triple[0] for triple in item) / 3 for item in q]
    return MethodScores(
        "tiny", "PRISM", {f"id{i}": s for i, s in enumerate(scores)}, probabilities=table, **options
    )


def random_answers(seed, items=12, annotators=3):
    rng = np.random.default_rng(seed)
    names = [f"a{i}" for i in range(annotators)]
    ratings = {
        a: [None if rng.random() < 0.15 else int(rng.integers(1, 6)) for _ in range(items)] for a in names
    }
    labels = {
        a: [
            tuple(None if rng.random() < 0.15 else STATES[rng.integers(3)] for _ in DIMENSIONS)
            for _ in range(items)
        ]
        for a in names
    }
    q = rng.dirichlet([1, 1, 1], size=(items, 3))
    return annotations_of(ratings, labels), method_of(q.tolist()), ratings, labels, q


def majority(labels, item, dimension):
    votes = [row[item][dimension] for row in labels.values() if row[item][dimension] is not None]
    best = [state for state in STATES if votes.count(state) == max(map(votes.count, STATES))]
    return best[0] if votes and len(best) == 1 else None


# -------------------------------------------------------------------------------------- human verification


def test_verification_by_hand():
    ratings = {"a": [5, 2, 4, 4, None, 1], "b": [4, 1, 2, 3, 3, None]}
    found = validate(annotations_of(ratings, {}), draws=0).verification
    assert list(found) == ["a", "b", ALL]
    assert found["a"]["mean_positive"].value == 4.5
    assert found["a"]["mean_negative"].value == pytest.approx(7 / 3)
    # Positives 5, 4; negatives 2, 4, 1: 5 beats all three, 4 beats two and ties with one.
    assert found["a"]["auc"].value == pytest.approx(5.5 / 6)
    assert found["a"]["pair_auc"].value == 0.75
    assert found["a"]["group_accuracy"].value == 0.5
    assert (found["a"]["auc"].n, found["b"]["auc"].n) == (5, 5)
    # Mean ratings: 4.5, 1.5, 3, 3.5, 3, 1.
    assert found[ALL]["mean_positive"].value == pytest.approx(3.5)
    assert found[ALL]["mean_negative"].value == pytest.approx(2.0)
    assert found[ALL]["pair_auc"].value == pytest.approx(2 / 3)
    assert found[ALL]["auc"].value == pytest.approx(7 / 9)
    assert all("no bootstrap draws" in e.reason for e in found["a"].values())


@pytest.mark.parametrize("seed", range(3))
def test_verification_and_intervals_against_plain_resampling(seed):
    from sklearn.metrics import roc_auc_score

    annotations, _, ratings, _, _ = random_answers(seed)
    draws = 40
    found = validate(annotations, draws=draws, seed=5)
    table = np.array([[NAN if r is None else r for r in row] for row in ratings.values()], dtype=float)
    positive = np.arange(12) % 2 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean = np.nanmean(table, axis=0)
    drawn = {"mean_positive": [], "mean_negative": [], "auc": [], "alpha": []}
    for weights in [np.ones(6, int), *group_draws(6, draws, 5)]:
        items = np.repeat(np.arange(12), np.repeat(weights, 2))
        m, p = mean[items], positive[items]
        known = ~np.isnan(m)
        drawn["mean_positive"].append(m[p & known].mean())
        drawn["mean_negative"].append(m[~p & known].mean())
        drawn["auc"].append(roc_auc_score(p[known], m[known]))
        drawn["alpha"].append(plain_alpha(table[:, items].tolist(), "ordinal"))
    for name, (value, *sampled) in drawn.items():
        estimate = found.verification[ALL][name]
        assert estimate.value == pytest.approx(value, abs=1e-12)
        low, high = np.quantile(sampled, [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-12)
        assert estimate.reason == ""


def test_undefined_numbers_of_the_verification_have_reasons():
    only = validate(annotations_of({"a": [3, None, 4, None], "b": [None] * 4}, {}), draws=50)
    a, b, everybody = (only.verification[name] for name in ("a", "b", ALL))
    assert a["mean_positive"].value == 3.5
    assert (a["mean_negative"].value, a["mean_negative"].reason) == (None, "no negative is rated")
    assert (a["auc"].value, a["auc"].reason) == (None, "no scored negative")
    for estimate in b.values():
        assert estimate.value is estimate.low is None
        assert estimate.reason
    assert everybody["alpha"].reason == "no item has two values to compare"


def test_T1_annotators_who_all_say_the_same_have_no_alpha():
    same = {name: [4, 4, 4, 4] for name in "ab"}
    labels = {name: [("aligned",) * 3] * 4 for name in "ab"}
    found = validate(annotations_of(same, labels), [method_of([[(0.8, 0.1, 0.1)] * 3] * 4)], draws=50)
    alpha = found.verification[ALL]["alpha"]
    assert alpha.value is None
    assert "no variation" in alpha.reason
    assert found.verification[ALL]["auc"].value == 0.5
    assert all("no variation" in e.reason for e in found.label_agreement.values())
    for diagnosis in found.diagnoses["tiny", "PRISM"]:
        assert diagnosis.estimates["top_1"].value == diagnosis.estimates["macro_f1"].value == 1.0
        assert diagnosis.estimates["alpha"].value is None
        assert "no variation" in diagnosis.estimates["alpha"].reason


# -------------------------------------------------------------------------------------- dimension diagnostics


@pytest.mark.parametrize("seed", range(4))
def test_diagnostics_against_other_libraries_and_plain_resampling(seed):
    from sklearn.metrics import accuracy_score, f1_score, top_k_accuracy_score

    annotations, method, _, labels, q = random_answers(seed)
    draws = 30
    found = validate(annotations, [method], draws=draws, seed=2)
    diagnoses = {d.dimension: d for d in found.diagnoses["tiny", "PRISM"]}
    assert list(diagnoses) == [*DIMENSIONS, ALL]
    for name, dimensions in [*((d, [i]) for i, d in enumerate(DIMENSIONS)), (ALL, [0, 1, 2])]:
        drawn = {measure: [] for measure in ("top_1", "top_2", "macro_f1", "alpha")}
        for weights in [np.ones(6, int), *group_draws(6, draws, 2)]:
            human, model, shares = [], [], []
            for item in np.repeat(np.arange(12), np.repeat(weights, 2)):
                for d in dimensions:
                    state = majority(labels, item, d)
                    if state is not None:
                        human.append(STATES.index(state))
                        model.append(int(np.argmax(q[item, d])))
                        shares.append(q[item, d])
            drawn["top_1"].append(accuracy_score(human, model))
            drawn["top_2"].append(top_k_accuracy_score(human, np.array(shares), k=2, labels=[0, 1, 2]))
            drawn["macro_f1"].append(f1_score(human, model, average="macro"))
            alpha = plain_alpha([human, model], "ordinal")
            drawn["alpha"].append(NAN if alpha is None else alpha)
        for measure, (value, *sampled) in drawn.items():
            estimate = diagnoses[name].estimates[measure]
            assert estimate.value == pytest.approx(value, abs=1e-12)
            assert estimate.n == sum(
                majority(labels, i, d) is not None for i in range(12) for d in dimensions
            )
            known = [v for v in sampled if not math.isnan(v)]
            assert len(known) >= 0.9 * draws
            low, high = np.quantile(known, [0.025, 0.975])
            assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=1e-12)


def test_the_order_of_the_states_matters_to_alpha():
    states = ["aligned", "indeterminate", "opposite", "aligned", "opposite", "indeterminate"]
    labels = {"a": [(s, s, s) for s in states]}
    one_off = {"aligned": (0.2, 0.7, 0.1), "indeterminate": (0.1, 0.7, 0.2), "opposite": (0.1, 0.2, 0.7)}
    two_off = {**one_off, "aligned": (0.2, 0.1, 0.7)}
    near, far = (
        validate(
            annotations_of({"a": [None] * 6}, labels), [method_of([[how[s]] * 3 for s in states])], draws=0
        ).diagnoses["tiny", "PRISM"][0]
        for how in (one_off, two_off)
    )
    assert near.estimates["top_1"].value == far.estimates["top_1"].value == pytest.approx(4 / 6)
    assert near.estimates["alpha"].value > far.estimates["alpha"].value


def test_split_annotators_and_ties_are_counted():
    labels = {
        "a": [
            ("aligned", "aligned", None),
            ("opposite", "aligned", "aligned"),
            (None, None, "indeterminate"),
        ],
        "b": [("opposite", "aligned", None), ("opposite", "opposite", "aligned"), (None, None, "aligned")],
        "c": [("aligned", None, None), ("opposite", "indeterminate", "aligned"), (None, None, "aligned")],
    }
    labels = {a: [*rows, ("opposite",) * 3] for a, rows in labels.items()}
    q = [
        # aligned: sure. aligned: a tie for the first place is a miss, and is in the top two.
        [(0.8, 0.1, 0.1), (0.45, 0.1, 0.45), (0.2, 0.4, 0.4)],
        # opposite: tied for the second place, not in the top two. Split. aligned: the second.
        [(0.6, 0.2, 0.2), (0.2, 0.2, 0.6), (0.3, 0.5, 0.2)],
        [(NAN, NAN, NAN)] * 3,
        # opposite: never alone; two, of which it is one; first.
        [(1 / 3, 1 / 3, 1 / 3), (0.0, 0.0, 1.0), (0.1, 0.2, 0.7)],
    ]
    found = validate(annotations_of({"a": [None] * 4}, labels, list("pqrs")), [method_of(q)], draws=0)
    by = {d.dimension: d for d in found.diagnoses["tiny", "PRISM"]}
    first, second, third = (by[d] for d in DIMENSIONS)
    assert (first.unlabelled, first.split, first.unscored, first.undecided) == (1, 0, 0, 1)
    assert (first.estimates["top_1"].value, first.estimates["top_2"].value) == pytest.approx((1 / 3, 1 / 3))
    # aligned: 1 hit, 1 false positive, F1 2/3; opposite: no hit, F1 0; indeterminate: nowhere, left out.
    assert first.estimates["macro_f1"].value == pytest.approx(1 / 3)
    assert (second.unlabelled, second.split, second.unscored, second.undecided) == (1, 1, 0, 1)
    assert (second.estimates["top_1"].value, second.estimates["top_2"].value) == (0.5, 1.0)
    assert second.estimates["macro_f1"].value == 0.5
    assert (third.unlabelled, third.split, third.unscored, third.undecided) == (1, 0, 1, 0)
    assert (third.estimates["top_1"].value, third.estimates["top_2"].value) == (0.5, 1.0)
    overall = by[ALL]
    assert (overall.unlabelled, overall.split, overall.unscored, overall.undecided) == (3, 1, 1, 2)
    assert overall.estimates["top_1"].n == 7
    assert overall.estimates["top_1"].value == pytest.approx(3 / 7)


def test_undefined_diagnostics_have_reasons():
    nothing = annotations_of({"a": [1, 2]}, {})
    tied = [[(1 / 3, 1 / 3, 1 / 3)] * 3] * 2
    for diagnosis in validate(nothing, [method_of(tied)], draws=20).diagnoses["tiny", "PRISM"]:
        assert {e.value for e in diagnosis.estimates.values()} == {None}
        assert {e.reason for e in diagnosis.estimates.values()} == {"no item has a human state"}
    labelled = annotations_of({"a": [1, 2]}, {"a": [("aligned",) * 3, ("opposite",) * 3]})
    unscored = [[(NAN, NAN, NAN)] * 3] * 2
    for diagnosis in validate(labelled, [method_of(unscored)], draws=20).diagnoses["tiny", "PRISM"]:
        assert all("no probabilities" in e.reason for e in diagnosis.estimates.values())
        assert diagnosis.unscored in (2, 6)
    for diagnosis in validate(labelled, [method_of(tied)], draws=20).diagnoses["tiny", "PRISM"]:
        assert diagnosis.estimates["top_1"].value == diagnosis.estimates["macro_f1"].value == 0.0
        assert diagnosis.estimates["alpha"].reason == "the method is undecided everywhere"


# ----------------------------------------------------------------------------------------------- correlations


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=9))
def test_T5_weighted_correlations_are_those_of_repeated_items(rows):
    from scipy.stats import kendalltau, spearmanr

    x, y, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    rho, tau = (float(f(x, y, weights[None, :])[0]) for f in (weighted_spearman, weighted_kendall))
    a, b = (np.repeat(v, weights.astype(int)) for v in (x, y))
    if len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
        assert math.isnan(rho)
        assert math.isnan(tau)
        return
    assert rho == pytest.approx(spearmanr(a, b).statistic, abs=1e-9)
    assert tau == pytest.approx(kendalltau(a, b).statistic, abs=1e-9)


def test_correlations_leave_out_what_lacks_a_score_or_a_rating():
    from scipy.stats import kendalltau, spearmanr

    ratings = {"a": [5, 2, 4, 3, None, 1, 2, 5], "b": [4, 2, 5, None, None, 2, 2, 3]}
    scores = [0.9, 0.3, 0.7, NAN, 0.5, 0.4, 0.2, 0.6]
    judge = MethodScores("tiny", "vanilla, 5 points", {f"id{i}": s for i, s in enumerate(scores)})
    found = validate(annotations_of(ratings, {}), [judge], draws=100)
    assert not found.diagnoses
    estimates = found.correlations["tiny", "vanilla, 5 points"]
    x, y = [0.9, 0.3, 0.7, 0.4, 0.2, 0.6], [4.5, 2, 4.5, 1.5, 2, 4]
    assert estimates["spearman"].value == pytest.approx(spearmanr(x, y).statistic)
    assert estimates["kendall"].value == pytest.approx(kendalltau(x, y).statistic)
    assert estimates["spearman"].n == 6
    assert estimates["spearman"].low <= estimates["spearman"].value <= estimates["spearman"].high


def test_T5_undefined_correlations_have_reasons():
    ratings = {"a": [5, 2, 4, 3]}
    for options, scores, part in (
        ({}, [0.5] * 4, "no variation: all scores"),
        ({}, [0.5, NAN, NAN, NAN], "1 item has both"),
        ({}, [NAN] * 4, "no item has both"),
        ({"comparable": False}, [0.1, 0.2, 0.3, 0.4], NOT_COMPARABLE),
    ):
        judge = MethodScores("tiny", "judge", {f"id{i}": s for i, s in enumerate(scores)}, **options)
        for estimate in validate(annotations_of(ratings, {}), [judge]).correlations["tiny", "judge"].values():
            assert estimate.value is estimate.low is None
            assert part in estimate.reason
    judge = MethodScores("tiny", "judge", {f"id{i}": i for i in range(4)})
    same = validate(annotations_of({"a": [3] * 4}, {}), [judge]).correlations["tiny", "judge"]["kendall"]
    assert "all mean ratings are the same" in same.reason


# ------------------------------------------------------------------------------------------------------ whole


def test_tables_are_tidy_and_say_why_a_number_is_missing():
    annotations, method, *_ = random_answers(1)
    found = validate(annotations, [method], draws=20)
    for table in found.tables().values():
        assert not table.empty
        assert (table["reason"][table["value"].isna()] != "").all()
    rows = found.tables()["diagnostics"].set_index(["dimension", "measure"])
    assert len(rows) == 16
    assert rows.loc[(ALL, "top_2"), "value"] == found.diagnoses["tiny", "PRISM"][3].estimates["top_2"].value
    empty = validate(annotations_of({"a": [1, 2]}, {}), draws=20).tables()
    assert empty["diagnostics"].empty
    assert empty["verification"]["value"].isna().any()


def test_nothing_to_validate_and_twice_the_same_method_are_refused():
    with pytest.raises(UserError, match="no answer yet"):
        validate(annotations_of({"a": [None, None]}, {}))
    annotations, method, *_ = random_answers(0)
    with pytest.raises(UserError, match="2 runs of one evaluator and method"):
        validate(annotations, [method, method])


# ----------------------------------------------------------------------------------------------- method runs


class Letters:
    """An evaluator that always prefers A, and cannot score the case id1."""

    def identity(self):
        return {"evaluator": "letters"}

    def label_scores(self, groups):
        from persona_mlflow.prism.evaluators import LabelScore

        for prompts in groups:
            yield [
                LabelScore(p.key, p.order, (-1.0, -2.0, -1.5), "A", 0, "cut" if p.key[0] == "id1" else "")
                for p in prompts
            ]


def save_run(folder, method="prism", benchmark="big5-easy", ids=("id0", "id1")):
    frame = pd.DataFrame(
        {
            "id": list(ids),
            "group": "g0",
            "positive": [i % 2 == 0 for i in range(len(ids))],
            "kind": "positive",
            "profile": "high openness",
            "score": [0.5 + i / 10 for i in range(len(ids))],
            "reason": "",
            "seed": 0,
        }
    )
    run = MethodRun(benchmark, "f", "tiny", method, frame, points=None if method == "prism" else 5)
    run.save(folder)
    return run


def test_a_table_and_a_log_hold_the_same_probabilities(tmp_path):
    cases = [Case(f"id{i}", Profile("big5", "openness", "high"), "So?", f"Reply {i}") for i in range(3)]
    scores = score_cases(cases, Letters(), output=tmp_path / "scores.jsonl")
    scores.to_parquet(tmp_path / "probabilities.parquet", index=False)
    columns = ["case", "dimension", *(f"q_{state}" for state in STATES)]
    table = read_probabilities(tmp_path / "probabilities.parquet")[columns]
    assert table["q_aligned"].isna().sum() == 3

    def from_log():
        found = read_probabilities(tmp_path / "scores.jsonl")[columns]
        return found.sort_values(columns[:2]).reset_index(drop=True)

    expected = table.sort_values(columns[:2]).reset_index(drop=True)
    pd.testing.assert_frame_equal(from_log(), expected)
    # A line that is still being written is left alone.
    content = (tmp_path / "scores.jsonl").read_text(encoding="utf-8")
    torn = content + '{"case": "id7", "ro'
    (tmp_path / "scores.jsonl").write_text(torn, encoding="utf-8")
    pd.testing.assert_frame_equal(from_log(), expected)
    assert (tmp_path / "scores.jsonl").read_text(encoding="utf-8") == torn


@pytest.mark.parametrize(
    "content",
    ["", "{}\n", "no json\n", '{"prism": 1}\n{"rows": 3}\n', '{"prism": 1}\n{"rows": [{"case": "a"}]}\n'],
)
def test_what_is_no_file_of_scores_is_refused(tmp_path, content):
    path = tmp_path / "scores.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"scores\.jsonl: not a readable file of PRISM scores"):
        read_probabilities(path)
    path = path.rename(tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet: not a readable file of PRISM scores"):
        read_probabilities(path)


def test_runs_of_other_examples_are_left_out_and_told(tmp_path):
    key = annotations_of({"a": [1, 2]}, {}).key
    method = method_of([[(0.6, 0.3, 0.1)] * 3] * 2)
    save_run(tmp_path / "m" / "prism")
    method.probabilities.to_parquet(tmp_path / "m" / "prism" / "probabilities.parquet", index=False)
    save_run(tmp_path / "m" / "vanilla-5", method="vanilla", ids=("id0", "other"))
    save_run(tmp_path / "other", method="vanilla", benchmark="social")
    save_run(tmp_path / "more", method="cot", ids=("x", "y"))
    found, notes = read_methods([tmp_path, tmp_path / "m"], key)
    assert [(m.evaluator, m.method) for m in found] == [("tiny", "PRISM"), ("tiny", "vanilla, 5 points")]
    assert found[0].scores == {"id0": 0.5, "id1": 0.6}
    assert found[0].probabilities is not None
    assert found[1].probabilities is None
    assert len(notes) == 3
    assert any("of social" in note for note in notes)
    assert any("1 of the 2 annotated items" in note for note in notes)
    assert any("no annotated item" in note for note in notes)
    # The table alone.
    ((alone,), _) = read_methods([tmp_path / "m" / "prism" / "probabilities.parquet"], key)
    assert alone.scores == pytest.approx({"id0": 0.6, "id1": 0.6})
    with pytest.raises(UserError, match="no method scored an item"):
        read_methods([tmp_path / "more"], key)
    with pytest.raises(UserError, match="no such file"):
        read_methods([tmp_path / "gone"], key)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no method run"):
        read_methods([tmp_path / "empty"], key)
    assert json.loads((tmp_path / "m" / "prism" / "method_run.json").read_text())["method"] == "prism"
