"""What the sweep asks of an engine, and what it gets back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Draw:
    """One answer to be drawn from a prompt.

    Attributes:
        key: Identity of the draw; comes back on its completion.
        temperature: Softmax temperature; 0 is greedy decoding.
        seed: Seed of this draw's own randomness, 0 ≤ seed < 2**63.
    """

    key: Hashable
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and all the draws that share it, so that an engine can prefill it once.

    Attributes:
        system: The persona prompt (the system message).
        user: The task prompt with the question (the user message).
        draws: What to draw from it, in any order.
    """

    system: str
    user: str
    draws: tuple[Draw, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """The text that one draw gave.

    Attributes:
        key: The draw's key.
        text: The assistant's turn, special tokens removed. What a chat template pre-fills of that turn
            (some open ``<think>`` there) stands in front, so the text reads as one whole turn.
        finish_reason: ``stop`` where the model ended its turn, ``length`` where a limit cut it.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens generated, the end-of-turn token not counted.
        notes: What happened to this draw out of the ordinary, e.g. ``"recomputed in float32"``.
    """

    key: Hashable
    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a completion is drawn: the same for all models (P1 §4), sent explicitly on every backend.

    Attributes:
        max_new_tokens: Most tokens to generate.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens with this much probability; 1.0 keeps all.
    """

    max_new_tokens: int = 1000
    top_k: int = 50
    top_p: float = 1.0


class Engine(Protocol):
    """Turns requests into completions."""

    def describe(self) -> dict[str, str | int | float | bool]:
        """The effective settings: model, revision, dtype, device, attention, system role, decoding …"""
        ...

    def check(self, requests: Iterable[Request]) -> None:
        """Raise `UserError` for a request that cannot be run, e.g. longer than the model's context."""
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        """Complete every draw of every request, yielding batches as they finish, in any order."""
        ...

    def close(self) -> None:
        """Free the model's memory."""
        ...
