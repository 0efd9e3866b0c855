"""I_Q, question-correctness instability: which questions are right changes between settings (P1 §3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.instability.result import Grid, Instability

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, eq=False, kw_only=True)
class QuestionInstability(Instability):
    """I_Q, and whom it leaves out.

    Attributes:
        left_out: True where no question is right in any setting, so that the union is empty and the entry
            counts towards no mean. Has the dims of `per_persona`.
    """

    left_out: xr.DataArray

    @property
    def left_out_count(self) -> int:
        """Number of entries left out: of personas, or of personas × kept levels."""
        return int(self.left_out.sum())

    @property
    def left_out_personas(self) -> tuple[Any, ...]:
        """Names of the personas left out at any kept level, in the order of the persona dim."""
        if "persona" not in self.left_out.dims:
            return ()
        out = self.left_out.any([dim for dim in self.left_out.dims if dim != "persona"])
        return tuple(out.get_index("persona")[out.values].tolist())


def question_instability(
    correct: xr.DataArray, over: str | Sequence[str] | None = None
) -> QuestionInstability:
    """Share of the questions ever right that are not right always, averaged over personas (P1 §3, I_Q).

    ``CQ(p;s)`` = questions that p gets right in s; ``I_Q`` = 1 − mean over personas of
    ``|∩_s CQ(p;s)| / |∪_s CQ(p;s)|``. With ``over="persona"`` the intersection and the union are over
    personas within each setting (P1 Fig. 7), and `Instability.average` is the mean over settings.

    The paper leaves this open: a persona that is never right has an empty union. It is left out of the
    mean, and counted.

    Args:
        correct: Boolean, with dims ``persona``, ``question`` and one per factor, in any order.
        over: The dims to vary jointly; by default every dim but persona and question. Any further dim is
            kept: the result has one value per level of it.

    Returns:
        The instability, in [0, 1]. Undefined with one setting, without questions, without personas, and
        where no question is ever right.

    Raises:
        UserError: If a dim is missing, ``correct`` is not boolean, or ``over`` names no dim to vary.
    """
    grid = Grid.check(correct, over)
    dims = (*grid.unit, *grid.kept)
    if reason := grid.undefined():
        return QuestionInstability(
            **grid.undefined_result("question", reason), left_out=grid.array(False, dims, "left_out")
        )

    always = correct.all(grid.over).sum("question").transpose(*dims).values
    ever = correct.any(grid.over).sum("question").transpose(*dims).values
    included = ever > 0
    overlap = np.divide(always, ever, out=np.zeros(ever.shape), where=included)
    members = included.sum(axis=0) if grid.unit else included.astype(int)
    # An overlap left out is 0 and adds nothing to the sum.
    total = overlap.sum(axis=0) if grid.unit else overlap
    mean = np.divide(total, members, out=np.full(np.shape(members), np.nan), where=members > 0)

    never = members == 0
    reason = f"no question is right in any {grid.noun}: the union is empty"
    fields: dict[str, Any] = {}
    if grid.kept:
        fields["value"] = grid.array(1 - mean, grid.kept, "question")
        if undefined := grid.labels(never):
            fields["reason"] = f"{len(undefined)} of {never.size} entries undefined: {reason}"
            fields["reasons"] = dict.fromkeys(undefined, reason)
    elif never:
        fields["value"], fields["reason"] = None, reason
    else:
        fields["value"] = float(1 - mean)
    return QuestionInstability(
        metric="question",
        over=grid.over,
        per_persona=grid.array(np.where(included, 1 - overlap, np.nan), dims, "question"),
        left_out=grid.array(~included, dims, "left_out"),
        **fields,
    )
