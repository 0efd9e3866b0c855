"""The local evaluator: any causal model of transformers; the prompts of a case share their prefix."""

from __future__ import annotations

import contextlib
import inspect
import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from persona_mlflow.engines.facts import context_length, device_name
from persona_mlflow.engines.memory import (
    free_bytes,
    free_memory,
    in_float32,
    is_out_of_memory,
    kv_bytes_per_token,
)
from persona_mlflow.errors import UserError
from persona_mlflow.prism.evaluators import Facts, LabelScore, load_local, unscored
from persona_mlflow.prism.label_tokens import Group, LabelTokens, Row, group_rows, right_pad, take_batch
from persona_mlflow.prism.prompt import LabelPrompt, LabelRenderer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from persona_mlflow.engines.models import Loaded

# Most prompts at once, and most padded tokens of one forward pass.
_MOST_PROMPTS = {"cuda": 384, "cpu": 96}
_PASS_TOKENS = {"cuda": 16384, "cpu": 2048}
_MEMORY_SHARE = 0.7
# Groups whose token ids are held at a time, sorted among themselves.
_BLOCK = 256


class HFEvaluator:
    """Scores labels with a local causal model, one forward pass per prompt (P2 §3).

    Labels are tokenised jointly with the prompt, as ``A`` and as `` A``, and the variant with more mass
    counts. The prompts of a case share the pass over their common prefix. Only the last position's logits
    are computed. Memory does not grow with the number of cases. Several threads may score at once: they take
    turns, batch by batch.

    Args:
        model: A causal language model of `transformers`.
        tokenizer: Its tokenizer.
        name: The model's name, for `describe` and messages.
        details: Further facts for `describe`; ``revision`` and ``quantization`` are part of the identity.
        batch_size: Most prompts at once; ``auto`` goes by the memory.
        share_prefix: Whether the prompts of a case share the pass over their common prefix.

    Raises:
        UserError: The batch size is not positive, or the chat template is unusable.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "model",
        details: Facts | None = None,
        batch_size: int | Literal["auto"] = "auto",
        share_prefix: bool = True,
    ) -> None:
        if batch_size != "auto" and (not isinstance(batch_size, int) or batch_size < 1):
            raise UserError(f"batch_size: {batch_size!r} is not valid: use auto or a whole number from 1")
        from persona_mlflow.engines.kv import RowsCache

        self.renderer = LabelRenderer(tokenizer)
        self._module: Any = model
        self._name = name
        self._details = dict(details or {})
        self._recomputed = 0  # prompts whose logits were not numbers at first
        self._capacity: int | None = None if batch_size == "auto" else batch_size
        self._pass_tokens = _PASS_TOKENS.get(model.device.type, 2048)
        self._pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
        self.context = context_length(model.config)
        # A state other than keys and values (Mamba, convolutions …) cannot be continued by several tokens.
        self._shares = share_prefix and RowsCache(model.config).grows
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_positions = "position_ids" in names
        self._tokens = LabelTokens(self.renderer, name)
        self._lock = threading.Lock()  # renderer and model hold what belongs to one call

    # ------------------------------------------------------------------------------------------ protocol

    def describe(self) -> Facts:
        """The effective settings, flat."""
        import torch
        import transformers

        return {
            **self.identity(),
            "architecture": type(self._module).__name__,
            "parameters": self._module.num_parameters(),
            "device": str(self._module.device),
            "device_name": device_name(self._module.device),
            "batch_size": self._capacity or "auto",
            "shared_prefix": self._shares,
            "context_length": self.context or 0,
            "recomputed": self._recomputed,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **self._details,
        }

    def identity(self) -> Facts:
        """Model, revision, precision and system role: what tells its scores from another evaluator's."""
        return {
            "engine": "transformers",
            "model": self._name,
            "revision": str(self._details.get("revision", "")),
            "quantization": str(self._details.get("quantization", "none")),
            "dtype": str(self._module.dtype).removeprefix("torch."),
            "system_role": self.renderer.system_role,
        }

    def label_scores(self, groups: Iterable[Sequence[LabelPrompt]]) -> Iterator[list[LabelScore]]:
        """Score groups of prompts, longest first within blocks of groups (see `Evaluator`).

        Raises:
            UserError: A label cannot be one token, a prompt cannot be rendered, or memory does not hold a
                single prompt.
        """
        source = iter(groups)
        while block := list(islice(source, _BLOCK)):
            ready: list[Group] = []
            refused: list[LabelScore] = []
            for prompts in block:
                with self._lock:
                    group = self._group(prompts, refused)
                if group.prompts:
                    ready.append(group)
            if refused:
                yield refused
            ready.sort(key=lambda group: -group.longest)
            yield from self._run(deque(ready))

    def close(self) -> None:
        """Free the model's memory."""
        self._module = None
        free_memory()

    # ------------------------------------------------------------------------------------------ tokens

    def _group(self, prompts: Sequence[LabelPrompt], refused: list[LabelScore]) -> Group:
        """Tokenise a case's prompts; those that are too long go to `refused`."""
        tokenised = []
        for prompt in prompts:
            rows = self._tokens.rows(prompt)
            longest = max(len(row.ids) for row in rows) + 1
            if self.context and longest > self.context:
                reason = f"the prompt has {longest} tokens, and the context of {self._name} is {self.context}"
                refused.append(unscored(prompt, reason))
            else:
                tokenised.append(rows)
        return group_rows(tokenised, share=self._shares)

    # ------------------------------------------------------------------------------------------ batches

    def _run(self, queue: deque[Group]) -> Iterator[list[LabelScore]]:
        import torch

        odd: list[LabelPrompt] = []
        if self._capacity is None and queue:
            self._capacity = self._auto(queue[0])
        while queue:
            batch = take_batch(queue, self._capacity or 1, self._pass_tokens)
            try:
                # Not around the yield: the mode would leak into the caller.
                with self._lock, torch.inference_mode():
                    scores = self._score(batch)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            else:
                odd += [prompt for prompt, score in scores if score is None]
                yield [score for _, score in scores if score is not None]
                continue
            self._halve(queue, batch)
        if odd:
            with self._lock:
                again = [self._again(prompt) for prompt in odd]
            yield again

    def _auto(self, group: Group) -> int:
        """How many prompts of this length the memory holds."""
        device = self._module.device
        per_prompt = kv_bytes_per_token(self._module) * (group.longest + 256) * 2
        fits = int(free_bytes(device) * _MEMORY_SHARE / per_prompt)
        return max(1, min(fits, _MOST_PROMPTS.get(device.type, 96)))

    def _halve(self, queue: deque[Group], batch: list[Group]) -> None:
        """After running out of memory: put the batch back, for half as many prompts at a time."""
        free_memory()
        most = sum(len(group.prompts) for group in batch)
        if most == 1:
            raise UserError(
                f"out of memory with a single prompt on {self._module.device}: use a smaller evaluator, or "
                "quantization 8bit or 4bit"
            )
        self._capacity = most // 2
        self._pass_tokens = max(1, self._pass_tokens // 2)
        queue.extendleft(reversed(batch))

    def _score(self, batch: Sequence[Group]) -> list[tuple[LabelPrompt, LabelScore | None]]:
        rows = [row for group in batch for row in group.rows]
        log_p = self._last_log_p(batch, rows)
        best: dict[tuple[Any, ...], LabelScore | None] = {}
        prompts: dict[tuple[Any, ...], LabelPrompt] = {}
        place = iter(log_p)
        for row in rows:
            for target in row.targets:
                values = tuple(next(place))
                key = target.prompt.key
                prompts[key] = target.prompt
                if not all(map(math.isfinite, values)):
                    best[key] = None
                    continue
                score = LabelScore(key, target.prompt.order, values, target.variant)
                before = best.get(key, score)
                if before is not None:
                    best[key] = max(before, score, key=lambda s: s.mass)
        return [(prompts[key], score) for key, score in best.items()]

    def _last_log_p(self, batch: Sequence[Group], rows: Sequence[Row]) -> list[list[float]]:
        """Log-probabilities of every target's labels, in the order of rows and targets."""
        import torch

        logits = self._shared(batch, rows) if batch[0].prefix else self._whole(rows)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        targets = [(i, target.labels) for i, row in enumerate(rows) for target in row.targets]
        which = torch.tensor([i for i, _ in targets], device=logits.device)
        labels = torch.tensor([ids for _, ids in targets], device=logits.device)
        total = logits.logsumexp(dim=-1)
        picked: list[list[float]] = (logits[which.unsqueeze(1), labels] - total[which].unsqueeze(1)).tolist()
        return picked

    # ------------------------------------------------------------------------------------------ passes

    def _shared(self, batch: Sequence[Group], rows: Sequence[Row]) -> Tensor:
        """Run each group's prefix once, then what follows it in every row, on copies of its cache.

        Prefixes are padded on the left and the rest on the right, so that the tokens of a row lie side by
        side, as sliding windows need it.
        """
        import torch

        from persona_mlflow.engines.decode import left_pad
        from persona_mlflow.engines.kv import RowsCache

        device = self._module.get_input_embeddings().weight.device
        ids, mask = left_pad([group.rows[0].ids[: group.prefix] for group in batch], self._pad, device)
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        prefilled = RowsCache(self._module.config)
        end = torch.full((len(batch),), ids.shape[1] - 1, device=device)
        self._forward(ids, mask, positions, end, prefilled.cache)

        cache = RowsCache(self._module.config)
        index = torch.tensor([i for i, group in enumerate(batch) for _ in group.rows], device=device)
        cache.adopt(prefilled, index, len(rows))
        starts = [group.prefix for group in batch for _ in group.rows]
        rest, rest_mask = right_pad(
            [row.ids[n:] for row, n in zip(rows, starts, strict=True)], self._pad, device
        )
        mask = torch.cat([mask[index], rest_mask], dim=1)
        positions = (mask.cumsum(dim=-1) - 1)[:, -rest.shape[1] :]
        return self._forward(rest, mask, positions, rest_mask.sum(dim=1) - 1, cache.cache)

    def _whole(self, rows: Sequence[Row]) -> Tensor:
        device = self._module.get_input_embeddings().weight.device
        ids, mask = right_pad([row.ids for row in rows], self._pad, device)
        return self._forward(ids, mask, mask.cumsum(dim=-1) - 1, mask.sum(dim=1) - 1, None)

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, last: Tensor, cache: Any) -> Tensor:
        """Logits at one position of each row.

        Args:
            ids: Tokens, ``[rows, new]``.
            mask: 1 for a token, 0 for padding, ``[rows, cached + new]``.
            positions: Position of each token within its prompt, ``[rows, new]``.
            last: Index among the new tokens of the one to read, ``[rows]``.
            cache: The rows' cache, or None.

        Returns:
            ``[rows, vocabulary]``.
        """
        import torch

        def narrow(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden = inputs[0]
            picked = hidden[torch.arange(len(last), device=hidden.device), last.to(hidden.device)]
            return (picked.unsqueeze(1), *inputs[1:])

        # Before the output layer and not in its place: models scale or cap the logits after it.
        head = self._module.get_output_embeddings()
        kwargs: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            kwargs[self._cache_name] = cache
        if self._takes_positions:
            kwargs["position_ids"] = positions
        with contextlib.ExitStack() as stack:
            if head is not None:
                stack.callback(head.register_forward_pre_hook(narrow).remove)
            logits: Tensor = self._module(input_ids=ids, attention_mask=mask, **kwargs).logits
        if logits.shape[1] == 1:
            return logits[:, 0]
        return logits[torch.arange(len(last), device=logits.device), last.to(logits.device)]

    def _again(self, prompt: LabelPrompt) -> LabelScore:
        """Score a prompt again whose logits were not numbers: alone, and in float32 where that can be."""
        import torch

        self._recomputed += 1
        group = self._group([prompt], [])
        with contextlib.ExitStack() as stack:
            if not getattr(self._module, "is_quantized", False):
                stack.enter_context(in_float32(self._module))
            with torch.inference_mode():
                score = self._score([group])[0][1]
        return score or unscored(prompt, f"{self._name} gave logits that are not numbers")


def load_evaluator(
    reference: str | Loaded,
    *,
    dtype: str = "auto",
    quantization: str = "none",
    device: str = "auto",
    revision: str | None = None,
    batch_size: int | Literal["auto"] = "auto",
) -> HFEvaluator:
    """Load a local model as evaluator.

    Args:
        reference: Short name of the catalogue, hub id, folder or GGUF file; or what `load_local` gave, which
            the other settings but `batch_size` leave as it is.
        dtype: ``auto`` (float32 on a CPU), ``float32``, ``bfloat16`` or ``float16``.
        quantization: ``none``, ``8bit`` or ``4bit``.
        device: ``auto``, or a torch device.
        revision: Branch, tag or commit on the hub.
        batch_size: Most prompts at once, or ``auto``.

    Raises:
        UserError: The model cannot be found, reached or loaded, or a setting is not valid.
    """
    if isinstance(reference, str):
        reference = load_local(
            reference, dtype=dtype, quantization=quantization, device=device, revision=revision
        )
    return HFEvaluator(
        reference.model,
        reference.tokenizer,
        name=reference.name,
        details={"revision": reference.revision, "quantization": reference.quantization},
        batch_size=batch_size,
    )
