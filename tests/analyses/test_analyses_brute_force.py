"""Each analysis against plain loops over the answers, on random small grids with and without ties."""

from itertools import combinations, product

import numpy as np
import pytest
import xarray as xr
from analyses_brute import (
    METRICS,
    Table,
    average,
    datasets,
    holm,
    interval,
    kappa,
    kendall,
    label,
    make_dataset,
    mean,
    metric,
    one_at_a_time,
    outcome_form,
    pearson,
    relative,
    repeated,
    same,
    variance_shares,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

from instability import instability_brute
from persona_mlflow.analyses import NotAllowed, Study
from persona_mlflow.analyses.chance import by_chance
from persona_mlflow.analyses.comparisons import (
    persona_differences,
    recommended_settings,
    setting_differences,
    setting_names,
)
from persona_mlflow.analyses.correlations import correlations, set_kappa
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
    FIRST,
    LAST,
    SHARES,
    STABLE,
    SUBSETS,
    UNSTABLE,
    contrast,
    question_subsets,
    setting_subsets,
    stable_and_unstable,
)
from persona_mlflow.analyses.structure import agreement, variance
from persona_mlflow.instability import accuracy_instability, outcome_instability, question_instability
from persona_mlflow.instability.chance import chance_levels
from persona_mlflow.instability.pairwise import persona_differences as paired_personas
from persona_mlflow.instability.pairwise import setting_tests
from persona_mlflow.instability.recommend import recommend_settings
from persona_mlflow.instability.resampling import subset_weights

pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")

DRAWS = 4
some = settings(max_examples=15, deadline=None)
two_or_more = {"factors": ("ppf", "temperature"), "levels": (2, 3)}


def make_study(dataset: xr.Dataset, draws: int = 0, permutations: int = 0, seed: int = 0) -> Study:
    """A study that gives bounds to however few questions."""
    return Study(dataset, draws=draws, permutations=permutations, seed=seed, few=1)


def in_every_draw(study: Study, compute) -> list:
    """What ``compute`` gives for the questions of each draw."""
    return [compute(repeated(study.weights, draw)) for draw in range(study.weights.shape[1])]


def assert_interval(found: xr.Dataset, expected: list, names=("value", "low", "high")) -> None:
    for name, bound in zip(names, interval(expected), strict=True):
        assert same(found[name], bound, 1e-7), (name, found, expected)


def check_deltas(study: Study, found: xr.Dataset, new, baseline) -> None:
    """Every variable of an analysis of deltas, where ``new`` and ``baseline`` take a metric and questions."""
    for name in METRICS:
        part = found.sel(metric=name)
        values = in_every_draw(study, lambda q, m=name: new(m, q))
        base = in_every_draw(study, lambda q, m=name: baseline(m, q))
        assert same(part["baseline"], base[0])
        pairs = list(zip(base, values, strict=True))
        assert_interval(part, [relative(b, v) for b, v in pairs])
        delta = [None if b is None or v is None else b - v for b, v in pairs]
        assert_interval(part, delta, ("delta", "delta_low", "delta_high"))
        value, low, high = interval(values)
        top = np.inf if name == "outcome" else 1.0
        low, high = (bound if bound is None else min(max(0, bound), top) for bound in (low, high))
        for key, bound in zip(("", "_low", "_high"), (value, low, high), strict=True):
            assert same(part[f"instability{key}"], bound, 1e-7)
        assert bool(part["reason"] == "") == (relative(base[0], values[0]) is not None)


# P1 Table 1, Fig. 3, 4.


