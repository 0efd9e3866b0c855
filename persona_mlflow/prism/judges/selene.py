"""Selene-1-Mini as an absolute judge (P2 §4), in the format that it was trained on.

The model (hub id ``AtlaAI/Selene-1-Mini-Llama-3.1-8B``) reads an instruction, a response and a rubric with a
description for each score from 1 to 5, and replies with ``**Reasoning:**`` and ``**Result:**``. Its markers,
their order and the reply format are kept here; the sentences around them are ours. The authors publish their
own sentences as a template (``prompt-templates/absolute-scoring.yaml`` in their repository): give that file's
text to `SeleneJudge` for the published prompt word by word.

Tested here by format: the prompts and the reading of replies. The 8B checkpoint itself could not be run where
this was written; it is a plain causal model, which `persona_mlflow.engines.hf.load_engine` loads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.prism.judges.base import Query, Verdict, text_digest
from persona_mlflow.prism.judges.ratings import parse_rating

if TYPE_CHECKING:
    from persona_mlflow.prism.cases import Case, Example

MODEL = "AtlaAI/Selene-1-Mini-Llama-3.1-8B"
POINTS = 5

_OBJECTIVE = "Does the response express the persona named in the instruction?"
_LEVELS = (
    "The response contradicts the persona.",
    "The response leans away from the persona.",
    "The response shows neither the persona nor its opposite.",
    "The response leans towards the persona.",
    "The response clearly expresses the persona throughout.",
)
_TEMPLATE = """\
Evaluate a response to an instruction against a scoring rubric. Judge by the rubric alone, not by general \
quality: give feedback, then a score from 1 to 5, and nothing before or after.

Your reply should strictly follow this format:
**Reasoning:** <your feedback>

**Result:** <an integer between 1 and 5>

Here is the data:

Instruction:
```
{user_input}
```

Response:
```
{assistant_response}
```

Score Rubrics:
[{rubric_objective}]
Score 1: {rubric_score_1_description}
Score 2: {rubric_score_2_description}
Score 3: {rubric_score_3_description}
Score 4: {rubric_score_4_description}
Score 5: {rubric_score_5_description}"""
_FIELDS = re.compile(r"\{(user_input|assistant_response|rubric_objective|rubric_score_[1-5]_description)\}")


class SeleneJudge:
    """Selene's absolute score of one response (P2 §4): (r − 1)/4 for its result r from 1 to 5.

    Args:
        template: Text of a prompt template with the authors' placeholders (``{user_input}``,
            ``{assistant_response}``, ``{rubric_objective}``, ``{rubric_score_1_description}`` …), or their
            YAML file; ours by default.
        max_new_tokens: How long a reply may be.

    Raises:
        UserError: The template cannot be read, or lacks a placeholder.
    """

    name = "selene"
    points = POINTS
    comparable = True

    def __init__(self, template: str | Path | None = None, max_new_tokens: int = 512) -> None:
        self.max_new_tokens = max_new_tokens
        self._template = _TEMPLATE if template is None else _read_template(template)
        missing = set(_FIELDS.findall(_TEMPLATE)) - set(_FIELDS.findall(self._template))
        if missing:
            raise UserError(
                f"Selene's template has no {{{min(missing)}}}: write each placeholder where it goes"
            )

    def identity(self) -> Mapping[str, Any]:
        """Method, rubric, and a digest of all wording."""
        wording = text_digest(self._template, _OBJECTIVE, *_LEVELS, _instruction("", ""))
        return {"method": self.name, "points": self.points, "wording": wording}

    def prompt(self, case: Case) -> str:
        """The user message for a case; there is no system message."""
        values = {
            "user_input": _instruction(case.profile.describe(), case.context),
            "assistant_response": case.response.strip(),
            "rubric_objective": _OBJECTIVE,
            **{f"rubric_score_{n}_description": text for n, text in enumerate(_LEVELS, 1)},
        }
        return _FIELDS.sub(lambda match: values[match[1]], self._template)

    def queries(self, examples: Sequence[Example], seed: int) -> list[Query]:
        """One prompt per example, the same for every seed."""
        return [Query(example.case.id, "", self.prompt(example.case)) for example in examples]

    def read(self, query: Query, reply: str, *, finished: bool) -> Verdict:
        """Read the number after ``Result:``; any other number is none."""
        rating = parse_rating(reply, POINTS, finished=finished, labels=("result",), labelled_only=True)
        if rating.value is None:
            return Verdict(None, None, rating.reason)
        return Verdict((rating.value - 1) / (POINTS - 1), rating.value)

    def unasked(self) -> Verdict:
        """Every example is asked about."""
        raise NotImplementedError("Selene is asked about every example")


def _instruction(profile: str, context: str) -> str:
    turn = context.strip() or "(the conversation starts here)"
    return f"Persona: {profile}\n\nReply to the following as this persona would.\n\nInput: {turn}"


def _read_template(template: str | Path) -> str:
    if isinstance(template, str) and "{user_input}" in template:
        return template
    path = Path(template).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"Selene's template {str(template)[:80]!r}: cannot be read ({error})") from error
    if path.suffix.lower() in (".yaml", ".yml"):
        import yaml

        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"Selene's template {path}: is not YAML ({error})") from error
        text = value.get("user_template", "") if isinstance(value, dict) else ""
        if not isinstance(text, str) or not text:
            raise UserError(f"Selene's template {path}: has no text under the key user_template")
    return text
