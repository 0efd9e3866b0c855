"""Best-persona prediction: can the question alone say which persona will answer it right? (P1 Fig. 9)

For each setting a text classifier is fine-tuned: question text → the personas that get the question right in
that setting. Its sample-averaged F1 on questions that it has not seen says how far the choice of the best
persona can be predicted there; the more stable the setting, the better it should do.

The paper: roberta-base, 50 epochs, batches of 64, 100 warm-up steps, weight decay 0.01, a split of 70/10/20,
threshold 0.5. It states neither the learning rate (2e-5 here) nor which epoch's weights count: ``f1`` is the
last epoch's, and ``f1_at_best_validation`` stands beside it.

Every finished setting is a line of ``best_persona.jsonl``, so a training that was cut short goes on with the
next setting.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from persona_mlflow.analyses.best_persona_training import (
    Classifier,
    Hyperparameters,
    encoder_identity,
    sample_f1,
)
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import xarray as xr

ROWS = "best_persona.jsonl"
RESULT = "best_persona.json"
TABLE = "best_persona.csv"
FEWEST = 10
NUMBERS = ("f1", "f1_validation", "f1_at_best_validation", "best_epoch", "base_rate", "ceiling")
# Of ten questions in a row: seven to train, one to validate, two to test.
_TURNS = ("train", "train", "test", "train", "validation", "train", "train", "test", "train", "train")

Progress = Callable[[int, int, int], None]
"""Called with the settings finished, the settings in all, and the epochs done in the one in training."""


def predict_best_personas(
    dataset: xr.Dataset,
    questions: pd.DataFrame,
    encoder: str = "roberta-base",
    *,
    folder: Path,
    epochs: int = 50,
    batch_size: int = 64,
    learning_rate: float = 2e-5,
    warmup_steps: int = 100,
    weight_decay: float = 0.01,
    threshold: float = 0.5,
    seed: int = 0,
    limit: int | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> xr.Dataset:
    """Train one classifier per setting, and score it (P1 Fig. 9).

    Args:
        dataset: As `persona_mlflow.outcomes.load_outcomes` gives it; it may be incomplete.
        questions: One row per question: ``id``, ``text``, ``category``. The text alone is the input.
        encoder: Hub id, or a folder that ``save_pretrained`` wrote.
        folder: Where finished settings are kept; a later call with the same data, encoder,
            hyperparameters and seed takes them from there.
        epochs: Passes over the training questions.
        batch_size: Questions per step.
        learning_rate: Its highest value; not stated in the paper.
        warmup_steps: Steps until it is reached.
        weight_decay: AdamW's.
        threshold: A persona is predicted where its probability is at least this.
        seed: Of the split and of the training.
        limit: Only so many settings, drawn at random; a greater limit's include a smaller one's.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` …
        progress: Told what is done.

    Returns:
        A dataset over the factors, fractions of 1, NaN where undefined:

        - ``f1``: sample-averaged F1 on the test questions, after the last epoch;
        - ``f1_validation``: the same on the validation questions;
        - ``f1_at_best_validation``: test F1 after the epoch ``best_epoch``, the best on validation;
        - ``base_rate``: test F1 of always predicting the personas that are right on more than half of the
          training questions, whatever the question: what an F1 has to beat;
        - ``ceiling``: the share of test questions that any persona gets right, the highest F1 that there
          can be, since a question without a right persona scores 0;
        - ``reason``: why there is no F1; empty where there is.

    Raises:
        UserError: There are too few questions, no such encoder, or a hyperparameter out of range.
    """
    import xarray as xr

    options = Hyperparameters(epochs, batch_size, learning_rate, warmup_steps, weight_decay, threshold)
    if limit is not None and limit < 1:
        raise UserError(f"limit: {limit} settings; give 1 or more")
    factors = [str(dim) for dim in dataset["correct"].dims if dim not in ("persona", "question")]
    levels = {name: dataset[name].values.tolist() for name in factors}
    texts, order = _texts(dataset, questions)
    split = split_questions(texts, seed)
    parts = {part: np.flatnonzero(split == part) for part in ("train", "validation", "test")}
    shape = tuple(len(values) for values in levels.values())
    labels = _flat(dataset["correct"], factors)[order]
    missing = (_flat(dataset["status"], factors)[order] < 0).any(axis=0)
    personas = [str(name) for name in dataset["persona"].values]
    settings = [dict(zip(factors, combination, strict=True)) for combination in product(*levels.values())]
    chosen = np.random.default_rng(seed).permutation(len(settings))[:limit]
    identity = encoder_identity(encoder)
    common = {
        "encoder": identity,
        "hyperparameters": options.as_dict(),
        "seed": seed,
        "data": _data_hash(texts, personas, [dataset.attrs.get(key) for key in ("experiment", "model")]),
    }
    results: list[Mapping[str, Any]] = [{"reason": "left out: only some settings were asked for"}] * len(
        settings
    )
    folder.mkdir(parents=True, exist_ok=True)
    with _rows(folder / ROWS) as rows:
        classifier: Classifier | None = None
        tokens_cut: int | None = None
        for done, i in enumerate(sorted(chosen.tolist())):
            reason, scores = _before(labels[:, :, i], missing[:, i], parts)
            key = _key(common, settings[i], labels[:, :, i])
            if reason is None and key not in rows:
                if classifier is None:
                    commit = None if identity.startswith("files:") else identity
                    classifier = Classifier(
                        encoder, commit, texts["text"].tolist(), len(personas), seed=seed, device=device
                    )
                found = classifier.train(
                    labels[:, :, i], parts, options, _epochs(progress, done, len(chosen))
                )
                rows.add({"key": key, **common, "setting": settings[i], **found, "cut": classifier.truncated})
            row: dict[str, Any] = rows.get(key) if reason is None else {"reason": reason}
            tokens_cut = row.get("cut", tokens_cut)
            results[i] = {**scores, **row}
            if progress is not None:
                progress(done + 1, len(chosen), 0)
    values: dict[str, Any] = {
        name: (factors, np.array([_float(row.get(name)) for row in results]).reshape(shape))
        for name in NUMBERS
    }
    reasons = np.array([row.get("reason") or "" for row in results], dtype=object)
    attrs = {
        **{key: dataset.attrs[key] for key in ("experiment", "model") if key in dataset.attrs},
        "unit": "fraction",
        "encoder": encoder,
        "encoder_identity": identity,
        "hyperparameters": options.as_dict(),
        "seed": seed,
        "questions": {part: len(positions) for part, positions in parts.items()},
        "questions_cut": tokens_cut,
        "warnings": _warnings(options, len(parts["train"]), tokens_cut, encoder),
    }
    return xr.Dataset({**values, "reason": (factors, reasons.reshape(shape))}, levels, attrs)


def split_questions(questions: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """Split questions 70/10/20 into ``train``, ``validation`` and ``test``, stratified by category.

    Within a category the questions stand in an order that the seed and each text alone decide; along all
    categories each ten in a row give seven, one and two. So every category has its share, to within a
    question or two, and the split depends neither on the order of the rows nor on the setting. Questions of
    one text stay together: what is tested was not trained on.

    Args:
        questions: ``text`` and ``category``.
        seed: Of the order.

    Returns:
        The part of each row.

    Raises:
        UserError: There are fewer than ten different questions.
    """
    texts, categories = questions["text"].tolist(), questions["category"].tolist()

    def place(i: int) -> tuple[str, bytes]:
        return str(categories[i]), hashlib.blake2b(f"split\0{seed}\0{texts[i]}".encode()).digest()

    part: dict[str, str] = {}
    for i in sorted(range(len(texts)), key=place):
        part.setdefault(texts[i], _TURNS[len(part) % len(_TURNS)])
    if len(part) < FEWEST:
        raise UserError(
            f"best-persona prediction: {len(part)} different questions are too few to train, validate and "
            f"test; it takes {FEWEST} or more, and hundreds to learn from"
        )
    return np.array([part[text] for text in texts])


def by_level(result: xr.Dataset) -> xr.Dataset:
    """Average the F1 over the settings of each factor level (P1 Fig. 9).

    Args:
        result: What `predict_best_personas` returns.

    Returns:
        A dataset over ``factor_level`` (labels such as ``temperature 0.5``): ``value``, the mean of ``f1``
        over the settings of that level; ``low`` and ``high``, the least and the greatest of them, which is
        no interval; ``base_rate`` and ``ceiling``, the means over the same settings; ``settings``, how many
        these are; ``reason``, how many settings have no F1 and why.
    """
    import xarray as xr

    from persona_mlflow.analyses.study import level_label

    rows = []
    for factor in map(str, result["f1"].dims):
        for level in result[factor].values.tolist():
            part = result.sel({factor: level})
            f1 = part["f1"].values.ravel()
            defined = ~np.isnan(f1)
            rows.append(
                {
                    "factor_level": level_label(factor, level),
                    "value": _mean(f1[defined]),
                    "low": float(f1[defined].min()) if defined.any() else math.nan,
                    "high": float(f1[defined].max()) if defined.any() else math.nan,
                    "base_rate": _mean(part["base_rate"].values.ravel()[defined]),
                    "ceiling": _mean(part["ceiling"].values.ravel()[defined]),
                    "settings": int(defined.sum()),
                    "reason": _left_out(part["reason"].values.ravel()[~defined].tolist(), f1.size),
                }
            )
    names = ("value", "low", "high", "base_rate", "ceiling", "settings", "reason")
    coords = {"factor_level": [row["factor_level"] for row in rows]}
    attrs = {**result.attrs, "low_high": "the least and the greatest F1 of the settings of that level"}
    return xr.Dataset({name: ("factor_level", [row[name] for row in rows]) for name in names}, coords, attrs)


def save_best_personas(result: xr.Dataset, folder: Path) -> tuple[Path, Path]:
    """Write a result to ``best_persona.json`` and, a line per setting, ``best_persona.csv``.

    Returns:
        Both paths. Undefined numbers are null in the one and empty in the other.
    """
    from persona_mlflow.ledger import write_atomically

    factors = [str(dim) for dim in result["f1"].dims]
    content = {
        "factors": {name: result[name].values.tolist() for name in factors},
        "attrs": result.attrs,
        "settings": [
            {**setting, **{name: None if _is_nan(value) else value for name, value in found.items()}}
            for setting, found in _settings(result)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(folder / RESULT, text.encode())
    import pandas as pd

    frame = pd.DataFrame([{**setting, **found} for setting, found in _settings(result)])
    frame["best_epoch"] = frame["best_epoch"].astype("Int64")
    write_atomically(folder / TABLE, frame.to_csv(index=False).encode())
    return folder / RESULT, folder / TABLE


def load_best_personas(path: str | Path) -> xr.Dataset:
    """Read back what `save_best_personas` wrote.

    Args:
        path: ``best_persona.json``, or the folder that holds it.

    Returns:
        As `predict_best_personas`.

    Raises:
        UserError: There is no such file, or it holds something else.
    """
    import xarray as xr

    file = Path(path) / RESULT if Path(path).is_dir() else Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        factors: dict[str, list[Any]] = content["factors"]
        rows, shape = content["settings"], [len(values) for values in factors.values()]
        values: dict[str, Any] = {
            name: (list(factors), np.array([_float(row[name]) for row in rows]).reshape(shape))
            for name in NUMBERS
        }
        reasons = np.array([row["reason"] for row in rows], dtype=object).reshape(shape)
        return xr.Dataset({**values, "reason": (list(factors), reasons)}, factors, content["attrs"])
    except FileNotFoundError as error:
        raise UserError(f"{file}: there is no such file; persona-mlflow predict writes it") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file}: is not what persona-mlflow predict writes ({error!r}); run it again"
        ) from error


def _texts(dataset: xr.Dataset, questions: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """The dataset's questions in the order of their ids, and their positions in the dataset."""
    known = questions.set_index("id")
    ids = dataset["question"].values.tolist()
    unknown = [name for name in ids if name not in known.index]
    if unknown:
        raise UserError(
            f"questions: {len(unknown)} of {len(ids)} questions of the experiment have no text here, the "
            f"first: {unknown[0]}; give the experiment's own questions.parquet"
        )
    order = sorted(range(len(ids)), key=lambda i: str(ids[i]))
    return known.loc[[ids[i] for i in order]].reset_index(), np.array(order, dtype=np.intp)


def _flat(values: xr.DataArray, factors: list[str]) -> np.ndarray:
    """Question × persona × setting."""
    moved = values.transpose("question", "persona", *factors).values
    return moved.reshape(*moved.shape[:2], -1)


def _data_hash(texts: pd.DataFrame, personas: list[str], names: list[Any]) -> str:
    from persona_mlflow.spec import digest

    return digest([texts[["id", "text", "category"]].astype(str).values.tolist(), personas, names], 32)


def _key(common: Mapping[str, Any], setting: Mapping[str, Any], labels: np.ndarray) -> str:
    """Identify a training by all that decides its result, the answers themselves included."""
    from persona_mlflow.spec import digest

    return digest([common, setting, hashlib.sha256(np.packbits(labels).tobytes()).hexdigest()], 32)


def _before(
    labels: np.ndarray, missing: np.ndarray, parts: Mapping[str, np.ndarray]
) -> tuple[str | None, dict[str, float]]:
    """Why a setting has no F1, and what is known of it without training."""
    if missing.any():
        return f"{missing.sum()} of {missing.size} runs are unfinished; finish them", {}
    truth = labels[parts["test"]]
    if not truth.any():
        return "no persona is right on any test question, so every prediction would score 0", {"ceiling": 0.0}
    usual = np.broadcast_to(labels[parts["train"]].mean(axis=0) > 0.5, truth.shape)
    return None, {"base_rate": sample_f1(truth, usual), "ceiling": float(truth.any(axis=1).mean())}


def _epochs(progress: Progress | None, done: int, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda epoch: progress(done, total, epoch)


def _warnings(options: Hyperparameters, train: int, cut: int | None, encoder: str) -> list[str]:
    steps = math.ceil(train / options.batch_size) * options.epochs
    found = []
    if steps <= 2 * options.warmup_steps:
        found.append(
            f"{steps} training steps, {options.warmup_steps} of them to warm up: too few questions or epochs "
            "for the classifier to learn much"
        )
    if cut:
        found.append(f"{cut} questions are longer than {encoder} takes, and were cut at their end")
    return found


def _left_out(reasons: list[str], settings: int) -> str:
    if not reasons:
        return ""
    kinds = "; ".join(dict.fromkeys(reasons))
    return f"{len(reasons)} of {settings} settings have no F1: {kinds}"


def _settings(result: xr.Dataset) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each setting's levels, and its values."""
    factors = [str(dim) for dim in result["f1"].dims]
    for combination in product(*(result[name].values.tolist() for name in factors)):
        setting = dict(zip(factors, combination, strict=True))
        part = result.sel(setting)
        found = {name: part[name].item() for name in (*NUMBERS, "reason")}
        epoch = found["best_epoch"]
        yield setting, {**found, "best_epoch": epoch if _is_nan(epoch) else int(epoch)}


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan


class _Rows:
    """The finished settings on disk, by key: a line each, brought to disk before the next is trained."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a killed process left a part of a line
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                self._found[row["key"]] = row
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}, line {number}: is damaged; delete the line") from error

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def get(self, key: str) -> dict[str, Any]:
        return self._found[key]

    def add(self, row: dict[str, Any]) -> None:
        import os

        with self._path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._found[row["key"]] = row


@contextmanager
def _rows(path: Path) -> Iterator[_Rows]:
    """Open the finished settings for this process alone."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f"{path.parent}: another process is training there; wait, or name another folder"
        ) from error
    try:
        yield _Rows(path)
    finally:
        lock.release()
