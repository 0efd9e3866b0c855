"""Can the best persona be told from the question? (P1 Fig. 9)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persona_mlflow.analyses.study import NotAllowed, Study

if TYPE_CHECKING:
    import xarray as xr


def best_persona(study: Study) -> xr.Dataset:
    """F1 of the classifiers that predict who gets a question right, by factor level (P1 Fig. 9).

    `persona_mlflow.analyses.best_persona` trains them, one per setting; this lays out what it found.

    Returns:
        As `persona_mlflow.analyses.best_persona.by_level`, along ``level``.

    Raises:
        NotAllowed: They have not been trained on this experiment.
    """
    from persona_mlflow.analyses.best_persona import by_level

    if study.predictions is None:
        raise NotAllowed("takes trained classifiers: run persona-mlflow predict on the parent run first")
    found = by_level(study.predictions).rename(factor_level="level").reset_coords(drop=True)
    return found.assign_attrs(note=f"Encoder: {study.predictions.attrs.get('encoder', 'unknown')}.")
