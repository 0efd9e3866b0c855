"""Runs a judge over a benchmark's examples, resumable to the reply (P2 §4)."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.engines.base import Draw, Engine, Request
from persona_mlflow.errors import UserError
from persona_mlflow.prism.cases import whole_text
from persona_mlflow.prism.judges.base import Query, ScoringJudge, TextJudge, Verdict, text_digest

if TYPE_CHECKING:
    import pandas as pd

    from persona_mlflow.prism.cases import Example

FORMAT = 1
SEEDS = 3
"""Seeds of sampled judging, by default (P2 §4)."""

# Of what an engine says of itself, what shapes a reply; device, batch size and versions may change on resume.
_MODEL_KEYS = (
    "engine",
    "model",
    "base_url",
    "revision",
    "dtype",
    "quantization",
    "system_role",
    "max_new_tokens",
    "top_k",
    "top_p",
)
_CHUNK = 64  # examples between two writes of a judge that needs no text

Key = tuple[str, int]
"""An example's id and a seed."""


def judge_examples(
    examples: Iterable[Example],
    judge: TextJudge | ScoringJudge,
    engine: Engine | None = None,
    *,
    output: Path | str,
    seeds: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Judge examples with one method, model, temperature and set of seeds (P2 §4).

    Every reply is appended to `output` as it comes. A run that was stopped, or killed, goes on where it ended
    when it is called again; replies on record are not asked for again, and their ratings are read anew.

    Args:
        examples: What to judge; ids must differ.
        judge: The method.
        engine: What answers its prompts, drawing as `judge_decoding` says; None for a judge that scores by
            itself.
        output: The JSONL file with the replies. Its first line identifies judge, rubric, model, temperature
            and seeds.
        seeds: How many seeds, counted from 0, or which. `SEEDS` by default. Greedy judging takes the first.
        temperature: 0 is greedy; P2 samples at 0.2, 0.5, 0.8 and 1.0.
        progress: Called with the answers on record and all answers.

    Returns:
        One row per example and seed, in order, with the columns id, group, positive, kind, score (in [0, 1],
        NaN = unscored), reason (why unscored: a key of `REASONS`; empty otherwise), rating (what the judge
        said), reply, seed, finish_reason, prompt_tokens, completion_tokens. ``attrs`` holds ``method``,
        ``comparable`` (whether scores of different groups are; False for pairwise judges) and ``unscored``
        (reason → rows).

    Raises:
        UserError: Ids that occur twice, no engine for a judge that needs one, a temperature or seeds that are
            not valid, an `output` that holds another run, or whatever the engine raises; what was answered by
            then is on record.
    """
    examples = tuple(examples)
    repeated = [i for i, n in Counter(e.case.id for e in examples).items() if n > 1]
    if repeated:
        raise UserError(f"judge {judge.name}: the id {repeated[0]!r} occurs more than once; ids must differ")
    chosen = _seeds(seeds, temperature)
    watch = progress or (lambda done, all_: None)
    header: dict[str, Any] = {
        "format": FORMAT,
        "judge": dict(judge.identity()),
        "model": {},
        "temperature": float(temperature),
        "seeds": chosen,
    }
    if not hasattr(judge, "queries"):
        header |= {"temperature": 0.0, "seeds": chosen[:1]}
        with JudgeLog(Path(output), header) as log:
            verdicts = _score(examples, judge, log, chosen[0], watch)
        return _frame(examples, chosen[:1], judge, verdicts, {})
    if engine is None:
        raise UserError(f"judge {judge.name}: is a prompt to a language model; give an engine to answer it")
    facts = engine.describe()
    header["model"] = {key: facts[key] for key in _MODEL_KEYS if key in facts}
    text_judge: TextJudge = judge  # type: ignore[assignment]
    queries = {(q.id, seed): q for seed in chosen for q in text_judge.queries(examples, seed)}
    with JudgeLog(Path(output), header) as log:
        replies = log.replies(queries)
        watch(len(replies), len(queries))
        left = {key: query for key, query in queries.items() if key not in replies}
        for new in _ask(left, engine, temperature, log):
            replies |= new
            watch(len(replies), len(queries))
    verdicts = {}
    for key in ((e.case.id, seed) for seed in chosen for e in examples):
        verdicts[key] = (
            _read(text_judge, queries[key], replies[key]) if key in queries else text_judge.unasked()
        )
    return _frame(examples, chosen, judge, verdicts, replies)


class JudgeLog:
    """The append-only record of one judge run: a header, then one JSON object a reply.

    Args:
        path: The file; it is made with the first reply.
        header: Identifies the run.

    Raises:
        UserError: The file is of another run, damaged, or in use by another process.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = json.loads(json.dumps(header))
        self._stack = ExitStack()
        self._records: list[dict[str, Any]] = []

    def __enter__(self) -> JudgeLog:
        from filelock import FileLock, Timeout

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = Path(f"{self.path}.lock")
            lock.touch()  # a folder that cannot be written is no lock that another process holds
            self._stack.enter_context(FileLock(lock, timeout=0))
            self._records = self._load()
        except Timeout as error:
            raise UserError(
                f"{self.path}: another process is writing here; wait for it, or name another file"
            ) from error
        except OSError as error:
            raise UserError(f"{self.path}: cannot be used as a judge's record ({error})") from error
        except UserError:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def replies(self, queries: Mapping[Key, Query]) -> dict[Key, dict[str, Any]]:
        """The replies on record to these queries.

        Raises:
            UserError: A reply is to another prompt under the same id.
        """
        found = self.scores(queries, {key: query.digest for key, query in queries.items()})
        return {key: record for key, record in found.items() if "reply" in record}

    def scores(self, keys: Iterable[Key], digests: Mapping[Key, str]) -> dict[Key, dict[str, Any]]:
        """The records of these keys; each must carry its key's digest."""
        wanted = set(keys)
        found = {}
        for record in self._records:
            key = record["id"], record["seed"]
            if key not in wanted:
                continue
            if record["prompt"] != digests[key]:
                raise UserError(
                    f"{self.path}: holds an answer for the id {key[0]!r} with another text; name another "
                    "--output"
                )
            found[key] = record
        return found

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add records, and hand them to the operating system before returning: ``kill -9`` loses none."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        new = not self.path.exists()
        with self.path.open("a", encoding="utf-8") as file:
            file.write((json.dumps(self.header, ensure_ascii=False) + "\n" if new else "") + lines)

    def _load(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        records = []
        with self.path.open("rb+") as file:
            end = 0
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):  # torn off by a crash
                    whole = json.dumps(self.header, ensure_ascii=False).encode("utf-8", "surrogatepass")
                    if not number and not whole.startswith(line):
                        raise UserError(
                            f"{self.path}: not the record of this judge run; name another --output"
                        )
                    break
                end += len(line)
                try:
                    record = dict(json.loads(line))
                    if number:
                        _ = record["id"], record["seed"], record["prompt"]
                        records.append(record)
                except (ValueError, TypeError, KeyError) as error:
                    raise UserError(
                        f"{self.path}:{number + 1}: damaged; delete the line, its case is judged again"
                    ) from error
                if number == 0:
                    self._check(record)
            file.truncate(end)
        if end == 0:
            self.path.unlink()
        return records

    def _check(self, header: Mapping[str, Any]) -> None:
        if header == self.header:
            return
        differ = sorted(k for k in {*header, *self.header} if header.get(k) != self.header.get(k))
        shown = "; ".join(f"{key}: {header.get(key)} there, {self.header.get(key)} now" for key in differ)
        raise UserError(f"{self.path}: holds another judge run ({shown}); name another --output")


def draw_seed(seed: int, example: str) -> int:
    """The seed of one reply, 0 ≤ seed < 2**63: it depends on the run's seed and the example's id alone."""
    digest = hashlib.sha256(json.dumps([seed, example]).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def _seeds(seeds: int | Sequence[int] | None, temperature: float) -> list[int]:
    if not (isinstance(temperature, (int, float)) and math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"temperature: {temperature!r} is not valid: use 0 for greedy judging, or more")
    if seeds is None:
        seeds = SEEDS
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or len(set(chosen)) < len(chosen):
        raise UserError(f"seeds: {seeds!r} is not valid: use a number of seeds from 1, or different seeds")
    return chosen if temperature else chosen[:1]


def _ask(
    queries: Mapping[Key, Query],
    engine: Engine,
    temperature: float,
    log: JudgeLog,
) -> Iterator[dict[Key, dict[str, Any]]]:
    """Generate what is not on record, and yield it as it comes; the seeds of one prompt share it."""
    prompts: dict[tuple[str, str], list[Key]] = {}
    for key, query in queries.items():
        prompts.setdefault((whole_text(query.system), whole_text(query.user)), []).append(key)
    requests = [
        Request(system, user, tuple(Draw(key, float(temperature), draw_seed(key[1], key[0])) for key in keys))
        for (system, user), keys in prompts.items()
    ]
    if not requests:
        return
    engine.check(requests)
    for batch in engine.generate(requests):
        records = [
            {
                "id": completion.key[0],  # type: ignore[index]
                "seed": completion.key[1],  # type: ignore[index]
                "prompt": queries[completion.key].digest,  # type: ignore[index]
                "reply": whole_text(completion.text),
                "finish_reason": completion.finish_reason,
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.completion_tokens,
                "notes": completion.notes,
                "time": time.time(),
            }
            for completion in batch
        ]
        log.append(records)
        yield {(r["id"], r["seed"]): r for r in records}


def _read(judge: TextJudge, query: Query, record: Mapping[str, Any]) -> Verdict:
    if record.get("notes") == "content_filter":
        return Verdict(None, None, "content_filter")
    return judge.read(query, record["reply"], finished=record["finish_reason"] == "stop")


def _score(
    examples: Sequence[Example],
    judge: ScoringJudge,
    log: JudgeLog,
    seed: int,
    watch: Callable[[int, int], None],
) -> dict[Key, Verdict]:
    """Score what is not on record, some examples at a time."""
    digests = {
        (e.case.id, seed): text_digest(e.case.profile.describe(), e.case.context, e.case.response)
        for e in examples
    }
    verdicts = {
        key: Verdict(record["score"], record["score"], record["reason"])
        for key, record in log.scores(digests, digests).items()
    }
    left = [e for e in examples if (e.case.id, seed) not in verdicts]
    for start in range(0, len(left), _CHUNK):
        part = left[start : start + _CHUNK]
        scored = {(e.case.id, seed): v for e, v in zip(part, judge.score(part), strict=True)}
        log.append(
            [
                {"id": key[0], "seed": seed, "prompt": digests[key], "score": v.score, "reason": v.reason}
                for key, v in scored.items()
            ]
        )
        verdicts |= scored
        watch(len(verdicts), len(examples))
    return verdicts


def _frame(
    examples: Sequence[Example],
    seeds: Sequence[int],
    judge: TextJudge | ScoringJudge,
    verdicts: Mapping[Key, Verdict],
    replies: Mapping[Key, Mapping[str, Any]],
) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for example in examples:
        for seed in seeds:
            key = example.case.id, seed
            verdict, reply = verdicts[key], replies.get(key, {})
            rows.append(
                {
                    "id": example.case.id,
                    "group": example.group,
                    "positive": example.positive,
                    "kind": example.kind,
                    "score": verdict.score,
                    "reason": verdict.reason,
                    "rating": verdict.rating,
                    "reply": reply.get("reply", ""),
                    "seed": seed,
                    "finish_reason": reply.get("finish_reason", ""),
                    "prompt_tokens": reply.get("prompt_tokens", 0),
                    "completion_tokens": reply.get("completion_tokens", 0),
                }
            )
    columns = [
        *("id", "group", "positive", "kind", "score", "reason", "rating", "reply", "seed"),
        *("finish_reason", "prompt_tokens", "completion_tokens"),
    ]
    frame = pd.DataFrame(rows, columns=columns).astype({"positive": bool, "score": float, "rating": float})
    unscored = Counter(reason for reason in frame["reason"] if reason)
    frame.attrs = {"method": judge.name, "comparable": judge.comparable, "unscored": dict(unscored)}
    return frame
