"""What a report of PRISM is made of: method runs from benchmark folders and from benchmark runs in MLflow."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.prism.bench import BENCHMARK, REPLY_LOG, SCORE_LOG
from persona_mlflow.prism.bench_tracking import CHILD_ROLE, COUNT, PARENT_ROLE
from persona_mlflow.prism.results import FACTS, SCORES, MethodRun, find_method_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from persona_mlflow.prism.analyses import Collection

FINISHED = "FINISHED"
FACT_HEADINGS = {
    "runs": "method runs",
    "evaluators": "evaluators",
    "groups": "groups",
    "examples": "examples",
    "fingerprint": "fingerprint",
    "sources": "sources",
    "draws": "bootstrap draws",
    "seed": "seed",
    "level": "confidence level",
}
"""What the page says of a benchmark, in this order: key of `describe` → heading."""

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Collected:
    """Method runs to report.

    Attributes:
        runs: The method runs, no two of the same benchmark, evaluator and method.
        sources: For each of them its folder, or its MLflow run.
        parents: The benchmark runs in MLflow that they are of, on which the report is logged.
        left_out: What was found and is not reported, and why, in words.
    """

    runs: tuple[MethodRun, ...]
    sources: tuple[str, ...]
    parents: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _Candidate:
    """A finished method run: what it is of, its own name, when it ended, where it is, and how to read it."""

    key: _Key
    name: str
    ended: float
    source: str
    parent: str | None
    load: Callable[[], MethodRun]


def find_collections(sources: Sequence[str] = (), tracking_uri: str | None = None) -> Collected:
    """Find the method runs to report.

    Of several with the same benchmark (by its fingerprint), evaluator and method, the one that ended last is
    taken. Unfinished ones are left out; `Collected.left_out` says so.

    Args:
        sources: Output folders of ``prism bench``, ids of benchmark runs in MLflow, names of experiments;
            without any, every benchmark run of the store.
        tracking_uri: The store, where runs are looked up.

    Raises:
        UserError: A source that is none of these or holds no finished method run, an empty store, or files
            that are damaged.
    """
    candidates: list[_Candidate] = []
    left_out: list[str] = []
    client: MlflowClient | None = None
    for source in sources or (None,):
        if source is not None and _is_folder(source):
            candidates += _in_folder(Path(source), left_out)
            continue
        client = client or _open(tracking_uri)
        parents = _parents(client, source)
        found = [c for parent in parents for c in _of_parent(client, parent, left_out)]
        if not found:
            raise UserError(
                f"{source or 'the store'}: holds no finished method run ({len(parents)} benchmark run"
                f"{'s' if len(parents) != 1 else ''}); give the persona-mlflow prism bench command again to "
                "finish it"
            )
        candidates += found
    chosen = _newest(candidates, left_out)
    runs = tuple(candidate.load() for candidate in chosen)
    parents_of = tuple(dict.fromkeys(c.parent for c in chosen if c.parent is not None))
    return Collected(runs, tuple(c.source for c in chosen), parents_of, tuple(dict.fromkeys(left_out)))


def describe(collection: Collection, collected: Collected) -> dict[str, dict[str, Any]]:
    """Benchmark → what the page says of it; see `FACT_HEADINGS`."""
    places: dict[tuple[str, str, str], str] = {}
    for run, source in zip(collected.runs, collected.sources, strict=True):
        places[run.fingerprint, run.evaluator, run.slug] = source
    about = {}
    for name in collection.benchmarks:
        entrants = collection.of(name)
        frame = collection.frames(entrants[0])[0]
        first = entrants[0].run
        where = (places[first.fingerprint, e.run.evaluator, e.run.slug] for e in entrants)
        about[name] = {
            "runs": len(entrants),
            "evaluators": ", ".join(dict.fromkeys(entrant.evaluator for entrant in entrants)),
            "groups": int(frame["group"].nunique()),
            "examples": len(frame),
            "fingerprint": first.fingerprint,
            "sources": ", ".join(dict.fromkeys(where)),
            "draws": collection.draws,
            "seed": collection.seed,
            "level": 1 - collection.alpha,
            "warnings": [
                f"{entrant.evaluator}, {entrant.method}: {text}"
                for entrant in entrants
                for text in _texts(entrant.run.facts.get("warnings"))
            ],
        }
    return about


# ------------------------------------------------------------------------------------------------- folders


def _is_folder(source: str) -> bool:
    if Path(source).is_dir():
        return True
    if source.startswith(("/", "./", "../", "~")) or Path(source).exists():
        raise UserError(
            f"{source}: {'is no folder' if Path(source).exists() else 'no such folder'}; name the --output "
            "folder of persona-mlflow prism bench, a benchmark run's id or an experiment"
        )
    return False


def _in_folder(folder: Path, left_out: list[str]) -> list[_Candidate]:
    """The finished method runs below a folder; those of a benchmark that it held before are left out."""
    found = []
    finished = find_method_runs(folder)
    begun = {path.parent for name in (SCORE_LOG, REPLY_LOG) for path in folder.rglob(name)}
    for place in sorted(begun - set(finished)):
        left_out.append(f"{place} is left out: it is not finished; prism bench goes on with it")
    for place in finished:
        run = _checked(place, str(place), "delete its folder and give the prism bench command again")
        current = _fingerprint(folder, place)
        if current is not None and current != run.fingerprint:
            left_out.append(f"{place} is left out: it is of an earlier benchmark than the rest of its folder")
            continue
        output = str(place.parent.parent)
        found.append(
            _Candidate(_key(run), str(place.resolve()), _ended(run), output, None, partial(_same, run))
        )
    if not found:
        more = f"; {len(left_out)} left out: {left_out[0]}" if left_out else ""
        raise UserError(
            f"{folder}: holds no finished method run (no {FACTS} in it or below){more}; name the --output "
            "folder of persona-mlflow prism bench"
        )
    return found


def _fingerprint(root: Path, place: Path) -> str | None:
    """The fingerprint of the benchmark that a method run's output folder holds now, if it says."""
    output = place.parent.parent
    path = output / BENCHMARK
    if not output.is_relative_to(root) or not path.is_file():
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: is damaged ({type(error).__name__}); give the prism bench command again"
        ) from error


