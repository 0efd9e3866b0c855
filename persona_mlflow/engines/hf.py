"""The local engine: any causal chat model of transformers, on whatever Accelerate finds."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from persona_mlflow.engines.base import Completion, Decoding, Request
from persona_mlflow.engines.decode import Batch, Model, Row
from persona_mlflow.engines.facts import context_length, device_name, end_of_turn_ids
from persona_mlflow.engines.memory import (
    free_bytes,
    free_memory,
    in_float32,
    is_out_of_memory,
    kv_bytes_per_token,
)
from persona_mlflow.errors import UserError
from persona_mlflow.prompting import PromptRenderer, excerpt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BatchSize = int | Literal["auto"]

# Most rows that "auto" decodes together, and most padded tokens of one prefill.
_MOST_ROWS = {"cuda": 256, "cpu": 32}
_PREFILL_TOKENS = {"cuda": 16384, "cpu": 2048}
_MEMORY_SHARE = 0.7


class HFEngine:
    """Draws completions from a local model.

    The prompts run longest first, so that memory runs out at once or never. The draws of one prompt share its
    prefill, equal greedy draws are one row, a finished row leaves the batch, and a waiting prompt takes its
    place.

    At another batch size the logits differ in their last bits, so a near tie can fall the other way (0.1 to 2
    points of accuracy in half precision, far less in float32). `deterministic` runs one row at a time.

    Args:
        model: A causal language model of `transformers`.
        tokenizer: Its tokenizer.
        decoding: How to draw.
        batch_size: Most rows (draws) at once; ``auto`` goes by the memory.
        name: The model's name, for `describe` and messages.
        details: Further facts for `describe`, e.g. revision and quantization.
        deterministic: One row at a time, so that no draw depends on its neighbours.

    Raises:
        UserError: The batch size is not positive, or the chat template is unusable.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        decoding: Decoding,
        *,
        batch_size: BatchSize = "auto",
        name: str = "model",
        details: dict[str, str | int | float | bool] | None = None,
        deterministic: bool = False,
    ) -> None:
        if batch_size != "auto" and (not isinstance(batch_size, int) or batch_size < 1):
            raise UserError(f"batch_size: {batch_size!r} is not valid: use auto or a whole number from 1")
        self.decoding = decoding
        self.renderer = PromptRenderer(tokenizer)
        tokenizer.padding_side = "left"
        self._tokenizer = tokenizer
        self._name = name
        self._details = dict(details or {})
        self._asked = batch_size
        self._deterministic = deterministic
        self._capacity: int | None = 1 if deterministic else (None if batch_size == "auto" else batch_size)
        self._most_rows: int | None = None  # known once memory ran out
        self._prefill_tokens = _PREFILL_TOKENS.get(model.device.type, 2048)
        pad = tokenizer.pad_token_id
        self._model: Model | None = Model(model, pad if pad is not None else 0)
        self.context = context_length(model.config)
        self.eos_ids = end_of_turn_ids(model, tokenizer, self.renderer)

    # ------------------------------------------------------------------------------------------ protocol

    def describe(self) -> dict[str, str | int | float | bool]:
        """The effective settings, flat; nothing of the model's own generation config is among them."""
        import accelerate
        import torch
        import transformers

        module = self._running.module
        return {
            "engine": "transformers",
            "model": self._name,
            "architecture": type(module).__name__,
            "parameters": module.num_parameters(),
            "dtype": str(module.dtype).removeprefix("torch."),
            "device": str(module.device),
            "device_name": device_name(module.device),
            "attention": str(getattr(module.config, "_attn_implementation", "unknown")),
            "batch_size": self._capacity or "auto",
            "deterministic": self._deterministic,
            "context_length": self.context or 0,
            "system_role": self.renderer.system_role,
            "prefill": self.renderer.prefill,
            "eos_token_ids": ",".join(map(str, sorted(self.eos_ids))),
            "sampling": "seeded Gumbel-max; greedy at temperature 0",
            "max_new_tokens": self.decoding.max_new_tokens,
            "top_k": self.decoding.top_k,
            "top_p": self.decoding.top_p,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "accelerate": accelerate.__version__,
            **self._details,
        }

    def check(self, requests: Iterable[Request]) -> None:
        """Raise `UserError` for a prompt that drops its persona or leaves the model's context no room.

        Each persona prompt and each task prompt is rendered once. A combination is rendered only where its
        characters are so many that it could be too long.
        """
        systems: set[str] = set()
        users: set[str] = set()
        template = len(self.renderer.text("", "x").encode()) + 64
        for request in requests:
            size = len(request.system.encode()) + len(request.user.encode()) + template
            new = request.system not in systems or request.user not in users
            if new or (self.context and size >= self.context):
                self._ids(request)
                systems.add(request.system)
                users.add(request.user)

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        """Complete every draw of every request.

        Args:
            requests: Prompts and their draws; the more at once, the better the batches.

        Yields:
            The completions that finished together, in any order.

        Raises:
            UserError: A prompt cannot be run, or memory does not even hold a single row.
        """
        queue = self._plan(requests)
        if self._asked == "auto" and not self._deterministic and queue:
            fits = self._auto_rows(len(queue[0][0].prompt))
            self._capacity = min(fits, self._most_rows) if self._most_rows else fits
        odd: list[Row] = []
        for done in self._run(queue):
            odd += [row for row in done if row.finish == "non-finite"]
            if finished := [row for row in done if row.finish != "non-finite"]:
                yield self._complete(finished)
        if odd:
            yield from self._recompute(odd)

    def close(self) -> None:
        """Free the model's memory."""
        self._model = None
        free_memory()

    # ------------------------------------------------------------------------------------------ planning

    @property
    def _running(self) -> Model:
        if self._model is None:
            raise RuntimeError("the engine is closed")
        return self._model

    def _ids(self, request: Request) -> list[int]:
        ids = self.renderer.render(request.system, request.user)
        if self.context and len(ids) >= self.context:
            raise UserError(
                f"the prompt with persona prompt {excerpt(request.system)!r} and question "
                f"{excerpt(request.user)!r} has {len(ids)} tokens, and the context of {self._name} is "
                f"{self.context}: shorten the question or use a model with a longer context"
            )
        return ids

    def _plan(self, requests: Sequence[Request]) -> deque[list[Row]]:
        """One list of rows per distinct prompt, the longest prompt first."""
        groups: dict[tuple[int, ...], dict[Any, Row]] = {}
        for request in requests:
            prompt = tuple(self._ids(request))
            room = self.decoding.max_new_tokens
            room = min(room, self.context - len(prompt)) if self.context else room
            rows = groups.setdefault(prompt, {})
            for draw in request.draws:
                temperature = float(draw.temperature)
                same = (temperature, draw.seed if temperature else None)
                if same in rows:
                    rows[same].keys += (draw.key,)
                else:
                    rows[same] = Row((draw.key,), prompt, temperature, draw.seed, room)
        return deque(
            sorted((list(rows.values()) for rows in groups.values() if rows), key=lambda g: -len(g[0].prompt))
        )

    def _auto_rows(self, longest: int) -> int:
        """How many rows of this prompt length, generated to their limit, the memory holds."""
        module = self._running.module
        device = module.device.type
        width = longest + self.decoding.max_new_tokens
        width = min(width, self.context) if self.context else width
        per_token = kv_bytes_per_token(module)
        fits = int(free_bytes(module.device) * _MEMORY_SHARE / (per_token * width))
        return max(1, min(fits, _MOST_ROWS.get(device, 32)))

    # ------------------------------------------------------------------------------------------ running

    def _run(self, queue: deque[list[Row]], capacity: int | None = None) -> Iterator[list[Row]]:
        """Decode all groups of rows; yields the rows as they end."""
        import torch

        batch = self._batch(capacity)
        while queue or batch.rows:
            joining = self._take(queue, batch)
            try:
                # Not around the yield: the mode would leak into the caller.
                with torch.inference_mode():
                    done = batch.join(joining) if joining else batch.step()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            else:
                if done:
                    yield done
                continue
            # Here, not in the except block: its traceback held on to the tensors. So did the batch.
            rows = list({id(row): row for row in (*batch.rows, *joining)}.values())
            most = min(batch.capacity, len(rows))
            del batch
            self._halve(queue, rows, most)
            batch = self._batch(capacity)

    def _batch(self, capacity: int | None) -> Batch:
        return Batch(self._running, self.decoding, self.eos_ids, capacity or self._capacity or 1)

    def _take(self, queue: deque[list[Row]], batch: Batch) -> list[Row]:
        """The rows to prefill now: none until a quarter of the batch is free, as a prefill stops the rest."""
        room = batch.room
        if batch.rows and room < max(1, batch.capacity // 4):
            return []
        taken: list[Row] = []
        tokens = prompts = 0
        while queue and room:
            group = queue[0]
            width = tokens or len(group[0].prompt)
            if prompts and (prompts + 1) * width > self._prefill_tokens:
                break
            if len(group) > room and (taken or batch.rows):
                break
            if len(group) > room:  # more draws than the whole batch holds
                queue[0] = group[room:]
                group = group[:room]
            else:
                queue.popleft()
            taken += group
            room -= len(group)
            tokens, prompts = width, prompts + 1
        return taken

    def _halve(self, queue: deque[list[Row]], rows: Sequence[Row], most: int) -> None:
        """After running out of memory with `most` rows: put them back, for half as many at a time."""
        free_memory()
        if most == 1:
            raise UserError(
                f"out of memory with a single row on {self._running.device}: use a smaller model, "
                "quantization 8bit or 4bit, or fewer max_new_tokens"
            )
        groups: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(row.prompt, []).append(row.restart())
        queue.extendleft(sorted(groups.values(), key=lambda g: len(g[0].prompt)))
        self._capacity = self._most_rows = most // 2
        self._prefill_tokens = max(1, self._prefill_tokens // 2)

    def _recompute(self, rows: list[Row]) -> Iterator[list[Completion]]:
        """Run rows whose logits were not numbers again, alone, and in float32 where the weights can be."""
        with contextlib.ExitStack() as stack:
            note = self._widen(stack)
            for row in rows:
                row.restart().notes = note
                for done in self._run(deque([[row]]), capacity=1):
                    if done[0].finish == "non-finite":
                        raise UserError(
                            f"{self._name} gives logits that are not numbers for the prompt that ends "
                            f"{self._tokenizer.decode(list(row.prompt[-20:]))!r}, even when {note}: the "
                            "weights are damaged, or dtype is too narrow for them"
                        )
                    yield self._complete(done)

    def _widen(self, stack: contextlib.ExitStack) -> str:
        """Hold the weights in float32 until the stack closes; returns the note for the rows."""
        alone = "recomputed alone after non-finite logits"
        if getattr(self._running.module, "is_quantized", False):
            return alone
        try:
            stack.enter_context(in_float32(self._running.module))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return alone
        return "recomputed in float32"

    def _complete(self, rows: Sequence[Row]) -> list[Completion]:
        completions = []
        for row in rows:
            text = self.renderer.prefill + str(
                self._tokenizer.decode(
                    row.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
            )
            finish: Literal["stop", "length"] = "stop" if row.finish == "stop" else "length"
            completions += [
                Completion(key, text, finish, len(row.prompt), len(row.tokens), row.notes) for key in row.keys
            ]
        return completions


def load_engine(
    model_ref: str,
    *,
    decoding: Decoding | None = None,
    batch_size: BatchSize = "auto",
    dtype: str = "auto",
    quantization: str = "none",
    device: str = "auto",
    revision: str | None = None,
    deterministic: bool = False,
) -> HFEngine:
    """Load a model and make its engine.

    Args:
        model_ref: Hub id, local folder, GGUF file, or ``smollm2``.
        decoding: How to draw; the paper's settings by default.
        batch_size: Most rows at once, or ``auto``.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        quantization: ``none``, ``8bit`` or ``4bit``.
        device: ``auto``, or a torch device.
        revision: Branch, tag or commit on the hub.
        deterministic: float32 and one row at a time: a draw depends on nothing but its prompt and seed.

    Returns:
        The engine.

    Raises:
        UserError: The model cannot be found, reached or loaded, or a setting is not valid.
    """
    from persona_mlflow.engines.models import load_model

    if deterministic and (quantization != "none" or dtype not in ("auto", "float32")):
        raise UserError("deterministic runs in float32: leave out dtype and quantization")
    loaded = load_model(
        model_ref,
        dtype="float32" if deterministic else dtype,
        quantization=quantization,
        device=device,
        revision=revision,
    )
    return HFEngine(
        loaded.model,
        loaded.tokenizer,
        decoding or Decoding(),
        batch_size=batch_size,
        name=loaded.name,
        details={"revision": loaded.revision, "quantization": loaded.quantization},
        deterministic=deterministic,
    )
