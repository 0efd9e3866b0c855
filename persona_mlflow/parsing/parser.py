"""Decide what a reply answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from persona_mlflow.parsing.claims import Claim, final_claim, named_letters
from persona_mlflow.parsing.cleaning import Clean, clean, reply_start
from persona_mlflow.parsing.lines import (
    fixed_form,
    last_line,
    letter_list,
    lettered_lines,
    single_mention,
    standing_line,
    standing_text,
    whole_letter,
)
from persona_mlflow.parsing.options import OptionTable, option_table
from persona_mlflow.parsing.refusals import is_refusal
from persona_mlflow.parsing.result import ParsedAnswer, Status
from persona_mlflow.parsing.rules import COMPILED

_NEW_QUESTION = COMPILED["new_question_lower"]
_TEMPLATE = COMPILED["template_lower"]
_MOST_QUESTIONS = 6  # bounds the work on a reply that asks one question after another


def parse_answer(
    text: str, options: Mapping[str, str] | Sequence[str], *, finished: bool = True
) -> ParsedAnswer:
    """Read the option that a reply commits to.

    Explicit commitments come first, the last of them wins: an answer word with a letter or with an option's
    exact text, a choosing verb, a box, a letter called correct, a last line that is one letter. Failing
    these, a letter that opens a line counts where it is the only one, and so does a reply that is one
    option's text. Nothing is guessed from prose (science §4).

    Args:
        text: The assistant's whole turn, with what the chat template pre-filled of it.
        options: The valid letters (a list or a string), or a mapping letter → option text, which lets a
            reply that is one option's text count and a letter with another option's text be told.
        finished: False where the token limit cut the reply.

    Returns:
        Letter, status and the half-open character range of the accepted answer in ``text``.

    Raises:
        UserError: The options are no distinct capital letters.
    """
    table = option_table(options)
    start = reply_start(text)
    if start is None:
        return ParsedAnswer(None, "unclosed_thinking", None)
    reply = clean(text, start)
    if not reply.text.strip():
        return ParsedAnswer(None, "empty" if finished else "truncated", None)
    claim = _before_run_on(reply, table) or _commitment(reply, table, finished=finished)
    if claim is not None and claim.verdict == "ok":
        if claim.letter in table.letters:
            return ParsedAnswer(claim.letter, "ok", reply.span(claim.start, claim.end))
        return ParsedAnswer(None, "out_of_range", None)
    if claim is not None and claim.verdict != "cut":
        explicit = claim.kind not in ("line", "mention")
        if not explicit and is_refusal(reply.lower):
            return ParsedAnswer(None, "refusal", None)
        return ParsedAnswer(None, claim.verdict, None)
    return ParsedAnswer(None, _why_none(reply, table, finished=finished), None)


def _before_run_on(reply: Clean, table: OptionTable) -> Claim | None:
    """The explicit answer given before the reply runs on into a new question, which is not this one's.

    A question line with no answer before it is an echo, and changes nothing.
    """
    for count, match in enumerate(_NEW_QUESTION.finditer(reply.lower)):
        if count >= _MOST_QUESTIONS:
            break
        end = match.start()
        if not reply.text[:end].strip():
            continue
        part = Clean(reply.text[:end], reply.lower[:end], reply.starts, reply.origins)
        claim = _commitment(part, table, finished=True)
        if claim is None or claim.verdict not in ("ok", "out_of_range") or claim.kind == "mention":
            continue
        if claim.kind == "line" and claim.verdict == "out_of_range":
            continue
        line = part.lower.rfind("\n", 0, claim.start) + 1
        if not _TEMPLATE.search(part.lower, line, claim.start):  # "reply in the form ANSWER: B"
            return claim
    return None


def _commitment(reply: Clean, table: OptionTable, *, finished: bool) -> Claim | None:
    whole = fixed_form(reply, table) or whole_letter(reply, table)
    if whole is not None and whole.verdict == "ok":
        return whole
    text = standing_text(reply, table, finished=True) if len(reply.text) < 2000 else None
    if (
        text is not None
        and text.end >= len(reply.text.rstrip(" \n.!\"')"))
        and not reply.text[: text.start].strip()
    ):
        return text
    if whole is not None and whole.verdict == "out_of_range":
        return whole
    listed = letter_list(reply, table) if finished else None
    if listed is not None:
        return listed
    lines = lettered_lines(reply, table)
    claim = final_claim(reply, table, finished=finished)
    ending = last_line(reply, lines) if finished else None
    if ending is not None and (claim is None or ending.start > claim.end):
        several = {line.letter for line in lines if line.alone and not line.heading}
        if claim is not None or len(several) <= 1:
            return ending
    if claim is not None:
        return claim
    claim = standing_line(reply, table, lines, finished=finished)
    if claim is None and finished:
        claim = standing_text(reply, table, finished=True) or single_mention(reply, table)
    return claim


def _why_none(reply: Clean, table: OptionTable, *, finished: bool) -> Status:
    if is_refusal(reply.lower):
        return "refusal"
    if not finished:
        return "truncated"
    return "ambiguous" if len(named_letters(reply, table)) > 1 else "no_answer"
