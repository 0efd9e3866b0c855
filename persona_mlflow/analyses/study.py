"""One experiment, with what its analyses share: its parts, and every metric in every bootstrap draw.

An analysis asks a `Study` for a metric with some factors varied, in some categories, for some personas, in
some settings, and gets it along a dim ``draw``: draw 0 is the experiment, the others are resamples of its
questions. Differences of metrics, shares and averages are then plain arithmetic on labelled arrays, and
`Study.interval` turns the draws into a value with its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.instability.accuracy import mean_pairwise_difference
from persona_mlflow.instability.outcome import weighted_std
from persona_mlflow.instability.resampling import bootstrap_weights, interval, weighted_counts

if TYPE_CHECKING:
    import xarray as xr

METRICS = ("accuracy", "outcome", "question")
"""The instability metrics, as the dim ``metric`` names them."""

Settings = Mapping[str, Sequence[Any]]


class NotAllowed(Exception):
    """The grid does not allow this analysis; the message says why, and what it needs."""


class Study:
    """An experiment under analysis.

    Args:
        dataset: As `persona_mlflow.outcomes.load_outcomes` gives it, and complete.
        draws: Bootstrap resamples of the questions, stratified by category; 0 for none.
        permutations: Draws of what the numbers would be by chance; 0 for none.
        seed: Of both.
        level: What an interval covers.
        few: A category with fewer questions has no interval of its own: a bootstrap of two or three
            questions hardly varies, and would promise too much. For the whole, such categories are resampled
            together.
        weights: Draws of one's own, question × draw, the first being the experiment; instead of the
            bootstrap.
        predictions: What `persona_mlflow.analyses.best_persona` found on this experiment, if it was run.
        fidelity: PRISM's scores of its explaining runs, as `persona_mlflow.fidelity_analysis` labels them,
            if they were scored.

    Attributes:
        correct: Boolean, persona × factors × question.
        factors: The factors, varied or not, in the order of the grid.
        varied: Those that have two levels or more.
        categories: The question categories, in the order of the questions.
        groups: Persona group, or ``group · sub-group``, → the positions of its personas.
    """

    def __init__(
        self,
        dataset: xr.Dataset,
        *,
        draws: int = 1000,
        permutations: int = 1000,
        seed: int = 0,
        level: float = 0.95,
        few: int = 10,
        weights: np.ndarray | None = None,
        predictions: xr.Dataset | None = None,
        fidelity: xr.Dataset | None = None,
    ) -> None:
        dims = [str(dim) for dim in dataset["correct"].dims]
        self.dataset = dataset
        self.factors = tuple(dim for dim in dims if dim not in ("persona", "question"))
        self.correct = dataset["correct"].transpose("persona", *self.factors, "question")
        self.varied = tuple(name for name in self.factors if self.correct.sizes[name] > 1)
        self.draws, self.permutations, self.seed, self.level = draws, permutations, seed, level
        labels = dataset["category"].values.tolist()
        self.categories = tuple(dict.fromkeys(labels))
        self.positions = {
            name: np.array([i for i, label in enumerate(labels) if label == name], dtype=np.intp)
            for name in self.categories
        }
        self.groups = _persona_groups(dataset)
        self.few = few
        self.predictions = predictions
        self.fidelity = fidelity
        self._weights = weights
        self._cache: dict[Any, Any] = {}

    # The parts of the experiment.

    @property
    def personas(self) -> list[str]:
        """The personas' names."""
        return [str(name) for name in self.correct["persona"].values]

    @property
    def subgroups(self) -> tuple[str, ...]:
        """Those of `groups` that are parts of a group, e.g. the occupations' (P1 Fig. 8)."""
        return tuple(name for name in self.groups if " · " in name)

    @property
    def unparsed(self) -> np.ndarray:
        """Where no letter could be read, shaped as `correct`."""
        status = self.dataset["status"].transpose("persona", *self.factors, "question")
        return np.asarray(status.values != 0)

    @property
    def settings(self) -> int:
        """Number of settings."""
        return int(np.prod([self.correct.sizes[name] for name in self.factors], dtype=int))

    def levels(self, factor: str) -> list[Any]:
        """A factor's levels."""
        return list(self.correct[factor].values.tolist())

    def level_sets(self) -> dict[str, Settings]:
        """Every level of every varied factor: label → the settings that have it (P1 Fig. 3's columns)."""
        return {
            level_label(factor, level): {factor: [level]}
            for factor in self.varied
            for level in self.levels(factor)
        }

    def questions(self, category: str | None = None) -> int:
        """Number of questions, of a category or in all."""
        return self.correct.sizes["question"] if category is None else len(self.positions[category])

    @cached_property
    def weights(self) -> np.ndarray:
        """How often each question counts in each draw, question × (1 + draws)."""
        if self._weights is not None:
            return self._weights
        own = [positions for name, positions in self.positions.items() if self.has_interval(name)]
        rest = [positions for name, positions in self.positions.items() if not self.has_interval(name)]
        return bootstrap_weights([*own, *([np.concatenate(rest)] if rest else [])], self.draws, self.seed)

    def has_interval(self, category: str | None) -> bool:
        """Whether there are questions enough for a bootstrap, in a category or in all."""
        return self._weights is not None or self.questions(category) >= self.few

    def members(self, group: str | None) -> np.ndarray:
        """The positions of a group's personas, or of all."""
        return np.arange(self.correct.sizes["persona"]) if group is None else self.groups[group]

    # Counts in every draw.

    def counts(self, category: str | None = None) -> np.ndarray:
        """Correct answers of each run in each draw: int32, persona × factors × draw."""
        return self._sum_by_category("counts", lambda: self.correct.values, category)

    def accuracy(self, category: str | None = None) -> xr.DataArray:
        """Accuracy of each run in each draw: persona × factors × draw."""
        accuracy = self.counts(category) / self.questions(category)
        return self._label(self._blanked(accuracy, category), ("persona", *self.factors))

    def share(
        self,
        happened: np.ndarray,
        *,
        category: str | None = None,
        group: str | None = None,
        settings: Settings | None = None,
    ) -> xr.DataArray:
        """The share of answers of which something is true, in every draw.

        Args:
            happened: Boolean, shaped as ``correct``.
            category: As in `metric`.
            group: As in `metric`.
            settings: As in `metric`.

        Returns:
            Along ``draw``, in [0, 1].
        """
        part = self.correct.copy(data=happened).isel(persona=self.members(group))
        part = part.sel({name: list(levels) for name, levels in (settings or {}).items()})
        rows = part.mean([dim for dim in part.dims if dim != "question"]).values
        chosen = slice(None) if category is None else self.positions[category]
        weights = self.weights[chosen].astype(float)
        with np.errstate(invalid="ignore"):  # a resample can lack a small category
            return self._label(self._blanked((rows[chosen] @ weights) / weights.sum(axis=0), category), ())

    def overlap(
        self, over: Sequence[str], settings: Settings, category: str | None, group: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """How many questions are always, and how many are ever right over the varied dims, in each draw.

        Args:
            over: The varied dims; with ``persona`` among them the personas of ``group`` are compared.
            settings: Only the settings with these levels.
            category: Only its questions.
            group: Of importance only where personas are varied.

        Returns:
            Two int32 arrays: persona (unless varied) × kept factors × draw.
        """
        key = (tuple(over), _frozen(settings), group if "persona" in over else None)
        axes = tuple(i for i, dim in enumerate(("persona", *self.factors)) if dim in over)

        def part() -> np.ndarray:
            values = self.select(settings).values
            return values[self.members(group)] if "persona" in over else values

        return (
            self._sum_by_category(("always", key), lambda: np.asarray(part().all(axis=axes)), category),
            self._sum_by_category(("ever", key), lambda: np.asarray(part().any(axis=axes)), category),
        )

    def ranks(self, category: str | None, group: str | None) -> tuple[np.ndarray, np.ndarray]:
        """R(p;s), recomputed among the group's personas, and w(s), in each draw (P1 §3).

        Returns:
            Ranks (persona × factors × draw), and standard deviations over personas of accuracy
            (factors × draw).
        """
        from persona_mlflow.instability.outcome import rank_personas

        def compute() -> tuple[np.ndarray, np.ndarray]:
            counts = self.counts(category)[self.members(group)]
            return rank_personas(counts), counts.std(axis=0) / self.questions(category)

        return self.cached(("ranks", category, group), compute)

    # Metrics in every draw.

    def metric(
        self,
        metric: str,
        over: Sequence[str] | str | None = None,
        *,
        category: str | None = None,
        group: str | None = None,
        settings: Settings | None = None,
    ) -> xr.DataArray:
        """An instability metric in every draw.

        Args:
            metric: ``accuracy``, ``outcome`` or ``question``.
            over: The varied dims; all factors by default. The factors that are not varied are kept.
            category: Only its questions.
            group: Only its personas; ranks and weights are recomputed among them.
            settings: Only the settings with these levels: factor → levels.

        Returns:
            Kept factors × draw. NaN where the metric is undefined: `undefined` says why.
        """
        names = self.factors if over is None else (over,) if isinstance(over, str) else tuple(over)
        chosen = dict(settings or {})
        key = ("metric", metric, names, category, group, _frozen(chosen))
        return self.cached(key, lambda: self._metric(metric, names, category, group, chosen))

    def average(self, metric: str, over: Sequence[str] | str | None = None, **where: Any) -> xr.DataArray:
        """`metric`, averaged over the kept factors where it is defined (P1 Fig. 4): along ``draw`` alone."""
        values = self.metric(metric, over, **where)
        kept = [str(dim) for dim in values.dims if dim != "draw"]
        return _nanmean(values, kept) if kept else values

    def outcome_form(
        self, weighted: bool, normalized: bool, settings: Settings | None = None
    ) -> tuple[xr.DataArray, xr.DataArray]:
        """I_O over all factors in one of its four forms, and its normaliser (P1 Fig. 10): along ``draw``."""
        chosen = dict(settings or {})
        raw, normaliser = self._outcome(self.factors, None, None, chosen, weighted)
        value = raw * normaliser if normalized else raw
        return (
            value.copy(data=self._blanked(value.values, None)),
            normaliser.copy(data=self._blanked(normaliser.values, None)),
        )

    def undefined(
        self, metric: str, over: Sequence[str] | str | None = None, settings: Settings | None = None
    ) -> str:
        """Why a metric has no value in a part of the grid."""
        names = self.factors if over is None else (over,) if isinstance(over, str) else tuple(over)
        sizes: dict[Any, int] = {**self.correct.sizes}
        sizes.update({name: len(levels) for name, levels in (settings or {}).items()})
        if int(np.prod([sizes[name] for name in names], dtype=int)) < 2:
            noun = "persona" if names == ("persona",) else "setting"
            return f"one {noun} gives no pairs"
        if metric == "outcome" and "persona" in names:
            return "ranks compare personas, so persona cannot be varied"
        return "no question is right in any setting"

    def interval(self, values: xr.DataArray, bounds: tuple[float, float] | None = None) -> xr.Dataset:
        """A value and its bootstrap interval; see `persona_mlflow.instability.resampling.interval`."""
        return interval(values, self.level, bounds)

    def release(self) -> None:
        """Free the counts, ranks and permutations of the draws; the metrics asked for so far are kept."""
        self._cache = {key: value for key, value in self._cache.items() if key[0] == "metric"}
        self.__dict__.pop("weights", None)

    def metric_interval(self, values: xr.DataArray) -> xr.Dataset:
        """As `interval`, of values along the dim ``metric``, each cut to its metric's range."""
        found = self.interval(values, (0.0, float("inf")))
        bounded = values["metric"] != "outcome"
        for end in ("low", "high"):
            found[end] = found[end].where(~bounded | found[end].isnull(), np.minimum(found[end], 1.0))
        return found

    # How it is done.

    def _metric(
        self, metric: str, over: tuple[str, ...], category: str | None, group: str | None, settings: Settings
    ) -> xr.DataArray:
        kept = tuple(name for name in self.factors if name not in over)
        part = self.select(settings)
        compared = np.prod([part.sizes[n] if n != "persona" else len(self.members(group)) for n in over])
        if compared < 2 or (metric == "outcome" and "persona" in over):
            shape = [*(part.sizes[name] for name in kept), self.weights.shape[1]]
            return self._label(np.full(shape, np.nan), kept, settings)
        if metric == "accuracy" and "persona" in over:
            counts = self.counts(category)[self.members(group)]
            lines = self._lines(counts, over, settings)
            values = mean_pairwise_difference(lines) / self.questions(category)
        elif metric == "accuracy":
            values = self._accuracy(over, category, settings)[self.members(group)].mean(axis=0)
        elif metric == "outcome":
            raw, normaliser = self._outcome(over, category, group, settings, weighted=True)
            return raw.copy(data=self._blanked((raw * normaliser).values, category))
        else:
            always, ever = self.overlap(over, settings, category, group)
            share = np.divide(always, ever, out=np.full(ever.shape, np.nan), where=ever > 0)
            if "persona" not in over:
                share = _nanmean_first(share[self.members(group)])
            values = 1 - share
        return self._label(self._blanked(values, category), kept, settings)

    def _accuracy(self, over: tuple[str, ...], category: str | None, settings: Settings) -> np.ndarray:
        """I_A of each persona: persona × kept × draw. Shared by all groups."""

        def compute() -> np.ndarray:
            counts = self._lines(self.counts(category), over, settings)
            return mean_pairwise_difference(counts) / self.questions(category)

        return self.cached(("I_A", over, category, _frozen(settings)), compute)

    def _outcome(
        self,
        over: tuple[str, ...],
        category: str | None,
        group: str | None,
        settings: Settings,
        weighted: bool,
    ) -> tuple[xr.DataArray, xr.DataArray]:
        kept = tuple(name for name in self.factors if name not in over)
        ranks, weights = self.ranks(category, group)
        lines = self._lines(ranks, over, settings)
        spread = self._lines(weights[None], over, settings)[0]
        raw = weighted_std(lines, spread if weighted else np.ones_like(spread)).mean(axis=0)
        return self._label(raw, kept, settings), self._label(spread.mean(axis=-1), kept, settings)

    def _lines(self, values: np.ndarray, over: tuple[str, ...], settings: Settings) -> np.ndarray:
        """Rearrange persona × factors × draw to (persona unless varied) × kept × draw × varied levels."""
        dims = ("persona", *self.factors)
        for name, levels in settings.items():
            known = self.levels(name)
            values = values.take([known.index(level) for level in levels], axis=dims.index(name))
        lead = [i for i, dim in enumerate(dims) if dim not in over]
        tail = [i for i, dim in enumerate(dims) if dim in over]
        moved = values.transpose(*lead, len(dims), *tail)
        return moved.reshape(*moved.shape[: len(lead) + 1], -1)

    def select(self, settings: Settings) -> xr.DataArray:
        """The answers in the settings with these levels."""
        return self.correct.sel({name: list(levels) for name, levels in settings.items()})

    def _label(
        self, values: np.ndarray, dims: Sequence[str], settings: Settings | None = None
    ) -> xr.DataArray:
        """Label an array with ``dims`` and ``draw`` in that order."""
        import xarray as xr

        coords = {dim: list((settings or {}).get(dim, self.correct[dim].values.tolist())) for dim in dims}
        return xr.DataArray(values, coords, (*dims, "draw"))

    def _blanked(self, values: np.ndarray, category: str | None) -> np.ndarray:
        """The values, without resamples where the questions are too few for them."""
        if not self.has_interval(category):
            values = values.astype(float)
            values[..., 1:] = np.nan
        return values

    def _sum_by_category(self, key: Any, right: Callable[[], np.ndarray], category: str | None) -> np.ndarray:
        """Weighted counts of something boolean, by category; the whole is the sum of the categories."""
        store = self._cache.setdefault(("by category", key), {})
        if not store:
            rows = right()
            total = np.zeros((*rows.shape[:-1], self.weights.shape[1]), dtype=np.int32)
            for name, positions in self.positions.items():
                store[name] = weighted_counts(rows[..., positions], self.weights[positions])
                total += store[name]
            store[None] = total
        return np.asarray(store[category])

    def cached(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What ``compute`` gives, computed once for each key."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]


def level_label(factor: str, level: Any) -> str:
    """What a table calls a level of a factor, e.g. ``temperature 0.5``."""
    return f"{factor} {level:g}" if isinstance(level, float) else f"{factor} {level}"


def _persona_groups(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    group = dataset["persona_group"].values.tolist()
    subgroup = dataset["persona_subgroup"].values.tolist()
    found: dict[str, list[int]] = {name: [] for name in dict.fromkeys(group)}
    for i, (name, part) in enumerate(zip(group, subgroup, strict=True)):
        found[name].append(i)
        if part:
            found.setdefault(f"{name} · {part}", []).append(i)
    return {name: np.array(positions, dtype=np.intp) for name, positions in found.items()}


def _frozen(settings: Settings) -> tuple[Any, ...]:
    return tuple(sorted((name, tuple(levels)) for name, levels in settings.items()))


def _nanmean(values: xr.DataArray, dims: Sequence[str]) -> xr.DataArray:
    """Mean over dims of what is defined; NaN, without a warning, where nothing is."""
    defined = values.notnull().sum(dims)
    return (values.fillna(0).sum(dims) / defined.where(defined > 0)).rename(None)


def _nanmean_first(values: np.ndarray) -> np.ndarray:
    defined = (~np.isnan(values)).sum(axis=0)
    total = np.nansum(values, axis=0)
    return np.divide(total, defined, out=np.full(total.shape, np.nan), where=defined > 0)
