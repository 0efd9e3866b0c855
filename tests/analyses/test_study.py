"""Every metric of a study, in the experiment and in each resample, against plain loops over the questions."""

from itertools import product

import numpy as np
import pytest
import xarray as xr
from analyses_brute import (
    LEVELS,
    METRICS,
    Table,
    average,
    datasets,
    label,
    make_dataset,
    metric,
    outcome_form,
    repeated,
    same,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.weightstats import DescrStatsW

from instability import instability_brute
from persona_mlflow.analyses import Study
from persona_mlflow.analyses.study import level_label

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

DRAWS = 2


@st.composite
def parts(draw, table: Table) -> dict:
    """A part of the experiment: varied dims, category, group, settings."""
    dims = ["persona", *table.factors]
    over = draw(st.none() | st.lists(st.sampled_from(dims), unique=True, max_size=len(dims)))
    chosen = draw(st.lists(st.sampled_from(list(table.factors)), unique=True)) if table.factors else []
    where = {
        name: draw(st.lists(st.sampled_from(table.factors[name]), min_size=1, unique=True)) for name in chosen
    }
    return {
        "over": over,
        "category": draw(st.none() | st.sampled_from(sorted(set(table.categories)))),
        "group": draw(st.none() | st.sampled_from(list(table.groups))),
        "settings": where or draw(st.sampled_from([None, {}])),
    }


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_metrics_of_any_part_in_any_draw(data):
    dataset = data.draw(datasets())
    table, study = Table(dataset), Study(dataset, few=1, draws=DRAWS, seed=data.draw(st.integers(0, 9)))
    # Several parts of one study: what is cached for one must not pass for another.
    for part in [data.draw(parts(table)) for _ in range(3)]:
        over = list(table.factors) if part["over"] is None else part["over"]
        people = table.groups[part["group"]] if part["group"] else table.people
        for name in METRICS:
            found = study.metric(name, **part)
            mean = study.average(name, **part)
            assert mean.dims == ("draw",)
            kept = [factor for factor in table.factors if factor not in over]
            assert found.dims == (*kept, "draw")
            for draw in range(1 + DRAWS):
                asked = table.of(part["category"], repeated(study.weights, draw))
                where = part["settings"]
                expected = metric(table, name, over, questions=asked, people=people, where=where)
                assert found.size == len(expected) * (1 + DRAWS)
                for levels, value in expected.items():
                    place = dict(zip(kept, levels, strict=True))
                    assert same(found.isel(draw=draw).sel(place), value), (name, part, draw, levels)
                assert same(
                    mean[draw], average(table, name, over, questions=asked, people=people, where=where)
                )
                if draw == 0 and any(value is None for value in expected.values()):
                    assert study.undefined(name, part["over"], where)


@given(datasets(), st.sampled_from([None, "Math"]))
@settings(max_examples=50, deadline=None)
def test_counts_accuracies_ranks_and_weights(dataset, category):
    table, study = Table(dataset), Study(dataset, few=1, draws=DRAWS)
    category = category if category in study.categories else None
    counts, accuracy = study.counts(category), study.accuracy(category)
    assert accuracy.dims == ("persona", *table.factors, "draw")
    for group, draw in product((None, *table.groups), range(1 + DRAWS)):
        people = table.groups[group] if group else table.people
        asked = table.of(category, repeated(study.weights, draw))
        ranks, spread = study.ranks(category, group)
        for setting in table.settings():
            place = tuple(levels.index(v) for levels, v in zip(table.factors.values(), setting, strict=True))
            answers = {(p, setting): [table.right[p, setting, q] for q in asked] for p in people}
            for i, p in enumerate(people):
                assert counts[(p, *place, draw)] == sum(answers[p, setting])
                assert same(accuracy.values[(p, *place, draw)], table.score(p, setting, asked))
                rank = instability_brute.rank(people, setting, answers, p, "average")
                assert ranks[(i, *place, draw)] == float(rank)
            scores = [float(table.score(p, setting, asked)) for p in people]
            assert same(spread[(*place, draw)], DescrStatsW(scores).std)


@given(datasets(factors=("ppf", "repeat")), st.data())
@settings(max_examples=40, deadline=None)
def test_overlap_counts_questions_always_and_ever_right(dataset, data):
    table, study = Table(dataset), Study(dataset, few=1, draws=DRAWS)
    over = data.draw(st.sampled_from([("ppf",), ("repeat", "ppf"), ("persona",), ("persona", "repeat")]))
    where = data.draw(st.sampled_from([{}, {"ppf": [table.factors["ppf"][0]]}]))
    group = data.draw(st.sampled_from([None, *table.groups]))
    always, ever = study.overlap(over, where, None, group)
    kept = [factor for factor in table.factors if factor not in over]
    lines: dict = {}
    for setting in table.settings(where):
        lines.setdefault(tuple(table.level(setting, f) for f in kept), []).append(setting)
    people = table.groups[group] if group and "persona" in over else table.people
    units = [people] if "persona" in over else [[p] for p in people]
    assert always.shape == ever.shape
    assert always.size == len(units) * len(lines) * (1 + DRAWS)
    for (u, unit), (n, line), draw in product(enumerate(units), enumerate(lines.values()), range(1 + DRAWS)):
        asked = repeated(study.weights, draw)
        rows = [[table.right[p, s, q] for p in unit for s in line] for q in asked]
        place = (u * len(lines) + n, draw)
        assert always.reshape(-1, 1 + DRAWS)[place] == sum(all(row) for row in rows)
        assert ever.reshape(-1, 1 + DRAWS)[place] == sum(any(row) for row in rows)


@given(datasets(factors=("tpf", "temperature"), personas=(1, 4)), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_four_forms_of_outcome_instability(dataset, weighted, normalized, part):
    table, study = Table(dataset), Study(dataset, few=1, draws=DRAWS)
    where = {"tpf": [table.factors["tpf"][-1]]} if part else None
    value, normaliser = study.outcome_form(weighted, normalized, where)
    for draw in range(1 + DRAWS):
        asked = repeated(study.weights, draw)
        expected = outcome_form(table, weighted, normalized, where, asked)
        assert same(value[draw], expected[0])
        assert same(normaliser[draw], expected[1])


@given(datasets())
@settings(max_examples=40, deadline=None)
def test_parts_of_an_experiment(dataset):
    table, study = Table(dataset), Study(dataset, draws=0)
    assert study.personas == table.personas
    assert study.factors == tuple(table.factors)
    assert study.varied == tuple(table.varied)
    assert study.settings == len(table.settings())
    assert study.categories == tuple(dict.fromkeys(table.categories))
    assert {name: list(who) for name, who in study.groups.items()} == table.groups
    assert study.subgroups == tuple(name for name in table.groups if " · " in name)
    assert study.level_sets() == table.level_sets()
    assert study.questions() == len(table.questions)
    for category in study.categories:
        assert study.questions(category) == len(table.of(category))
        assert study.positions[category].tolist() == table.of(category)


def test_draw_0_is_the_experiment_and_the_others_keep_the_categories_sizes():
    categories = ["Math", "EECS", "Math", "EECS", "Math", "Math", "EECS"]
    dataset = make_dataset(np.ones((1, 2, 7)), {"ppf": ["a", "b"]}, categories)
    weights = Study(dataset, draws=50, seed=3, few=3).weights
    assert (weights[:, 0] == 1).all()
    assert (weights[[0, 2, 4, 5]].sum(axis=0) == 4).all()
    assert (weights[[1, 3, 6]].sum(axis=0) == 3).all()


def test_small_categories_are_resampled_together_and_have_no_resamples_of_their_own():
    categories = [*["Math"] * 10, "EECS", "History", "EECS"]
    rng = np.random.default_rng(5)
    dataset = make_dataset(rng.random((3, 2, 13)) < 0.6, {"ppf": ["a", "b"]}, categories)
    study = Study(dataset, draws=200)
    assert (study.weights[:10].sum(axis=0) == 10).all()
    assert (study.weights[10:].sum(axis=0) == 3).all()
    assert set(study.weights[11].tolist()) == {0, 1, 2, 3}
    assert [study.has_interval(name) for name in (None, "Math", "EECS", "History")] == [
        True,
        True,
        False,
        False,
    ]
    for name in METRICS:
        assert study.average(name, category="Math").notnull().all()
        assert study.average(name).notnull().all()
        small = study.average(name, category="EECS")
        assert same(small[0], average(Table(dataset), name, questions=[10, 12]))
        assert small[1:].isnull().all()
    assert study.accuracy("EECS")[..., 1:].isnull().all()
    assert study.accuracy("EECS")[..., 0].notnull().all()
    # Fewer questions in all than a category needs: no resample at all.
    few = Study(dataset.isel(question=slice(9)), draws=5)
    for draws in (*(few.average(name) for name in METRICS), few.accuracy(), *few.outcome_form(True, False)):
        assert draws[..., 1:].isnull().all()
        assert draws[..., 0].notnull().all()


@given(datasets(), st.sampled_from([None, "Math"]))
@settings(max_examples=40, deadline=None)
def test_shares_of_the_answers_of_which_something_is_true(dataset, category):
    table, study = Table(dataset), Study(dataset, draws=DRAWS, few=1)
    category = category if category in study.categories else None
    wheres = [None, *({name: [levels[0]]} for name, levels in table.factors.items())]
    for where, group, draw in product(wheres, (None, *table.groups), range(1 + DRAWS)):
        people = table.groups[group] if group else table.people
        asked = table.of(category, repeated(study.weights, draw))
        rows = [table.unparsed[p, s, q] for p in people for s in table.settings(where) for q in asked]
        found = study.share(study.unparsed, category=category, group=group, settings=where)
        assert same(found[draw], sum(rows) / len(rows))


def test_dims_in_any_order_give_the_same_study():
    rng = np.random.default_rng(0)
    factors = {"ppf": LEVELS["ppf"], "temperature": LEVELS["temperature"][:2]}
    dataset = make_dataset(rng.random((3, 3, 2, 6)) < 0.5, factors)
    turned = dataset.transpose("question", "ppf", "persona", "temperature")
    for name, over in product(METRICS, (None, ["ppf"], ["temperature"])):
        xr.testing.assert_allclose(
            Study(turned, draws=5).average(name, over), Study(dataset, draws=5).average(name, over)
        )


def test_selected_settings_keep_the_order_asked_for():
    rng = np.random.default_rng(1)
    grid = {"temperature": [0.0, 0.5, 1.0], "tpf": ["x", "y"]}
    dataset = make_dataset(rng.random((2, 3, 2, 5)) < 0.5, grid)
    study, table = Study(dataset, draws=0), Table(dataset)
    found = study.metric("accuracy", "tpf", settings={"temperature": [1.0, 0.0]})
    assert found["temperature"].values.tolist() == [1.0, 0.0]
    for level in (1.0, 0.0):
        expected = metric(table, "accuracy", ["tpf"], where={"temperature": [level]})
        assert same(found.sel(temperature=level, draw=0), expected[(level,)])


def test_weights_of_one_s_own_take_the_place_of_the_bootstrap():
    rng = np.random.default_rng(2)
    dataset = make_dataset(rng.random((2, 3, 6)) < 0.5, {"ppf": LEVELS["ppf"]})
    weights = np.array([[1, 3], [1, 0], [1, 0], [1, 1], [1, 2], [1, 0]], dtype=np.float32)
    study, table = Study(dataset, weights=weights), Table(dataset)
    for name in METRICS:
        found = study.average(name)
        assert found.sizes["draw"] == 2
        assert same(found[1], average(table, name, questions=[0, 0, 0, 3, 4, 4]))


def test_equal_seeds_give_equal_studies_and_other_seeds_other_bounds():
    rng = np.random.default_rng(3)
    dataset = make_dataset(rng.random((3, 3, 2, 20)) < 0.5, {"ppf": LEVELS["ppf"], "tpf": ["x", "y"]})

    def bounds(seed: int) -> xr.Dataset:
        study = Study(dataset, draws=40, seed=seed)
        return xr.concat([study.interval(study.average(name)) for name in METRICS], dim="metric")

    xr.testing.assert_identical(bounds(5), bounds(5))
    assert (bounds(5)["value"] == bounds(6)["value"]).all()
    assert (bounds(5)["low"] != bounds(6)["low"]).all()


def test_a_narrower_level_gives_narrower_intervals():
    rng = np.random.default_rng(4)
    dataset = make_dataset(rng.random((3, 3, 20)) < 0.5, {"ppf": LEVELS["ppf"]})
    wide, narrow = (Study(dataset, draws=200, level=level) for level in (0.95, 0.5))
    a, b = (study.interval(study.average("accuracy")) for study in (wide, narrow))
    assert a["low"] < b["low"] < b["high"] < a["high"]


def test_reasons_of_undefined_metrics():
    one = Study(make_dataset(np.ones((2, 1, 3)), {"ppf": ["a"]}), draws=0)
    assert one.undefined("accuracy") == "one setting gives no pairs"
    wrong = Study(make_dataset(np.zeros((1, 2, 3)), {"ppf": ["a", "b"]}), draws=0)
    assert wrong.undefined("accuracy", "persona") == "one persona gives no pairs"
    assert wrong.undefined("question") == "no question is right in any setting"
    assert wrong.undefined("question", settings={"ppf": ["a"]}) == "one setting gives no pairs"
    several = Study(make_dataset(np.ones((2, 2, 3)), {"ppf": ["a", "b"]}), draws=0)
    assert "persona" in several.undefined("outcome", "persona")


def test_labels_of_levels():
    for name, level in (("temperature", 0.5), ("temperature", 1.0), ("ppf", "youare"), ("repeat", 2)):
        assert level_label(name, level) == label(name, level)
    assert level_label("temperature", 0.0) == "temperature 0"
