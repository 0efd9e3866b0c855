"""Direct judging: a language model rates the fit on a rubric, at once or after reasoning (P2 §4).

The wording of prompts and rubrics is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.judges.base import Query, Verdict, text_digest
from persona_mlflow.prism.judges.ratings import parse_rating

if TYPE_CHECKING:
    from persona_mlflow.prism.cases import Case, Example

POINTS = (5, 7)
"""The rubrics' maxima (P2 §4, Fig. 5 and 13); the minimum is 1."""

TEMPERATURES = (0.2, 0.5, 0.8, 1.0)
"""The temperatures of P2's sampled judging (Fig. 16–18)."""

METHODS = ("vanilla", "cot")

_SYSTEM = (
    "You are a judge of persona fidelity. You rate how well a reply fits a persona, and the fit alone: not "
    "whether the reply is correct, helpful or polite."
)
_RUBRICS = {
    5: (
        "1 = contradicts the persona\n"
        "2 = leans away from the persona\n"
        "3 = shows neither the persona nor its opposite\n"
        "4 = leans towards the persona\n"
        "5 = clearly expresses the persona throughout"
    ),
    7: (
        "1 = contradicts the persona\n"
        "2 = mostly contradicts the persona\n"
        "3 = leans away from the persona\n"
        "4 = shows neither the persona nor its opposite\n"
        "5 = leans towards the persona\n"
        "6 = mostly expresses the persona\n"
        "7 = clearly expresses the persona throughout"
    ),
}
_ASK = {
    "vanilla": "Respond with the score only, in the form",
    "cot": (
        "Reason step by step in two or three sentences: what the persona lets one expect here, where the "
        "reply meets it and where it does not. Then end with a line of the form"
    ),
}
_TOKENS = {"vanilla": 32, "cot": 512}


class DirectJudge:
    """Vanilla or CoT direct judging of one response at a time (P2 §4).

    The score of rating r on a rubric of m points is (r − 1)/(m − 1).

    Args:
        method: ``vanilla`` asks for the score alone, ``cot`` for reasons first.
        points: The rubric's maximum, 5 or 7.
        max_new_tokens: How long a reply may be; 32 for vanilla, 512 for cot by default.

    Raises:
        UserError: An unknown method or rubric, or a limit below 1.
    """

    comparable = True

    def __init__(self, method: str = "vanilla", points: int = 5, max_new_tokens: int | None = None) -> None:
        if method not in METHODS:
            raise UserError(f"judge: unknown method {method!r}; {choices(str(method), METHODS)}")
        if points not in POINTS:
            raise UserError(f"judge {method}: there is no rubric of {points!r} points; choose 5 or 7")
        if max_new_tokens is not None and max_new_tokens < 1:
            raise UserError(f"judge {method}: max_new_tokens must be at least 1, but is {max_new_tokens}")
        self.name = method
        self.points = points
        self.max_new_tokens = max_new_tokens or _TOKENS[method]

    def identity(self) -> Mapping[str, Any]:
        """Method, rubric, and a digest of all wording."""
        wording = text_digest(_SYSTEM, _RUBRICS[self.points], _ASK[self.name], self._user("", "", ""))
        return {"method": self.name, "points": self.points, "wording": wording}

    def prompt(self, case: Case) -> tuple[str, str]:
        """The system message and the user message for a case."""
        return _SYSTEM, self._user(case.profile.describe(), case.context, case.response)

    def queries(self, examples: Sequence[Example], seed: int) -> list[Query]:
        """One prompt per example, the same for every seed."""
        return [Query(example.case.id, *self.prompt(example.case)) for example in examples]

    def read(self, query: Query, reply: str, *, finished: bool) -> Verdict:
        """Read the rating; a reply without a usable one is unscored."""
        rating = parse_rating(reply, self.points, finished=finished, reasons_first=self.name == "cot")
        if rating.value is None:
            return Verdict(None, None, rating.reason)
        return Verdict((rating.value - 1) / (self.points - 1), rating.value)

    def unasked(self) -> Verdict:
        """Every example is asked about."""
        raise NotImplementedError("a direct judge asks about every example")

    def _user(self, profile: str, context: str, response: str) -> str:
        return (
            f"Persona: {profile.strip()}\nContext: {context.strip() or '(none)'}\n"
            f"Reply: {response.strip()}\n\n"
            f"Task: score from 1 to {self.points} how well the reply fits the persona.\n"
            f"{_RUBRICS[self.points]}\n\n"
            f"{_ASK[self.name]}\nScore: <whole number from 1 to {self.points}>"
        )
