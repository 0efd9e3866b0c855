"""What moves accuracy, and whether the personas' ranking holds. Beyond the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from persona_mlflow.analyses.study import NotAllowed, Study

if TYPE_CHECKING:
    import xarray as xr


def variance(study: Study) -> xr.Dataset:
    """Shares of the variance of accuracy over runs: each factor, persona, and their interactions.

    Beyond the paper; see `persona_mlflow.instability.variance.variance_shares`.

    Returns:
        Along ``term``: ``value``, ``low``, ``high``, shares of 1.

    Raises:
        NotAllowed: All runs are equally accurate, or there is one run.
    """
    from persona_mlflow.instability.variance import variance_shares, variance_undefined

    names = ("persona", *study.factors)
    counts = study.counts()
    if reason := variance_undefined(counts):
        raise NotAllowed(reason)
    shares = variance_shares(counts, names)
    return study.interval(shares if study.has_interval(None) else shares.isel(draw=slice(1)), (0.0, 1.0))


def agreement(study: Study) -> xr.Dataset:
    """Kendall's W of the personas' rankings in the settings: 1 where all rank alike, 0 where none agree.

    Beyond the paper; see `persona_mlflow.instability.agreement`.

    Returns:
        Along ``part`` (``all questions``, then each category): ``value``, ``low``, ``high``; ``floor`` and
        ``p``, W by chance if personas were exchangeable (where the study has permutations); ``reason``.

    Raises:
        NotAllowed: There is one setting, or one persona.
    """
    import xarray as xr

    from persona_mlflow.instability.agreement import kendall_undefined, kendall_w, persona_permutation_p

    if study.settings < 2 or len(study.personas) < 2:
        raise NotAllowed("takes at least two settings and two personas")
    parts: dict[str, str | None] = {"all questions": None}
    if len(study.categories) > 1:
        parts.update({name: name for name in study.categories})
    draws, floors, p, reasons = [], [], [], []
    for place, category in enumerate(parts.values()):
        ranks = study.ranks(category, None)[0]
        ranks = ranks.reshape(len(ranks), -1, ranks.shape[-1])
        agreed = kendall_w(ranks)
        if not study.has_interval(category):
            agreed[1:] = np.nan
        draws.append(agreed)
        reasons.append(kendall_undefined(ranks) or "")
        chance = None
        if study.permutations:
            correct = study.correct
            if category is not None:
                correct = correct.isel(question=study.positions[category])
            rng = np.random.default_rng([study.seed, 2, place])
            chance = persona_permutation_p(correct, study.permutations, rng)
        floors.append(np.nan if chance is None or chance.floor is None else chance.floor)
        p.append(np.nan if chance is None or chance.p is None else chance.p)
    labelled = xr.DataArray(np.stack(draws), {"part": list(parts)}, ("part", "draw"))
    found = study.interval(labelled, (0.0, 1.0))
    return found.assign(floor=("part", floors), p=("part", p), reason=("part", reasons))
