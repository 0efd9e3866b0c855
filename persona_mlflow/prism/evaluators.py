"""Evaluators: whatever gives the probabilities of the three labels after an inverse prompt (P2 §3, §4)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from persona_mlflow.prism.prompt import LABELS, LabelPrompt

if TYPE_CHECKING:
    from persona_mlflow.engines.models import Loaded
    from persona_mlflow.engines.pacing import Prices
    from persona_mlflow.prism.openai_evaluator import OpenAIEvaluator as OpenAIEvaluator

Facts = dict[str, str | int | float | bool]

VARIANTS = ("", " ")
"""What may stand between prompt and label: ``A`` or `` A``, by the model's template and tokenizer."""


@dataclass(frozen=True, slots=True)
class LabelScore:
    """What an evaluator gives for one prompt.

    Attributes:
        key: The prompt's key.
        order: The prompt's order: the state under each of `LABELS`.
        log_p: Log-probability of each of `LABELS` as the next token, before normalising over the three;
            ``-inf`` for one that an endpoint cut off.
        variant: ``A`` or `` A``: which way of writing the labels was scored, the one with more mass.
        cut_off: Labels that an endpoint's list of likely tokens did not hold, or that got no vote.
        reason: Why the prompt has no scores; empty where it has.
    """

    key: tuple[Any, ...]
    order: tuple[str, ...]
    log_p: tuple[float, ...]
    variant: str
    cut_off: int = 0
    reason: str = ""

    @property
    def mass(self) -> float:
        """Sum of the three probabilities before normalising, in [0, 1]."""
        return math.fsum(math.exp(value) for value in self.log_p)

    def by_label(self) -> dict[tuple[Any, ...], float]:
        """Log-probability by (…key, label)."""
        return {(*self.key, label): value for label, value in zip(LABELS, self.log_p, strict=True)}

    def states(self) -> dict[str, float] | None:
        """q over the states: the softmax of the three log-scores (P2 §3); None where they are all cut off."""
        top = max(self.log_p)
        if top == -math.inf:
            return None
        weights = [math.exp(value - top) for value in self.log_p]
        total = math.fsum(weights)
        return {state: weight / total for state, weight in zip(self.order, weights, strict=True)}


def unscored(prompt: LabelPrompt, reason: str) -> LabelScore:
    """The score of a prompt that could not be scored."""
    return LabelScore(prompt.key, prompt.order, (-math.inf,) * len(LABELS), "", 0, reason)


class Evaluator(Protocol):
    """Gives label probabilities for inverse prompts."""

    def describe(self) -> Facts:
        """The effective settings, flat."""
        ...

    def identity(self) -> Facts:
        """What tells its scores from another evaluator's: model, revision, precision …"""
        ...

    def label_scores(self, groups: Iterable[Sequence[LabelPrompt]]) -> Iterator[list[LabelScore]]:
        """Score groups of prompts, yielding scores as they are ready, in any order.

        Args:
            groups: The prompts of one case each, which may share a prefix; longest first by preference.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def load_evaluator(
    reference: str | Loaded,
    *,
    base_url: str | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    dtype: str = "auto",
    quantization: str = "none",
    device: str = "auto",
    revision: str | None = None,
    batch_size: int | Literal["auto"] = "auto",
    votes: int = 0,
    concurrency: int = 4,
    requests_per_minute: float | None = None,
    prices: Prices | None = None,
    cost_cap: float | None = None,
) -> Evaluator:
    """Load an evaluator.

    Args:
        reference: A model as the sweep takes it (short name, hub id, folder, GGUF file), or ``openai:NAME``
            for a model behind an endpoint; or a model from `load_local`, which an evaluator and the engines
            of judges can share.
        base_url: The endpoint of ``openai:NAME``; None is OpenAI's.
        api_key_env: Environment variable with the endpoint's key.
        dtype: Of a local model, as are quantization, device, revision and batch_size. ``auto`` is float32 on
            a CPU.
        quantization: ``none``, ``8bit`` or ``4bit``.
        device: ``auto``, or a torch device.
        revision: Branch, tag or commit on the hub.
        batch_size: Most prompts at once, or ``auto``.
        votes: Sampled votes for each prompt where an endpoint gives no log-probabilities, see
            `OpenAIEvaluator`; like the following a setting of an endpoint.
        concurrency: Most requests at once.
        requests_per_minute: Most requests a minute.
        prices: For the accounting of costs.
        cost_cap: Most that this evaluator may spend.

    Raises:
        UserError: No model of this name can be had, or a setting is not valid.
    """
    if isinstance(reference, str):
        from persona_mlflow.engines.openai_client import endpoint_model

        name = endpoint_model(reference, base_url, "evaluator")
        if name is not None:
            from persona_mlflow.prism.openai_evaluator import OpenAIEvaluator

            return OpenAIEvaluator(
                base_url,
                name,
                api_key_env=api_key_env,
                votes=votes,
                concurrency=concurrency,
                requests_per_minute=requests_per_minute,
                prices=prices,
                cost_cap=cost_cap,
            )
    from persona_mlflow.prism import hf_evaluator

    return hf_evaluator.load_evaluator(
        reference,
        dtype=dtype,
        quantization=quantization,
        device=device,
        revision=revision,
        batch_size=batch_size,
    )


def load_local(
    reference: str,
    *,
    dtype: str = "auto",
    quantization: str = "none",
    device: str = "auto",
    revision: str | None = None,
) -> Loaded:
    """Load a local model once, for an evaluator and the engines of judges to share (`load_evaluator`).

    Args:
        reference: Short name of the catalogue, hub id, folder or GGUF file.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        quantization: ``none``, ``8bit`` or ``4bit``.
        device: ``auto``, or a torch device.
        revision: Branch, tag or commit on the hub; the catalogue's by default.

    Raises:
        UserError: The model cannot be found, reached or loaded, or a setting is not valid.
    """
    from persona_mlflow.catalog import load_catalogue
    from persona_mlflow.engines.identity import identify, local_path
    from persona_mlflow.engines.models import load_model

    catalogue = load_catalogue()
    model = catalogue.model(reference)
    commit = revision or model.revision
    if commit or local_path(model.id) is None:
        commit = identify(model.id, commit, known=catalogue.models)
    return load_model(model.id, dtype=dtype, quantization=quantization, device=device, revision=commit)


_SHARED: dict[str, Evaluator] = {}
_SHARED_LOCK = threading.Lock()


def shared_evaluator(reference: str) -> Evaluator:
    """An evaluator with the default settings, loaded once in a process and kept.

    Raises:
        UserError: As `load_evaluator`.
    """
    with _SHARED_LOCK:
        if reference not in _SHARED:
            _SHARED[reference] = load_evaluator(reference)
        return _SHARED[reference]


def __getattr__(name: str) -> Any:
    if name == "OpenAIEvaluator":  # it takes this module's own names
        from persona_mlflow.prism.openai_evaluator import OpenAIEvaluator

        return OpenAIEvaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
