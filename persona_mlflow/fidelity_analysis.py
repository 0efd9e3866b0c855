"""Fidelity: PRISM's scores of an experiment's explaining runs, as one labelled array, and its numbers.

Beyond both papers: P2's S of each run stands where P1 has accuracy, so that the same instabilities say how
far the fit of the text to its persona moves between settings, and whether it moves where accuracy does.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.instability.levels import LevelInstability, level_instability
from persona_mlflow.prism.dimensions import DIMENSIONS

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

FORMAT = 1
FIDELITY = "fidelity.npz"
"""The compact file of an experiment's scores; under ``prism/`` in a ledger and among a parent's artifacts."""

SCORES = ("fidelity", *DIMENSIONS)
"""S and the three e_d, each as the mean of a run, and as metrics under ``prism/``."""


def label_fidelity(
    e: np.ndarray,
    label_mass: np.ndarray,
    accuracy: np.ndarray,
    *,
    personas: Sequence[tuple[str, str, str]],
    factors: Mapping[str, Sequence[Any]],
    questions: Sequence[tuple[str, str]],
    attrs: Mapping[str, Any],
) -> xr.Dataset:
    """Give scores their dimensions and coordinates.

    Args:
        e: e_d of each case, runs × questions × `DIMENSIONS`, in [0, 1]; NaN in all three where the case is
            unscored. Runs are persona × factors in grid order.
        label_mass: Mean label mass of each run, NaN where no prompt has one.
        accuracy: Accuracy of each run over all questions of the experiment.
        personas: Name, group and sub-group of each.
        factors: Factor → the levels with explaining runs.
        questions: Id and category of each scored question.
        attrs: Facts of the evaluation, JSON values.
    """
    import xarray as xr

    grid = (len(personas), *(len(levels) for levels in factors.values()))
    dims = ("persona", *factors)
    names, groups, subgroups = ([p[i] for p in personas] for i in range(3))
    return xr.Dataset(
        {
            "e": ((*dims, "question", "dimension"), e.reshape(*grid, len(questions), len(DIMENSIONS))),
            "label_mass": (dims, label_mass.reshape(grid)),
            "accuracy": (dims, accuracy.reshape(grid)),
        },
        coords={
            "persona": names,
            "persona_group": ("persona", groups),
            "persona_subgroup": ("persona", subgroups),
            **{name: list(levels) for name, levels in factors.items()},
            "question": [q[0] for q in questions],
            "category": ("question", [q[1] for q in questions]),
            "dimension": list(DIMENSIONS),
        },
        attrs=dict(attrs),
    )


def pack_fidelity(data: xr.Dataset) -> bytes:
    """Write scores as one small file (NumPy's npz, compressed): ``header`` (JSON) and the three arrays."""
    header = {
        "format": FORMAT,
        "personas": [
            list(p)
            for p in zip(
                *(data[name].values.tolist() for name in ("persona", "persona_group", "persona_subgroup")),
                strict=True,
            )
        ],
        "factors": {name: data[name].values.tolist() for name in factor_names(data)},
        "questions": [
            list(q)
            for q in zip(data["question"].values.tolist(), data["category"].values.tolist(), strict=True)
        ],
        "attrs": dict(data.attrs),
    }
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        header=np.array(json.dumps(header, ensure_ascii=False, allow_nan=False)),
        e=data["e"].values,
        label_mass=data["label_mass"].values,
        accuracy=data["accuracy"].values,
    )
    return buffer.getvalue()


