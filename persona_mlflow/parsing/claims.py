"""Find explicit commitments: an answer word, a choosing verb, a box … with a letter or an option's text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from persona_mlflow.parsing.cleaning import Clean
from persona_mlflow.parsing.options import OptionTable
from persona_mlflow.parsing.rules import COMPILED, CUE_WORDS

Verdict = Literal["ok", "ambiguous", "out_of_range", "cut"]

_WORD = COMPILED["word_lower"]
_CUE = COMPILED["cue_lower"]
_CUE_CJK = COMPILED["cue_cjk"]
_CUE_WIDE = re.compile(r"(?P<noun>उत्तर|คำตอบ)")  # scripts whose vowel signs split a word
_COMMITS = {
    "verb": COMPILED["verb_lower"],
    "pick": COMPILED["verb_lower"],
    "turn": COMPILED["turn_lower"],
    "hence": COMPILED["hence_lower"],
}
_CLAUSE = COMPILED["clause_lower"]
_COLON = COMPILED["colon_lower"]
_DASH = re.compile(r"\s*+-+>?\s++")
_IS = COMPILED["is_lower"]
_LETTER = COMPILED["letter_lower"]
_MOST_CUES = 4000  # far more than any reply of some thousand tokens has; bounds the work on a runaway one
_GOOD = COMPILED["good_lower"]
_SUBJECT = COMPILED["subject"]
_PAIR_BEFORE = COMPILED["pair_before"]
_PAIR_AFTER = COMPILED["pair_after"]
_LETTER_END = COMPILED["letter_end"]
_FUNCTION_WORD = COMPILED["function_word"]
_REASON_WORD = COMPILED["reason_word"]
_NEGATED_BEFORE = COMPILED["negated_before_lower"]
_NEGATED_WORD = COMPILED["negated_word_lower"]
_NEGATED_AFTER = COMPILED["negated_after_lower"]
_OTHERS_OPINION = COMPILED["others_opinion_lower"]
_NOT_BUT = COMPILED["not_but_lower"]
_BOTH_GOOD = COMPILED["both_good_lower"]
_CLAUSE_BREAK = COMPILED["clause_break_lower"]
_CHOICE_GAP = COMPILED["choice_gap_lower"]
_TURN_WORD = re.compile(r"\b(?:no|wait|actually|sorry|correction|instead|rather|however|scratch|hmm)\b")
_LISTED = COMPILED["listed"]
_BRACKETED = COMPILED["bracketed"]
_OPTION_WORD = COMPILED["option_word"]
_PAIR = COMPILED["pair"]
_DELIMITER = re.compile(r"[)\]}>\"',;:.]*+[^\S\n]*+(?:-+>?[^\S\n]++|[=:][^\S\n]*+)?[\"'(\[{]*+")
_ARTICLE = re.compile(r" [a-z]")
_CONTRAST = re.compile(r" *(?:,|not )")
_STOPS = re.compile(r"[\"'.!}\]]*+\s*+(?:$|\n|</)")
_CLOSES = re.compile(r"[)\]}\"'.]*+\s*+(?:$|\n|[.,;!](?!\w)|because\b|since\b|and\b|or\b|/)")
_BRACKET_AFTER = re.compile(r"[\"'.]*\s*\((?:[Oo]ption )?([A-Z])\)")
_QUESTION = re.compile(r"[)\]}\"'.]*+\s?\?")
_DANGLING = re.compile(r"[)\]}\"']*\s*(?:,|/|\bor|\band|-)?\s*$")
_NO_WORD = re.compile(r"\W*\Z")


@dataclass(frozen=True, slots=True)
class Claim:
    """One place in a reply that commits to an option.

    Attributes:
        letter: The letter it names; the first of several where ambiguous.
        verdict: What the place says by itself.
        start: Where the accepted letter or option text starts in the cleaned reply.
        end: Where it ends.
        kind: The kind of wording, a group name of the trigger pattern, or ``line``.
    """

    letter: str
    verdict: Verdict
    start: int
    end: int
    kind: str


def attached(reply: Clean, table: OptionTable, letter: str, after: int) -> tuple[str, int]:
    """Compare what is written behind a letter with the option texts.

    Args:
        reply: The reply.
        table: The options.
        letter: A valid letter.
        after: Offset behind the letter.

    Returns:
        ``own``, ``other`` (another option's text), or ``none`` of them; and where the text ends.
    """
    if not table.texts:
        return "none", after
    delimiter = _DELIMITER.match(reply.text, after)
    at = delimiter.end() if delimiter else after
    stop = reply.text.find("\n", at)
    stop = len(reply.text) if stop < 0 else stop
    if at >= stop:
        return "none", after
    found, end = table.match(reply.text, at)
    if found and end <= stop:
        return ("own", end) if letter in found else ("other", end)
    begun = table.prefix(reply.text, at, stop)
    if letter in begun:
        return "own", stop
    if begun and len(reply.text[at:stop].split()) >= 3:
        return "other", stop
    own = table.text_tokens_at(reply.text, at, letter)
    return ("own", own) if own > at else ("none", at)


def read_letter(reply: Clean, table: OptionTable, at: int, kind: str, *, finished: bool) -> Claim | None:
    """Judge a letter that follows a wording of commitment.

    Args:
        reply: The reply.
        table: The options.
        at: Offset of the letter.
        kind: How it is introduced: ``colon``, ``is``, ``none``, ``boxed``, ``verb``, ``turn`` or ``hence``.
        finished: Whether the model ended its turn.

    Returns:
        The claim, or ``None`` where this is no letter, or one that is asked about, hedged or denied.
    """
    text = reply.text
    letter = text[at].upper()
    after = at + 1
    valid = letter in table.letters
    if kind in ("colon", "is", "boxed"):  # "C major", where that is an option's text
        found, end = table.match(text, at)
        longer = letter not in found and end > after and text[after : after + 1] in " -"
        if found and (not valid or (longer and attached(reply, table, letter, after)[0] != "own")):
            return Claim(found[0], "ok" if len(found) == 1 else "ambiguous", at, end, kind)
    if _QUESTION.match(text, after):
        return None
    opened = at > 0 and text[at - 1] in "([{<"
    closed = text[after : after + 1] in (")", "]", "}", ">")
    relation, _ = attached(reply, table, letter, after) if valid else ("none", after)
    ends = bool(_LETTER_END.match(text, after))
    if text[at].islower():
        bracketed = closed and (opened or kind in ("colon", "boxed", "is"))
        if not bracketed and not _lower_counts(text, letter, after, kind, ends=ends):
            return None
    elif not ends and relation != "own":
        if kind in ("verb", "hence", "turn"):
            if not _REASON_WORD.match(text, after):
                return None
        elif not _FUNCTION_WORD.match(text, after) and not _PAIR_AFTER.match(text, after):
            follows = text[after : after + 2]
            if (
                letter in "AI"
                or not valid
                or len(follows) < 2
                or follows[0] != " "
                or not follows[1].isupper()
            ):
                return None
    if relation == "none" and _NEGATED_AFTER.match(reply.lower, after) and not _CONTRAST.match(text, after):
        return None
    several = _others(reply, table, letter, after)
    if several:
        if len(several) >= len(table.letters) - 1 >= 2:
            return None  # "A, B, C or D": a template or an instruction that names every option
        return Claim(letter, "ambiguous", at, after, kind)
    if not finished and _DANGLING.fullmatch(text, after) and not closed:
        tail = text[after : after + 40].strip(" \n\"')]}")
        if tail in (",", "/", "or", "and", "-") or (kind != "colon" and tail == "" and kind != "boxed"):
            return Claim(letter, "cut", at, after, kind)
    if not valid:
        return Claim(letter, "out_of_range", at, after, kind)
    if _is_listing(text, table, letter, after):
        return None
    return Claim(letter, "ambiguous" if relation == "other" else "ok", at, after, kind)


def _lower_counts(text: str, letter: str, after: int, kind: str, *, ends: bool) -> bool:
    """Whether a lower-case letter without brackets is an answer: it must close what is said."""
    stops = bool(_STOPS.match(text, after))
    if letter in "AI":  # the article, the pronoun
        return stops and kind in ("colon", "boxed", "is")
    return stops or (kind == "colon" and (ends or bool(_REASON_WORD.match(text, after))))


def _others(reply: Clean, table: OptionTable, letter: str, after: int) -> set[str]:
    """Further letters joined to the one before ``after``: "A and B", "B/C", "A, B or C"."""
    text = reply.text
    others: set[str] = set()
    for _ in range(12):
        match = _PAIR_AFTER.match(text, after)
        if not match:
            break
        other = match["letter"]
        after = match.end("letter")
        if match["verb"] and match["joint"][0] in ",a" and not _BOTH_GOOD.match(reply.lower, after):
            break
        if other in "AI" and _ARTICLE.match(text, after) and not _FUNCTION_WORD.match(text, after):
            break  # the article or the pronoun
        if other not in table.letters and other not in "ABCDEFGHIJ":
            break
        others.add(other)
    return others - {letter}


def _is_listing(text: str, table: OptionTable, letter: str, after: int) -> bool:
    """Whether the letter opens a list of the options: the next ones follow at once, in order."""
    if letter != table.letters[0] or len(table.letters) < 2:
        return False
    end = text.find("\n", after)
    if end < 0:
        end = len(text)
    inline = [m[1] for m in _LISTED.finditer(text, after + 1, min(end, after + 1500))]
    wanted = list(table.letters[1:3])
    if inline[: len(wanted)] == wanted:
        return True
    first = _LISTED.search(text, end, end + 12)
    return bool(
        first
        and first[1] == table.letters[1]
        and text[after:end].strip(" .):]")
        and not text[end : first.start()].strip(" \n-*•")
    )


def _denied(lower: str, start: int) -> bool:
    """Whether the clause before a wording of commitment negates it, makes it conditional or another's."""
    clause = lower[max(0, start - 80) : start]
    last = 0
    for match in _CLAUSE_BREAK.finditer(clause):
        last = match.end()
    return bool(_NEGATED_BEFORE.search(clause, last) or _OTHERS_OPINION.search(clause, last))


def _from_text(reply: Clean, table: OptionTable, at: int, kind: str) -> Claim | None:
    """A commitment to an option by its exact text."""
    if not table.texts:
        return None
    found, end = table.match(reply.text, at)
    if not found or _QUESTION.match(reply.text, end):
        return None
    letter = _BRACKET_AFTER.match(reply.text, end)
    if len(found) > 1 or (letter and letter[1] != found):
        return Claim(found[0], "ambiguous", at, end, kind)
    begin = at
    while begin < end and not reply.text[begin].isalnum():
        begin += 1
    return Claim(found, "ok", begin if begin < end else at, end, kind)


def _good(reply: Clean, table: OptionTable, at: int) -> Claim | None:
    """A letter, or a letter with its own text, that the reply calls correct or best."""
    if not _GOOD.match(reply.lower, at):
        return None
    low = max(0, at - 300)
    near = reply.text[max(0, at - 60) : at]
    match = _SUBJECT.search(near)
    if match:
        start = max(0, at - 60) + match.start(1)
        if _denied(reply.lower, start):
            return None
        letter = match[1]
        before = _PAIR_BEFORE.search(reply.text[max(0, start - 30) : start])
        if before and before[1] != letter:
            return Claim(letter, "ambiguous", start, start + 1, "good")
        return Claim(letter, "ok" if letter in table.letters else "out_of_range", start, start + 1, "good")
    if not table.texts:
        return None
    last = next(reversed(list(_LISTED.finditer(reply.text, low, at))), None)
    if last is None or last[1] not in table.letters or _denied(reply.lower, last.start()):
        return None
    said = reply.text[last.end() : at]
    words = table.text_tokens_at(reply.text, last.end(), last[1])
    if words > last.end() and _NO_WORD.match(reply.text[words:at]) and "\n" not in said.strip():
        return Claim(last[1], "ok", last.start(1), last.end(1), "good")
    return None


def find_cues(lower: str) -> list[re.Match[str]]:
    """Find the words around which a commitment may be worded, in order; of very many the last ones."""
    starts = [word.start() for word in _WORD.finditer(lower) if word[0] in CUE_WORDS]
    cues = [cue for start in starts[-_MOST_CUES:] if (cue := _CUE.match(lower, start))]
    if not lower.isascii():
        cues += deque(_CUE_CJK.finditer(lower), _MOST_CUES)
        cues += deque(_CUE_WIDE.finditer(lower), _MOST_CUES)
        cues.sort(key=re.Match.start)
    return cues


def claims_backwards(reply: Clean, table: OptionTable, *, finished: bool) -> Iterator[Claim]:
    """Yield the explicit commitments of a reply, the last first.

    Args:
        reply: The reply.
        table: The options.
        finished: Whether the model ended its turn.
    """
    for cue in reversed(find_cues(reply.lower)):
        if table.lower and table.covers(reply.lower, cue.start()):
            continue  # the words of an option, not of the reply
        claim = _at_cue(reply, table, cue, finished=finished)
        if claim is not None:
            yield claim


def _at_cue(reply: Clean, table: OptionTable, cue: re.Match[str], *, finished: bool) -> Claim | None:
    lower = reply.lower
    kind = cue.lastgroup or ""
    at = cue.start()
    if kind == "good":
        return _good(reply, table, at)
    if kind == "post":
        match = _SUBJECT.search(reply.text[max(0, at - 40) : at])
        if not match:
            return None
        start = max(0, at - 40) + match.start(1)
        return Claim(match[1], "ok" if match[1] in table.letters else "out_of_range", start, start + 1, kind)
    if kind in ("noun", "choice") or (kind == "verb" and cue[0] == "it"):
        claim = _not_but(reply, table, cue, finished=finished)
        if claim is not None:
            return claim
    if kind in ("verb", "pick", "turn", "hence"):
        match = _COMMITS[kind].match(lower, at)
        if not match or _denied(lower, at):
            return None
        link = "is" if kind == "pick" else kind
        return read_letter(reply, table, match.start("letter"), link, finished=finished)
    if kind == "noun" and at and lower[at - 1] == "/":
        return None  # a closing tag
    claim = None
    for link, spot in _links(lower, cue, kind):
        letter = _LETTER.match(lower, spot)
        if letter and (link != "none" or _stands_alone(reply, table, letter.start("letter"))):
            claim = read_letter(reply, table, letter.start("letter"), link, finished=finished)
        if link != "none" and (claim is None or claim.verdict == "ambiguous"):
            claim = _from_text(reply, table, spot, kind) or claim
        if claim is not None:
            return None if _denied(lower, at) else claim
    return None


def _not_but(reply: Clean, table: OptionTable, cue: re.Match[str], *, finished: bool) -> Claim | None:
    """The second letter of "the answer is not A but B"."""
    match = _NOT_BUT.match(reply.lower, cue.end())
    if not match or _denied(reply.lower, cue.start()):
        return None
    denied = match.start("denied")
    if not reply.text[denied].isupper() and reply.text[denied - 1] != "(":
        return None  # the article
    return read_letter(reply, table, match.start("letter"), "is", finished=finished)


def _links(lower: str, cue: re.Match[str], kind: str) -> Iterator[tuple[str, int]]:
    """Yield how an answer word leads on, and where the answer would begin: "is", a colon, or nothing."""
    start = cue.end()
    if kind == "boxed":
        yield "boxed", start
        return
    clause = _CLAUSE.match(lower, start)
    end = clause.end() if clause else start
    denied = _NEGATED_WORD.search(lower, start, end)
    limit = denied.start() if denied else end
    for match in _IS.finditer(lower, start, min(len(lower), end + 40)):
        if match.start() <= limit:
            yield "is", match.end()
    dash = _DASH.match(lower, start)
    if dash:
        yield "colon", dash.end()
    colon = _COLON.match(lower, end)
    gap = lower[start:end]
    near = len(gap) <= 60 and "," not in gap
    if colon and not denied and near and (kind != "choice" or _CHOICE_GAP.match(gap.strip(" \n\"')]"))):
        yield "colon", colon.end()
    if kind != "choice":
        yield "none", start


def _stands_alone(reply: Clean, table: OptionTable, at: int) -> bool:
    """Whether a letter behind a bare "Answer" is capital or bracketed, and closes what is said."""
    text = reply.text
    if text[at].islower():
        return text[at - 1] in "([" and text[at + 1 : at + 2] in (")", "]")
    letter = text[at]
    if letter in table.letters and attached(reply, table, letter, at + 1)[0] == "own":
        return True
    return bool(_CLOSES.match(text, at + 1))


def final_claim(reply: Clean, table: OptionTable, *, finished: bool) -> Claim | None:
    """The last explicit commitment of a reply, judged against the one before it where they may conflict."""
    found = claims_backwards(reply, table, finished=finished)
    last = next(found, None)
    if last is None:
        return None
    if last.kind == "good" and last.verdict == "ok":
        # "A is correct. B is correct." contradicts itself, unless the reply says that it turns around.
        earlier = next(found, None)
        if (
            earlier is not None
            and earlier.kind == "good"
            and earlier.letter != last.letter
            and not _TURN_WORD.search(reply.lower, earlier.end, last.end)
        ):
            return Claim(last.letter, "ambiguous", last.start, last.end, last.kind)
    if last.verdict == "ok" and COMPILED["retracted_lower"].search(reply.lower, last.end):
        return Claim(last.letter, "ambiguous", last.start, last.end, last.kind)
    return last


def named_letters(reply: Clean, table: OptionTable) -> set[str]:
    """The options, two at most, that a reply names by a bracketed letter, "option B" or "A or B"."""
    names: set[str] = set()
    for pattern in (_BRACKETED, _OPTION_WORD, _PAIR):
        for match in pattern.finditer(reply.text):
            names.update(
                x
                for x in (match[1], match[0][0])
                if x in table.letters and (x == match[1] or pattern is _PAIR)
            )
            if len(names) > 1:
                return names
    return names
