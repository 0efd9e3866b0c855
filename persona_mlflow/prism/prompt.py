"""The inverse prompts: given context and response, which described state does the response show? (P2 §3)"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from persona_mlflow.errors import UserError, choices
from persona_mlflow.prism.cases import Case, whole_text
from persona_mlflow.prism.dimensions import DIMENSIONS, STATES, Dimensions, load_dimensions
from persona_mlflow.prompting import PromptRenderer

LABELS = ("A", "B", "C")
"""The label completions, in the order in which a prompt lists them."""

Layout = Literal["labels-last", "labels-first"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

ORDERS: tuple[tuple[str, ...], ...] = tuple(
    tuple(base[(start + step) % 3] for step in range(3))
    for base in (STATES, STATES[::-1])
    for start in range(3)
)
"""All orders of the states. The first three, and the last three, put each state once under each label."""

SYSTEM = "You judge how a reply is written. You answer with a single letter."


@dataclass(frozen=True, slots=True)
class LabelPrompt:
    """One inverse prompt (P2 §3).

    Attributes:
        key: Identity of the prompt within one call: case id, dimension and, where one dimension is asked
            in several orders, the order's number.
        system: The system message.
        user: Context, response, the three labelled descriptions and the question for the letter.
        order: The state under each of `LABELS`, a permutation of `STATES`.
    """

    key: tuple[Hashable, ...]
    system: str
    user: str
    order: tuple[str, ...]


def label_order(case_id: str, dimension: str, seed: int = 0) -> tuple[str, ...]:
    """The order of the states for one prompt: uniform over the six, and the same on every machine.

    Args:
        case_id: The case's id.
        dimension: One of `DIMENSIONS`.
        seed: Any whole number; another seed draws anew.
    """
    digest = hashlib.sha256(f"{int(seed)}\0{dimension}\0{case_id}".encode("utf-8", "surrogatepass")).digest()
    return ORDERS[int.from_bytes(digest[:8], "big") % len(ORDERS)]


def build_prompt(
    case: Case,
    dimension: str,
    *,
    layout: str = "labels-last",
    seed: int = 0,
    order: Sequence[str] | None = None,
    dimensions: Dimensions | None = None,
    key: tuple[Hashable, ...] | None = None,
) -> LabelPrompt:
    """The inverse prompt of a case in a dimension (P2 §3; the wording is ours).

    Args:
        case: What is scored. Its profile appears through the descriptions alone.
        dimension: One of `DIMENSIONS`.
        layout: ``labels-last``: context and response first, so that the three dimensions of a case share
            them as a prefix; ``labels-first``: the descriptions first, as the authors' code has it.
        seed: Seed of the order of the labels.
        order: An order in place of the seeded one.
        dimensions: The wording of the dimensions; the shipped one by default.
        key: The prompt's key; (case id, dimension) by default.

    Raises:
        UserError: An unknown layout, dimension or order.
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout: {layout!r} is not valid; {choices(layout, LAYOUTS)}")
    found = (dimensions or load_dimensions())[dimension]
    space = found.label_space(case.profile)
    chosen = tuple(order) if order is not None else label_order(case.id, dimension, seed)
    if sorted(chosen) != sorted(STATES):
        raise UserError(f"order: {chosen} is not an order of {', '.join(STATES)}")
    given, response = whole_text(case.context).strip(), whole_text(case.response).strip()
    context = f"Situation:\n{given}\n\n" if given else ""
    shown = f"{context}Reply:\n{response}"
    question = f"Which description fits the reply, looking only at {found.about}?"
    labels = "\n".join(f"{label}. {space[state]}" for label, state in zip(LABELS, chosen, strict=True))
    closing = "Answer with the letter A, B or C."
    parts = (
        [shown, f"{question}\n{labels}", closing]
        if layout == "labels-last"
        else [f"{question}\n{labels}", shown, closing]
    )
    return LabelPrompt(key or (case.id, dimension), SYSTEM, "\n\n".join(parts), chosen)


def case_prompts(
    case: Case, *, layout: str = "labels-last", seed: int = 0, dimensions: Dimensions | None = None
) -> tuple[LabelPrompt, ...]:
    """The three prompts of a case, in the order of `DIMENSIONS`; see `build_prompt`."""
    return tuple(build_prompt(case, d, layout=layout, seed=seed, dimensions=dimensions) for d in DIMENSIONS)


class LabelRenderer(PromptRenderer):
    """Renders a prompt together with a completion, so that both are tokenised jointly.

    A base model without a chat template reads system text, prompt and ``Answer:``.

    Args:
        tokenizer: A `transformers` tokenizer.
    """

    _completion = ""

    def with_completion(self, system: str, user: str, completion: str) -> list[int]:
        """Token ids of the prompt followed by a completion, with exactly one BOS where the model uses one.

        Raises:
            UserError: The template drops the prompt, or a control token in it cannot be kept as text.
        """
        self._completion = completion
        try:
            return self.render(system, user)
        finally:
            self._completion = ""

    def _apply(self, system: str, user: str) -> str:
        rendered = super()._apply(system, user)
        if self.system_role == "no-template":
            rendered = f"{rendered}Answer:"
        return rendered + self._completion

    def tail(self, system: str, user: str) -> str | None:
        """The rendered prompt from its last control token on, where all of that is the template's own.

        A tokenizer never joins text across a control token, so prompts with the same tail have the same
        tokens from there on, and take the same label tokens.

        Returns:
            The tail, or None where the prompt's own text runs to the end or there is no template.
        """
        if self._control_pattern is None or self.system_role == "no-template":
            return None
        text = self._apply(system, user)
        starts = [match.start() for match in self._control_pattern.finditer(text)]
        if not starts:
            return None
        tail = text[starts[-1] :]
        return tail if self._apply("", "x").endswith(tail) else None

    def encode_tail(self, tail: str, completion: str) -> list[int]:
        """Token ids of a `tail` followed by a completion."""
        return self._encode(tail + completion)
