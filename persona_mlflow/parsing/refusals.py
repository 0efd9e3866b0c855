"""Tell a reply that declines, or does not know, from prose that merely uses such words."""

# ruff: noqa: E501 (tables of patterns, one a line)

from __future__ import annotations

from persona_mlflow.parsing.rules import Pattern, compile_patterns

_PREAMBLE = (
    r"(?:(?:i'?m |i am |we are )?(?:so |very |really |truly )?(?:sorry|afraid)(?: to say| about that)?|my apologies|i apologi[sz]e[^.!?\n,;]{0,40}"
    r"|apologies|unfortunately|regrettably|honestly|well|hmm+|oh|no(?=[,.])|thank you[^.!?\n,;]{0,40}|thanks|to be honest|frankly"
    r"|as an? [^.!?\n,;]{1,60}|being an? [^.!?\n,;]{1,60}|while i [^.!?\n,;]{1,80}|i understand [^.!?\n,;]{1,80}"
    r"|actually|i think(?: that)?|i(?:'m| am) an? [^.!?\n,;]{1,60})"
    r"(?:[,.;:!\s-]+(?:but|and|so|that)?\s*)"
)
_CANNOT = r"(?:can(?:no|')t|can not|could not|couldn't|won't|will not|(?:am|'m) (?:not able|unable|not allowed|not comfortable|not in a position)(?: to)?|am not going to|must decline to|have to decline to|decline to|refuse to|would rather not|'d rather not|prefer not to)"
_REPLY = (
    r"(?:help|assist|answer|respond|provide|give|offer|choose|pick|select|comply|fulfil|engage|participate|name|discuss"
    r"|do that|do this|do so|share|say|tell|make|decide|determine|continue|complete|support|express|support|endorse|with that|with this|accommodate|take a (?:position|stance|side)|comment|generate|create|answering|providing|choosing|discussing|speak)"
)

_REFUSAL = compile_patterns(
    (
        Pattern(
            "refusal_lower",
            rf"\A[\s\"'(]*(?:{_PREAMBLE}){{0,3}}+(?:"
            rf"(?:i|we)\s?(?:really |simply |just |also )?{_CANNOT}(?: (?:really|actually|currently|possibly|in good conscience|be able to|to))?(?: {_REPLY}\b|[.,!;]|\s*$)"
            r"|(?:i (?:really |honestly |simply |just )?(?:do not|don't|wouldn't|would not)|don't|do not|dunno|no idea|i dunno) ?(?:really )?"
            r"(?:know|have (?:an? |any |the |enough |sufficient |personal |access )?(?:answer|idea|clue|opinions?|beliefs?|preferences?|feelings?|experiences?|information|knowledge)?)?"
            r"(?=\s*(?:$|[.,!;]|\n)|\s+(?:the (?:correct |right )?answer|which|what|how to (?:answer|respond)|that\b|this\b|enough|to answer|on this|about this|or\b|and\b))"
            r"|no (?:comment|idea)\b|i have no (?:idea|clue|opinion|answer)\b|i (?:must |have to |will |respectfully )?(?:refuse|decline|abstain)\b(?=\s*(?:$|[.,!;\n]|to\b))"
            r"|i (?:must|have to) (?:respectfully )?decline\b"
            r"|sorry[,.]? (?:i )?can(?:no|')t\b|(?:can(?:no|')t|cannot|unable to) (?:answer|help|assist|comply|respond)\b|request (?:denied|refused)"
            r")",
            (
                "i'm sorry, but i can't help with that.",
                "as an ai language model, i cannot choose.",
                "i don't know.",
                "don't know",
                "i refuse.",
                "i do not know which one",
                "i am unable to provide an answer",
                "i'm sorry, but as an ai, i do not have personal opinions.",
                "i must decline",
                "i cannot answer this",
            ),
            (
                "actually, i am unsure",
                "error: rate limited",
                "i can't stress enough that paris is big",
                "she said she doesn't know.",
                "i don't know much about rivers but it flows",
                "i refuse the premise",
                "as an ai researcher, she studies models.",
                "don't panic",
                "i cannot think of a finer river",
                "paris is nice",
            ),
        ),
        Pattern(
            "ai_lower",
            r"\A[\s\"'(]*(?:[^.!?\n]{0,40}\b)?(?:as an ai\b(?! (?:researcher|engineer|expert|scientist|specialist))|i am an ai\b|i'm an ai\b)"
            r"[^.!?\n]{0,120}?\b(?:can(?:no|')t|can not|unable|do not have|don't have|not able|cannot|not allowed|do not|don't)\b",
            ("i am an ai and cannot name...", "as an ai, i don't have feelings"),
            ("as an ai engineer, i cannot", "the ai can't"),
        ),
        Pattern("sentence_end", r"[.!?\n]+[\"')\]]*\s+|\n+", ("a. b", "a\nb")),
    )
)
_MATCH = _REFUSAL["refusal_lower"].match
_AI = _REFUSAL["ai_lower"].match


def is_refusal(lower: str) -> bool:
    """Whether the first or the last sentence of a reply that names no option declines to answer.

    Args:
        lower: The reply, cleaned, in lower case.
    """
    head = lower[:600]
    if _MATCH(head) or _AI(head):
        return True
    tail = lower[-300:].rstrip()
    last = 0
    for match in _REFUSAL["sentence_end"].finditer(tail):
        last = match.end()
    return 0 < last < len(tail) and bool(_MATCH(tail[last:]))
