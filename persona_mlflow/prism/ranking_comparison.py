"""Paired tests of the ranking metrics between methods on the same groups (beyond P2, which has none)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError, choices
from persona_mlflow.instability.pairwise import CORRECTIONS, Correction, adjust, check_alpha
from persona_mlflow.prism.ranking import (
    METRICS,
    NOT_COMPARABLE,
    Scored,
    group_draws,
    percentile_interval,
    read_columns,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "metric",
    "test",
    "first",
    "second",
    "value_first",
    "value_second",
    "difference",
    "low",
    "high",
    "p",
    "p_adjusted",
    "groups",
    "unpaired",
    "reason",
)
"""The columns of `compare_methods`."""


def compare_methods(
    results: Mapping[str, pd.DataFrame],
    *,
    correction: Correction = "holm",
    draws: int = 1000,
    seed: int = 0,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Test every two methods against each other on the examples that both have scored.

    The bootstrap draws groups, the same for both methods. Its two-sided p-value is twice the smaller of the
    shares of draws whose difference is ≤ 0 and ≥ 0, the experiment itself counted as one draw more, so at
    least 2 / (draws + 1). McNemar's exact test looks at the groups in which only one of the two is right; it
    is two-sided, and 1 where there is no such group.

    Args:
        results: Method → its scores: a frame as `ranking_metrics` takes it, with a column ``id`` too. A
            frame whose ``attrs["comparable"]`` is false has no AUC.
        correction: Of the p-values over all pairs of methods, within each metric and test: ``holm``,
            ``bonferroni`` or ``fdr_bh``.
        draws: Bootstrap draws over groups, at least 1.
        seed: Seed of the draws.
        alpha: The intervals cover the share 1 − alpha of the draws.

    Returns:
        One row per metric, test (``bootstrap`` for each metric, ``mcnemar`` for group accuracy) and pair of
        methods, with `COLUMNS`: ``difference`` is first − second, ``low`` and ``high`` its interval
        (bootstrap alone), ``groups`` the groups compared, ``unpaired`` the examples that only one of the two
        has scored, ``reason`` why the p-value is NaN, else empty.

    Raises:
        UserError: Fewer than two methods, an unknown correction, what `ranking_metrics` refuses, an id that
            occurs twice, or one that two methods have in different groups or on different sides.
    """
    import pandas as pd

    if correction not in CORRECTIONS:
        raise UserError(f"unknown correction {correction!r}: {choices(str(correction), CORRECTIONS)}")
    check_alpha(alpha)
    if len(results) < 2:
        raise UserError(f"comparing methods needs at least 2, but there is {len(results) or 'none'}")
    if draws < 1:
        raise UserError(f"comparing methods needs at least 1 bootstrap draw, but draws is {draws!r}")
    paired = _Paired(results, draws, seed)
    rows: list[dict[str, Any]] = []
    for first, second in combinations(results, 2):
        rows += paired.rows(first, second, alpha)
    rows.sort(key=lambda row: (METRICS.index(row["metric"]), row["test"]))
    out = pd.DataFrame(rows, columns=list(COLUMNS))
    out["p_adjusted"] = np.nan
    for _, part in out[out["p"].notna()].groupby(["metric", "test"], sort=False):
        out.loc[part.index, "p_adjusted"] = adjust(part["p"].to_numpy(float), correction)
    return out


