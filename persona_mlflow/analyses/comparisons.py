"""Which settings differ, which persona is best in all of them, and which setting to use. Beyond the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.analyses.selections import setting_name
from persona_mlflow.analyses.study import NotAllowed, Study

if TYPE_CHECKING:
    import xarray as xr


def setting_differences(study: Study) -> xr.Dataset:
    """Accuracy of each setting less that of each other, paired by question, corrected after Holm.

    See `persona_mlflow.instability.pairwise.setting_tests`.

    Returns:
        Over setting × other: ``value`` (setting − other, a fraction), its ``low`` and ``high``, and ``p``,
        adjusted; a setting's difference from itself is 0.

    Raises:
        NotAllowed: There is one setting, or one question.
    """
    import xarray as xr

    from persona_mlflow.instability.pairwise import setting_tests

    tests = setting_tests(study.correct, alpha=1 - study.level)
    names = setting_names(study)
    n = len(names)
    i, j = np.triu_indices(n, 1)
    columns = {}
    for name, source, sign in (
        ("value", "difference", -1),
        ("low", "low", -1),
        ("high", "high", -1),
        ("p", "p_adjusted", 1),
    ):
        square = np.full((n, n), np.nan)
        square[i, j] = tests[source].values
        square[j, i] = sign * tests[source].values
        columns[name] = square
    for name, own in (("value", 0.0), ("low", 0.0), ("high", 0.0), ("p", 1.0)):
        np.fill_diagonal(columns[name], own)
    # A difference turned round has its bounds exchanged.
    lower = np.tril_indices(n, -1)
    columns["low"][lower], columns["high"][lower] = columns["high"][lower], columns["low"][lower].copy()
    dims = ("setting", "other")
    return xr.Dataset(
        {name: (dims, values) for name, values in columns.items()},
        coords={"setting": names, "other": names},
        attrs={"correction": "holm"},
    )


def persona_differences(study: Study) -> xr.Dataset:
    """Personas whose lead survives all settings, and the best persona, where there is one.

    See `persona_mlflow.instability.pairwise.persona_differences`.

    Returns:
        Along ``persona``: ``value``, ``low``, ``high``, its accuracy over all settings; ``mean_rank``;
        ``best_in``, the settings in which nobody is more accurate; ``beats`` and ``beaten_by``, the personas
        that it is better or worse than in every setting. ``attrs["note"]`` names the best persona, or says
        that there is none.

    Raises:
        NotAllowed: There is one persona.
    """
    from persona_mlflow.instability import pairwise

    found = pairwise.persona_differences(study.correct, alpha=1 - study.level)
    accuracy = study.accuracy().mean(list(study.factors)) if study.factors else study.accuracy()
    result = study.interval(accuracy, (0.0, 1.0))
    for name in ("mean_rank", "best_in", "beats", "beaten_by"):
        result[name] = ("persona", found[name].values)
    best = found.attrs["best_persona"]
    where = "in every setting" if study.settings > 1 else "in the one setting"
    note = (
        f"Best persona: {best}, better than every other {where}."
        if best
        else f"No persona is better than every other {where}: {found.attrs['reason']}."
    )
    return result.assign_attrs(note=note)


def recommended_settings(study: Study) -> xr.Dataset:
    """The settings that are most stable at no loss of accuracy.

    See `persona_mlflow.instability.recommend.recommend_settings`.

    Returns:
        Along ``setting``, the recommended first and by score: ``value``, ``low``, ``high``, accuracy over
        personas; the three local instabilities; ``loss`` and its adjusted ``p``; ``score``; ``recommended``
        (``yes`` or empty). ``attrs["note"]`` names the first.

    Raises:
        NotAllowed: There is one setting, or one question.
    """
    from persona_mlflow.instability.recommend import recommend_settings

    found = recommend_settings(study.correct, alpha=1 - study.level)
    accuracy = study.accuracy().mean("persona")
    flat = accuracy.stack(setting=list(study.factors), create_index=False).drop_vars(study.factors)
    result = study.interval(flat.assign_coords(setting=setting_names(study)), (0.0, 1.0))
    for name in ("accuracy_instability", "outcome_instability", "question_instability", "loss", "score"):
        result[name] = ("setting", found[name].values)
    result["p"] = ("setting", found["p_loss"].values)
    recommended = found["recommended"].values
    result["recommended"] = ("setting", np.where(recommended, "yes", ""))
    order = np.lexsort((np.arange(len(recommended)), found["score"].values, ~recommended))
    result = result.isel(setting=order)
    first = str(result["setting"].values[0])
    return result.assign_attrs(note=f"Most stable at no loss of accuracy: {first}.")


def setting_names(study: Study) -> list[str]:
    """Every setting in words, in the order of the grid."""
    from itertools import product

    if not study.factors:
        raise NotAllowed("takes at least one factor")
    levels = [study.levels(name) for name in study.factors]
    shown = study.varied or study.factors
    return [
        setting_name({k: v for k, v in zip(study.factors, combination, strict=True) if k in shown})
        for combination in product(*levels)
    ]
