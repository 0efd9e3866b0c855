"""Validation against people: human verification and dimension diagnostics (P2 §5, Tables 6 and 7).

Conventions of ours, where P2 leaves them open. The human state of an item in a dimension is the one that more
annotators chose than any other; where there is none, the item is left out of that dimension and counted. A
method's state is the likeliest one; equally likely states are a miss, as a tie is for the group accuracy:
top-k counts an item where fewer than k other states are at least as likely as the human one. The macro-F1 is
the mean over the states that people or the method chose at all. Every α is ordinal, over the scale or over
aligned > indeterminate > opposite. Intervals are percentile bootstrap ones over the drawn groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError
from persona_mlflow.prism.annotation import SCALE
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.krippendorff import NO_PAIRS, NO_VARIATION, alpha_of, coincidences
from persona_mlflow.prism.ranking import METRICS, NOT_COMPARABLE, group_draws, ranking_metrics

if TYPE_CHECKING:
    import pandas as pd

    from persona_mlflow.prism.annotation_reading import Annotations, MethodScores

ALL = "all"
"""All annotators, or all dimensions."""

DIAGNOSTICS = ("top_1", "top_2", "macro_f1", "alpha")
"""The measures of P2 Table 7: Top-1 accuracy, Top-2 recall, macro-F1 and α."""

CORRELATIONS = ("spearman", "kendall")

# Ordinal codes of `STATES`: the more aligned, the higher.
_CODES = np.arange(len(STATES))[::-1]
_UNDEFINED_DRAWS = 0.1  # the share of undefined draws above which there is no interval
_NO_RATING = "no item is rated"


@dataclass(frozen=True)
class Estimate:
    """A number, or why there is none.

    Attributes:
        value: The number; ``None`` where undefined.
        low: Lower bound of its bootstrap interval, or ``None``.
        high: Upper bound.
        n: Items, or items × dimensions, that it rests on.
        reason: Why it, or else its interval, is ``None``; else empty.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """One method against people in one dimension, or over all: a row of P2 Table 7.

    Attributes:
        dimension: One of `DIMENSIONS`, or `ALL`.
        estimates: Measure of `DIAGNOSTICS` → its estimate.
        unlabelled: Items × dimensions that nobody labelled.
        split: Those whose annotators have no most frequent state: left out.
        unscored: Those with a human state that the method has no probabilities of: left out.
        undecided: Those whose likeliest state is not one alone: a miss in Top-1 and F1, and not in α.
    """

    dimension: str
    estimates: Mapping[str, Estimate]
    unlabelled: int
    split: int
    unscored: int
    undecided: int


