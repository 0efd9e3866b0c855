"""Fine-tuning one multi-label text classifier: question text → the personas that get it right (P1 Fig. 9)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_TOKENS = 512
"""Longer questions are cut to this, or to what the encoder takes where that is less."""

SUGGESTED = ("roberta-base", "distilroberta-base", "bert-base-uncased")


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """How a classifier is trained: the paper's values.

    The paper does not state the learning rate. 2e-5 is ours, a usual value for fine-tuning encoders of this
    size. As with transformers' ``Trainer``, the rate rises linearly over the warm-up and then falls linearly
    to 0, the optimiser is AdamW without weight decay on biases and norms, and gradients are clipped at 1.

    Attributes:
        epochs: Passes over the training questions.
        batch_size: Questions per step.
        learning_rate: Its highest value.
        warmup_steps: Steps until it is reached.
        weight_decay: AdamW's.
        threshold: A persona is predicted where its probability is at least this.
    """

    epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 2e-5
    warmup_steps: int = 100
    weight_decay: float = 0.01
    threshold: float = 0.5

    def __post_init__(self) -> None:
        fine = {
            "epochs": self.epochs >= 1,
            "batch_size": self.batch_size >= 1,
            "learning_rate": 0 < self.learning_rate < math.inf,
            "warmup_steps": self.warmup_steps >= 0,
            "weight_decay": 0 <= self.weight_decay < math.inf,
            "threshold": 0 < self.threshold < 1,
        }
        for name, good in fine.items():
            if not good:
                raise UserError(
                    f"{name}: {getattr(self, name)!r} is out of range; the paper's is {_PAPER[name]}"
                )

    def as_dict(self) -> dict[str, Any]:
        """The values by name."""
        return asdict(self)


_PAPER = {
    "epochs": "50",
    "batch_size": "64",
    "learning_rate": "not stated, ours is 2e-5",
    "warmup_steps": "100",
    "weight_decay": "0.01",
    "threshold": "0.5",
}


def sample_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Sample-averaged F1: each question's F1 over its set of personas, averaged over questions.

    scikit-learn's ``f1_score(average="samples", zero_division=0)``, which takes no single label: a question
    that no persona gets right and for which none is predicted scores 0.

    Args:
        truth: Boolean, question × persona: who gets it right.
        predicted: Boolean, the same shape.

    Returns:
        A fraction of 1.
    """
    both = (truth & predicted).sum(axis=1)
    either = truth.sum(axis=1) + predicted.sum(axis=1)
    return float((2 * both / np.maximum(either, 1)).mean())


class Classifier:
    """A pretrained encoder and the questions in its tokens, ready to be trained on any setting's labels.

    Every training starts from the same weights, those of the new output layer included, and sees the
    questions in the same order, so that settings differ in their labels alone.

    Args:
        encoder: Hub id or local folder.
        revision: The hub's commit; None for a folder.
        texts: The questions.
        labels: Number of personas.
        seed: Of the output layer, the order of the questions and dropout.
        device: ``auto`` or a torch device.

    Attributes:
        truncated: How many questions are longer than the encoder takes, and were cut at their end.

    Raises:
        UserError: There is no encoder there, or its tokenizer is missing.
    """

    def __init__(
        self,
        encoder: str,
        revision: str | None,
        texts: Sequence[str],
        labels: int,
        *,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.seed = seed
        self._labels = labels
        self.device = _device(device)
        with _seeded(seed, self.device):
            self._base, tokenizer = _load(encoder, revision, labels)
        limit = _longest(self._base, tokenizer)
        whole = tokenizer(list(texts), verbose=False)["input_ids"]
        self.truncated = sum(len(ids) > limit for ids in whole)
        self._tokens: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
        self._pad = int(self._base.config.pad_token_id)

    def train(
        self,
        labels: np.ndarray,
        parts: Mapping[str, np.ndarray],
        options: Hyperparameters,
        on_epoch: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """Train on the labels of one setting.

        Args:
            labels: Boolean, question × persona.
            parts: ``train``, ``validation``, ``test`` → positions of questions.
            options: How.
            on_epoch: Called with the number of epochs done.

        Returns:
            ``f1`` (test) and ``f1_validation`` of the last epoch; ``f1_at_best_validation``, the test F1 of
            the epoch ``best_epoch`` (from 1) with the best validation F1, the first of equals; ``reason``,
            why they are None, or None.

        Raises:
            UserError: The GPU's memory is too small.
        """
        import torch

        from persona_mlflow.engines.models import quiet_transformers

        try:
            with _seeded(self.seed, self.device), quiet_transformers():
                return self._train(labels, parts, options, on_epoch)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"batch_size {options.batch_size}: {self.device} has too little memory; give a smaller one"
            ) from error

    def _train(
        self,
        labels: np.ndarray,
        parts: Mapping[str, np.ndarray],
        options: Hyperparameters,
        on_epoch: Callable[[int], None] | None,
    ) -> dict[str, Any]:
        import torch
        from transformers import get_linear_schedule_with_warmup

        model = copy.deepcopy(self._base).to(self.device)  # type: ignore[arg-type]
        targets = torch.from_numpy(labels.astype(np.float32))
        optimizer = torch.optim.AdamW(_decayed(model, options.weight_decay), lr=options.learning_rate)
        batches = math.ceil(len(parts["train"]) / options.batch_size)
        schedule = get_linear_schedule_with_warmup(optimizer, options.warmup_steps, batches * options.epochs)
        order = np.random.default_rng(self.seed)
        best, found = -1.0, {"f1": 0.0, "f1_validation": 0.0, "f1_at_best_validation": 0.0, "best_epoch": 0}

        def score(part: str) -> float:
            predicted = self._predict(model, parts[part], options)
            return sample_f1(labels[parts[part]], predicted)

        for epoch in range(1, options.epochs + 1):
            model.train()
            total = torch.zeros((), device=self.device)
            shuffled = order.permutation(parts["train"])
            for start in range(0, len(shuffled), options.batch_size):
                rows = shuffled[start : start + options.batch_size]
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    self._logits(model, rows), targets[rows].to(self.device)
                )
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                total += loss.detach()
            if not bool(torch.isfinite(total)):
                reason = f"the loss left the finite numbers in epoch {epoch}; lower the learning rate"
                return {**dict.fromkeys(found), "reason": reason}
            found["f1_validation"] = score("validation")
            if found["f1_validation"] > best or epoch == options.epochs:
                found["f1"] = score("test")
            if found["f1_validation"] > best:
                best = found["f1_validation"]
                found["f1_at_best_validation"], found["best_epoch"] = found["f1"], epoch
            if on_epoch is not None:
                on_epoch(epoch)
        return {**found, "reason": None}

    def _predict(self, model: PreTrainedModel, rows: np.ndarray, options: Hyperparameters) -> np.ndarray:
        """Boolean, row × persona."""
        import torch

        model.eval()
        by_length = sorted(range(len(rows)), key=lambda i: len(self._tokens[rows[i]]))
        found = np.zeros((len(rows), self._labels), dtype=np.bool_)
        with torch.inference_mode():
            for start in range(0, len(rows), options.batch_size):
                some = by_length[start : start + options.batch_size]
                probabilities = torch.sigmoid(self._logits(model, rows[some]))
                found[some] = (probabilities >= options.threshold).cpu().numpy()
        return found

    def _logits(self, model: PreTrainedModel, rows: np.ndarray) -> torch.Tensor:
        """Row × persona, float32."""
        import torch

        tokens = [self._tokens[row] for row in rows]
        width = max(map(len, tokens))
        ids = torch.tensor([row + [self._pad] * (width - len(row)) for row in tokens])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in tokens])
        half = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            output = model(input_ids=ids.to(self.device), attention_mask=mask.to(self.device))
        logits: torch.Tensor = output.logits.float()
        return logits