@given(datasets())
@some
def test_T1_overview(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    found = overview(study)
    runs = [(p, s) for p in table.people for s in table.settings()]

    def accuracies(questions):
        return [table.score(p, s, questions) for p, s in runs]

    def spread(questions):
        return float(np.std([float(a) for a in accuracies(questions)]))

    rows = [
        in_every_draw(study, lambda q: mean(accuracies(q))),
        in_every_draw(study, spread),
        *(in_every_draw(study, lambda q, m=m: average(table, m, questions=q)) for m in METRICS),
    ]
    for i, row in enumerate(rows):
        value, low, high = interval(row)
        assert same(found["value"][i], value)
        if low is not None:
            top = (1, 0.5, 1, np.inf, 1)[i]
            assert same(found["low"][i], min(max(low, 0), top), 1e-7)
            assert same(found["high"][i], min(max(high, 0), top), 1e-7)
        assert bool(found["reason"][i] != "") == (value is None)


@given(datasets(levels=(1, 3)))
@some
def test_F4_single_factor(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    if not table.varied:
        with pytest.raises(NotAllowed, match="varied here: none"):
            single_factor(study)
        return
    found = single_factor(study)
    assert found["factor"].values.tolist() == table.varied
    for factor in table.varied:
        check_deltas(
            study,
            found.sel(factor=factor),
            lambda name, q, f=factor: average(table, name, [f], questions=q),
            lambda name, q: average(table, name, questions=q),
        )


@given(datasets(levels=(1, 3)))
@some
def test_F3_levels_in_both_readings(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    if len(table.varied) < 2:
        for compute in (levels, all_at_once):
            with pytest.raises(NotAllowed, match="takes 2 factors"):
                compute(study)
        return
    one, all_ = levels(study), all_at_once(study)
    assert one["level"].values.tolist() == all_["level"].values.tolist() == list(table.level_sets())
    for text, where in table.level_sets().items():
        ((factor, (level,)),) = where.items()
        check_deltas(
            study,
            one.sel(level=text),
            lambda name, q, f=factor, v=level: one_at_a_time(table, name, f, v, questions=q),
            lambda name, q: average(table, name, questions=q),
        )
        check_deltas(
            study,
            all_.sel(level=text),
            lambda name, q, w=where: average(table, name, where=w, questions=q),
            lambda name, q: average(table, name, questions=q),
        )


# P1 Fig. 5, 7, 8, 11.


@given(datasets(factors=("tpf", "repeat"), levels=(1, 2), questions=(2, 6)))
@settings(max_examples=8, deadline=None)
def test_F5_F8_F11_categories_and_groups(dataset):
    table, study = Table(dataset), make_study(dataset, draws=1)
    assume(table.varied)
    categories, groups = list(dict.fromkeys(table.categories)), list(table.groups)

    def new(category=None, group=None, over=None):
        people = table.groups[group] if group else None
        return lambda name, q: average(table, name, over, questions=table.of(category, q), people=people)

    if len(categories) > 1:
        found, by_factor = by_category(study), factors_by_category(study)
        for name in categories:
            check_deltas(study, found.sel(category=name), new(name), new())
            for factor in table.varied:
                check_deltas(
                    study,
                    by_factor.sel(category=name, factor=factor),
                    new(name, over=[factor]),
                    new(name),
                )
    else:
        for compute in (by_category, factors_by_category):
            with pytest.raises(NotAllowed, match="two question categories"):
                compute(study)
    if len(groups) > 1:
        found, by_factor = by_group(study), factors_by_group(study)
        assert sorted(found["group"].values.tolist()) == sorted(groups)
        for name in groups:
            check_deltas(study, found.sel(group=name), new(group=name), new())
            for factor in table.varied:
                check_deltas(
                    study,
                    by_factor.sel(group=name, factor=factor),
                    new(group=name, over=[factor]),
                    new(group=name),
                )
    if len(categories) > 1:
        found = subgroups_by_category(study)
        parts = [name for name in groups if " · " in name]
        assert sorted(found["subgroup"].values.tolist()) == sorted(n.split(" · ")[1] for n in parts)
        for part, name in product(parts, categories):
            row = found.sel(subgroup=part.split(" · ")[1], category=name)
            check_deltas(study, row, new(name, part), new(group=part))


@given(datasets())
@some
def test_F7_across_personas(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    if len(table.people) < 2:
        with pytest.raises(NotAllowed, match="two personas"):
            across_personas(study)
        return
    found = across_personas(study)
    groups = {"all personas": table.people, **{g: p for g, p in table.groups.items() if len(p) > 1}}
    assert sorted(found["group"].values.tolist()) == sorted(groups)
    for name, (group, people) in product(("accuracy", "question"), groups.items()):
        row = in_every_draw(
            study, lambda q, m=name, p=people: average(table, m, ["persona"], questions=q, people=p)
        )
        value, low, high = interval(row)
        part = found.sel(metric=name, group=group)
        assert same(part["value"], value)
        assert same(part["low"], low if low is None else max(low, 0), 1e-7)
        assert same(part["high"], high if high is None else min(high, 1), 1e-7)


# P1 Tables 4, 9, 10, Fig. 6, 12.


@given(datasets(factors=("temperature", "tpf", "ppf", "repeat"), questions=(1, 4)))
@some
def test_T4_F6_selected_settings(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    temperatures = table.factors["temperature"]
    if 1.0 in temperatures:
        found = stable_and_unstable(study)
        for name, wanted in (("stable", STABLE), ("unstable", UNSTABLE)):
            where = {f: [v for v in vs if v in table.factors[f]] for f, vs in wanted.items()}
            runs = list(product(table.people, table.settings(where)))
            for statistic, reduce in (("mean accuracy", mean), ("maximal accuracy", max)):
                row = in_every_draw(
                    study, lambda q, r=runs, f=reduce: f([table.score(p, s, q) for p, s in r])
                )
                assert_interval(found.sel(set=name, statistic=statistic), row)
        difference = found["value"].sel(set="stable") - found["value"].sel(set="unstable")
        assert found["value"].sel(set="stable − unstable").values == pytest.approx(difference.values)
        assert "justanswer-persona" in found.attrs["note"]
    else:
        with pytest.raises(NotAllowed, match="takes temperature 1, which this grid lacks"):
            stable_and_unstable(study)
    if len(table.settings()) < 2 or len(table.people) < 2:
        with pytest.raises(NotAllowed, match="two settings and two personas"):
            contrast(study)
        return
    found = contrast(study)
    there = all(v in table.factors[f] for chosen in (FIRST, LAST) for f, v in chosen.items())
    assert there == ("note" not in found.attrs)
    for i, (chosen, end) in enumerate(((FIRST, 0), (LAST, -1))):
        setting = tuple(
            chosen.get(f, values[0]) if there else values[end] for f, values in table.factors.items()
        )
        answers = {(p, setting): [table.right[p, setting, q] for q in table.questions] for p in table.people}
        for p in table.people:
            row = found.isel(setting=i, persona=p)
            value, low, high = interval(in_every_draw(study, lambda q, p=p, s=setting: table.score(p, s, q)))
            assert same(row["value"], value)
            assert same(row["low"], max(low, 0))
            assert same(row["high"], min(high, 1))
            rank = instability_brute.rank(table.people, setting, answers, p, "average")
            assert row["rank"].item() == float(rank)


@given(datasets(factors=("tpf", "temperature"), levels=(1, 2)), st.integers(0, 3))
@some
def test_T9_question_subsets(dataset, seed):
    table, study = Table(dataset), make_study(dataset, draws=0, seed=seed)
    assume(table.varied)
    found = question_subsets(study, seeds=5)
    strata = [np.array(table.of(name)) for name in dict.fromkeys(table.categories)]
    # The subsets themselves are checked in the tests of `subset_weights`.
    subsets = [[table.questions]]
    for i, share in enumerate(SHARES, 1):
        weights = subset_weights(strata, share, 5, seed + i)
        subsets.append([repeated(weights, draw) for draw in range(5)])
    for (i, chosen), name in product(enumerate(subsets), METRICS):
        values = [average(table, name, questions=q) for q in chosen]
        defined = [float(v) for v in values if v is not None]
        row = found.sel(metric=name).isel(share=i)
        expected = (
            (mean(values), min(defined), max(defined), float(np.std(defined))) if defined else [None] * 4
        )
        for key, value in zip(("value", "low", "high", "sd"), expected, strict=True):
            assert same(row[key], value, 1e-7), (key, name, i)
        assert bool(row["reason"] != "") == (not defined)


@given(st.integers(0, 99), st.sampled_from(["ppf", "tpf"]))
@settings(max_examples=6, deadline=None)
def test_T10_setting_subsets(seed, order):
    rng = np.random.default_rng(seed)
    grid = {
        "ppf": ["barebones", "youare", "youareknowledge", "identitynature"],
        "tpf": ["justanswer", "justanswer-persona", "explain", "explain-persona"],
    }
    names = [order, *(name for name in grid if name != order)]
    dataset = make_dataset(rng.random((2, 4, 4, 3)) < 0.6, {name: grid[name] for name in names})
    table, study = Table(dataset), make_study(dataset, draws=2)
    found = setting_subsets(study)
    assert found["subset"].values.tolist() == ["all settings", *SUBSETS]
    for (subset, where), name in product([("all settings", None), *SUBSETS.items()], METRICS):
        row = found.sel(subset=subset, metric=name)
        assert same(row["value"], average(table, name, where=where))
        whole = average(table, name)
        assert same(row["relative"], relative(whole, average(table, name, where=where)))
    # 3 × 3 and 2 × 2 settings here; with the paper's three temperatures 27 and 12.
    sizes = [len(table.settings(where)) for where in SUBSETS.values()]
    assert sizes == [9, 4]


# P1 Table 8, Fig. 10.


@given(datasets(**two_or_more, kinds=("random", "rare", "personas alike"), personas=(1, 3)))
@some
def test_T8_correlations(dataset):
    table, study = Table(dataset), make_study(dataset, draws=0)
    found = correlations(study)
    columns: list[list] = [[] for _ in range(6)]
    for where in table.level_sets().values():
        chosen = table.settings(where)
        means = [mean(table.score(p, s, table.questions) for p in table.people) for s in chosen]
        best = [max(table.people, key=lambda p, s=s: table.score(p, s, table.questions)) for s in chosen]
        whole, part = average(table, "question"), average(table, "question", where=where)
        row = [
            average(table, "accuracy", where=where),
            max(means) - min(means),
            outcome_form(table, True, False, where)[0],
            len(set(best)),
            None if whole is None or part is None else whole - part,
            mean(kappa(table, p, chosen, table.questions) for p in table.people),
        ]
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    for i in range(3):
        x, y = columns[2 * i], columns[2 * i + 1]
        expected = pearson(x, y)
        assert same(found["value"][i], expected, 1e-7)
        assert bool(found["reason"][i] == "") == (expected is not None)
        if expected is None:
            assert same(found["p"][i], None)
        elif len(x) > 2:
            theirs = stats.pearsonr([float(v) for v in x], [float(v) for v in y])
            assert found["value"][i].item() == pytest.approx(theirs.statistic, abs=1e-7)
            assert found["p"][i].item() == pytest.approx(theirs.pvalue, abs=1e-6)


@given(datasets(**two_or_more, kinds=("random", "settings alike"), questions=(2, 8)))
@some
def test_T1_kappa_equals_statsmodels_and_is_undefined_without_variation(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    for where in [{}, *table.level_sets().values()]:
        found = set_kappa(study, where)
        chosen = table.settings(where)
        for draw in range(1 + DRAWS):
            values = []
            for p in table.people:
                asked = repeated(study.weights, draw)
                rows = [[int(table.right[p, s, q]) for s in chosen] for q in asked]
                if 0 < sum(map(sum, rows)) < len(rows) * len(chosen):
                    values.append(fleiss_kappa(aggregate_raters(np.array(rows), n_cat=2)[0]))
                assert same(
                    kappa(table, p, chosen, asked) or 0,
                    0 if not values else kappa(table, p, chosen, asked) or 0,
                )
            assert same(found[draw], np.mean(values) if values else None, 1e-7)


def test_T5_a_side_without_variation_has_no_correlation_but_a_reason():
    grid = {"ppf": ["a", "b"], "tpf": ["x", "y"]}
    for share in (0.0, 1.0):
        alike = np.full((2, 2, 2, 5), bool(share))
        found = correlations(make_study(make_dataset(alike, grid), draws=3))
        for name in ("value", "low", "high", "p"):
            assert np.isnan(found[name]).all()
        assert (found["reason"] != "").all()
        assert "same in all sets" in str(found["reason"].values[0])
        assert "without variation" in str(found["reason"].values[2])
    # One persona is best in every setting, and I_A is the same in every set: one side of each is constant.
    right = np.zeros((2, 2, 2, 4), dtype=bool)
    right[0, ..., 0] = right[1, ..., 1] = True
    right[0, 0, 0, 2] = right[0, 1, 1, 2] = True
    found = correlations(make_study(make_dataset(right, grid), draws=0))
    assert np.isnan(found["value"].values[:2]).all()
    assert all("same in all sets" in str(text) for text in found["reason"].values[:2])


@given(datasets(**two_or_more))
@some
def test_F10_forms_of_outcome_instability(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    found = outcome_forms(study)
    sets = {"all settings": {}, **table.level_sets()}
    assert found["level"].values.tolist() == list(sets)
    for text, where in sets.items():
        for i, (weighted, normalized) in enumerate(product((True, False), (True, False))):
            rows = in_every_draw(
                study,
                lambda q, w=weighted, n=normalized, s=where: (
                    outcome_form(table, w, n, None, q)[0],
                    outcome_form(table, w, n, s, q)[0],
                ),
            )
            part = found.sel(level=text).isel(form=i)
            assert same(part["absolute"], rows[0][1])
            assert_interval(part, [relative(a, b) for a, b in rows])
        rows = in_every_draw(
            study,
            lambda q, s=where: (
                outcome_form(table, True, True, None, q)[1],
                outcome_form(table, True, True, s, q)[1],
            ),
        )
        part = found.sel(level=text, form="normalisation alone")
        assert same(part["absolute"], rows[0][1])
        assert_interval(part, [relative(a, b) for a, b in rows])


# P1 Tables 11, 12.


@given(datasets())
@some
def test_T11_T12_percentages(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS)
    sets = {"all answers": {}}
    for factor, values in table.factors.items():
        sets |= {label(factor, level): {factor: [level]} for level in values}
    wrong = {key: not right for key, right in table.right.items()}
    for compute, happened in ((unparsed_by_level, table.unparsed), (incorrect_by_level, wrong)):
        found = compute(study)
        assert found["level"].values.tolist() == list(sets)
        for i, where in enumerate(sets.values()):
            runs = list(product(table.people, table.settings(where)))
            rows = in_every_draw(
                study,
                lambda q, r=runs, h=happened: (
                    100 * sum(h[p, s, k] for p, s in r for k in q) / len(r) / len(q)
                ),
            )
            value, low, high = interval(rows)
            assert same(found["value"][i], value)
            assert same(found["low"][i], max(low, 0), 1e-7)
            assert same(found["high"][i], min(high, 100), 1e-7)


# Beyond the paper.


@given(datasets(factors=("ppf", "temperature", "repeat"), levels=(1, 2), personas=(1, 3), questions=(1, 4)))
@some
def test_variance_shares(dataset):
    table, study = Table(dataset), make_study(dataset, draws=1)
    expected = [variance_shares(table, repeated(study.weights, draw)) for draw in (0, 1)]
    if not expected[0] or None in expected[0].values():
        with pytest.raises(NotAllowed, match=r"one run|equally accurate"):
            variance(study)
        return
    found = variance(study)
    assert found["term"].values.tolist() == list(expected[0])
    for term, share in expected[0].items():
        assert same(found["value"].sel(term=term), share)
        # With one resample the bounds are the value itself, or there are none.
        assert same(found["low"].sel(term=term), None if expected[1][term] is None else share)
    assert found["value"].sum().item() == pytest.approx(1)


@given(datasets())
@some
def test_agreement_of_rankings(dataset):
    table, study = Table(dataset), make_study(dataset, draws=DRAWS, permutations=9)
    if len(table.people) < 2 or len(table.settings()) < 2:
        with pytest.raises(NotAllowed, match="two settings and two personas"):
            agreement(study)
        return
    found = agreement(study)
    categories = list(dict.fromkeys(table.categories))
    names = ["all questions", *(categories if len(categories) > 1 else [])]
    assert found["part"].values.tolist() == names
    for i, category in enumerate([None, *names[1:]]):
        row = in_every_draw(study, lambda q, c=category: kendall(table, table.of(c, q)))
        value, low, high = interval(row)
        assert same(found["value"][i], value)
        assert same(found["low"][i], low if low is None else max(low, 0), 1e-7)
        assert same(found["high"][i], high if high is None else min(high, 1), 1e-7)
        assert bool(found["reason"][i] != "") == (value is None)
        assert same(found["p"][i], None) == (value is None)
        if value is not None:
            assert 0.1 - 1e-9 <= found["p"][i].item() <= 1


@given(datasets(questions=(2, 8)))
@some
def test_setting_differences(dataset):
    table, study = Table(dataset), make_study(dataset, draws=0)
    chosen = table.settings()
    if len(chosen) < 2:
        with pytest.raises(NotAllowed, match=r"one setting|1 setting"):
            setting_differences(study)
        return
    found = setting_differences(study)
    n, pairs = len(table.questions), list(combinations(range(len(chosen)), 2))
    rows = [
        [float(mean(int(table.right[p, s, q]) for p in table.people)) for q in table.questions]
        for s in chosen
    ]
    # Where all differences are alike there is no t-test: the sign test stands for it.
    p = []
    for i, j in pairs:
        difference = np.subtract(rows[i], rows[j])
        if np.ptp(difference) > 1e-12:
            p.append(float(stats.ttest_rel(rows[i], rows[j]).pvalue))
        else:
            p.append(1.0 if abs(difference[0]) < 1e-12 else 2.0 ** (1 - n))
    for (i, j), adjusted in zip(pairs, holm(p), strict=True):
        difference = np.subtract(rows[i], rows[j])
        sem = np.std(difference, ddof=1) / np.sqrt(n)
        margin = stats.t.ppf(0.975, n - 1) * sem
        for a, b, sign in ((i, j, 1), (j, i, -1)):
            assert same(found["value"][a, b], sign * difference.mean())
            assert same(found["low"][a, b], sign * difference.mean() - margin, 1e-7)
            assert same(found["high"][a, b], sign * difference.mean() + margin, 1e-7)
            assert found["p"][a, b].item() == pytest.approx(adjusted, abs=1e-7)


def test_setting_differences_stand_in_the_rows_and_columns_that_they_name():
    rng = np.random.default_rng(5)
    dataset = make_dataset(
        rng.random((3, 3, 2, 30)) < 0.6, {"ppf": ["a", "b", "c"], "temperature": [0.0, 1.0]}
    )
    study = make_study(dataset, draws=0)
    found, tests = setting_differences(study), setting_tests(dataset["correct"])
    names = setting_names(study)
    ours = {f"{p} · {t}": f"{p} · τ {t:g}" for p in ("a", "b", "c") for t in (0.0, 1.0)}
    assert names == list(ours.values())
    for pair in range(tests.sizes["pair"]):
        one, other = (ours[str(tests[name].values[pair])] for name in ("first", "second"))
        cell = found.sel(setting=one, other=other)
        for key, source in (("value", "difference"), ("low", "low"), ("high", "high"), ("p", "p_adjusted")):
            assert cell[key].item() == tests[source].values[pair]
        turned = found.sel(setting=other, other=one)
        assert turned["value"] == -cell["value"]
        assert (turned["low"], turned["high"]) == (-cell["high"], -cell["low"])
        assert turned["p"] == cell["p"]
        accuracy = dataset["correct"].mean(["persona", "question"])
        a, b = (accuracy.values.ravel()[names.index(name)] for name in (one, other))
        assert cell["value"].item() == pytest.approx(a - b)


@given(datasets(personas=(1, 4), questions=(1, 8)), st.booleans())
@some
def test_persona_differences(dataset, lead):
    if lead and dataset.sizes["persona"] > 1:  # a persona that is always right among ones that never are
        dataset = make_dataset(
            np.broadcast_to(
                np.arange(dataset.sizes["persona"]).reshape(-1, 1, 1) == 1, (dataset.sizes["persona"], 2, 12)
            ),
            {"ppf": ["a", "b"]},
        )
    table, study = Table(dataset), make_study(dataset, draws=0)
    if len(table.people) < 2:
        with pytest.raises(NotAllowed, match="persona"):
            persona_differences(study)
        return
    found, ordered = persona_differences(study), list(product(table.people, table.people))
    ordered = [(a, b) for a, b in ordered if a != b]
    weakest = []
    for a, b in ordered:
        p = []
        for s in table.settings():
            mine = sum(table.right[a, s, q] and not table.right[b, s, q] for q in table.questions)
            yours = sum(table.right[b, s, q] and not table.right[a, s, q] for q in table.questions)
            total = mine + yours
            p.append(stats.binomtest(mine, total, alternative="greater").pvalue if total else 1.0)
        weakest.append(max(p))
    beats: dict = {p: set() for p in table.people}
    for (a, b), p in zip(ordered, holm(weakest), strict=True):
        if p <= 0.05:
            beats[a].add(b)
    winners = [p for p in table.people if len(beats[p]) == len(table.people) - 1]
    for p in table.people:
        row = found.isel(persona=p)
        assert same(row["value"], mean(table.score(p, s, table.questions) for s in table.settings()))
        assert row["beats"] == len(beats[p])
        assert row["beaten_by"] == sum(p in others for others in beats.values())
        scores = [[table.score(o, s, table.questions) for o in table.people] for s in table.settings()]
        assert row["best_in"] == sum(s[p] == max(s) for s in scores)
        ranks = [sum(o > s[p] for o in s) + (s.count(s[p]) + 1) / 2 for s in scores]
        assert row["mean_rank"].item() == pytest.approx(sum(ranks) / len(ranks))
    if winners:
        assert f"Best persona: {table.personas[winners[0]]}," in found.attrs["note"]
    else:
        assert "No persona is better" in found.attrs["note"]
    assert bool(winners) == bool(paired_personas(dataset["correct"]).attrs["best_persona"])


@given(datasets(factors=("ppf", "temperature"), personas=(1, 3), questions=(2, 8)))
@some
def test_recommended_settings(dataset):
    table, study = Table(dataset), make_study(dataset, draws=0)
    chosen = table.settings()
    if len(chosen) < 2:
        with pytest.raises(NotAllowed, match="setting"):
            recommended_settings(study)
        return
    found, theirs = recommended_settings(study), recommend_settings(dataset["correct"])
    names = dict(zip(setting_names(study), range(len(chosen)), strict=True))
    order = [names[str(name)] for name in found["setting"].values]
    assert sorted(order) == list(range(len(chosen)))
    for place, i in enumerate(order):
        row = found.isel(setting=place)
        neighbours = [s for s in chosen if sum(a != b for a, b in zip(s, chosen[i], strict=True)) == 1]
        for name in METRICS:
            values = []
            for other in neighbours:
                answers = {
                    (p, s): [table.right[p, s, q] for q in table.questions]
                    for p in table.people
                    for s in (chosen[i], other)
                }
                values.append(getattr(instability_brute, name)(table.people, [chosen[i], other], answers)[0])
            assert same(row[f"{name}_instability"], mean(values), 1e-7)
        accuracy = mean(table.score(p, chosen[i], table.questions) for p in table.people)
        assert same(row["value"], accuracy)
        top = max(mean(table.score(p, s, table.questions) for p in table.people) for s in chosen)
        assert same(row["loss"], top - accuracy)
        assert (row["recommended"] == "yes") == bool(theirs["recommended"].values[i])
        assert row["score"].item() == theirs["score"].values[i]
        assert row["p"].item() == theirs["p_loss"].values[i]
    yes = [bool(v) for v in found["recommended"].values == "yes"]
    scores = found["score"].values.tolist()
    assert yes == sorted(yes, reverse=True)
    for part in (True, False):
        mine = [score for score, chosen_ in zip(scores, yes, strict=True) if chosen_ is part]
        assert mine == sorted(mine)
    assert found.attrs["note"].endswith(f": {found['setting'].values[0]}.")


# By chance.


def test_chance_equals_the_level_of_each_part_of_the_grid():
    rng = np.random.default_rng(6)
    # Questions of many difficulties, settings that differ in a part of them, for all personas alike in some.
    easy = rng.random((4, 1, 1, 1, 40)) + 0.8 * rng.random((4, 2, 2, 2, 40)) + rng.random((1, 2, 1, 1, 40))
    groups = [("one", ""), ("one", "part"), ("two", ""), ("two", "")]
    dataset = make_dataset(
        easy > 1.3,
        {"tpf": ["a", "b"], "temperature": [0.0, 1.0], "repeat": [0, 1]},
        [("Math", "EECS", "History")[i % 3] for i in range(40)],
        groups,
    )
    correct = dataset["correct"]
    study = make_study(dataset, draws=0, permutations=600)
    found = by_chance(study)
    factors = ["tpf", "temperature", "repeat"]
    category = dataset["category"].values

    def members(name):
        return [i for i, group in enumerate(groups) if name in (group[0], " · ".join(group))]

    expected = {
        "all settings": (correct, factors),
        **{f"{factor} alone": (correct, [factor]) for factor in factors},
        "repeat alone, temperature 0": (correct.sel(temperature=[0.0]), ["repeat"]),
        "repeat alone, temperature 1": (correct.sel(temperature=[1.0]), ["repeat"]),
        **{n: (correct.isel(question=category == n), factors) for n in ("Math", "EECS", "History")},
        **{n: (correct.isel(persona=members(n)), factors) for n in ("one", "two", "one · part")},
    }
    assert sorted(found["part"].values.tolist()) == sorted(expected)
    for part, (answers, over) in expected.items():
        mine = found.sel(part=part)
        apart, together = (
            chance_levels(answers, over, draws=600, seed=77, together=choice) for choice in (False, True)
        )
        for key in ("value", "independent", "share"):
            assert mine[key].values == pytest.approx(apart[key].values, nan_ok=True), (part, key)
        for name in ("accuracy", "outcome"):
            ours = mine.sel(metric=name)
            for theirs, floor, p in ((apart, "floor", "p"), (together, "floor_together", "p_together")):
                level = theirs.sel(metric=name)
                # Both are means of 600 draws, whose deviation is at most half of the floor here.
                assert ours[floor].item() == pytest.approx(level["floor"].item(), rel=0.08, abs=1e-12), part
                assert ours[p].item() == pytest.approx(level["p"].item(), abs=0.1)
            assert ours["excess"].item() == pytest.approx(ours["value"].item() - ours["floor"].item())
    for name in ("accuracy", "outcome"):
        row = found.sel(metric=name)
        assert row["p_adjusted"].values == pytest.approx(holm(row["p_together"].values.tolist()))
    question = found.sel(metric="question")
    for name in ("floor", "excess", "p", "floor_together", "p_together", "p_adjusted"):
        assert np.isnan(question[name]).all()


@given(datasets(factors=("ppf", "tpf"), levels=(1, 3), personas=(1, 3)))
@settings(max_examples=10, deadline=None)
def test_chance_values_and_independence(dataset):
    table, study = Table(dataset), make_study(dataset, draws=0, permutations=5)
    assume(table.varied)
    found = by_chance(study)
    parts: dict = {"all settings": (table.questions, table.people, list(table.factors))}
    if len(table.varied) > 1:
        parts |= {f"{f} alone": (table.questions, table.people, [f]) for f in table.varied}
    if len(set(table.categories)) > 1:
        parts |= {c: (table.of(c), table.people, list(table.factors)) for c in set(table.categories)}
    if len(table.groups) > 1:
        parts |= {g: (table.questions, p, list(table.factors)) for g, p in table.groups.items()}
    assert sorted(found["part"].values.tolist()) == sorted(parts)
    for name, (questions, people, over) in parts.items():
        part = found.sel(part=name)
        for m in METRICS:
            value = average(table, m, over, questions=questions, people=people)
            assert same(part["value"].sel(metric=m), value)
        # 1 − E|∩| / E|∪|, mean over personas that are ever right, then over lines.
        kept = [f for f in table.factors if f not in over]
        lines: dict = {}
        for s in table.settings():
            lines.setdefault(tuple(table.level(s, f) for f in kept), []).append(s)
        by_line = []
        for line in lines.values():
            shares = []
            for p in people:
                always, never = 1, 1
                for s in line:
                    score = table.score(p, s, questions)
                    always, never = always * score, never * (1 - score)
                if never < 1:
                    shares.append(1 - always / (1 - never))
            by_line.append(mean(shares))
        independent = mean(by_line)
        question = part.sel(metric="question")
        assert same(question["independent"], independent)
        observed = average(table, "question", over, questions=questions, people=people)
        assert same(question["share"], observed / independent if independent else None)


def test_chance_floors_equal_the_means_over_permuted_answers():
    rng = np.random.default_rng(8)
    easy = rng.random((2, 2, 2, 6)) + rng.random((1, 2, 2, 6))
    dataset = make_dataset(easy > 0.9, {"ppf": ["a", "b"], "repeat": [0, 1]})
    table, draws = Table(dataset), 250
    found = by_chance(make_study(dataset, permutations=3000))
    for part, over in (("all settings", ["ppf", "repeat"]), ("repeat alone", ["repeat"])):
        kept = [f for f in table.factors if f not in over]
        lines: dict = {}
        for s in table.settings():
            lines.setdefault(tuple(table.level(s, f) for f in kept), []).append(s)
        for key, groups in (("floor", [[p] for p in table.people]), ("floor_together", [table.people])):
            drawn: dict = {"accuracy": [], "outcome": []}
            for _ in range(draws):
                shuffled = Table(dataset)
                for people, line, q in product(groups, lines.values(), table.questions):
                    order = rng.permutation(len(line))
                    for p, (s, k) in product(people, zip(line, order, strict=True)):
                        shuffled.right[p, s, q] = table.right[p, line[k], q]
                for name, values in drawn.items():
                    values.append(float(average(shuffled, name, over)))
            for name, values in drawn.items():
                floor = found[key].sel(part=part, metric=name).item()
                error = np.std(values) / draws**0.5
                assert floor == pytest.approx(np.mean(values), abs=4 * error), (part, key, name)


# The analyses on a study equal the functions for users of the package.


@given(datasets(factors=("ppf", "option_order"), levels=(2, 3)))
@some
def test_single_factor_equals_the_metrics_of_the_package(dataset):
    found = single_factor(make_study(dataset, draws=0))
    functions = {
        "accuracy": accuracy_instability,
        "outcome": outcome_instability,
        "question": question_instability,
    }
    for (name, function), factor in product(functions.items(), ("ppf", "option_order")):
        part = found.sel(metric=name, factor=factor)
        assert same(part["instability"], function(dataset["correct"], factor).average)
        assert same(part["baseline"], function(dataset["correct"]).average)


def test_metric_of_brute_force_is_that_of_the_package():
    # The plain loops of this folder against those of the metrics' tests.
    rng = np.random.default_rng(9)
    dataset = make_dataset(rng.random((3, 2, 2, 5)) < 0.5, {"ppf": ["a", "b"], "tpf": ["x", "y"]})
    table = Table(dataset)
    found = accuracy_instability(dataset["correct"], "tpf").value
    for level, value in metric(table, "accuracy", ["tpf"]).items():
        assert float(value) == pytest.approx(found.sel(ppf=level[0]).item())
