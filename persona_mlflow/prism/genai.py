"""PRISM as a custom scorer of ``mlflow.genai.evaluate``; see ``examples/genai_evaluate.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow.entities import AssessmentError, AssessmentSource, Feedback
from mlflow.genai.scorers import Scorer
from pydantic import PrivateAttr

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.cases import Case
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES
from persona_mlflow.prism.evaluators import Evaluator, shared_evaluator
from persona_mlflow.prism.prompt import LAYOUTS
from persona_mlflow.prism.scoring import PrismScore, score

UNSCORED = "PRISM_UNSCORED"
"""Error code of a row that has no score."""


class PrismScorer(Scorer):
    """Scores how far a row's response shows its profile (P2 §3); made by `prism_scorer`.

    Attributes:
        name: Name of the feedback with S; a dimension's is ``<name>/<dimension>``.
        model: The evaluator's model.
        layout: PRISM's prompt layout.
        seed: Seed of the order of the labels.
    """

    model: str
    layout: str = "labels-last"
    seed: int = 0
    _evaluator: Any = PrivateAttr(default=None)

    def __call__(  # type: ignore[override]  # MLflow hands over what the signature names
        self, *, inputs: Any = None, outputs: Any = None, expectations: dict[str, Any] | None = None
    ) -> list[Feedback]:
        """Score one row.

        Args:
            inputs: A mapping with ``profile``, as `Profile.from_dict` takes it, and ``context``, the dialogue
                so far; no context is an empty one.
            outputs: The response: a text, or a chat message or completion, see `response_text`.
            expectations: Where ``inputs`` has no profile, a mapping that has it.

        Returns:
            S and the three e_d, each with its rationale; or a single feedback that holds the error, where the
            row cannot be scored. A row without a score is in no mean.
        """
        try:
            case = Case.from_dict(
                {
                    "profile": _profile(inputs, expectations),
                    "context": inputs.get("context") if isinstance(inputs, Mapping) else None,
                    "response": response_text(outputs),
                },
                "row",
            )
            found = score(
                case.profile,
                case.context,
                case.response,
                evaluator=self._evaluator,
                seed=self.seed,
                layout=self.layout,
            )
        except UserError as error:
            return [
                Feedback(
                    name=self.name,
                    error=AssessmentError(error_code=UNSCORED, error_message=str(error)),
                    source=self._source,
                )
            ]
        return [
            self._feedback("", found.S, _summary(found)),
            *(self._feedback(d, found.e[d], _rationale(found, d)) for d in DIMENSIONS),
        ]

    @property
    def _source(self) -> AssessmentSource:
        return AssessmentSource(source_type="LLM_JUDGE", source_id=self.model)

    def _feedback(self, dimension: str, value: float, rationale: str) -> Feedback:
        name = f"{self.name}/{dimension}" if dimension else self.name
        return Feedback(name=name, value=value, rationale=rationale, source=self._source)


def prism_scorer(
    evaluator: Evaluator | str = "smollm2",
    name: str = "prism",
    *,
    layout: str = "labels-last",
    seed: int = 0,
) -> PrismScorer:
    """PRISM as a scorer for ``mlflow.genai.evaluate(data=…, scorers=[prism_scorer()])``.

    MLflow runs scorers in threads; they take turns at a local model. `persona_mlflow.prism.score` gives the
    same values. MLflow logs the means on the run as ``prism/mean`` and ``prism/<dimension>/mean``.

    Args:
        evaluator: A name as `load_evaluator` takes it, loaded now and once in a process; or an evaluator of
            your own, such as ``load_evaluator("openai:NAME", base_url=…)``.
        name: Name of the feedback, and of the metrics.
        layout: ``labels-last`` or ``labels-first``.
        seed: Seed of the order of the labels.

    Raises:
        UserError: The evaluator cannot be loaded, or the layout or name is not valid.
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout: {layout!r} is not valid; {choices(layout, LAYOUTS)}")
    if not name.strip():
        raise UserError("name: the scorer's name is empty")
    if isinstance(evaluator, str):
        evaluator = shared_evaluator(evaluator)
    fields: dict[str, Any] = {"name": name, "layout": layout, "seed": int(seed)}
    if "timeout" in Scorer.model_fields:
        fields["timeout"] = 0  # a row waits for its turn at the model; MLflow's limit would count that
    scorer = PrismScorer(model=str(evaluator.identity()["model"]), **fields)
    scorer._evaluator = evaluator
    return scorer


def response_text(outputs: Any) -> str:
    """The response in a row's outputs.

    Args:
        outputs: A text; a message with ``content``; a mapping with ``response``; ``messages``, whose last one
            of the assistant counts; or a chat completion with ``choices``.

    Raises:
        UserError: It is none of these.
    """
    if isinstance(outputs, str):
        return outputs
    found: Any = None
    if isinstance(outputs, Mapping):
        if isinstance(outputs.get("choices"), (list, tuple)) and outputs["choices"]:
            first = outputs["choices"][0]
            found = first.get("message") if isinstance(first, Mapping) else None
        elif isinstance(outputs.get("messages"), (list, tuple)):
            turns = [m for m in outputs["messages"] if isinstance(m, Mapping)]
            found = next((m for m in reversed(turns) if m.get("role") == "assistant"), None)
        else:
            found = outputs
        if isinstance(found, Mapping):
            found = found.get("content") if "content" in found else found.get("response")
    if not isinstance(found, str):
        raise UserError(
            "row: the outputs hold no response; they must be a text, a message with content, messages with "
            f"one of the assistant, or a chat completion, but are {type(outputs).__name__}"
        )
    return found


def _profile(inputs: Any, expectations: Mapping[str, Any] | None) -> Any:
    for place in (inputs, expectations):
        if isinstance(place, Mapping) and place.get("profile") is not None:
            return place["profile"]
    raise UserError("row: neither the inputs nor the expectations hold a profile; PRISM scores against one")


def _rationale(found: PrismScore, dimension: str) -> str:
    q = ", ".join(f"{state} {found.q[dimension][state]:.3f}" for state in STATES)
    mass = found.label_mass[dimension]
    return f"q: {q}; label mass {mass:.3f}, labels written as {found.label_variant[dimension]!r}"


def _summary(found: PrismScore) -> str:
    e = ", ".join(f"{d} {found.e[d]:.3f}" for d in DIMENSIONS)
    mass = sum(found.label_mass.values()) / len(found.label_mass)
    cut = f"; {found.cut_off} of 9 labels cut off by the endpoint" if found.cut_off else ""
    return f"mean of q(aligned): {e}; mean label mass {mass:.3f}{cut}"
