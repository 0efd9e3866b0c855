"""PRISM scores: q over the states of each dimension, e_d and S (P2 §3), with exact resume."""

from __future__ import annotations

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.cases import Case, Profile
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES, Dimensions, load_dimensions
from persona_mlflow.prism.evaluators import Evaluator, LabelScore, shared_evaluator
from persona_mlflow.prism.prompt import LABELS, LAYOUTS, ORDERS, LabelPrompt, build_prompt, case_prompts
from persona_mlflow.prism.score_log import ScoreLog

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
WARN_MASS = 0.5
"""A mean label mass under this is warned of."""
FAIL_MASS = 0.01
"""A prompt with less label mass is unscored, and a run whose mean is less stops."""

COLUMNS = (
    "case",
    "dimension",
    *(f"q_{state}" for state in STATES),
    "e",
    "S",
    "label_mass",
    "label_variant",
    "order",
    "cut_off",
    "reason",
)
# Cases after which the mean label mass is judged before the end.
_ENOUGH = 8


class LabelMassWarning(UserWarning):
    """The evaluator would mostly write something other than a label."""


@dataclass(frozen=True)
class PrismScore:
    """How far one response shows a profile (P2 §3).

    Attributes:
        q: Dimension → state → probability, softmax over the three labels; nine numbers.
        e: Dimension → e_d = q_d(aligned).
        S: Mean of the three e_d.
        label_mass: Dimension → probability of the three labels before normalising.
        label_variant: Dimension → ``A`` or `` A``, the way of writing labels that was scored.
        cut_off: Labels, of nine, that an endpoint's list of likely tokens did not hold; they count as 0.
    """

    q: Mapping[str, Mapping[str, float]]
    e: Mapping[str, float]
    S: float
    label_mass: Mapping[str, float]
    label_variant: Mapping[str, str]
    cut_off: int

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "q": {d: dict(q) for d, q in self.q.items()},
            "e": dict(self.e),
            "S": self.S,
            "label_mass": dict(self.label_mass),
            "label_variant": dict(self.label_variant),
            "cut_off": self.cut_off,
        }


def score(
    profile: Profile | Mapping[str, Any] | str,
    context: str,
    response: str,
    *,
    evaluator: Evaluator | str,
    seed: int = 0,
    layout: str = "labels-last",
    dimensions: Dimensions | None = None,
) -> PrismScore:
    """Score one response (P2 §3).

    Args:
        profile: Whom the response should sound like; a mapping or text as `Profile.from_dict` takes it.
        context: The dialogue so far; may be empty.
        response: The response.
        evaluator: Gives the label probabilities. A name as `load_evaluator` takes it, such as ``smollm2``, is
            loaded with the default settings on first use, and kept.
        seed: Seed of the order of the labels.
        layout: ``labels-last`` or ``labels-first``.
        dimensions: The wording of the label spaces; the shipped one by default.

    Raises:
        UserError: An empty response, a profile with no usable cue, or label mass under 0.01.
    """
    found = profile if isinstance(profile, Profile) else Profile.from_dict(profile)
    case = Case.of(found, context, response)
    if isinstance(evaluator, str):
        evaluator = shared_evaluator(evaluator)
    frame = score_cases([case], evaluator, seed=seed, layout=layout, dimensions=dimensions)
    refused = frame.loc[frame["reason"] != "", "reason"]
    if len(refused):
        raise UserError(f"the response cannot be scored: {refused.iloc[0]}")
    rows = {str(row["dimension"]): row for row in frame.to_dict("records")}
    return PrismScore(
        q={d: {state: float(row[f"q_{state}"]) for state in STATES} for d, row in rows.items()},
        e={d: float(row["e"]) for d, row in rows.items()},
        S=float(rows[DIMENSIONS[0]]["S"]),
        label_mass={d: float(row["label_mass"]) for d, row in rows.items()},
        label_variant={d: str(row["label_variant"]) for d, row in rows.items()},
        cut_off=sum(int(row["cut_off"]) for row in rows.values()),
    )