# -------------------------------------------------------------------------------------------------- MLflow


def _open(tracking_uri: str | None) -> MlflowClient:
    from persona_mlflow.store import connect, resolve_tracking_uri, sqlite_path

    database = sqlite_path(resolve_tracking_uri(tracking_uri))
    if database is not None and not database.exists():  # reading makes no store
        raise UserError(
            f"{database}: no such store; run persona-mlflow prism bench first, or name a store by "
            "--tracking-uri or a folder of prism bench"
        )
    return connect(tracking_uri)


def _parents(client: MlflowClient, source: str | None) -> list[Run]:
    """The benchmark runs behind a run id or an experiment's name; without one, all of the store."""
    from mlflow.exceptions import MlflowException

    from persona_mlflow.store import PARENT_RUN, ROLE, search

    experiments = {e.name: e.experiment_id for e in _experiments(client)}
    if source is not None and source not in experiments:
        try:
            run = client.get_run(source)
        except MlflowException as error:
            raise UserError(
                f"{source!r}: neither a folder, nor a run id, nor an experiment; "
                f"experiments: {', '.join(experiments) or 'none'}"
            ) from error
        if run.data.tags.get(ROLE) != PARENT_ROLE:
            parent = run.data.tags.get(PARENT_RUN)
            hint = f"; its parent is {parent}" if parent else ""
            raise UserError(f"{source!r}: not a benchmark run of persona-mlflow prism bench{hint}")
        return [run]
    ids = list(experiments.values()) if source is None else [experiments[source]]
    found = [run for i in ids for run in search(client, i, f"tags.`{ROLE}` = '{PARENT_ROLE}'")]
    if not found:
        where = "the store" if source is None else f"experiment {source!r}"
        raise UserError(f"{where}: holds no benchmark run; persona-mlflow prism bench makes one")
    return found


