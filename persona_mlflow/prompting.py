"""From persona prompt and task prompt to the token ids that a model reads.

One renderer serves all engines that tokenise here. It answers for three things: the persona is provably in
the prompt (a dropped persona looks like perfect stability), the prompt is the same every day and on every
machine, and nothing in a persona or a question can act as a control token.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SystemRole = Literal["native", "folded", "no-template"]

# Some templates write today's date into the system turn. The prompt of an experiment must not depend on the
# day it runs, so it is always this one: the date that Llama 3.2's own template falls back to.
FIXED_DATE = datetime.datetime(2024, 7, 26)

_PROBE_SYSTEM = "zqsystemprobe"
_PROBE_USER = "zquserprobe"
_PROBE_ASSISTANT = "zqassistantprobe"
# Private-use characters stand in for a special-token string while the template is rendered.
_MARK_OPEN, _MARK_CLOSE = "\ue0f0", "\ue0f1"
_MARK = re.compile(f"{_MARK_OPEN}([0-9]+){_MARK_CLOSE}")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def fill_persona(template: str, persona: str) -> str:
    """Put the persona in the place of ``{persona}``; every other brace stays.

    Args:
        template: A persona prompt format, e.g. ``"You are {persona}."``.
        persona: The persona, e.g. ``"a chef"``. It is not searched for placeholders.

    Returns:
        The persona prompt.

    Raises:
        UserError: The template has no ``{persona}``.
    """
    return _fill(template, "{persona}", persona)


def fill_question(template: str, question_text: str, options: Sequence[str]) -> str:
    """Put the question and its lettered options in the place of ``{question}``; every other brace stays.

    Args:
        template: A task prompt format with ``{question}`` in it.
        question_text: The question. It is not searched for placeholders.
        options: The option texts in order, at most 26.

    Returns:
        The task prompt.

    Raises:
        UserError: The template has no ``{question}``, or there are more options than letters.
    """
    if len(options) > len(_LETTERS):
        raise UserError(
            f"a question has {len(options)} options, and there are {len(_LETTERS)} letters for them"
        )
    lines = [question_text]
    lines += [f"({letter}) {option}" for letter, option in zip(_LETTERS, options, strict=False)]
    return _fill(template, "{question}", "\n".join(lines))


def _fill(template: str, placeholder: str, value: str) -> str:
    if placeholder not in template:
        raise UserError(
            f"the prompt format {template!r} has no {placeholder}: write {placeholder} where it goes"
        )
    return template.replace(placeholder, value)


class PromptRenderer:
    """Renders a persona prompt and a task prompt through one model's chat template.

    Whether the template takes a system message is decided once, by rendering a probe. Where it raises, or
    drops the message without a word, the persona prompt is folded into the first user message, before the
    task prompt and a blank line. A base model without a template reads persona prompt, blank line, task
    prompt and a line end.

    Strings such as ``<|im_end|>`` inside a persona or a question stay text: they are tokenised as ordinary
    characters, never as the control token of that name. Where the tokenizer cannot do that, the prompt is
    refused.

    Args:
        tokenizer: A `transformers` tokenizer.

    Attributes:
        system_role: ``native``, ``folded`` or ``no-template``.
        prefill: What the template writes at the start of the assistant's own turn, e.g. ``"<think>\\n"``.
        end_of_turn: Id of the token that the template closes an assistant's turn with, where it is one.

    Raises:
        UserError: The chat template can be rendered neither with nor without a system message.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._template: str | None = getattr(tokenizer, "chat_template", None) or None
        if self._template is not None:
            self._template = _fix_date(tokenizer.get_chat_template())
        self._control = _control_tokens(tokenizer, self._template or "")
        self._control_pattern = (
            re.compile("|".join(re.escape(s) for s in sorted(self._control, key=len, reverse=True)))
            if self._control
            else None
        )
        self._adds_bos = _adds_bos(tokenizer)
        self.system_role: SystemRole = self._decide_system_role()
        self.prefill, self.end_of_turn = self._probe_assistant_turn()

    def text(self, system: str, user: str) -> str:
        """Render the prompt as text, special tokens written out.

        Args:
            system: The persona prompt.
            user: The task prompt.

        Returns:
            All that the model reads; for a base model without the BOS that its tokenizer adds.

        Raises:
            UserError: The rendered prompt lacks the persona prompt or the task prompt.
        """
        rendered = self._apply(system, user)
        self._require(_squeeze(rendered), system, user, "the chat template dropped")
        return rendered

    def render(self, system: str, user: str) -> list[int]:
        """Render the prompt as token ids, with exactly one BOS where the model uses one.

        Args:
            system: The persona prompt.
            user: The task prompt.

        Returns:
            The token ids.

        Raises:
            UserError: The prompt lacks the persona prompt or the task prompt, as text or after decoding the
                ids, or a special-token string inside it cannot be kept as text.
        """
        text = self.text(system, user)
        marked_system, marked_user, found = self._mark(system, user)
        ids = (
            self._encode_marked(self._apply(marked_system, marked_user), found)
            if found
            else self._encode(text)
        )
        ids = self._single_bos(ids)
        decoded = _squeeze(self._decode(ids))
        if not (_squeeze(system) in decoded and _squeeze(user) in decoded):
            # A tokenizer may normalise its input (NFKC, lower case …): what it makes of it must be there.
            self._require(decoded, self._round_trip(system), self._round_trip(user), "the tokenizer dropped")
            self._require_known(system)
        return ids

    # ------------------------------------------------------------------------------------------ template

    def _apply(self, system: str, user: str) -> str:
        if self.system_role == "no-template":
            return f"{_join(system, user)}\n"
        if self.system_role == "folded":
            return self._chat([{"role": "user", "content": _join(system, user)}])
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        # An empty persona prompt is no system message: most templates would write an empty turn for it.
        return self._chat(messages if system.strip() else messages[1:])

    def _chat(self, messages: list[dict[str, str]], generation: bool = True) -> str:
        rendered = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=generation,
            chat_template=self._template,
            date_string=FIXED_DATE.strftime("%d %b %Y"),
        )
        assert isinstance(rendered, str)
        return rendered

    def _decide_system_role(self) -> SystemRole:
        if self._template is None:
            return "no-template"
        user = {"role": "user", "content": _PROBE_USER}
        try:
            rendered = self._chat([{"role": "system", "content": _PROBE_SYSTEM}, user])
            if _PROBE_SYSTEM in rendered and _PROBE_USER in rendered:
                return "native"
        except Exception:  # a template may raise anything: jinja2's TemplateError, TypeError, KeyError …
            pass
        try:
            rendered = self._chat([user])
        except Exception as error:
            raise UserError(f"the model's chat template cannot be rendered: {error}") from error
        if _PROBE_USER not in rendered:
            raise UserError(
                "the model's chat template drops the user message: give the model another template"
            )
        return "folded"

    def _probe_assistant_turn(self) -> tuple[str, int | None]:
        """Find what opens and what closes an assistant's turn, by rendering one."""
        if self.system_role == "no-template":
            return "", None
        user = {"role": "user", "content": _PROBE_USER}
        try:
            before = self._chat([user], generation=False)
            opening = self._chat([user]).removeprefix(before)
        except Exception:  # templates may raise anything
            return "", None
        # Where no answer can be rendered, only the tag tells what is the assistant's own.
        prefill = opening[opening.index("<think") :] if "<think" in opening else ""
        try:
            answered = self._chat(
                [user, {"role": "assistant", "content": _PROBE_ASSISTANT}], generation=False
            )
        except Exception:
            return prefill, None
        header, probe, closing = answered.removeprefix(before).partition(_PROBE_ASSISTANT)
        # A header that itself opens a trace is of a template that shows past thinking: the tag decides.
        if probe and "<think" not in header and opening.startswith(header):
            prefill = opening[len(header) :]
        match = self._control_pattern.match(closing.lstrip()) if self._control_pattern else None
        return prefill, self._control[match.group()] if match else None

    # ------------------------------------------------------------------------------------------ token ids

    def _encode(self, text: str, split_special: bool = False) -> list[int]:
        add = self.system_role == "no-template" and not split_special
        kwargs: dict[str, Any] = {"split_special_tokens": True} if split_special else {}
        ids = list(self._tokenizer(text, add_special_tokens=add, **kwargs)["input_ids"])
        eos = self._tokenizer.eos_token_id
        # Some tokenizers close their input with EOS by default; the model would start after the end.
        while add and ids and ids[-1] == eos:
            ids.pop()
        return ids

    def _mark(self, system: str, user: str) -> tuple[str, str, list[str]]:
        """Replace each special-token string in the contents by a numbered mark."""
        found: list[str] = []
        pattern = self._control_pattern
        if pattern is None or not (pattern.search(system) or pattern.search(user)):
            return system, user, found

        def mark(match: re.Match[str]) -> str:
            found.append(match.group())
            return f"{_MARK_OPEN}{len(found) - 1}{_MARK_CLOSE}"

        return pattern.sub(mark, system), pattern.sub(mark, user), found

    def _encode_marked(self, marked: str, found: list[str]) -> list[int]:
        """Tokenise between the template's own special tokens, with the marked strings as plain text."""
        ids: list[int] = []
        for piece, is_control in self._pieces(marked):
            if is_control:
                ids.append(self._control[piece])
                continue
            text = _MARK.sub(lambda m: found[int(m.group(1))], piece)
            if text != piece:
                encoded = self._encode(text, split_special=True)
                clash = set(encoded) & set(self._control.values())
                if clash:
                    name = self._tokenizer.decode([clash.pop()])
                    raise UserError(
                        f"a persona or question contains {name!r}, a control token of this model, and its "
                        "tokenizer cannot keep it as text: take it out of the text"
                    )
                ids += encoded
            else:
                ids += list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        return ids

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        assert self._control_pattern is not None
        position = 0
        for match in self._control_pattern.finditer(text):
            if match.start() > position:
                yield text[position : match.start()], False
            yield match.group(), True
            position = match.end()
        if position < len(text):
            yield text[position:], False

    def _single_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_token_id
        if bos is None:
            return ids
        while len(ids) > 1 and ids[0] == ids[1] == bos:
            ids = ids[1:]
        if self._adds_bos and ids[:1] != [bos]:
            ids = [bos, *ids]
        return ids

    # ------------------------------------------------------------------------------------------ checks

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _round_trip(self, text: str) -> str:
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return self._decode(list(ids))

    def _require_known(self, system: str) -> None:
        unknown = self._tokenizer.unk_token_id
        if unknown is not None and unknown in self._tokenizer(system, add_special_tokens=False)["input_ids"]:
            raise UserError(
                f"the model's tokenizer cannot write the persona prompt {excerpt(system)!r}: parts of it "
                f"became {self._tokenizer.unk_token!r}. Word it with characters that this model knows"
            )

    @staticmethod
    def _require(squeezed: str, system: str, user: str, who: str) -> None:
        for name, content in (("persona prompt", system), ("task prompt", user)):
            if _squeeze(content) not in squeezed:
                raise UserError(
                    f"{who} the {name} {excerpt(content)!r}: every persona would score alike. "
                    "Use a model whose chat template keeps it, or give the model another template"
                )