class _Paired:
    """Several methods' scores of the same examples, and one set of bootstrap draws."""

    def __init__(self, results: Mapping[str, pd.DataFrame], draws: int, seed: int) -> None:
        frame, self.scores = _align(results)
        names, self.group, self.positive, _ = read_columns(frame)
        self.groups = len(names)
        self.weights = group_draws(self.groups, draws, seed)
        self.comparable = {name: bool(r.attrs.get("comparable", True)) for name, r in results.items()}
        self._measured: dict[tuple[str, bytes], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = {}

    def measure(self, name: str, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Values (metric), draws (draw, metric), whether each group has pairs, and whether it is right."""
        key = (name, ok.tobytes())
        if key not in self._measured:
            scored = Scored(self.group[ok], self.positive[ok], self.scores[name][ok], self.groups)
            values = scored.statistics(np.ones((1, self.groups), dtype=np.int32))[0]
            _, pairs, right = scored.per_group()
            self._measured[key] = values, scored.statistics(self.weights), pairs > 0, right
        return self._measured[key]

    def rows(self, first: str, second: str, alpha: float) -> list[dict[str, Any]]:
        """The rows of one pair of methods, p-values as yet uncorrected."""
        scored = [~np.isnan(self.scores[name]) for name in (first, second)]
        ok = scored[0] & scored[1]
        values_a, draws_a, defined, right_a = self.measure(first, ok)
        values_b, draws_b, _, right_b = self.measure(second, ok)
        differences, gaps = values_a - values_b, draws_a - draws_b
        shared = len(np.unique(self.group[ok]))
        rows = []
        for column, metric in enumerate(METRICS):
            row: dict[str, Any] = {
                "metric": metric,
                "test": "bootstrap",
                "first": first,
                "second": second,
                "value_first": values_a[column],
                "value_second": values_b[column],
                "difference": differences[column],
                "low": np.nan,
                "high": np.nan,
                "p": np.nan,
                "groups": int(defined.sum()) if column else shared,
                "unpaired": int((scored[0] != scored[1]).sum()),
                "reason": "",
            }
            odd = [name for name in (first, second) if not self.comparable[name]]
            if metric == "auc" and odd:
                row |= {"value_first": np.nan, "value_second": np.nan, "difference": np.nan}
                row["reason"] = f"{odd[0]}: {NOT_COMPARABLE}"
                rows.append(row)
                continue
            if np.isnan(differences[column]):
                side = "no group has both" if column else "there are not both"
                row["reason"] = f"{side} a positive and a negative that both methods scored"
            else:
                bounds, row["reason"] = percentile_interval(gaps[:, column], row["groups"], alpha)
                if bounds:
                    row |= {"low": bounds[0], "high": bounds[1], "p": bootstrap_p(gaps[:, column])}
            rows.append(row)
            if metric == "group_accuracy":
                exact: dict[str, Any] = {**row, "test": "mcnemar", "low": np.nan, "high": np.nan}
                if defined.any():
                    exact |= {"p": mcnemar_p(right_a[defined], right_b[defined]), "reason": ""}
                rows.append(exact)
        return rows


def bootstrap_p(differences: np.ndarray) -> float:
    """Two-sided p-value that a difference is 0, from its bootstrap draws; undefined draws are left out.

    Args:
        differences: One per draw; NaN where undefined.
    """
    defined = differences[~np.isnan(differences)]
    tail = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (1 + tail) / (1 + len(defined)))


def mcnemar_p(first: np.ndarray, second: np.ndarray) -> float:
    """McNemar's exact two-sided p-value for two boolean arrays over the same groups."""
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(min(only_first, only_second), only_first + only_second).pvalue)


def _align(results: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """The examples of all methods, and each method's scores of them (NaN where it has none)."""
    import pandas as pd

    parts = {}
    for name, frame in results.items():
        _, _, positive, score = read_columns(frame)
        if "id" not in frame.columns:
            raise UserError(f"{name}: the results have no column 'id', by which methods are paired")
        part = pd.DataFrame(
            {"id": frame["id"].to_numpy(), "group": frame["group"].to_numpy(), "positive": positive}
        )
        twice = part["id"][part["id"].duplicated()]
        if len(twice):
            raise UserError(f"{name}: the id {twice.iloc[0]!r} occurs more than once")
        parts[name] = part.assign(score=score)
    stacked = pd.concat([part.drop(columns="score") for part in parts.values()], ignore_index=True)
    examples = stacked.drop_duplicates()
    odd = examples["id"][examples["id"].duplicated()]
    if len(odd):
        raise UserError(
            f"the id {odd.iloc[0]!r} is in different groups, or on different sides, in two methods; "
            "compare methods on one benchmark"
        )
    scores = {
        name: part.set_index("id")["score"].reindex(examples["id"]).to_numpy(float)
        for name, part in parts.items()
    }
    return examples.assign(score=0.0), scores
