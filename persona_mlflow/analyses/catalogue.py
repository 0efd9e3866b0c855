"""The analyses in the order of a report, each with its place in the paper and its layout."""

from __future__ import annotations

from persona_mlflow.analyses import (
    chance,
    comparisons,
    correlations,
    domains,
    factors,
    fidelity,
    overview,
    parsing,
    prediction,
    selections,
    structure,
)
from persona_mlflow.analyses.entry import Entry

_STABLER = "more stable than all settings varied jointly"
_DELTA = (
    "Relative delta: (baseline − new) / baseline, so positive is more stable; the baseline varies all "
    "settings jointly."
)
_INSTABILITY = {"instability": "instability"}

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        key="overview",
        reference="P1 Table 1",
        title="Accuracy and instability",
        caption="Accuracy over all runs, and the three instabilities over all settings, as fractions of 1.",
        compute=overview.overview,
        rows=("model",),
        columns=("quantity",),
    ),
    Entry(
        key="chance",
        reference="beyond the paper",
        title="Is it more than chance?",
        caption=(
            "Each instability beside its floor: its mean when a persona's right answers to a question are "
            "permuted over the compared settings. p is the share of permutations, of all personas' answers "
            "together, that give as much, adjusted after Holm over the rows. I_Q does not change under the "
            "permutation; its share is of the value that it would have if which questions are right were "
            "independent between settings."
        ),
        compute=chance.by_chance,
        rows=("part",),
        columns=("metric",),
        figure="intervals",
        show={"floor": "floor", "p_adjusted": "p", "share": "share of independence"},
    ),
    Entry(
        key="single-factor",
        reference="P1 Fig. 4",
        title="Which factor causes the instability?",
        caption=f"One factor varies, the others are fixed; averaged over their combinations. {_DELTA}",
        compute=factors.single_factor,
        rows=("model",),
        columns=("factor",),
        figure="heatmap",
        brighter=_STABLER,
        unit="relative delta",
        show=_INSTABILITY,
    ),
    Entry(
        key="levels",
        reference="P1 Fig. 3",
        title="At which level is a model most stable?",
        caption=(
            "Within the settings with one level, one other factor varies at a time; averaged over the "
            f"fixed combinations and over the factors. {_DELTA}"
        ),
        compute=factors.levels,
        rows=("model",),
        columns=("level",),
        figure="heatmap",
        brighter=_STABLER,
        unit="relative delta",
        show=_INSTABILITY,
    ),
    Entry(
        key="levels-jointly",
        reference="P1 Fig. 3, second reading",
        title="At which level is a model most stable, all other factors varied jointly?",
        caption=f"All settings with one level are compared at once. {_DELTA}",
        compute=factors.all_at_once,
        rows=("model",),
        columns=("level",),
        figure="heatmap",
        brighter=_STABLER,
        unit="relative delta",
        show=_INSTABILITY,
    ),
    Entry(
        key="categories",
        reference="P1 Fig. 5",
        title="In which domain?",
        caption=(
            "Instability over all settings within each question category. Relative delta against all "
            "questions: positive is more stable. A category has fewer questions, so noise alone makes it "
            "less stable: see the floors under “Is it more than chance?”."
        ),
        compute=domains.by_category,
        rows=("category",),
        columns=("model",),
        figure="heatmap",
        brighter="more stable than all questions together",
        unit="relative delta",
        show=_INSTABILITY,
    ),
    Entry(
        key="groups",
        reference="P1 Fig. 5",
        title="For whom?",
        caption=(
            "Instability over all settings within each persona group; ranks and weights are recomputed "
            "among its personas, so that I_O of a small group has fewer ranks to move over. Relative "
            "delta against all personas: positive is more stable."
        ),
        compute=domains.by_group,
        rows=("group",),
        columns=("model",),
        figure="heatmap",
        brighter="more stable than all personas together",
        unit="relative delta",
        show=_INSTABILITY,
    ),
    Entry(
        key="factors-by-category",
        reference="P1 Fig. 11",
        title="Which factor, in which domain?",
        caption="Single-factor instability within each category. Relative delta against the category's own.",
        compute=domains.factors_by_category,
        rows=("category",),
        columns=("model", "factor"),
        figure="heatmap",
        brighter=_STABLER,
        unit="relative delta",
    ),
    Entry(
        key="factors-by-group",
        reference="P1 Fig. 11",
        title="Which factor, for whom?",
        caption="Single-factor instability within each group. Relative delta against the group's own.",
        compute=domains.factors_by_group,
        rows=("group",),
        columns=("model", "factor"),
        figure="heatmap",
        brighter=_STABLER,
        unit="relative delta",
    ),
    Entry(
        key="subgroups-by-category",
        reference="P1 Fig. 8",
        title="Occupations and domains",
        caption=(
            "Instability of each persona sub-group in each category. Relative delta against the "
            "sub-group's over all questions: positive is more stable."
        ),
        compute=domains.subgroups_by_category,
        rows=("model", "subgroup"),
        columns=("category",),
        figure="heatmap",
        brighter="more stable than on all questions",
        unit="relative delta",
    ),
    Entry(
        key="across-personas",
        reference="P1 Fig. 7",
        title="How different are the personas?",
        caption=(
            "Persona is what varies, within each setting; averaged over settings. There is no I_O across "
            "personas: it ranks them."
        ),
        compute=domains.across_personas,
        rows=("group",),
        columns=("model",),
        figure="heatmap",
        brighter="more instability across personas",
    ),
    Entry(
        key="stable-unstable",
        reference="P1 Table 4",
        title="Are stable settings more accurate?",
        caption=(
            "Stable: temperature 0, justanswer or justanswer-persona, barebones or youare. Unstable, as "
            "printed: the same at temperature 1. Maximal accuracy is that of the best run."
        ),
        compute=selections.stable_and_unstable,
        rows=("model", "set"),
        columns=("statistic",),
    ),
    Entry(
        key="contrast",
        reference="P1 Fig. 6 and 12",
        title="The same personas in two settings",
        caption="Accuracy of every persona in the plainest and in the most elaborate setting.",
        compute=selections.contrast,
        rows=("persona",),
        columns=("model", "setting"),
        figure="distribution",
        unit="accuracy",
        show={"rank": "rank"},
    ),
    Entry(
        key="persona-differences",
        reference="beyond the paper",
        title="Which persona is best, in every setting?",
        caption=(
            "A persona beats another if it is better in every setting and the exact McNemar test rejects "
            "even in the setting where its lead is weakest (after Holm over all pairs). A best persona is "
            "named only if it beats all others."
        ),
        compute=comparisons.persona_differences,
        rows=("persona",),
        columns=("model",),
        show={
            "mean_rank": "mean rank",
            "best_in": "settings in which best",
            "beats": "beats",
            "beaten_by": "beaten by",
        },
        unit="accuracy",
    ),
    Entry(
        key="best-persona",
        reference="P1 Fig. 9",
        title="Can the best persona be told from the question?",
        caption=(
            "F1, averaged over questions, of classifiers that predict from a question's text which personas "
            "get it right, one per setting. In brackets the lowest and highest setting. The base rate is the "
            "F1 of always naming the personas that are right on more than half of the training questions."
        ),
        compute=prediction.best_persona,
        rows=("level",),
        columns=("model",),
        figure="intervals",
        show={"base_rate": "base rate"},
        unit="F1",
    ),
    Entry(
        key="fidelity",
        reference="beyond the papers",
        title="Do the explanations fit the persona?",
        caption=(
            "PRISM (P2 §3): how likely an evaluator finds it that an explaining answer shows its persona, in "
            "three dimensions; fidelity is their mean. Means over runs, on a sample of the questions that is "
            "the same for all runs; the interval is of a bootstrap over these questions."
        ),
        compute=fidelity.fidelity,
        rows=("part",),
        columns=("quantity",),
    ),
    Entry(
        key="fidelity-instability",
        reference="beyond the papers",
        title="Is fidelity as unstable as accuracy?",
        caption=(
            "I_A and I_O of fidelity over the explaining settings, beside those of accuracy over the same "
            "runs: over all questions, and over the scored ones alone, which hold as much noise as fidelity "
            "does. Pearson's r: over personas between the instability of their accuracy and of their "
            "fidelity, and over runs between accuracy and fidelity."
        ),
        compute=fidelity.fidelity_instability,
        rows=("part",),
        columns=("quantity",),
    ),
    Entry(
        key="agreement",
        reference="beyond the paper",
        title="Do the settings agree on the ranking of personas?",
        caption=(
            "Kendall's W: 1 where all settings rank the personas alike, 0 where they do not agree at all. "
            "The floor is its mean when personas are exchanged within each question, and p the share of "
            "such draws that reach it."
        ),
        compute=structure.agreement,
        rows=("part",),
        columns=("model",),
        figure="intervals",
        show={"floor": "floor", "p": "p"},
        unit="W",
    ),
    Entry(
        key="variance",
        reference="beyond the paper",
        title="What moves accuracy?",
        caption=(
            "Shares of the variance of accuracy over runs (analysis of variance of the complete grid). "
            "What sampling the questions adds to a run counts towards all terms."
        ),
        compute=structure.variance,
        rows=("term",),
        columns=("model",),
        figure="intervals",
        unit="share of variance",
    ),
    Entry(
        key="recommended",
        reference="beyond the paper",
        title="Which setting to use?",
        caption=(
            "A setting's local instability is that of the setting and a neighbour which differs in one "
            "factor, averaged over its neighbours. Recommended are settings whose accuracy is not "
            "significantly below the best (paired by question, Holm) and that no other such setting "
            "betters in all three instabilities; the score is the mean of the ranks by the three."
        ),
        compute=comparisons.recommended_settings,
        rows=("setting",),
        columns=("model",),
        show={
            "accuracy_instability": "I_A, local",
            "outcome_instability": "I_O, local",
            "question_instability": "I_Q, local",
            "loss": "loss",
            "p": "p of the loss",
            "score": "score",
            "recommended": "recommended",
        },
        unit="accuracy",
    ),
    Entry(
        key="setting-differences",
        reference="beyond the paper",
        title="Which settings differ in accuracy?",
        caption=(
            "Accuracy of the row's setting less that of the column's, averaged over personas; paired "
            "t-test by question, corrected after Holm over all pairs."
        ),
        compute=comparisons.setting_differences,
        rows=("model", "setting"),
        columns=("other",),
        figure="heatmap",
        brighter="the row's setting is more accurate",
        unit="difference of accuracy",
        show={"p": "p"},
        panels="",
    ),
    Entry(
        key="correlations",
        reference="P1 Table 8",
        title="Do the metrics go with what they should go with?",
        caption=(
            "Pearson's r over the sets of settings with one level held static, with its bootstrap "
            "interval, and p of the values."
        ),
        compute=correlations.correlations,
        rows=("pair",),
        columns=("model",),
        show={"p": "p"},
        unit="r",
    ),
    Entry(
        key="outcome-forms",
        reference="P1 Fig. 10",
        title="Forms of outcome instability",
        caption=(
            "I_O with and without the weights and the normalisation, and the normalisation alone, within "
            "the settings with one level. Relative delta against all settings: positive is more stable."
        ),
        compute=factors.outcome_forms,
        rows=("model", "form"),
        columns=("level",),
        figure="heatmap",
        brighter="more stable than all settings",
        unit="relative delta",
        show={"absolute": "value"},
        panels="",
    ),
    Entry(
        key="question-subsets",
        reference="P1 Table 9",
        title="Fewer questions",
        caption=(
            "The instabilities on random subsets of the questions, balanced by category: mean, and in "
            "brackets the lowest and highest of 20 subsets."
        ),
        compute=selections.question_subsets,
        rows=("model", "share"),
        columns=("metric",),
        show={"sd": "sd"},
    ),
    Entry(
        key="setting-subsets",
        reference="P1 Table 10",
        title="Fewer settings",
        caption="The instabilities in two subsets of the settings, with the relative delta against all.",
        compute=selections.setting_subsets,
        rows=("model", "subset"),
        columns=("metric",),
        show={"relative": "relative delta"},
    ),
    Entry(
        key="unparsed",
        reference="P1 Table 11",
        title="Unparsed answers",
        caption="Percent of the answers from which no letter could be read, per factor level.",
        compute=parsing.unparsed_by_level,
        rows=("level",),
        columns=("model",),
        unit="percent",
    ),
    Entry(
        key="incorrect",
        reference="P1 Table 12",
        title="Incorrect answers",
        caption="Percent of the answers that are not right, the unparsed among them, per factor level.",
        compute=parsing.incorrect_by_level,
        rows=("level",),
        columns=("model",),
        unit="percent",
    ),
)
