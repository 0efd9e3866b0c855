"""PandaLM-7B as a pairwise judge (P2 §4), in the format that it was trained on.

The model (hub id ``WeOpenML/PandaLM-7B-v1``) reads ``### Instruction:``, ``### Input:``, two responses and
``### Evaluation:``, and goes on with ``1``, ``2`` or ``Tie`` on the first line. The markers and their order
are kept here; the opening sentences are ours, and can be replaced by the authors'.

It compares two responses and gives neither a score: Pair-AUC and group accuracy follow from its choices, a
global AUC does not. A group's positive gets 0.5, and each negative 1 − w, where w is 1 where the positive
won, 0.5 for a tie and 0 where it lost. So comparisons within a group are the judge's own, and
``ranking_metrics(…, comparable=False)`` is the call for its results.

Tested here by format: the prompts and the reading of replies. The 7B checkpoint itself could not be run where
this was written; it is a plain causal model without a chat template, which
`persona_mlflow.engines.hf.load_engine` loads. The authors decode with four beams and a repetition penalty of
1.2; this project's engines decode greedily, or sample.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.prism.judges.base import Query, Verdict, text_digest

if TYPE_CHECKING:
    from persona_mlflow.prism.cases import Case, Example

MODEL = "WeOpenML/PandaLM-7B-v1"

_OPENING = (
    "Two responses to one task follow. The Instruction defines the task, and the Input gives its context. "
    "Evaluate the responses and write a reference answer for the task."
)
_TASK = "Reply as this persona would: {profile}"
_FIT = "Reply in keeping with the persona. Each response is shown with the persona that it was written for."
_VERDICT = re.compile(r"\A[\s#*\"']*(?:response\s+)?(1|2|tie)\b[\s.*\"']*(?:\Z|\n)", re.IGNORECASE)


class PandaLMJudge:
    """PandaLM's choice between the positive and each negative of a group (P2 §4).

    Which of the two stands first is drawn at random, seeded by the run's seed and the negative's id. Where
    positive and negative share profile and context, these are the instruction and the input. Where they do
    not (a profile swapped), each response is shown below its own, and the instruction asks for the fit.

    Args:
        opening: The sentences above ``### Instruction:``; ours by default.
        max_new_tokens: How long a reply may be.
    """

    name = "pandalm"
    comparable = False

    def __init__(self, opening: str = _OPENING, max_new_tokens: int = 150) -> None:
        self._opening = opening.strip()
        self.max_new_tokens = max_new_tokens

    def identity(self) -> Mapping[str, Any]:
        """Method and a digest of all wording."""
        wording = text_digest(self._opening, _TASK, _FIT, _block("", "", ""))
        return {"method": self.name, "wording": wording}

    def prompt(self, first: Case, second: Case) -> str:
        """The text for two cases, in this order; a model without a chat template reads it as it is."""
        shared_profile, shared_context = first.profile == second.profile, first.context == second.context
        instruction = _TASK.format(profile=first.profile.describe()) if shared_profile else _FIT
        context = first.context.strip() if shared_context else ""
        one, two = (
            _block(
                "" if shared_profile else case.profile.describe(),
                "" if shared_context else case.context.strip(),
                case.response.strip(),
            )
            for case in (first, second)
        )
        given = f"### Input:\n{context}\n\n" if context else ""
        return (
            f"{self._opening}\n\n### Instruction:\n{instruction}\n\n{given}"
            f"### Response 1:\n{one}\n\n### Response 2:\n{two}\n\n### Evaluation:"
        )

    def queries(self, examples: Sequence[Example], seed: int) -> list[Query]:
        """One prompt per negative: it against its group's positive.

        Raises:
            UserError: A group without exactly one positive, or without a negative.
        """
        groups: dict[str, list[Example]] = defaultdict(list)
        for example in examples:
            groups[example.group].append(example)
        queries = []
        for name, members in groups.items():
            positives = [e for e in members if e.positive]
            negatives = [e for e in members if not e.positive]
            if len(positives) != 1 or not negatives:
                raise UserError(
                    f"group {name!r}: has {len(positives)} positives and {len(negatives)} negatives; a "
                    "pairwise judge compares one positive with at least one negative"
                )
            for negative in negatives:
                slot = random.Random(f"{seed}/{negative.case.id}").choice((1, 2))
                pair = positives[0].case, negative.case
                queries.append(
                    Query(negative.case.id, "", self.prompt(*pair[:: 1 if slot == 1 else -1]), slot)
                )
        return queries

    def read(self, query: Query, reply: str, *, finished: bool) -> Verdict:
        """Read the first line: ``1``, ``2`` or ``Tie``. Anything else is unscored.

        The authors' own reader counts whatever it cannot read as a tie; here that is unscored.
        """
        match = _VERDICT.match(reply)
        if match is None or (not finished and match.end() == len(reply)):
            if not reply.strip():
                return Verdict(None, None, "empty" if finished else "truncated")
            return Verdict(None, None, "no_verdict" if finished or "\n" in reply.strip() else "truncated")
        choice = match[1].lower()
        if choice == "tie":
            return Verdict(0.5, 0)
        return Verdict(0.0 if int(choice) == query.slot else 1.0, int(choice))

    def unasked(self) -> Verdict:
        """A positive's score: the middle, from which each negative of its group differs by the choice."""
        return Verdict(0.5)


def _block(profile: str, context: str, response: str) -> str:
    lines = [f"Persona: {profile}"] if profile else []
    lines += [f"Context: {context}"] if context else []
    return "\n".join([*lines, f"Reply: {response}" if lines else response])