@dataclass(frozen=True)
class Validation:
    """All of it.

    Attributes:
        verification: Annotator, or `ALL` → measure → estimate. The measures are ``mean_positive``,
            ``mean_negative``, the ranking metrics, and for all ``alpha``.
        label_agreement: Dimension, or `ALL` → α of the annotators' states.
        diagnoses: Evaluator and method → one `Diagnosis` per dimension, and one over all.
        correlations: Evaluator and method → measure of `CORRELATIONS` → estimate.
        draws: Bootstrap draws.
        alpha: The intervals cover the share 1 − alpha of the draws.
    """

    verification: Mapping[str, Mapping[str, Estimate]]
    label_agreement: Mapping[str, Estimate]
    diagnoses: Mapping[tuple[str, str], Sequence[Diagnosis]]
    correlations: Mapping[tuple[str, str], Mapping[str, Estimate]]
    draws: int
    alpha: float

    def tables(self) -> dict[str, pd.DataFrame]:
        """Tidy tables, a row per measure, whose ``value``, ``low`` and ``high`` are NaN where undefined.

        Returns:
            ``verification`` (P2 Table 6), ``label_agreement``, ``diagnostics`` (Table 7), ``correlation``.
        """
        import pandas as pd

        def table(
            keys: list[str], rows: Iterator[tuple[Any, ...]], more: tuple[str, ...] = ()
        ) -> pd.DataFrame:
            columns = [*keys, "value", "low", "high", "n", "reason", *more]
            frame = pd.DataFrame(list(rows), columns=columns)
            return frame.astype(dict.fromkeys(["value", "low", "high"], float))

        def cells(e: Estimate) -> tuple[Any, ...]:
            return e.value, e.low, e.high, e.n, e.reason

        counts = ("unlabelled", "split", "unscored", "undecided")
        return {
            "verification": table(
                ["annotator", "measure"],
                (
                    (who, name, *cells(e))
                    for who, estimates in self.verification.items()
                    for name, e in estimates.items()
                ),
            ),
            "label_agreement": table(
                ["dimension", "measure"],
                ((name, "alpha", *cells(e)) for name, e in self.label_agreement.items()),
            ),
            "diagnostics": table(
                ["evaluator", "method", "dimension", "measure"],
                (
                    (*method, d.dimension, name, *cells(e), *(getattr(d, count) for count in counts))
                    for method, diagnoses in self.diagnoses.items()
                    for d in diagnoses
                    for name, e in d.estimates.items()
                ),
                counts,
            ),
            "correlation": table(
                ["evaluator", "method", "measure"],
                (
                    (*method, name, *cells(e))
                    for method, estimates in self.correlations.items()
                    for name, e in estimates.items()
                ),
            ),
        }


def validate(
    annotations: Annotations,
    methods: Sequence[MethodScores] = (),
    *,
    draws: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
) -> Validation:
    """Human verification, and every method against the annotators.

    Args:
        annotations: The filled sheets.
        methods: What methods gave the same items.
        draws: Bootstrap draws over groups; 0 gives no intervals.
        seed: Seed of the draws.
        alpha: The intervals cover the share 1 − alpha of the draws.

    Raises:
        UserError: Nothing is filled in, or two methods of one evaluator and name.
    """
    from persona_mlflow.instability.pairwise import check_alpha

    check_alpha(alpha)
    if annotations.ratings.empty and annotations.labels.empty:
        raise UserError("the sheets hold no answer yet; there is nothing to validate")
    for key, count in Counter((m.evaluator, m.method) for m in methods).items():
        if count > 1:
            raise UserError(f"{', '.join(key)}: {count} runs of one evaluator and method; give one of them")
    people = _People(annotations, draws, seed, alpha)
    return Validation(
        verification=people.verification(),
        label_agreement=people.label_agreement(),
        diagnoses={
            (m.evaluator, m.method): people.diagnose(m) for m in methods if m.probabilities is not None
        },
        correlations={(m.evaluator, m.method): people.correlate(m) for m in methods},
        draws=draws,
        alpha=alpha,
    )