def unpack_fidelity(path: Path) -> xr.Dataset | None:
    """Read a file of `pack_fidelity`; None where it is torn or of another version."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            if header["format"] != FORMAT:
                return None
            return label_fidelity(
                file["e"],
                file["label_mass"],
                file["accuracy"],
                personas=header["personas"],
                factors=header["factors"],
                questions=header["questions"],
                attrs=header["attrs"],
            )
    except Exception:  # whatever is wrong with the file, the scores can be logged again from the record
        return None


def factor_names(data: xr.Dataset) -> list[str]:
    """The factors of scores, in the order of the grid."""
    return [str(dim) for dim in data["accuracy"].dims if dim != "persona"]


def run_scores(data: xr.Dataset, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The mean S and e_d of each run over its scored cases.

    Args:
        data: As `label_fidelity`.
        weights: How often each question counts in each draw, question × draw; once by default.

    Returns:
        `SCORES` → persona × settings (× draw where there are weights), NaN where no case is scored.
    """
    e = data["e"].values.reshape(data.sizes["persona"], -1, *data["e"].shape[-2:])
    scored = ~np.isnan(e).any(axis=-1)
    values = np.where(scored[..., None], e, 0.0)
    by_name = [values.mean(axis=-1), *(values[..., d] for d in range(len(DIMENSIONS)))]
    times = np.ones((e.shape[2], 1)) if weights is None else weights.astype(float)
    count = scored.astype(float) @ times
    found = {}
    for name, value in zip(SCORES, by_name, strict=True):
        total = value @ times
        mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        found[name] = mean[..., 0] if weights is None else mean
    return found


def count_scored(data: xr.Dataset) -> np.ndarray:
    """How many cases of each run are scored: persona × settings."""
    scored = data["e"].notnull().all("dimension").sum("question").values
    return np.asarray(scored.reshape(data.sizes["persona"], -1))


def instability(levels: np.ndarray) -> tuple[LevelInstability | None, str]:
    """I_A and I_O of a score in place of accuracy, or why there are none.

    Args:
        levels: Persona × setting, NaN where a run has no score.
    """
    lacking = int(np.isnan(levels).sum())
    if lacking:
        return None, f"{lacking} of {levels.size} runs {'has' if lacking == 1 else 'have'} no score"
    if levels.shape[1] < 2:
        return None, "one setting gives no pairs: instability needs at least two settings that explain"
    return level_instability(levels), ""


def correlation(x: np.ndarray, y: np.ndarray, what: str) -> tuple[float | None, str]:
    """Pearson's r, or why it is undefined.

    Args:
        x: Of accuracy.
        y: Of fidelity; as long.
        what: What the entries are, in the plural.
    """
    from persona_mlflow.analyses.correlations import pearson

    if len(x) < 3:
        return None, f"takes at least three {what}; here: {len(x)}"
    r = float(pearson(x[:, None], y[:, None])[0])
    if np.isnan(r):
        return None, f"one of the two is the same for all {what}"
    return r, ""


def correlations(accuracy: np.ndarray, fidelity: np.ndarray) -> dict[str, tuple[float | None, str]]:
    """How far fidelity moves where accuracy does.

    Args:
        accuracy: Persona × setting.
        fidelity: Alike, NaN where a run has no score.

    Returns:
        ``accuracy``: r over personas between their I_A of accuracy and of fidelity; ``outcome``: between
        their I_O(p) in ranks; ``runs``: r over runs between accuracy and fidelity. Each with the reason
        where it is undefined.
    """
    found: dict[str, tuple[float | None, str]] = {}
    of_fidelity, reason = instability(fidelity)
    of_accuracy, _ = instability(accuracy)
    if of_fidelity is None or of_accuracy is None:
        found["accuracy"] = found["outcome"] = (None, reason)
    else:
        found["accuracy"] = correlation(of_accuracy.differences, of_fidelity.differences, "personas")
        found["outcome"] = correlation(of_accuracy.spreads, of_fidelity.spreads, "personas")
    there = ~np.isnan(fidelity)
    found["runs"] = correlation(accuracy[there], fidelity[there], "runs with a score")
    return found


