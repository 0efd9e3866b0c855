"""AlignScore-large as a judge (P2 §4): profile and context as reference, response as claim.

AlignScore (Zha et al., ACL 2023) is a RoBERTa encoder with three heads on its pooled output; the score is the
three-way head's probability of "aligned". The reference is cut into chunks of about 350 words, the claim into
sentences; a sentence counts by its best chunk, the claim by the mean over its sentences (the method's
``nli_sp``).

The published checkpoint (``AlignScore-large.ckpt``, hub id ``yzha/AlignScore``) is read as it is, from a
local file or folder; its sizes give the architecture. It holds no tokenizer: that of ``roberta-large`` is
needed, from a local folder or the hub. Tested here on small checkpoints of the same layout; the real one
could not be run where this was written. Two differences from the authors' code: sentences are split by
punctuation rather than by NLTK's trained splitter, and a batch is padded to its longest pair rather than to
512 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.prism.judges.base import Verdict

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, RobertaModel

    from persona_mlflow.prism.cases import Case, Example

TOKENIZER = "roberta-large"
CHUNK_WORDS = 350
ALIGNED = 0
"""Position of "aligned" in the three-way head, before contradiction and neutral."""

_HEAD_SIZE = 64  # of every published RoBERTa
_END = re.compile(r"([.!?][\"')\]]*)\s+(?=[\"'(\[]*[A-Z0-9])")


class AlignScoreJudge:
    """The probability that the response is aligned with profile and context (P2 §4).

    Args:
        checkpoint: The published ``.ckpt``, a ``.safetensors`` file of the same tensors, or a folder with one
            of them.
        tokenizer: Folder or hub id of the encoder's tokenizer; a checkpoint's folder that holds a
            ``tokenizer.json`` is taken first.
        batch_size: Pairs of chunk and sentence at once.
        device: ``auto`` or a torch device.

    Raises:
        UserError: There is no such checkpoint, it is no AlignScore checkpoint, or there is no tokenizer.
    """

    name = "alignscore"
    comparable = True

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        tokenizer: str | Path = TOKENIZER,
        batch_size: int = 32,
        device: str = "auto",
    ) -> None:
        import torch

        from persona_mlflow.engines.gguf import file_hash

        path = _find(Path(checkpoint).expanduser())
        self._revision = file_hash(path)[:16]
        beside = (path.parent / "tokenizer.json").is_file()
        self._tokenizer = _load_tokenizer(path.parent if beside else tokenizer)
        self._encoder, self._head = _build(_read_state(path), path)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(device)
        self._encoder.to(self._device)  # type: ignore[arg-type]
        self._head.to(self._device)
        self._batch_size = batch_size
        # RoBERTa counts positions from 2.
        self._longest = self._encoder.config.max_position_embeddings - 2

    def identity(self) -> Mapping[str, Any]:
        """Method, the checkpoint's hash, and the size of a chunk."""
        return {"method": self.name, "checkpoint": self._revision, "chunk_words": CHUNK_WORDS}

    def score(self, examples: Sequence[Example]) -> list[Verdict]:
        """One verdict per example, in order; the rating is the score itself."""
        pairs: list[tuple[str, str]] = []
        shapes: list[tuple[int, int]] = []
        for example in examples:
            chunks = reference_chunks(reference(example.case))
            claims = sentences(example.case.response)
            shapes.append((len(chunks), len(claims)))
            pairs += [(chunk, claim) for chunk in chunks for claim in claims]
        probabilities = self.aligned(pairs)
        verdicts = []
        at = 0
        for chunk_count, claim_count in shapes:
            if not claim_count:
                verdicts.append(Verdict(None, None, "no_claim"))
                continue
            block = probabilities[at : at + chunk_count * claim_count]
            at += chunk_count * claim_count
            best = [max(block[claim::claim_count]) for claim in range(claim_count)]
            value = sum(best) / claim_count
            verdicts.append(Verdict(value, value))
        return verdicts

    def aligned(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Probability of "aligned" for each pair of reference text and claim.

        Where a pair is too long, the reference is cut; where the claim alone is, both are.
        """
        import torch

        result = [0.0] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            encoded = self._encode([pairs[i] for i in rows]).to(self._device)
            with torch.inference_mode():
                pooled = self._encoder(
                    input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]
                ).pooler_output
                probabilities = torch.softmax(self._head(pooled).double(), dim=-1)[:, ALIGNED]
            for row, probability in zip(rows, probabilities.tolist(), strict=True):
                result[row] = probability
        return result

    def _encode(self, pairs: Sequence[tuple[str, str]]) -> Any:
        room = self._longest - self._tokenizer.num_special_tokens_to_add(pair=True) - 1
        lengths = self._tokenizer([claim for _, claim in pairs], add_special_tokens=False)["input_ids"]
        too_long = any(len(ids) > room for ids in lengths)
        return self._tokenizer(
            [chunk for chunk, _ in pairs],
            [claim for _, claim in pairs],
            truncation="longest_first" if too_long else "only_first",
            max_length=self._longest,
            padding=True,
            return_tensors="pt",
        )


def reference(case: Case) -> str:
    """What the response is checked against: the profile, then the context."""
    return f"{case.profile.describe()}\n{case.context}".strip()


def sentences(text: str) -> list[str]:
    """Split a text at sentence ends and line breaks; pieces without a letter or digit are dropped."""
    pieces = (piece.strip() for piece in _END.sub("\\1\n", text).splitlines())
    return [piece for piece in pieces if any(character.isalnum() for character in piece)]


def reference_chunks(text: str) -> list[str]:
    """Cut a reference into chunks of whole sentences, about `CHUNK_WORDS` words each."""
    parts = sentences(text) or [""]
    count = len(text.split()) // CHUNK_WORDS + 1
    size = max(len(parts) // count, 1)
    return [" ".join(parts[start : start + size]) for start in range(0, len(parts), size)]


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in (".ckpt", ".safetensors"))
        if len(found) == 1:
            return found[0]
        held = f"{len(found)} checkpoints; name one" if found else "no .ckpt or .safetensors file"
        raise UserError(f"AlignScore checkpoint {path}: the folder holds {held}")
    raise UserError(
        f"AlignScore checkpoint {path}: there is no such file or folder; download AlignScore-large.ckpt from "
        "the hub (yzha/AlignScore) and name it"
    )


def _load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(source))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"AlignScore's tokenizer {str(source)!r}: cannot be loaded ({reason}); name a folder with the "
            f"tokenizer of {TOKENIZER}"
        ) from error
    return tokenizer


def _read_state(path: Path) -> Mapping[str, torch.Tensor]:
    import pickle

    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        # Tensors and plain values only: a checkpoint must not run code.
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"AlignScore checkpoint {path}: holds more than tensors and plain values, and is not loaded for "
            "safety; save its state_dict alone, as .safetensors"
        ) from error
    except Exception as error:  # torch and safetensors raise many kinds for a damaged file
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"AlignScore checkpoint {path}: cannot be read ({reason})") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    return state if isinstance(state, dict) else {}


def _build(state: Mapping[str, torch.Tensor], path: Path) -> tuple[RobertaModel, torch.nn.Linear]:
    """The encoder and its three-way head, with sizes read off the tensors."""
    import torch
    from transformers import RobertaConfig, RobertaModel

    prefix = "base_model."
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix) and not name.endswith("position_ids")
    }
    try:
        vocabulary, hidden = tensors["embeddings.word_embeddings.weight"].shape
        weight = state["tri_layer.weight"]
        config = RobertaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            num_hidden_layers=1
            + max(int(n.split(".")[2]) for n in tensors if n.startswith("encoder.layer.")),
            num_attention_heads=max(1, hidden // _HEAD_SIZE),
            intermediate_size=tensors["encoder.layer.0.intermediate.dense.weight"].shape[0],
            max_position_embeddings=tensors["embeddings.position_embeddings.weight"].shape[0],
            type_vocab_size=tensors["embeddings.token_type_embeddings.weight"].shape[0],
            layer_norm_eps=1e-5,
        )
        encoder = RobertaModel(config, add_pooling_layer=True)
        encoder.load_state_dict(tensors, strict=True)
        head = torch.nn.Linear(hidden, 3)
        head.load_state_dict({"weight": weight, "bias": state["tri_layer.bias"]})
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(
            f"AlignScore checkpoint {path}: is not one of AlignScore's, a RoBERTa under base_model with the "
            f"head tri_layer ({reason})"
        ) from error
    return encoder.eval(), head.eval()