class _People:
    """The answers as arrays over the key's items, and one set of bootstrap draws of its groups."""

    def __init__(self, annotations: Annotations, draws: int, seed: int, alpha: float) -> None:
        import pandas as pd

        key = annotations.key
        self.items = key.items
        self.annotators = key.annotators
        names = [item.item for item in self.items]
        codes, groups = pd.factorize(np.array([item.group for item in self.items], dtype=object))
        self.group = codes.astype(np.intp)
        self.groups = len(groups)
        self.positive = np.array([item.positive for item in self.items], dtype=bool)
        self.seed, self.draws, self.alpha = seed, draws, alpha
        # Draw 0 is the sheets as they are.
        ones = np.ones((1, self.groups), dtype=np.int32)
        self.weights = np.concatenate([ones, group_draws(self.groups, draws, seed)])
        row = {name: i for i, name in enumerate(names)}
        observer = {name: i for i, name in enumerate(self.annotators)}
        self.ratings = np.full((len(observer), len(row)), np.nan)
        for answer in annotations.ratings.to_dict("records"):
            self.ratings[observer[answer["annotator"]], row[answer["item"]]] = answer["rating"]
        self.labels = np.full((len(observer), len(row), len(DIMENSIONS)), np.nan)
        for answer in annotations.labels.to_dict("records"):
            dimension = DIMENSIONS.index(answer["dimension"])
            code = _CODES[STATES.index(answer["state"])]
            self.labels[observer[answer["annotator"]], row[answer["item"]], dimension] = code

    # ------------------------------------------------------------------------------------ Table 6

    def verification(self) -> dict[str, dict[str, Estimate]]:
        """Means and ranking metrics of each annotator and of the mean rating, whose row has α too."""
        found = {name: self._rated(self.ratings[i]) for i, name in enumerate(self.annotators)}
        domain = np.arange(SCALE[0], SCALE[1] + 1)
        everybody = self._rated(self.mean_rating)
        everybody["alpha"] = self._agreement(self.ratings, domain, self.group)
        return {**found, ALL: everybody}

    @property
    def mean_rating(self) -> np.ndarray:
        """Mean over the annotators who rated an item; NaN where none did."""
        known = ~np.isnan(self.ratings)
        return _ratio(np.where(known, self.ratings, 0.0).sum(axis=0), known.sum(axis=0))

    def _rated(self, rating: np.ndarray) -> dict[str, Estimate]:
        import pandas as pd

        known = ~np.isnan(rating)
        found = {}
        for name, side in (("mean_positive", self.positive), ("mean_negative", ~self.positive)):
            kept = known & side
            total, count = self._sum(np.where(kept, rating, 0.0)), self._sum(kept.astype(float))
            used = len(np.unique(self.group[kept]))
            found[name] = self._estimate(
                _ratio(total, count), int(kept.sum()), used, f"no {name[5:]} is rated"
            )
        frame = pd.DataFrame({"group": self.group, "positive": self.positive, "score": rating})
        ranked = ranking_metrics(frame, draws=self.draws, seed=self.seed, alpha=self.alpha)
        for name in METRICS:
            low, high = ranked.intervals[name] or (None, None)
            reason = ranked.reasons.get(name, "") if known.any() else _NO_RATING
            found[name] = Estimate(ranked[name], low, high, int(known.sum()), reason)
        return found

    # ------------------------------------------------------------------------------------ Table 7

    def label_agreement(self) -> dict[str, Estimate]:
        """α of the annotators' states in each dimension, and over all."""
        found = {
            name: self._agreement(self.labels[:, :, d], _CODES[::-1], self.group)
            for d, name in enumerate(DIMENSIONS)
        }
        pooled = self.labels.reshape(len(self.annotators), -1)
        units = np.repeat(self.group, len(DIMENSIONS))
        return {**found, ALL: self._agreement(pooled, _CODES[::-1], units)}

    def human_states(self) -> tuple[np.ndarray, np.ndarray]:
        """The state that most annotators chose.

        Returns:
            Its position in `STATES`, shaped (item, dimension), −1 where there is none; and whether there
            is none because two states are chosen equally often.
        """
        votes = np.stack([(self.labels == code).sum(axis=0) for code in _CODES], axis=-1)
        most = votes.max(axis=-1)
        first = (votes == most[..., None]).sum(axis=-1) == 1
        return np.where((most > 0) & first, votes.argmax(axis=-1), -1), (most > 0) & ~first

    def diagnose(self, method: MethodScores) -> list[Diagnosis]:
        """One method's states against the people's."""
        assert method.probabilities is not None
        state, split = self.human_states()
        q = np.full((len(self.items), len(DIMENSIONS), len(STATES)), np.nan)
        row = {item.id: i for i, item in enumerate(self.items)}
        frame = method.probabilities[method.probabilities["case"].isin(row.keys())]
        cases = frame["case"].map(row).to_numpy(int)
        which = frame["dimension"].map(DIMENSIONS.index).to_numpy(int)
        q[cases, which] = frame[[f"q_{name}" for name in STATES]].to_numpy(float)
        return [
            self._diagnosis(name, state[:, d], split[:, d], q[:, d], self.group)
            for d, name in enumerate(DIMENSIONS)
        ] + [
            self._diagnosis(
                ALL,
                state.ravel(),
                split.ravel(),
                q.reshape(-1, len(STATES)),
                np.repeat(self.group, len(DIMENSIONS)),
            )
        ]

    def _diagnosis(
        self, dimension: str, state: np.ndarray, split: np.ndarray, q: np.ndarray, group: np.ndarray
    ) -> Diagnosis:
        scored = ~np.isnan(q).any(axis=1)
        kept = (state >= 0) & scored
        human, model, group = state[kept], q[kept], group[kept]
        # Other states that are at least as likely as the person's.
        before = (model >= np.take_along_axis(model, human[:, None], axis=1)).sum(axis=1) - 1
        decided = (model == model.max(axis=1, keepdims=True)).sum(axis=1) == 1
        chosen = np.where(decided, model.argmax(axis=1), len(STATES))
        # Human state × method's state, the last column being undecided; a table per group.
        table = np.zeros((self.groups, len(STATES), len(STATES) + 1))
        np.add.at(table, (group, human, chosen), 1)
        tables = np.tensordot(self.weights.astype(float), table, axes=1)
        total = tables.sum(axis=(1, 2))
        near = np.bincount(group, weights=before < 2, minlength=self.groups)
        square = tables[:, :, :-1]
        values = {
            "top_1": _ratio(np.trace(square, axis1=1, axis2=2), total),
            "top_2": _ratio(self.weights @ near, total),
            "macro_f1": _macro_f1(tables),
            # Codes fall along the states, which α does not mind: the distance is symmetric.
            "alpha": alpha_of(square + square.swapaxes(1, 2), _CODES),
        }
        n, used = int(kept.sum()), len(np.unique(group))
        if n:
            why = ""
        elif not (state >= 0).any():
            why = "no item has a human state"
        else:
            why = "the method has no probabilities of an item with a human state"
        alpha_reason = why or (NO_VARIATION if decided.any() else "the method is undecided everywhere")
        return Diagnosis(
            dimension=dimension,
            estimates={
                name: self._estimate(value, n, used, alpha_reason if name == "alpha" else why)
                for name, value in values.items()
            },
            unlabelled=int(((state < 0) & ~split).sum()),
            split=int(split.sum()),
            unscored=int(((state >= 0) & ~scored).sum()),
            undecided=int((~decided).sum()),
        )

    # ------------------------------------------------------------------------------------ beyond

    def correlate(self, method: MethodScores) -> dict[str, Estimate]:
        """Rank correlations of a method's scores with the mean rating, over the items that have both."""
        rating = self.mean_rating
        score = np.array([method.scores.get(item.id, np.nan) for item in self.items], dtype=float)
        kept = ~np.isnan(rating) & ~np.isnan(score)
        n, group = int(kept.sum()), self.group[kept]
        if not method.comparable:
            return {name: Estimate(None, None, None, n, NOT_COMPARABLE) for name in CORRELATIONS}
        x, y = score[kept], rating[kept]
        why = ""
        if n < 2:
            why = f"{n or 'no'} item has both a score and a rating; a correlation needs 2"
        elif (x == x[0]).all() or (y == y[0]).all():
            why = f"no variation: all {'scores' if (x == x[0]).all() else 'mean ratings'} are the same"
        weights = self.weights[:, group].astype(float)
        found = {"spearman": weighted_spearman(x, y, weights), "kendall": weighted_kendall(x, y, weights)}
        return {name: self._estimate(v, n, len(np.unique(group)), why) for name, v in found.items()}

    def _agreement(self, ratings: np.ndarray, domain: np.ndarray, group: np.ndarray) -> Estimate:
        units = coincidences(ratings, domain)
        per_group = np.zeros((self.groups, len(domain), len(domain)))
        np.add.at(per_group, group, units)
        values = alpha_of(np.tensordot(self.weights.astype(float), per_group, axes=1), domain)
        compared = (~np.isnan(ratings)).sum(axis=0) >= 2
        why = NO_VARIATION if compared.any() else NO_PAIRS.replace("unit", "item")
        return self._estimate(values, int(compared.sum()), len(np.unique(group[compared])), why)

    def _sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over items in each draw; shaped (draw,)."""
        return np.asarray(self.weights @ np.bincount(self.group, weights=values, minlength=self.groups))

    def _estimate(self, values: np.ndarray, n: int, used: int, why: str) -> Estimate:
        """The value of draw 0 with the interval of the others.

        Args:
            values: Shaped (draw,); NaN where undefined.
            n: What it rests on.
            used: Groups that bear on it.
            why: The reason, should it be undefined.
        """
        if np.isnan(values[0]):
            return Estimate(None, None, None, n, why)
        value, drawn = float(values[0]), values[1:]
        if not len(drawn):
            return Estimate(value, None, None, n, "no interval: there are no bootstrap draws")
        if used < 2:
            return Estimate(value, None, None, n, "no interval: resampling groups needs at least 2")
        defined = drawn[~np.isnan(drawn)]
        undefined = len(drawn) - len(defined)
        if undefined > _UNDEFINED_DRAWS * len(drawn):
            reason = f"no interval: undefined in {undefined} of {len(drawn)} bootstrap draws"
            return Estimate(value, None, None, n, reason)
        low, high = np.quantile(defined, [self.alpha / 2, 1 - self.alpha / 2])
        return Estimate(value, float(low), float(high), n, "")


def weighted_spearman(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Spearman's ρ with each item counted some times: Pearson's r of the mid-ranks.

    Args:
        x: Shaped (item,).
        y: Shaped (item,).
        weights: Shaped (draw, item), whole numbers.

    Returns:
        Shaped (draw,); NaN where x or y is constant.
    """
    ranks = [weights @ (1 + np.sign(v[None, :] - v[:, None])) / 2 for v in (x, y)]
    total = weights.sum(axis=1)
    means = [_ratio((weights * r).sum(axis=1), total) for r in ranks]
    a, b = (r - np.nan_to_num(m)[:, None] for r, m in zip(ranks, means, strict=True))
    varies = _varies(x, weights) & _varies(y, weights)
    scale = np.sqrt((weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1))
    return _ratio((weights * a * b).sum(axis=1), np.where(varies, scale, 0.0))