def _experiments(client: MlflowClient) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_experiments(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _of_parent(client: MlflowClient, parent: Run, left_out: list[str]) -> list[_Candidate]:
    """The finished method runs of a benchmark run."""
    from persona_mlflow.store import ROLE, children_of

    run_id = parent.info.run_id
    children = children_of(client, parent.info.experiment_id, run_id)
    methods = [run for run in children.values() if run.data.tags.get(ROLE) == CHILD_ROLE]
    finished = [run for run in methods if run.info.status == FINISHED]
    for run in methods:
        if run.info.status != FINISHED:
            name = run.info.run_name or run.info.run_id
            left_out.append(f"{name} of benchmark run {run_id} is left out: it is not finished")
    planned = parent.data.tags.get(COUNT, "")
    if parent.info.status != FINISHED:
        left_out.append(f"benchmark run {run_id} is not finished; what it has completed is reported")
    elif planned.isdecimal() and int(planned) > len(finished):
        left_out.append(
            f"benchmark run {run_id} had {planned} method runs, of which {len(finished)} are there"
        )
    return [_candidate(client, run_id, run) for run in finished]


def _candidate(client: MlflowClient, parent: str, run: Run) -> _Candidate:
    import pandas as pd

    params = run.data.params
    try:
        points = params.get("points")
        blank = MethodRun(
            benchmark=params["benchmark"],
            fingerprint=params["dataset_fingerprint"],
            evaluator=params.get("evaluator", ""),
            method=params["method"],
            frame=pd.DataFrame(),
            points=int(points) if points is not None else None,
            temperature=float(params.get("temperature", 0.0)),
            layout=params.get("layout", ""),
        )
    except (KeyError, ValueError) as error:
        raise UserError(
            f"run {run.info.run_id}: its parameters are not those of a method run ({error!r}); delete it and "
            "give the prism bench command again"
        ) from error
    run_id = run.info.run_id
    ended = float(run.info.end_time or run.info.start_time or 0) / 1000
    load = partial(_download, client, run_id)
    return _Candidate(_key(blank), run_id, ended, f"run {parent}", parent, load)


def _download(client: MlflowClient, run_id: str) -> MethodRun:
    from mlflow.exceptions import MlflowException

    mend = "delete the run and give the prism bench command again to log it anew"
    with tempfile.TemporaryDirectory() as folder:
        for name in (FACTS, SCORES):
            try:
                client.download_artifacts(run_id, name, folder)
            except (MlflowException, OSError) as error:
                raise UserError(f"run {run_id}: its artifact {name} cannot be read; {mend}") from error
        return _checked(Path(folder), f"run {run_id}", mend)


# ---------------------------------------------------------------------------------------------------- both


def _newest(candidates: Sequence[_Candidate], left_out: list[str]) -> list[_Candidate]:
    """Of each key the one that ended last, in the order in which the keys were found."""
    chosen: dict[_Key, _Candidate] = {}
    older: dict[str, int] = {}
    for candidate in candidates:
        other = chosen.get(candidate.key)
        if other is None:
            chosen[candidate.key] = candidate
            continue
        if candidate.ended > other.ended:
            chosen[candidate.key], candidate = candidate, other
        if candidate.name != chosen[candidate.key].name:  # named twice is no other run
            older[candidate.source] = older.get(candidate.source, 0) + 1
    for source, count in older.items():
        what = "1 method run" if count == 1 else f"{count} method runs"
        left_out.append(
            f"{what} of {source} left out: a later one has the same benchmark, evaluator and method"
        )
    return list(chosen.values())


def _key(run: MethodRun) -> _Key:
    return run.fingerprint, run.evaluator, run.slug


def _same(run: MethodRun) -> MethodRun:
    return run


def _ended(run: MethodRun) -> float:
    ended = run.facts.get("ended")
    return float(ended) if isinstance(ended, (int, float)) else 0.0


def _checked(folder: Path, where: str, mend: str) -> MethodRun:
    """Read a method run, and see that the analyses can use it.

    Raises:
        UserError: It is damaged; says how to mend it.
    """
    from persona_mlflow.prism.ranking import read_columns

    try:
        run = MethodRun.load(folder)
        _check_types(run)
        for seed in run.seeds:
            frame = run.of_seed(seed)
            read_columns(frame)
            repeated = frame["id"][frame["id"].duplicated()]
            if len(repeated):
                raise UserError(f"the id {repeated.iloc[0]!r} occurs twice in seed {seed}")
    except (UserError, ValueError, TypeError) as error:
        text = str(error).removeprefix(f"{folder}: ").replace(f"{folder}/", "")
        raise UserError(f"{where}: {text}; {mend}") from error
    return run


def _check_types(run: MethodRun) -> None:
    texts = (run.benchmark, run.fingerprint, run.evaluator, run.method, run.layout)
    numbers = (run.temperature, 0 if run.points is None else run.points)
    sound = (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
        and isinstance(run.comparable, bool)
        and isinstance(run.facts, Mapping)
        and all(texts[i] for i in (0, 1, 3))
    )
    if not sound:
        raise UserError(f"{FACTS} does not say what a method run is of")
    if not len(run.frame):
        raise UserError(f"{SCORES} holds no score")


def _texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, (list, tuple)) else []