def encoder_identity(encoder: str) -> str:
    """Identify an encoder's weights: ``files:…`` over a folder's files, or the hub's commit.

    Raises:
        UserError: There is no such encoder.
    """
    from persona_mlflow.engines.identity import identify

    path = Path(encoder).expanduser()
    mend = "name a folder that save_pretrained wrote, or a hub id such as roberta-base"
    if path.is_file():
        raise UserError(f"encoder {encoder!r}: is a file; {mend}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise UserError(f"encoder {encoder!r}: the folder holds no config.json; {mend}")
    if not path.is_dir() and (path.is_absolute() or encoder.startswith((".", "~"))):
        raise UserError(f"encoder {encoder!r}: there is no such folder; {mend}")
    try:
        return identify(encoder)
    except UserError as error:
        reason = (str(error.__cause__ or error).strip() or "no answer").splitlines()[0].rstrip(".")
        hint = "" if encoder in SUGGESTED else f" {choices(encoder, SUGGESTED)};"
        raise UserError(
            f"encoder {encoder!r}: no folder of this name, and the hub did not give it ({reason});{hint} "
            "check the network, or name a folder that holds it"
        ) from error


def _load(encoder: str, revision: str | None, labels: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from persona_mlflow.engines.models import quiet_transformers

    folder = Path(encoder).expanduser()
    source = str(folder) if folder.is_dir() else encoder
    pin = {"revision": revision} if revision else {}
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, **pin)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                source,
                num_labels=labels,
                problem_type="multi_label_classification",
                ignore_mismatched_sizes=True,  # a head that was trained on other labels is replaced
                output_loading_info=True,
                dtype="float32",
                **pin,
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"encoder {encoder!r}: cannot be loaded as a text classifier ({reason}); name a folder that "
            "save_pretrained wrote with its tokenizer, or a hub id such as roberta-base"
        ) from error
    body = f"{model.base_model_prefix}."
    mismatched = [key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]]
    unfit = [k for k in (*report["missing_keys"], *mismatched) if k.startswith(body) and "pooler" not in k]
    if unfit:
        raise UserError(
            f"encoder {encoder!r}: its weights do not fit its config.json: {len(unfit)} of a "
            f"{type(model).__name__} are absent or of another size, the first: {unfit[0]}"
        )
    # Without its files transformers makes up a tokenizer that knows the special tokens alone.
    ids = set(tokenizer("Which of these is right?")["input_ids"]) - set(tokenizer.all_special_ids)
    if not ids or max(ids) >= model.get_input_embeddings().weight.shape[0]:
        raise UserError(
            f"encoder {encoder!r}: its tokenizer is missing or another model's; put the tokenizer's files "
            "(tokenizer.json, tokenizer_config.json) beside the weights"
        )
    if model.config.pad_token_id is None:
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"encoder {encoder!r}: neither its config nor its tokenizer names a padding token"
            )
        model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def _longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens of a text."""
    positions = getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS
    # RoBERTa and its kin number positions from behind the padding's.
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    return int(
        min(MAX_TOKENS, tokenizer.model_max_length, positions - (0 if padding is None else padding + 1))
    )


def _decayed(model: PreTrainedModel, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weight decay on matrices, none on biases and norms."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        from accelerate import PartialState

        return torch.device(PartialState().device)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device: {name!r} is not there; use auto, cpu, cuda or cuda:1") from error
    return device


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside, and leave its generators outside as they are."""
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