def fidelity_summary(data: xr.Dataset) -> dict[str, dict[str, Any]]:
    """What the parent run reports of fidelity.

    Args:
        data: As `label_fidelity`.

    Returns:
        ``metrics``, and ``undefined`` with the reasons of those that have no value: ``prism/fidelity`` and
        the dimensions, means over the explaining runs; ``prism/fidelity/<group>``; ``prism/label_mass``, mean
        over runs; ``prism/unscored_rate``, share of cases; ``prism/instability/accuracy`` and ``/outcome``,
        I_A and I_O (P1 §3) of the runs' mean S; ``prism/reference/accuracy`` and ``/outcome``, the same of
        accuracy over exactly these runs; ``prism/correlation/accuracy``, ``/outcome`` and ``/runs``, see
        `correlations`.
    """
    from persona_mlflow.records import metric_name

    found: dict[str, tuple[float | None, str]] = {}
    scores = run_scores(data)
    for name, values in scores.items():
        found[f"prism/{name}"] = _mean(values)
    groups = data["persona_group"].values
    for group in dict.fromkeys(groups.tolist()):
        found[f"prism/fidelity/{metric_name(group)}"] = _mean(scores["fidelity"][groups == group])
    found["prism/label_mass"] = _mean(data["label_mass"].values)
    cases = data["e"].size // len(DIMENSIONS)
    found["prism/unscored_rate"] = (1 - float(count_scored(data).sum()) / cases, "")
    accuracy = data["accuracy"].values.reshape(data.sizes["persona"], -1)
    for place, levels in (("instability", scores["fidelity"]), ("reference", accuracy)):
        result, reason = instability(levels)
        for metric in ("accuracy", "outcome"):
            value = None if result is None else float(getattr(result, metric))
            found[f"prism/{place}/{metric}"] = (value, reason)
    for name, item in correlations(accuracy, scores["fidelity"]).items():
        found[f"prism/correlation/{name}"] = item
    return {
        "metrics": {name: value for name, (value, _) in found.items() if value is not None},
        "undefined": {name: reason for name, (value, reason) in found.items() if value is None},
    }


def _mean(values: np.ndarray) -> tuple[float | None, str]:
    there = values[~np.isnan(values)]
    return (float(there.mean()), "") if there.size else (None, "no case is scored")


def fidelity_tables(data: xr.Dataset) -> dict[str, pd.DataFrame]:
    """Fidelity by persona, by persona group (and sub-group) and by setting.

    Args:
        data: As `label_fidelity`.

    Returns:
        ``by_persona``, ``by_group`` and ``by_setting``: labels, then ``runs``, `SCORES` and ``accuracy`` as
        means over runs, ``label_mass``, ``scored`` and ``unscored`` (cases). What is undefined is missing.
    """
    import pandas as pd

    factors = factor_names(data)
    names = ["persona", *factors]
    index = pd.MultiIndex.from_product([data[name].values.tolist() for name in names], names=names)
    scored = count_scored(data).ravel()
    frame = pd.DataFrame(index=index).reset_index()
    for name, values in run_scores(data).items():
        frame[name] = values.ravel()
    frame = frame.assign(
        accuracy=data["accuracy"].values.ravel(),
        label_mass=data["label_mass"].values.ravel(),
        scored=scored,
        unscored=data.sizes["question"] - scored,
    )
    labels = {
        name: dict(zip(data["persona"].values.tolist(), data[name].values.tolist(), strict=True))
        for name in ("persona_group", "persona_subgroup")
    }
    for name, by_persona in labels.items():
        frame[name] = frame["persona"].map(by_persona)
    parts = frame[frame["persona_subgroup"] != ""]
    return {
        "by_persona": _by(frame, ["persona", "persona_group", "persona_subgroup"]),
        "by_group": pd.concat(
            [
                _by(frame, ["persona_group"]).assign(persona_subgroup=""),
                _by(parts, ["persona_group", "persona_subgroup"]),
            ]
        ).sort_values(
            "persona_group", key=lambda names: names.map(_places(frame["persona_group"])), kind="stable"
        )[["persona_group", "persona_subgroup", "runs", *_NUMBERS]],
        "by_setting": _by(frame, factors) if factors else _by(frame.assign(setting="all"), ["setting"]),
    }


_NUMBERS = (*SCORES, "accuracy", "label_mass", "scored", "unscored")


def _places(values: pd.Series) -> dict[str, int]:
    return {name: place for place, name in enumerate(dict.fromkeys(values))}


def _by(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    groups = frame.groupby(names, sort=False)
    means = groups[list(_NUMBERS[:-2])].mean()
    sums = groups[list(_NUMBERS[-2:])].sum()
    return means.join(sums).assign(runs=groups.size())[["runs", *_NUMBERS]].reset_index()