def weighted_kendall(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Kendall's τ-b with each item counted some times.

    Args:
        x: Shaped (item,).
        y: Shaped (item,).
        weights: Shaped (draw, item), whole numbers.

    Returns:
        Shaped (draw,); NaN where x or y is constant.
    """
    signs = [np.sign(v[:, None] - v[None, :]) for v in (x, y)]

    def over_pairs(values: np.ndarray) -> np.ndarray:
        return np.asarray(((weights @ values) * weights).sum(axis=1))

    untied = [over_pairs(np.abs(s)) for s in signs]
    return _ratio(over_pairs(signs[0] * signs[1]), np.sqrt(untied[0] * untied[1]))


def _varies(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Whether the items that a draw holds differ."""
    low = np.where(weights > 0, values, np.inf).min(axis=1, initial=np.inf)
    high = np.where(weights > 0, values, -np.inf).max(axis=1, initial=-np.inf)
    return np.asarray(high > low)


def _macro_f1(tables: np.ndarray) -> np.ndarray:
    """Macro-F1 of tables shaped (draw, human state, method's state or undecided); shaped (draw,)."""
    hits = np.diagonal(tables[:, :, :-1], axis1=1, axis2=2)
    either = tables.sum(axis=2) + tables[:, :, :-1].sum(axis=1)
    f1 = np.divide(2 * hits, either, out=np.zeros_like(either), where=either > 0)
    return _ratio(f1.sum(axis=1), (either > 0).sum(axis=1))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0)
