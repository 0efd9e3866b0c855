"""What all judges share: the query, the verdict, and what a runner asks of a judge (P2 §4)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from persona_mlflow.engines.base import Decoding

if TYPE_CHECKING:
    from persona_mlflow.prism.cases import Example

REASONS = {
    "empty": "the reply is empty",
    "truncated": "the token limit cut the reply before a final score",
    "unclosed_thinking": "the reply never left its reasoning",
    "off_scale": "the score is not a whole number on the rubric's scale",
    "ambiguous": "the reply names several scores and no final one",
    "refusal": "the judge declined",
    "no_score": "the reply states no score",
    "no_verdict": "the reply names neither response, nor a tie",
    "content_filter": "the endpoint's content filter withheld the reply",
    "no_claim": "the response holds no text to check",
}
"""Why a case is unscored: the code in a result's column ``reason``, and what it means."""


@dataclass(frozen=True, slots=True)
class Query:
    """One prompt of a judge.

    Attributes:
        id: The example that its reply scores.
        system: The system message; may be empty.
        user: The user message.
        slot: In a pairwise comparison, where the positive stands (1 or 2); 0 otherwise.
    """

    id: str
    system: str
    user: str
    slot: int = 0

    @property
    def digest(self) -> str:
        """Identifies the prompt, 16 hex digits."""
        return text_digest(self.system, self.user)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge's reply is worth.

    Attributes:
        score: In [0, 1], higher = fits the profile better; None where unscored.
        rating: What the judge itself said, on its own scale; None where it said nothing usable.
        reason: Key of `REASONS` where unscored, otherwise empty.
    """

    score: float | None
    rating: float | None = None
    reason: str = ""


class TextJudge(Protocol):
    """A judge that is a prompt to a language model, and a reading of its reply.

    Attributes:
        name: The method, e.g. ``vanilla``.
        max_new_tokens: How long a reply may be.
        comparable: Whether scores of different groups are on one scale; where not, there is no AUC.
    """

    name: str
    max_new_tokens: int
    comparable: bool

    def identity(self) -> Mapping[str, Any]:
        """All that shapes its prompts, JSON values: method, rubric, digest of the wording."""
        ...

    def queries(self, examples: Sequence[Example], seed: int) -> list[Query]:
        """The prompts to send for these examples; an example without one is scored by `unasked`."""
        ...

    def read(self, query: Query, reply: str, *, finished: bool) -> Verdict:
        """Read a reply strictly: what is no explicit score is unscored."""
        ...

    def unasked(self) -> Verdict:
        """The verdict on an example that needs no prompt of its own."""
        ...


class ScoringJudge(Protocol):
    """A judge that scores cases itself, without a text in between.

    Attributes:
        name: The method, e.g. ``alignscore``.
        comparable: As for `TextJudge`.
    """

    name: str
    comparable: bool

    def identity(self) -> Mapping[str, Any]:
        """All that shapes its scores, JSON values: method, checkpoint, chunking."""
        ...

    def score(self, examples: Sequence[Example]) -> list[Verdict]:
        """One verdict per example, in order."""
        ...


def judge_decoding(judge: TextJudge) -> Decoding:
    """How a judge's replies are drawn: from the whole distribution, up to its limit of tokens (P2 §4)."""
    return Decoding(max_new_tokens=judge.max_new_tokens, top_k=0, top_p=1.0)


def text_digest(*parts: str) -> str:
    """SHA-256 over texts, cut to 16 hex digits; where one text ends and the next starts counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()[:16]
