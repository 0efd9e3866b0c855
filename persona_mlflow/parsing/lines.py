"""Letters and option texts that stand on a line of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from persona_mlflow.parsing.claims import Claim, attached, named_letters, read_letter
from persona_mlflow.parsing.cleaning import Clean
from persona_mlflow.parsing.options import OptionTable
from persona_mlflow.parsing.rules import COMPILED

_FIXED_FORM = COMPILED["fixed_form"]
_LINE = COMPILED["lettered_line"]
_ANALYSIS = COMPILED["analysis_lower"]
_NEGATED_AFTER = COMPILED["negated_after_lower"]
_REASON_WORD = COMPILED["reason_word"]
_PAIR_AFTER = COMPILED["pair_after"]
_BRACKETED = COMPILED["bracketed"]
_LAST_SENTENCE = re.compile(r"[a-z)\d]{3}[.!][\"')]*\s+[\"'(\[]*([A-Z])[)\]\"'.!]*\s*\Z")
_DENIAL = re.compile(
    r"\b(?:not|never|neither|nor|cannot"
    r"|eliminat\w*|exclud\w*|rul\w+ out|reject\w*|discard\w*|avoid\w*|except|unlike|wrong|incorrect"
    r"|false)\b|n't\b"
)
_LONE_LETTER = re.compile(r"[-(\[ ]*([A-Z])[)\].]*")
_BULLET = re.compile(r"[ >#+•\d.)-]*+")
_ENDS = re.compile(r"[\"')\]]*+\s*+(?:[.!]|$)|\n")
_LETTER_LIST = re.compile(r"\s*+(?:[(\[]?[A-Z][)\]]?(?: *[,;/&|+] *| +)){1,9}[(\[]?[A-Z][)\].!]*\s*+\Z")
_MANY = 500


@dataclass(frozen=True, slots=True)
class Line:
    """A line that begins with an option's letter.

    Attributes:
        letter: The letter, a valid one.
        at: Its offset in the cleaned reply.
        end: Where the line ends.
        alone: Whether the line holds nothing else.
        heading: Whether it is a letter and a colon: the heading of what follows.
        relation: ``own``, ``other`` or ``none``: whose option text is attached to it.
    """

    letter: str
    at: int
    end: int
    alone: bool
    heading: bool
    relation: str


def lettered_lines(reply: Clean, table: OptionTable) -> list[Line]:
    """Find the lines that begin with a valid letter: alone, with a delimiter, or with its option's text.

    Args:
        reply: The reply.
        table: The options.

    Returns:
        The lines in order; reading stops after some hundreds, which no answer has.
    """
    text = reply.text
    lines: list[Line] = []
    for match in _LINE.finditer(text):
        at = match.start("letter")
        raw = text[at]
        letter = raw.upper()
        if letter not in table.letters:
            continue
        end = text.find("\n", match.end())
        end = len(text) if end < 0 else end
        rest = text[match.end() : end].strip()
        if raw.islower() and not match["close"] and rest:
            continue
        alone = not rest
        relation = "none" if alone else attached(reply, table, letter, at + 1)[0]
        other = _LONE_LETTER.fullmatch(rest)
        if other and other[1] != letter and relation == "none":
            relation = "other"  # "A: B"
        delimited = bool(match["close"] or match["mark"] or match["word"] or text.startswith(" - ", at + 1))
        if not alone and relation != "own" and not delimited and not _REASON_WORD.match(text, at + 1):
            continue
        if (
            match["mark"][:1] in (",", ";", "!")
            and not (alone and match["mark"].startswith("!"))
            and relation != "own"
            and not _REASON_WORD.match(text, at + 1)
        ):
            continue
        if relation == "none" and _NEGATED_AFTER.match(reply.lower, at + 1):
            continue
        if not alone and _PAIR_AFTER.match(text, at + 1) and relation != "own":
            continue
        lines.append(Line(letter, at, end, alone, alone and ":" in match["mark"], relation))
        if len(lines) >= _MANY:
            break
    return lines


def fixed_form(reply: Clean, table: OptionTable) -> Claim | None:
    """A last line ``ANSWER: B``, the form that the prompts ask for: nothing in a reply outweighs it."""
    match = _FIXED_FORM.search(reply.text, max(0, len(reply.text) - 60))
    if not match or match["letter"] not in table.letters:
        return None
    return Claim(match["letter"], "ok", match.start("letter"), match.end("letter"), "line")


def whole_letter(reply: Clean, table: OptionTable) -> Claim | None:
    """A reply that is one letter and nothing more, valid or not: ``B``, ``(b)``, ``Option B.``"""
    start = len(reply.text) - len(reply.text.lstrip(" \n"))
    match = _LINE.match(reply.text, start)
    if not match:
        return None
    rest = reply.text[match.end() :].strip()
    at = match.start("letter")
    letter = match["letter"].upper()
    if letter in table.letters:
        return Claim(letter, "ok", at, at + 1, "line") if not rest else None
    delimited = match["close"] or match["mark"][:1] in (".", ":")
    if not rest or (delimited and "\n" not in rest and not reply.text[at].islower()):
        return Claim(letter, "out_of_range", at, at + 1, "line")
    return None


def letter_list(reply: Clean, table: OptionTable) -> Claim | None:
    """A reply that is a bare list of valid letters on one line: ``B C``, ``A, C``."""
    match = _LETTER_LIST.match(reply.text) if len(reply.text) < 200 else None
    if not match:
        return None
    spots = [at for at, character in enumerate(reply.text) if character.isalpha()]
    letters = {reply.text[at] for at in spots}
    if not letters <= set(table.letters):
        return None
    at = spots[-1]
    return Claim(reply.text[at], "ok" if len(letters) == 1 else "ambiguous", at, at + 1, "line")


def last_line(reply: Clean, lines: list[Line]) -> Claim | None:
    """A last line that is one letter, an explicit answer like any other."""
    if lines and lines[-1].alone and not lines[-1].heading and not reply.text[lines[-1].end :].strip():
        line = lines[-1]
        return Claim(line.letter, "ok", line.at, line.at + 1, "line")
    match = _LAST_SENTENCE.search(reply.text, max(0, len(reply.text) - 60))
    if match and match[1] not in "AI":
        return Claim(match[1], "ok", match.start(1), match.end(1), "line")
    return None


def standing_line(reply: Clean, table: OptionTable, lines: list[Line], *, finished: bool) -> Claim | None:
    """The one option that lettered lines commit to, or the conflict between them.

    Args:
        reply: The reply.
        table: The options.
        lines: Its lettered lines.
        finished: Whether the model ended its turn.

    Returns:
        A claim, ``ambiguous`` where several options are listed, or ``None``.
    """
    order = "".join(line.letter for line in lines)
    whole = "".join(table.letters)
    if len(whole) > 1 and order.startswith(whole) and len(set(order[len(whole) :])) == 1 and finished:
        lines = lines[len(whole) :]  # all options listed, then one of them again
    alone = [line for line in lines if line.alone and not line.heading]
    chosen = alone if len({line.letter for line in alone}) == 1 else lines
    letters = {line.letter for line in chosen}
    if not letters:
        return None
    line = chosen[-1]
    if len(letters) > 1:
        return Claim(line.letter, "ambiguous", line.at, line.at + 1, "line") if finished else None
    first = not reply.text[: line.at].strip(" \n([{\"'<>#+-") or reply.text[: line.at].strip().lower() in (
        "option",
        "choice",
    )
    last = not reply.text[line.end :].strip()
    if line.relation == "other":
        cut_off = not finished and last
        return None if cut_off else Claim(line.letter, "ambiguous", line.at, line.at + 1, "line")
    if not finished and not (
        first
        and (line.alone or line.relation == "own" if last else not _ANALYSIS.match(reply.lower, line.end))
    ):
        return None
    if line.heading and not (first and last):
        return None
    if not first and not last and not line.alone and line.relation != "own":
        return None
    if not line.alone and line.relation == "none":
        return read_letter(reply, table, line.at, "colon", finished=True)
    return Claim(line.letter, "ok", line.at, line.at + 1, "line")


def standing_text(reply: Clean, table: OptionTable, *, finished: bool) -> Claim | None:
    """A reply that is one option's text, or whose first or last line is, no other line being another's."""
    if not table.texts:
        return None
    text = reply.text
    start = len(text) - len(text.lstrip())
    found, end = table.match(text, start, whole=True)
    if found:
        return Claim(found[0], "ok" if len(found) == 1 else "ambiguous", start, end, "text")
    if not finished or "\n" not in text.strip():
        return None
    said: dict[str, tuple[int, int]] = {}
    spots = [(m.start(), m.end()) for m in re.finditer(r"\S[^\n]*+", text[:40_000])]
    for begin, stop in (spots[0], spots[-1]):
        found, end = table.match(text, begin)
        if len(found) == 1 and end <= stop and not text[end:stop].strip(" .!\"')"):
            said.setdefault(found, (begin, end))
    for begin, stop in spots[1 : min(len(spots) - 1, _MANY)]:
        bare = _BULLET.match(text, begin)
        found, end = table.match(text, bare.end() if bare else begin)
        if found and end <= stop and not text[end:stop].strip(" .!\"')"):
            said.setdefault(found[0], (begin, end))
    if len(said) == 1:
        letter, (begin, end) = next(iter(said.items()))
        if (begin, end) in ((spots[0][0], end), (spots[-1][0], end)):
            return Claim(letter, "ok", begin, end, "text")
    return None


def single_mention(reply: Clean, table: OptionTable) -> Claim | None:
    """The only option that is named, in brackets and beside its own text, in a sentence that ends there."""
    if not table.texts:
        return None
    match = None
    for found in _BRACKETED.finditer(reply.text):
        if match is not None and found[1] != match[1]:
            return None
        match = found
    if match is None or match[1] not in table.letters or not named_letters(reply, table) <= {match[1]}:
        return None
    letter = match[1]
    line = reply.lower.rfind("\n", 0, match.start()) + 1
    sentence = max(line, reply.lower.rfind(". ", 0, match.start()) + 1)
    relation, end = attached(reply, table, letter, match.end(1))
    if relation == "other":
        return Claim(letter, "ambiguous", match.start(1), match.end(1), "mention")
    if relation == "none":  # "Berlin (B)"
        bare = _BULLET.match(reply.text, line)
        option, end = table.match(reply.text, bare.end() if bare else line)
        if option == letter and not reply.text[end : match.start()].strip(" \"'.,-"):
            relation, end = "own", match.end()
    if relation != "own" or _DENIAL.search(reply.lower, sentence, match.start()):
        return None
    if not _ENDS.match(reply.text, end):
        return None
    return Claim(letter, "ok", match.start(1), match.end(1), "mention")