def score_cases(
    cases: Sequence[Case],
    evaluator: Evaluator,
    *,
    output: Path | None = None,
    seed: int = 0,
    layout: str = "labels-last",
    dimensions: Dimensions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Score cases (P2 §3): one row per case and dimension.

    Args:
        cases: What to score; their ids must differ.
        evaluator: Gives the label probabilities.
        output: A JSONL file that keeps each scored case at once. A later call with the same evaluator,
            layout, seed and wording takes over what stands there, and scores the rest.
        seed: Seed of the order of the labels.
        layout: ``labels-last`` or ``labels-first``.
        dimensions: The wording of the label spaces; the shipped one by default.
        progress: Called with the cases done and all cases.

    Returns:
        Columns `COLUMNS`, in the order of the cases and of `DIMENSIONS`. ``S`` is the case's mean, repeated.
        ``order`` lists the states under A, B and C. A row without scores holds NaN and a ``reason``, and
        so does then the S of its case.

    Raises:
        UserError: Two cases of one id, a mean label mass under 0.01, or an output file of another evaluator,
            layout, seed or wording.
    """
    wording = dimensions or load_dimensions()
    if layout not in LAYOUTS:
        raise UserError(f"layout: {layout!r} is not valid; {choices(layout, LAYOUTS)}")
    by_id = _by_id(cases)
    header = {
        "prism": FORMAT,
        "evaluator": evaluator.identity(),
        "layout": layout,
        "seed": int(seed),
        "dimensions": wording.fingerprint,
    }
    done: dict[str, list[dict[str, Any]]] = {}
    with ScoreLog(output, header) as log:
        for record in log.read():
            case_id = record["case"]
            if case_id in by_id and record["content"] == by_id[case_id].content:
                done[case_id] = record["rows"]
        if progress:
            progress(len(done), len(cases))
        pending = [case for case in cases if case.id not in done]
        judged = False
        for finished in _evaluate(pending, evaluator, layout, seed, wording):
            log.append(
                {"case": case_id, "content": by_id[case_id].content, "rows": rows}
                for case_id, rows in finished.items()
            )
            done.update(finished)
            if not judged and len(done) >= _ENOUGH:
                _check_mass(done, warn=False)
                judged = True
            if progress:
                progress(len(done), len(cases))
    _check_mass(done, warn=True)
    return _frame([done[case.id] for case in cases])


def _by_id(cases: Sequence[Case]) -> dict[str, Case]:
    for case_id, count in Counter(case.id for case in cases).items():
        if count > 1:
            raise UserError(f"the id {case_id!r} stands for {count} cases: give each its own")
    return {case.id: case for case in cases}


def _evaluate(
    cases: Sequence[Case], evaluator: Evaluator, layout: str, seed: int, wording: Dimensions
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Score cases; yields those that are complete, with their three rows."""
    # Longest first, so that memory runs out at once or never; the prompts themselves are made as they go.
    order = sorted(cases, key=lambda case: -len(case.context) - len(case.response))
    groups = (case_prompts(case, layout=layout, seed=seed, dimensions=wording) for case in order)
    part: dict[str, dict[str, LabelScore]] = {}
    for scores in evaluator.label_scores(groups):
        ready = {}
        for found in scores:
            case_id, dimension = found.key
            rows = part.setdefault(case_id, {})
            if dimension in rows:
                raise RuntimeError(f"the evaluator scored {found.key} twice")
            rows[dimension] = found
            if len(rows) == len(DIMENSIONS):
                ready[case_id] = [_row(rows[d]) for d in DIMENSIONS]
                del part[case_id]
        if ready:
            yield ready
    if part:
        raise RuntimeError(f"the evaluator left prompts of {len(part)} cases out")


def _row(found: LabelScore) -> dict[str, Any]:
    """One row as the file keeps it; what is undefined is null."""
    case_id, dimension = found.key[:2]
    reason, q, mass = found.reason, None, None
    if not reason:
        q, mass = found.states(), found.mass
        if mass < FAIL_MASS:
            reason, q = f"label mass {mass:.2g} is under {FAIL_MASS}", None
    return {
        "case": case_id,
        "dimension": dimension,
        **{f"q_{state}": q[state] if q else None for state in STATES},
        "label_mass": mass,
        "label_variant": found.variant,
        "order": ",".join(found.order),
        "cut_off": found.cut_off,
        "reason": reason,
    }


def _frame(cases: Iterable[list[dict[str, Any]]]) -> pd.DataFrame:
    import pandas as pd

    records = []
    for rows in cases:
        e = [row["q_aligned"] for row in rows]
        mean = math.fsum(e) / len(e) if None not in e else None
        records += [{**row, "e": row["q_aligned"], "S": mean} for row in rows]
    frame = pd.DataFrame(records, columns=list(COLUMNS))
    numbers = [*(f"q_{state}" for state in STATES), "e", "S", "label_mass"]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _check_mass(done: Mapping[str, list[dict[str, Any]]], warn: bool) -> None:
    """Stop or warn where the evaluator would rather write something other than a label (L4)."""
    rows = [row for case in done.values() for row in case]
    masses = [row["label_mass"] for row in rows if row["label_mass"] is not None]
    if not masses:
        return
    mean = statistics.fmean(masses)
    if mean < FAIL_MASS:
        raise UserError(
            f"the evaluator puts {mean:.2g} of its probability on the labels {', '.join(LABELS)} (mean over "
            f"{len(masses)} prompts; at least {FAIL_MASS} is needed): it does not answer with a letter, as a "
            "model that thinks first or does not follow instructions. Use another evaluator"
        )
    low = sum(mass < WARN_MASS for mass in masses)
    if warn and mean < WARN_MASS:
        warnings.warn(
            f"the evaluator puts {mean:.3g} of its probability on the labels (mean over {len(masses)} "
            f"prompts, {low} of them under {WARN_MASS}): the scores say little of its answers",
            LabelMassWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class OrderSensitivity:
    """How far scores hang on the order in which a prompt lists the states.

    Attributes:
        frame: One row per case, dimension and order: case, dimension, order, e, label_mass, and p_A, p_B,
            p_C, the probabilities under the three letters.
        spread: Mean over cases and dimensions of the largest less the smallest e_d over the orders; 0
            where the order does not matter.
        deviation: Mean over cases and dimensions of the standard deviation of e_d over the orders.
        flips: Share of cases and dimensions whose likeliest state is not the same in all orders.
        letters: Mean probability under each letter; a third each where no letter is preferred (with 3 or 6
            orders, in which each state stands under each letter equally often).
        unscored: Prompts without scores; they are left out.
    """

    frame: pd.DataFrame
    spread: float | None
    deviation: float | None
    flips: float | None
    letters: Mapping[str, float]
    unscored: int


def order_sensitivity(
    cases: Sequence[Case],
    evaluator: Evaluator,
    *,
    orders: int = 6,
    layout: str = "labels-last",
    dimensions: Dimensions | None = None,
) -> OrderSensitivity:
    """Ask each case and dimension in several orders of the states.

    Args:
        cases: What to score; their ids must differ.
        evaluator: Gives the label probabilities.
        orders: How many of the six orders, 2 to 6.
        layout: ``labels-last`` or ``labels-first``.
        dimensions: The wording of the label spaces; the shipped one by default.

    Raises:
        UserError: A number of orders that there is not, or what `score_cases` refuses.
    """
    import pandas as pd

    if not 2 <= orders <= len(ORDERS):
        raise UserError(f"orders: {orders} is not valid: use 2 to {len(ORDERS)}")
    _by_id(cases)

    def prompts(case: Case) -> list[LabelPrompt]:
        return [
            build_prompt(case, d, layout=layout, order=ORDERS[i], dimensions=dimensions, key=(case.id, d, i))
            for d in DIMENSIONS
            for i in range(orders)
        ]

    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    left_out = 0
    for scores in evaluator.label_scores(prompts(case) for case in cases):
        for item in scores:
            row = _row(item)
            if row["reason"]:
                left_out += 1
                continue
            letters = {
                f"p_{label}": row[f"q_{state}"] for label, state in zip(LABELS, item.order, strict=True)
            }
            names = ("case", "dimension", "order", "label_mass")
            states = {f"q_{state}": row[f"q_{state}"] for state in STATES}
            found[item.key] = {
                **{n: row[n] for n in names},
                "e": row["q_aligned"],
                **states,
                **letters,
            }
    keys = [(case.id, d, i) for case in cases for d in DIMENSIONS for i in range(orders)]
    columns = ["case", "dimension", "order", "e", "label_mass"]
    columns += [f"q_{state}" for state in STATES] + [f"p_{label}" for label in LABELS]
    frame = pd.DataFrame([found[key] for key in keys if key in found], columns=columns)
    if frame.empty:
        return OrderSensitivity(frame, None, None, None, {}, left_out)
    likeliest = frame[[f"q_{state}" for state in STATES]].to_numpy(dtype=float).argmax(axis=1)
    groups = frame.assign(likeliest=likeliest).groupby(["case", "dimension"], sort=False)
    return OrderSensitivity(
        frame=frame,
        spread=float((groups["e"].max() - groups["e"].min()).mean()),
        deviation=float(groups["e"].std(ddof=0).mean()),
        flips=float((groups["likeliest"].nunique() > 1).mean()),
        letters={label: float(frame[f"p_{label}"].mean()) for label in LABELS},
        unscored=left_out,
    )
