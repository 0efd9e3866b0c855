"""Every pattern that tells a commitment from prose, each with examples that are tried on import.

A pattern that does not compile, or no longer tells its own examples apart, stops the program with its name:
a silent mismatch would read as wrong answers. Patterns named ``*_lower`` are applied to lower-cased text.
Repetition is bounded or possessive throughout, so that parsing takes linear time.
"""

# ruff: noqa: E501 (tables of patterns, one a line)

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression and what it must and must not find.

    Attributes:
        name: Key under which the compiled pattern is known.
        source: The expression.
        accepts: Texts in which it must be found.
        rejects: Texts in which it must not be found.
        anchored: Whether it is applied at a given offset rather than searched for.
    """

    name: str
    source: str
    accepts: tuple[str, ...]
    rejects: tuple[str, ...] = ()
    anchored: bool = False


def compile_patterns(patterns: Iterable[Pattern]) -> dict[str, re.Pattern[str]]:
    """Compile patterns and try their examples.

    Args:
        patterns: What to compile.

    Returns:
        Name → compiled pattern.

    Raises:
        RuntimeError: A pattern does not compile, or fails one of its examples; the message names both.
    """
    compiled: dict[str, re.Pattern[str]] = {}
    for pattern in patterns:
        try:
            regex = re.compile(pattern.source, re.MULTILINE)
        except re.error as error:
            raise RuntimeError(f"answer pattern {pattern.name!r} does not compile: {error}") from error
        find = regex.match if pattern.anchored else regex.search
        for text in pattern.accepts:
            if not find(text):
                raise RuntimeError(f"answer pattern {pattern.name!r} does not find its example {text!r}")
        for text in pattern.rejects:
            if find(text):
                raise RuntimeError(f"answer pattern {pattern.name!r} finds its counter-example {text!r}")
        compiled[pattern.name] = regex
    return compiled


# A letter ends where no further Latin, Greek or Cyrillic letter or digit follows; "C입니다", "答案是B。" are letters.
_EDGE = r"(?![0-9a-z_\u00c0-\u024f\u0370-\u052f\u0300-\u036f])"
_START = r"(?<![^\W_])"

_ANSWER_NOUNS = (
    r"answers?|ans\.?(?=[:=\s])|antwort|réponse|reponse|respuesta|risposta|resposta|ответ|відповідь|отговор|odpowied[źz]"
    r"|odpověď|svaret|svar|antwoord|vastaus|cevap|yanıt|đáp án|jawaban|απάντηση|válasz|răspuns|lösung|solution"
    r"|solución|soluzione|उत्तर|คำตอบ|الإجابة|الجواب|תשובה"
)
_CJK_NOUNS = r"정답|답안|답(?=[은:이 ])|答案|答え|正解|正确选项|正確選項|回答"
_CHOICE_NOUNS = (
    r"(?:(?:correct|right|best) )one|choice|option(?!s)|letter|selection|pick(?=s? ?[:=]| is)|guess|vote|response"
    r"|conclusion|verdict|opción|opción correcta|choix|opção|alternativa|вариант"
)
_IS = (
    r"is|was|'s|would be|should be|must be|will be|has to be|remains|seems to be|appears to be|would(?= (?:most |very )?(?:\w+ly|then|still) be)"
    r"|ist|lautet|wäre|est|serait|es|sería|è|sarebbe|é|seria|это|this is|là|adalah|är|er|on|jest|to|je|is:|είναι|है|คือ|هي|هو"
)
_HOW = (
    r"(?:,?\s++(?!unlikely|hardly|scarcely|possibly|potentially|partly|partially)"
    r"(?:most likely|very likely|likely|indeed|still|therefore|thus|hence|then|just|in fact|of course|\w{2,12}ly))?+"
    r"(?: be)?"
)
_LEAD = (
    r"(?:(?:the|la|le|el|die|der|das|il|lo|l')\s*+)?(?:(?:either|both|between)\s++)?"
    r"(?:(?:option|choice|answer|letter|number|opción|opcion|choix|réponse|lettre|respuesta|opzione|risposta|lettera"
    r"|opção|alternativa|letra|antwort|option|buchstabe|möglichkeit|вариант|буква|ответ|선택지|보기|选项|選項|选择)\s*+:?\s*+)?"
)
_LETTER = rf"[\"'(\[{{<\s]*+(?P<letter>[a-z]){_EDGE}"

_OPINION = r"(?:say|think|believe|answer|argue|claim|guess|assume|suppose|insist|choose|pick|select|go with|said|believed|argued)"
# People other than the speaker, as a subject: "some", "many doctors", "people"; not "for most people", "like many I".
_OTHERS = (
    r"(?<!for )(?<!to )(?:some|many|most(?! \w+ly\b)|(?<!most )(?<!many )(?<!some )(?<!other )people|others|critics|everyone"
    r"|someone|somebody|one(?= (?:might|could|may|would)\b))"
)
_NOT_SPEAKER = r"(?:(?!(?:i|we|me|us|my|our|to|is|are)\b)\w+\s+)"
_OTHERS_OPINION = (
    rf"\b{_OTHERS}\s+{_NOT_SPEAKER}{{0,4}}{_OPINION}\s+{_NOT_SPEAKER}{{0,4}}$"  # "some would say the best …"
    rf"|\b{_OTHERS}\s+(?:people\s+)?(?:(?:would|will|might|may|could|often|always|sometimes|\w+ly)\s+){{0,3}}$"  # "people often answer"
)
_NEGATED = r"\b(?:not|never|cannot|doubt|doubtful|if|unless|whether|suppose|assuming|assume|unlikely|why|hardly|without)\b|n't\b"

PATTERNS = (
    Pattern(
        "fixed_form",
        r"(?:\A|\n) *(?:ANSWER|Answer): *(?P<letter>[A-Z])[ \n]*+\Z",
        ("ANSWER: B", "so it is\n\nANSWER: C\n"),
        ("ANSWER: B because", "not ANSWER: B", "ANSWER: BC"),
    ),
    Pattern("word_lower", r"[^\W_]+", ("the answer",), ("__",)),
    Pattern(
        "cue_lower",
        rf"{_START}(?:(?P<noun>{_ANSWER_NOUNS})(?![^\W_])|(?P<choice>{_CHOICE_NOUNS})(?![^\W_])"
        r"|(?P<verb>(?:i|we)(?=['\s])|it(?='s | is | must be | has to be )|(?:choose|choosing|select|selecting|pick|going with|mark)(?=[\s:])"
        r"|ich wähle|je choisis|elijo|escojo|scelgo|escolho|выбираю)"
        r"|(?P<good>(?:is|would be|should be|must be|ist|est|es|è|é)(?= (?:\w+ly |indeed |therefore )?"
        r"(?:correct|right|the |my |richtig|korrekt|die |la |a )))"
        r"|(?P<turn>no|wait|actually|sorry|i mean|correction|scratch that|or rather|make (?:that|it)"
        r"|change (?:my answer|it|that) to)(?=[\s,.:;!-])"
        r"|(?P<hence>therefore|thus|hence|so)(?=[\s,:])|(?P<boxed>f?box(?:ed)?\s{0,3}\{))",
        ("answer is b", "answer", "boxed{b}", "i choose b", "is the best", "no, c", "so b", "ответ: b"),
        ("unanswerable", "boxing", "optional", "isle", "south"),
        anchored=True,
    ),
    Pattern(
        "cue_cjk",
        rf"(?P<cjk>{_CJK_NOUNS})|(?P<pick>(?<![不別别])(?:选择?|選擇?)|선택)"
        r"|(?P<post>가 정답|이 정답|번이 정답|是正确|是正確|が正解|を選|를 선택|을 선택)",
        ("정답: c", "答案是b", "答えはb", "我选b"),
        ("不选b",),
    ),
    Pattern("clause_lower", r"[^.:;!?\n=>→]{0,90}+", (" to this is b.",), anchored=True),
    Pattern(
        "colon_lower",
        r"(?:[:=>→]|-+>|-(?=\s))++\s*+",
        (": b", "=> b", "- b", "> b", "→ b"),
        ("-b", " b"),
        anchored=True,
    ),
    Pattern(
        "is_lower",
        rf"(?:(?<![^\W_])|(?='))(?:{_IS}){_HOW}(?=[\s:(\"'\[]),?\s*+:?\s*+"
        r"(?:a\s+(?=[\"'(]?[b-z](?![^\W_])|(?:letra|alternativa|resposta)\b))?"
        r"|(?<=[답案えは解])\s?(?:[은는이]\s*+|是|为|為|は|が)|(?<=[案项項])是",
        (
            "answer is b",
            "answer would most likely be b",
            "answer's c",
            "antwort lautet c",
            "정답은 c",
            "答案是b",
            "é a c",
        ),
        ("this", "answer might be b"),
    ),
    Pattern(
        "letter_lower",
        rf"\s*+[\"'(\[]?(?:{_LEAD}){_LETTER}",
        ("b", " (b)", "option c.", "**the letter d".replace("*", ""), "<b</", "[b]", "c입니다", "la b."),
        ("this asks", "none of the above", "not b", "possibly b"),
        anchored=True,
    ),
    Pattern(
        "choice_gap_lower",
        r"\s*(?:(?:chosen|selected|letter|number|text|is|that fits best|for (?:this|the) question|to (?:this|the) question)\s*)?(?:\([^()\n]{0,40}\)?\s*)?\Z",
        ("", " chosen", " for this question"),
        (" step by step",),
        anchored=True,
    ),
    Pattern(
        "verb_lower",
        r"(?:(?:i|we)(?:'d|'ll|'m| would| will| shall| must| have to| am going to| am)?+\s+(?:\w{2,12}ly\s+|still\s+|then\s+)?"
        r"(?:choose|chose|pick(?:ed)?|select(?:ed)?|go(?:ing)? (?:with|for)|went with|opt(?:ed)? for|vote for|answer"
        r"|say|guess|believe|think|suppose|settle on|conclude)"
        r"|(?:^|(?<=[.!?:;,>] )|(?<=[.!?:\n>]))(?:choose|choosing|select|selecting|pick|going with|mark)|it(?:'s| is| must be| has to be)|ich wähle|je choisis|elijo|escojo|scelgo|escolho|выбираю"
        r"|(?<![不别別])我?(?:选择?|選擇?)|선택)"
        r"(?:\s+that)?(?:\s+(?:it's|it is|it would be|it must be))?\s*+:?\s*+(?:a\s+(?=[\"'(]?[b-z](?![^\W_])|(?:letra|alternativa|resposta)\b))?"
        rf"(?:{_LEAD})(?:{_LETTER})",
        (
            "i choose b",
            "i would go with option (c)",
            "i'd say b.",
            "i think it's c",
            "我选b",
            "ich wähle b",
            "selecting: b",
        ),
        ("i would not choose b", "i cannot pick b", "i think about b"),
    ),
    Pattern(
        "good_lower",
        r"(?:is|would be|should be|must be|ist|est|es|è|é) (?:(?!partly|partially|possibly|hardly|technically)"
        r"(?:\w+ly|indeed|therefore) )?(?:"
        r"(?:correct|right|richtig|korrekt|correcte|correcta|corretta|correta)"
        r"(?=\s*+(?:$|[.!;:\n\"')]|,(?! (?:but|however|yet))|because|since))"
        r"|(?:(?:the|my|die|la|a) (?:(?:only|single|most|one|clear|obvious|final) )*"
        r"(?:(?:correct|right|best|accurate|appropriate|suitable|likely|fitting|logical|plausible|reasonable|bonne"
        r"|richtige)"
        r"(?: (?:answer|option|choice|one|response|solution|fit|match|letter|selection|antwort|réponse))?"
        r"|answer|choice|pick|guess|respuesta(?: correcta)?|risposta(?: corretta)?|resposta(?: correta)?)"
        r"(?=\s*+(?:$|[.!;:,\n\"')]|because|since|here|for|to|in|among|of|based|given|as)(?![a-z]))))",
        (
            "is correct.",
            "is the best answer",
            "is therefore correct",
            "is my final answer.",
            "is the most likely answer here",
        ),
        (
            "is correct in part",
            "is not correct",
            "is right, but",
            "is the correct order of steps",
            "is the rightful heir",
        ),
    ),
    Pattern(
        "turn_lower",
        r"(?:change (?:my answer|it|that) to|no|wait|actually|sorry|i mean|correction|scratch that|or rather|make (?:that|it))[,:.!; -]++"
        r"(?:(?:no|wait|actually|it's|it is|that's|i mean|rather|make that|it should be|should be)[,:. -]++){0,4}"
        rf"(?:{_LEAD})(?:{_LETTER})",
        ("no, c", "wait, actually it's c", "scratch that: (c)", "i want to change my answer to c"),
        ("no one", "going to c"),
    ),
    Pattern(
        "hence_lower",
        rf"(?:therefore|thus|hence|so)[,:]?\s++(?:it's |it is |it must be )?(?:{_LEAD})(?:{_LETTER})",
        ("so b.", "therefore, option (c)", "hence: b"),
        ("so because",),
    ),
    Pattern(
        "subject",
        r"(?:^|[\n.!?;:,>-]\s*|[\"'(\[{]|\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer|[Ll]etter|[Ss]tatement|[Tt]hat|[Ss]o|[Tt]herefore"
        r"|[Tt]hus|[Hh]ence|[Bb]ecause|[Bb]ut|[Tt]hink|[Bb]elieve|[Ss]ay|[Cc]onclude|[Tt]hen|[Aa]nd|[Oo]r|nor|Antwort|réponse"
        r"|opción|opzione|alternativa)\s+)"
        r"[\"'(\[{<]*([A-Z])[)\]}>\"'.,:]*\s*$",
        ("B ", "so (B) ", "I think option B "),
        ("Hepatitis B ", "Vitamin C "),
    ),
    Pattern(
        "pair_before",
        r"(?<![^\W_])([A-Z])[)\]}\"']*\s*(?:[,/&]|,?\s*(?:and|or|nor))\s*(?:[Oo]ption\s+|[Cc]hoice\s+)?[\"'(\[]*$",
        ("A and ", "options A, ", "(A) or ("),
        ("so ", "vitamin and "),
    ),
    Pattern(
        "pair_after",
        r"[)\]}\"']{0,3}\s*(?P<joint>,\s*(?:and|or|&)\b|[,/&+;|]|\b(?:and/or|and|or|as well as|und|oder|et|ou|y|o|e|и|или)\b"
        r"|[和或와과])\s*+(?:(?:either|both|possibly|also|maybe|perhaps|even)\s++)?"
        r"(?:(?:the\s++)?(?:[Oo]ption|[Cc]hoice|[Aa]nswer|[Ll]etter)\s++)?[\"'(\[{]*+(?P<letter>[A-Z])(?![\w']|-\w)"
        r"(?P<verb>[)\]}\"']*\s+(?:is|are|was|isn|does|would|can|has)\b)?",
        (" and B", ", C", "/B", ") or (C)", " & option D"),
        (" and Because", " because B"),
        anchored=True,
    ),
    Pattern(
        "letter_end",
        r"[\"']*+(?:[^\S\n]*+[)\]}>]|\s*+$|[^\S\n]*+\n|[,;:!](?!\w)|[.:](?![a-z0-9]|\w\.)|\s*+</|\s++-++\s|\s*+\(|[^\W\u0000-\u1fff])",
        (".", "\n", ") text", ", because", "입니다", ". Paris", " - Paris"),
        ("-ray", "'m", ".D. ", " = 5", "?"),
        anchored=True,
    ),
    Pattern(
        "function_word",
        r"[\"')\]]*\s+(?:because|since|as|for|in|here|which|that|with|from|due|given|by|and|but|or|if|when|where|while|on|based"
        r"|according|over|rather|instead|not|of course|at)\b",
        (" because", " in my view", " and"),
        (" is", " major"),
        anchored=True,
    ),
    Pattern(
        "reason_word",
        r"[\"')\]]*,?\s+(?:because|since|as|for|based)\b",
        (" because",),
        (" and",),
        anchored=True,
    ),
    Pattern(
        "negated_word_lower",
        rf"{_NEGATED}|\b(?:no es|no sería|não é|non è)\b",
        ("answer is not ", "isn't", "respuesta no es "),
        ("answer is ", "knot", "respuesta es "),
    ),
    Pattern(
        "not_but_lower",
        r"[^.:;!?\n=]{0,60}?(?:\b(?:not|nicht|pas|no es|não é|non è)|n't)\s++"
        rf"(?:{_LEAD})[\"'(\[]*+(?P<denied>[a-z]){_EDGE}[\"')\]]*+,?\s++(?:but|rather|sondern|sino|mais|ma|mas)\s++"
        rf"(?:(?:rather|instead|is|it's|it is|es|vielmehr)\s++){{0,2}}(?:{_LEAD})(?:{_LETTER})",
        (
            " is not a but b",
            " is obviously not (b), but rather option c",
            " ist nicht a, sondern b",
            " no es a, sino c",
        ),
        (" is not a", " is not only a but also b", " is not as good but b"),
        anchored=True,
    ),
    Pattern(
        "both_good_lower",
        r"[\"')\]]*\s+(?:are|would be|could be)\s+(?:(?:both|all|each|equally)\s+)?(?:correct|right|valid|true|acceptable|plausible|possible)\b",
        (" are both correct", ") are correct", " are all right"),
        (" are wrong", " are both incorrect", " is correct"),
        anchored=True,
    ),
    Pattern(
        "others_opinion_lower",
        _OTHERS_OPINION,
        (
            "some would say the ",
            "people often ",
            "many think the best ",
            "one might argue that the ",
            "some say option ",
        ),
        (
            "for most people the ",
            "like most people i think the ",
            "most certainly i say ",
            "we think the ",
            "i think ",
        ),
    ),
    Pattern(
        "new_question_lower",
        r"\n[ >#+-]{0,12}+(?:(?:next|new|another|second)\s+)?(?:question|frage|pregunta|domanda|pergunta|вопрос|问题|問題|질문|q)"
        r"(?:\s*(?:#|no\.?|number)?\s*\d{1,4})?\s?(?:[:.](?=\s|$)|(?<=\d)$)",
        ("b\n\nquestion: what", "b\n## question 2\n", "\nq: what", "\nnext question: x", "\nq2. what"),
        ("question: what", "b\nthe question: why", "\nquestions: x", "\nquestion of taste"),
    ),
    Pattern(
        "template_lower",
        r"\b(?:form|format|example|template|e\.g)\b",
        ("in the form answer: b", "for example"),
        ("a formal answer",),
    ),
    Pattern(
        "negated_before_lower",
        rf"{_NEGATED}"
        r"|\b(?:wrong|incorrect|worst|false|bad|other|another|second|alternative|previous|possible|eliminated|rejected"
        r"|his|her|their)\s+(?:\w+\s+)?$|(?<!let)'s\s+(?:\w+\s+)?$|\b(?:one|first|each|every|any|no|to|please|can|i'll|will)\s+$",
        ("i don't think the ", "if the ", "the wrong ", "the student's "),
        ("the correct ", "the final ", "notes on the "),
    ),
    Pattern(
        "clause_break_lower",
        r"[.,;:!?\n]|\b(?:but|so|and|then|therefore|thus|hence|however|although|though|yet)\b",
        ("a, b", "sure but the"),
        ("android",),
    ),
    Pattern(
        "negated_after_lower",
        r"[)\]}>\"'.:, -]{0,6}(?:(?:option|choice|statement|answer)\s+)?(?:(?:is|was|are|would be)\s+)?(?:(?:not|never)\b|isn't|wasn't"
        r"|can't|cannot|incorrect|wrong|false|eliminated|ruled out|unlikely)",
        (" is incorrect", ") is not", ": wrong", " can't be"),
        anchored=True,
    ),
    Pattern(
        "retracted_lower",
        r"\b(?:no|wait|hmm|sorry|oops)\b[,.!:\s-]+(?:\w+[,\s]+){0,2}(?:that|this|it)(?:'s| is| was| isn't| can't be)"
        r"(?: not)?(?: \w+ly)? (?:wrong|incorrect|right|correct|a mistake)\b|\bscratch that\b|\bi was wrong\b|\bi take (?:that|it) back\b",
        ("no, that's wrong", "wait, that is not right", "scratch that"),
        ("that's right", "this is wrong because"),
    ),
    Pattern(
        "lettered_line",
        r"^[ >#+·•-]{0,12}+(?:\d{1,2}[.)]\s{1,3})?(?P<word>(?:[Oo]ption|OPTION|[Cc]hoice|[Ll]etter|선택지|选项|選項|Opción|Choix)"
        r"[ :]{0,3})?(?P<open>[\"'(\[{<]{0,3})(?P<letter>[A-Za-z])(?P<close>[\"')\]}>]{0,3})(?P<mark>!{3,12}|[.:,;!)-]{0,2})"
        r"(?=[ \n]|$|(?<=[.:)\]])[^\Wa-z0-9_](?!\.))",
        ("B", "(B)", "B.", "B) text", "- **B**".replace("*", ""), "Option B: text", "  A) Berate", "B.Paris"),
        ("Because", "Paris", "I'm", "U.S. law"),
    ),
    Pattern(
        "listed",
        r"(?<![\w'])[(\[]?([A-Z])[)\].:](?=\s)(?!\s*(?:is|are|was|isn|does|would|can|has|and|or)\b)",
        ("(A) foo", "B. bar", "C) x"),
        ("(A) is wrong", "B and"),
    ),
    Pattern(
        "bracketed", r"[(\[]([A-Z])[)\]](?!\w)(?<![\w']...)", ("(A) foo", "x [B]"), ("f(A)", "(AB)", "A man")
    ),
    Pattern(
        "option_word",
        r"[OoCcAa](?:ption|hoice|nswer)s?\s+([A-Z])(?![\w'.])",
        ("option B is",),
        ("options", "option Be"),
    ),
    Pattern(
        "pair",
        r"[A-Z](?<![\w'].),? (?:and|or|nor|&) (?:maybe |perhaps |possibly |even )?['\"(]?(?:[Oo]ption )?([A-Z])(?![\w'])",
        ("A or B", "A, and option C"),
        ("AB or C", "A or Be"),
    ),
    Pattern(
        "analysis_lower",
        r"\s*(?:[-+•]\s|(?:this|that|the) (?:option|choice|answer|statement)\b|this (?:is|refers|suggests|means|would|could|statement))",
        ("\n- this option", "\nthis statement"),
        (" because",),
        anchored=True,
    ),
)

COMPILED = compile_patterns(PATTERNS)

CUE_WORDS = frozenset(
    """
    answer answers ans antwort réponse reponse respuesta risposta resposta ответ відповідь отговор
    odpowiedź odpowiedz odpověď svaret svar antwoord vastaus cevap yanıt đáp jawaban απάντηση válasz
    răspuns lösung solution solución soluzione الإجابة الجواب תשובה correct right best choice option
    letter selection pick guess vote response conclusion verdict opción choix opção alternativa
    вариант i we it it choose choosing select selecting going mark ich je elijo escojo scelgo escolho
    выбираю is would should must ist est es è é no wait actually sorry correction scratch or make
    change therefore thus hence so box boxed fbox fboxed
    """.split()  # noqa: SIM905
)
"""The words at which a ``cue_lower`` can match; looking words up is faster than trying the pattern everywhere."""
