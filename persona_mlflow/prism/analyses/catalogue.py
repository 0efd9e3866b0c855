"""The analyses of method runs in the order of a report, each with its place in P2 and its layout."""

from __future__ import annotations

from persona_mlflow.prism.analyses import (
    backbone,
    breakdown,
    dimensions,
    distributions,
    labels,
    main_table,
    rubric,
    temperature,
)
from persona_mlflow.prism.analyses.entries import Analysis

MAIN = "main-table"

_BEYOND = "beyond the paper"
_BRACKETS = "Brackets hold bootstrap intervals over groups."

CATALOGUE: tuple[Analysis, ...] = (
    Analysis.of(
        main_table.composition,
        key="benchmarks",
        reference="P2 Table 1",
        title="What the benchmarks are made of",
        caption=(
            "A group holds a positive, a response that fits its profile, and the negatives that it is "
            "compared with. The ratio is of positives to negatives."
        ),
        rows=("benchmark",),
        columns=(),
        unit="groups",
        show={
            "positives": "positives",
            "negatives": "negatives",
            "ratio": "ratio",
            "profiles": "profiles",
            "kinds": "negatives by kind",
        },
    ),
    Analysis.of(
        main_table.main_table,
        key=MAIN,
        reference="P2 Table 2",
        title="How well each method tells fitting responses from others",
        caption=(
            "AUC compares each positive with each negative, Pair-AUC within groups, a tie counting half; "
            "group accuracy is the share of groups whose positive is above all negatives, a tie being a loss "
            "(P2 eq. 4–7). Fractions of 1; greedy, at five points where a method has a rubric. The tick in "
            f"the figure is what random scores would give. {_BRACKETS}"
        ),
        rows=("run",),
        columns=("metric",),
        figure="intervals",
    ),
    Analysis.of(
        main_table.paired_tests,
        key="paired-tests",
        reference=_BEYOND,
        title="Which methods differ?",
        caption=(
            "The first method's metric less the second's, on the examples that both scored. p is of the "
            "paired bootstrap over groups, adjusted after Holm over the pairs of methods within a benchmark, "
            "evaluator and metric. The CSV file also has McNemar's exact test of group accuracy, the raw p "
            "and both values. Judges that are a model of their own stand beside every evaluator."
        ),
        rows=("pair",),
        columns=("metric",),
        figure="intervals",
        unit="difference",
        show={"p": "p, Holm"},
    ),
    Analysis.of(
        backbone.by_evaluator,
        key="backbones",
        reference="P2 Fig. 4, 12",
        title="Does it depend on the evaluator?",
        caption=f"The methods of the main table with each evaluator. {_BRACKETS}",
        rows=("run", "metric"),
        columns=("evaluator",),
        figure="intervals",
    ),
    Analysis.of(
        backbone.evaluator_spread,
        key="backbone-spread",
        reference="P2 Fig. 4, 12",
        title="How far the evaluators lie apart",
        caption=(
            "The highest metric less the lowest over the evaluators, their mean and standard deviation "
            "(n − 1), and which evaluators they are. The groups are drawn alike for all evaluators. Chance "
            "alone makes a range larger, so its interval lies high, and can lie above the range itself."
        ),
        rows=("run",),
        columns=("metric",),
        figure="intervals",
        unit="range",
        show={"mean": "mean", "sd": "sd", "lowest": "lowest", "highest": "highest"},
    ),
    Analysis.of(
        rubric.by_points,
        key="rubrics",
        reference="P2 Fig. 5, 13",
        title="Does it depend on the rubric?",
        caption=f"Direct judging with a rubric of 5 and of 7 points. {_BRACKETS}",
        rows=("run", "metric"),
        columns=("points",),
        figure="intervals",
    ),
    Analysis.of(
        rubric.points_delta,
        key="rubric-delta",
        reference="P2 Fig. 5, 13",
        title="What two more points change",
        caption=(
            "The metric of the finer rubric less that of the coarser: above 0 the finer one ranks better. "
            "Brackets hold bootstrap intervals over groups, drawn alike for both."
        ),
        rows=("run",),
        columns=("metric",),
        figure="intervals",
        unit="difference",
        show={"coarse": "coarser", "fine": "finer"},
    ),
    Analysis.of(
        dimensions.single_dimensions,
        key="dimensions",
        reference="P2 Fig. 6",
        title="Single dimensions against their mean",
        caption=(
            "The metrics of PRISM's e of one dimension by itself, and of S, the mean of the three. The gain "
            "is S less the dimension, on the same resamples of the groups."
        ),
        rows=("run", "metric"),
        columns=("score",),
        figure="intervals",
        show={"gain": "gain of S"},
    ),
    Analysis.of(
        distributions.histograms,
        key="score-histograms",
        reference="P2 Fig. 7, 14, 15",
        title="How the scores are distributed",
        caption=(
            "The share of positives and of negatives whose score falls into each of 20 equal bins, named by "
            "their lower ends. Methods of the main table."
        ),
        rows=("run", "side"),
        columns=("bin",),
        figure="distribution",
        unit="share",
    ),
    Analysis.of(
        distributions.quantiles,
        key="score-quantiles",
        reference="P2 Fig. 7, 14, 15",
        title="The scores in numbers",
        caption="Mean, standard deviation (n − 1) and quantiles of the scores of positives and of negatives.",
        rows=("run", "side"),
        columns=("statistic",),
        unit="score",
    ),
    Analysis.of(
        temperature.by_temperature,
        key="temperatures",
        reference="P2 Fig. 16–18",
        title="Does it depend on the temperature?",
        caption=(
            "Direct judging at each temperature; greedy judging is 0. A metric is computed for each seed, "
            "and their mean and standard deviation (n − 1) are shown. Brackets hold bootstrap intervals over "
            "groups, drawn alike in every seed."
        ),
        rows=("run", "metric"),
        columns=("temperature",),
        figure="intervals",
        show={"sd": "sd over seeds"},
    ),
    Analysis.of(
        breakdown.by_kind,
        key="kinds",
        reference=_BEYOND,
        title="Against which negatives?",
        caption=f"Pair-AUC of the positives against each kind of negative; 0.5 is chance. {_BRACKETS}",
        rows=("run",),
        columns=("kind",),
        figure="intervals",
        unit="Pair-AUC",
    ),
    Analysis.of(
        breakdown.by_profile,
        key="profiles",
        reference=_BEYOND,
        title="For which profiles?",
        caption=(
            "Pair-AUC over the groups whose positive is of each profile, such as a trait and level; 0.5 is "
            f"chance. {_BRACKETS}"
        ),
        rows=("run",),
        columns=("profile",),
        figure="heatmap",
        brighter="positives stand above negatives more often",
        unit="Pair-AUC",
    ),
    Analysis.of(
        breakdown.unscored,
        key="unscored",
        reference=_BEYOND,
        title="What was left unscored",
        caption=(
            "The share of examples (times seeds) that a method gave no usable score, in all and by reason. "
            "They are left out of its metrics, and never given a default."
        ),
        rows=("run",),
        columns=("why",),
        unit="share",
    ),
    Analysis.of(
        labels.label_use,
        key="labels",
        reference=_BEYOND,
        title="How PRISM's evaluators use the labels",
        caption=(
            "The label mass is the mean probability of the three labels before normalising. For a sample of "
            "the cases in all six orders of the labels: the mean range and standard deviation of e over the "
            "orders, the share of prompts whose likeliest state is not the same in all, and the mean "
            "probability under each letter, a third each where no letter is preferred."
        ),
        rows=("run",),
        columns=("quantity",),
        unit="fraction",
    ),
)
"""Every analysis, in the order of the report."""