def _fix_date(template: str) -> str:
    """Shadow ``strftime_now``, which templates ask for today's date, with a macro that knows one day."""
    if "strftime_now" not in template:
        return template
    formats = set(re.findall(r"""strftime_now\(\s*["']([^"']+)["']""", template))
    dates = {f: FIXED_DATE.strftime(f) for f in sorted(formats)}
    default = FIXED_DATE.strftime("%d %b %Y")
    macro = f"{{% macro strftime_now(format) %}}{{{{ {dates!r}.get(format, {default!r}) }}}}{{% endmacro %}}"
    return f"{macro}\n{template}"  # Jinja's trim_blocks takes this line end


def _join(system: str, user: str) -> str:
    return f"{system}\n\n{user}" if system.strip() else user


def _squeeze(text: str) -> str:
    """Drop all whitespace: templates strip contents, and some tokenizers move blanks."""
    return "".join(text.split())


def excerpt(text: str, length: int = 60) -> str:
    """The start of a text, for a message."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _control_tokens(tokenizer: PreTrainedTokenizerBase, template: str) -> dict[str, int]:
    """The strings that act as control tokens: the special ones, and added ones that the template writes."""
    control = {}
    for token_id, token in tokenizer.added_tokens_decoder.items():
        content = token.content
        if content.strip() and (token.special or content in template):
            control[content] = token_id
    return control


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer(_PROBE_USER)["input_ids"])[:1] == [bos]
