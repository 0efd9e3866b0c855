"""MLflow: the one module that writes runs, and reads them back.

Run ids are always explicit (`MlflowClient`): the fluent API's stack is per thread, and a set
``MLFLOW_RUN_ID`` would turn a child into its parent. Under ``mlflow run`` the run that it made is the parent.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from persona_mlflow.errors import UserError
from persona_mlflow.spec import digest, is_finite
from persona_mlflow.ui import CHILD_RUN_TAGS

if TYPE_CHECKING:
    import xarray as xr
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

SPEC_HASH = "persona_mlflow.spec_hash"
ROLE = "persona_mlflow.role"
CELL = "persona_mlflow.cell"
OUTPUT = "persona_mlflow.output"
PARENT_RUN = "mlflow.parentRunId"
PARAM_LIMIT = 500
# What MLflow calls a run that nobody named, e.g. "gifted-shrimp-123".
_MADE_UP_NAME = re.compile(r"[a-z]+-[a-z]+-[0-9]+")


@dataclass(frozen=True)
class Child:
    """One cell as it is logged.

    Attributes:
        cell: The cell's key.
        name: The run's name.
        params: Persona, factor levels, model …
        metrics: Accuracy and rates; values that are None are left out.
        files: Where the artifacts lie; the folder's content becomes the run's artifacts.
        tables: Artifact files that the UI's evaluation view opens.
        start: Unix seconds.
        end: Unix seconds.
    """

    cell: str
    name: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    files: Path
    tables: Sequence[str]
    start: float
    end: float


def resolve_tracking_uri(uri: str | None) -> str:
    """The tracking URI in force: the argument, ``MLFLOW_TRACKING_URI``, or ``sqlite:///mlflow.db`` here.

    A SQLite path is made absolute: MLflow keeps stores open by their URI, whatever folder that was meant in.
    """
    found = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    path = sqlite_path(found)
    return f"sqlite:///{path}" if path else found


def sqlite_path(uri: str) -> Path | None:
    """The database file of a SQLite tracking URI, absolute; None for any other store."""
    prefix = "sqlite:///"
    name = uri.removeprefix(prefix)
    return Path(name).absolute() if uri.startswith(prefix) and name and "?" not in name else None


def connect(tracking_uri: str | None) -> MlflowClient:
    """Open the store. A new SQLite database is made under a lock, before any other process opens it.

    Raises:
        UserError: The store cannot be opened.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = resolve_tracking_uri(tracking_uri)
    for name in ("mlflow.store.db.utils", "alembic"):  # each migration of a new database is a line otherwise
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with _creation_lock(uri):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--tracking-uri {uri}: cannot be opened ({reason}); give sqlite:///FILE, postgresql://… or the "
            "http:// address of an MLflow server"
        ) from error
    return client


@contextmanager
def _creation_lock(uri: str) -> Iterator[None]:
    path = sqlite_path(uri)
    if path is None:
        yield
        return
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        yield


def _retry(call: Callable[[], T], attempts: int = 6) -> T:
    """Call again while another process holds SQLite's write lock (pitfall M15)."""
    for attempt in range(attempts):
        try:
            return call()
        except Exception as error:
            if "database is locked" not in str(error) or attempt == attempts - 1:
                raise
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("unreachable")


class Tracker:
    """The parent run of one experiment and model, and its children.

    Attributes:
        client: The MLflow client.
        experiment_id: Where all runs land.
        parent_id: The parent run.
        adopted: Whether the parent is the run that ``mlflow run`` made.
        was_finished: Whether the parent was finished already when it was opened; it is left so.
    """

    def __init__(self, client: MlflowClient, experiment_id: str, parent_id: str, adopted: bool) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self.parent_id = parent_id
        self.adopted = adopted
        self.was_finished = False
        self._spec_hash = ""

    @classmethod
    def open(
        cls,
        tracking_uri: str | None,
        experiment: str,
        *,
        run_name: str,
        spec_hash: str,
        params: Mapping[str, Any],
        output: Path,
        description: str = "",
    ) -> Tracker:
        """Find or make the parent run: the run of ``mlflow run``, an earlier one of this spec, or a new one.

        Args:
            tracking_uri: The store.
            experiment: Experiment name; not used under ``mlflow run``, whose experiment stands.
            run_name: The parent's name.
            spec_hash: Identifies the spec: an earlier parent of it with the same output is continued.
            output: The ledger's folder.
            params: Logged where they are not there yet; a parameter is never changed.
            description: Shown by the UI on the run.

        Raises:
            UserError: The store cannot be opened, or ``MLFLOW_RUN_ID`` names no run that can be the parent.
        """
        client = connect(tracking_uri)
        # Taken out of the environment, so that no worker or library mistakes the parent for its own run.
        adopted_id = os.environ.pop("MLFLOW_RUN_ID", None)
        if adopted_id:
            run = _adopt(client, adopted_id, spec_hash)
            tracker = cls(client, run.info.experiment_id, adopted_id, adopted=True)
        else:
            experiment_id = _experiment_id(client, experiment, tracking_uri)
            tracker = cls(client, experiment_id, "", adopted=False)
        tracker._spec_hash = spec_hash
        tracker._start(run_name, params, output, description)
        return tracker

    def _start(self, run_name: str, params: Mapping[str, Any], output: Path, description: str) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.tracking.context.registry import resolve_tags

        tags = {SPEC_HASH: self._spec_hash, ROLE: "parent", OUTPUT: _place(output)}
        if description:
            tags["mlflow.note.content"] = description
        earlier = self._earlier_parents(tags[OUTPUT])
        if not self.parent_id and earlier:
            self.parent_id = earlier[0].info.run_id
            self.was_finished = earlier[0].info.status == "FINISHED"
        if not self.parent_id:
            run = self.client.create_run(
                self.experiment_id, tags={**resolve_tags(), **tags}, run_name=run_name
            )
            self.parent_id = run.info.run_id
        for run in earlier:
            # A crash left it RUNNING, and the ledger's lock says that nobody works on it.
            if run.info.run_id != self.parent_id and run.info.status == "RUNNING":
                self.client.set_tag(run.info.run_id, "persona_mlflow.continued_by", self.parent_id)
                self.client.set_terminated(run.info.run_id, "KILLED")
        found = self.client.get_run(self.parent_id)
        if self.adopted and _MADE_UP_NAME.fullmatch(found.info.run_name or ""):
            self.client.update_run(self.parent_id, name=run_name)
        new = [Param(key, _short(value)) for key, value in params.items() if key not in found.data.params]
        _retry(
            lambda: self.client.log_batch(
                self.parent_id, params=new, tags=[RunTag(key, value) for key, value in tags.items()]
            )
        )

    def _earlier_parents(self, place: str) -> list[Run]:
        """The parents of this spec and output, newest first."""
        query = f"tags.`{SPEC_HASH}` = '{self._spec_hash}' and tags.`{ROLE}` = 'parent'"
        runs = _search(self.client, self.experiment_id, query)
        return [run for run in runs if run.data.tags.get(OUTPUT) == place]

    def reopen(self) -> None:
        """Say that the parent is at work; one that ended is at work again."""
        _retry(lambda: self.client.update_run(self.parent_id, status="RUNNING"))

    def log_dataset(self, name: str, fingerprint: str, source: str, profile: Mapping[str, Any]) -> None:
        """Log the question set as the parent's dataset input."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=name,
            digest=fingerprint[:36],
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps(profile, allow_nan=False)[:16_000],
        )
        entry = DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])
        self.client.log_inputs(self.parent_id, [entry])

    def children(self) -> dict[str, Run]:
        """The children that are there, by cell key; of two of the same cell, a finished one wins."""
        found: dict[str, Run] = {}
        for run in _search(self.client, self.experiment_id, f"tags.`{PARENT_RUN}` = '{self.parent_id}'"):
            key = run.data.tags.get(CELL)
            if key and (key not in found or run.info.status == "FINISHED"):
                found[key] = run
        return found

    def log_child(self, child: Child, unfinished: Run | None = None) -> str:
        """Log a finished cell as a child run.

        Args:
            child: What to log.
            unfinished: A child of this cell that a crash left behind; it is completed.

        Returns:
            The run id.
        """
        from mlflow.entities import Metric, Param

        tags = {
            PARENT_RUN: self.parent_id,
            SPEC_HASH: self._spec_hash,
            ROLE: "cell",
            CELL: child.cell,
            **CHILD_RUN_TAGS,
            "mlflow.loggedArtifacts": json.dumps([{"path": path, "type": "table"} for path in child.tables]),
        }
        if unfinished is None:
            run = _retry(
                lambda: self.client.create_run(
                    self.experiment_id,
                    start_time=round(child.start * 1000),
                    tags={**_user_tags(), **tags},
                    run_name=child.name,
                )
            )
        else:
            run = unfinished
        run_id = run.info.run_id
        stamp = round(child.end * 1000)
        metrics = [Metric(k, v, stamp, 0) for k, v in child.metrics.items() if v is not None and is_finite(v)]
        params = [
            Param(key, _short(value)) for key, value in child.params.items() if key not in run.data.params
        ]
        _retry(lambda: self.client.log_batch(run_id, metrics=metrics, params=params))
        self.client.log_artifacts(run_id, str(child.files))
        _retry(lambda: self.client.set_terminated(run_id, "FINISHED", stamp))
        return str(run_id)

    def log_parent(
        self,
        *,
        metrics: Mapping[str, float] | None = None,
        undefined: Mapping[str, str] | None = None,
        tags: Mapping[str, Any] | None = None,
        files: Path | None = None,
    ) -> None:
        """Log on the parent.

        Args:
            metrics: Finite values; none is ever logged as NaN or infinite (pitfalls M5, M6).
            undefined: Metric name → why it has no value; becomes a tag.
            tags: Run-time facts.
            files: A folder whose content becomes artifacts.
        """
        from mlflow.entities import Metric, RunTag

        stamp = round(time.time() * 1000)
        marks = {f"metric_undefined.{name}": reason for name, reason in (undefined or {}).items()}
        _retry(
            lambda: self.client.log_batch(
                self.parent_id,
                metrics=[Metric(k, v, stamp, 0) for k, v in (metrics or {}).items() if is_finite(v)],
                tags=[RunTag(key, str(value)[:5000]) for key, value in {**(tags or {}), **marks}.items()],
            )
        )
        if files is not None:
            self.client.log_artifacts(self.parent_id, str(files))

    def close(self, status: str) -> None:
        """End the parent, last of all runs, so that the UI's newest rows start with it (pitfall M16)."""
        _retry(lambda: self.client.set_terminated(self.parent_id, status))
        if self.adopted and status == "KILLED":
            _keep_killed(self.client, self.parent_id)


def _user_tags() -> dict[str, str]:
    from mlflow.tracking.context.default_context import DefaultRunContext

    return dict(DefaultRunContext().tags())


def _adopt(client: MlflowClient, run_id: str, spec_hash: str) -> Run:
    """The run that ``MLFLOW_RUN_ID`` names, as the parent of this spec."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise UserError(
            f"MLFLOW_RUN_ID={run_id}: the tracking store holds no such run; unset it, or name the store that "
            "does (a SQLite database by its absolute path)"
        ) from error
    if run.info.lifecycle_stage == "deleted":
        raise UserError(f"MLFLOW_RUN_ID={run_id}: that run was deleted; unset MLFLOW_RUN_ID")
    if run.data.tags.get(SPEC_HASH, spec_hash) != spec_hash:
        raise UserError(
            f"MLFLOW_RUN_ID={run_id}: that run holds another experiment's results; unset MLFLOW_RUN_ID"
        )
    return run


def close_adopted(tracking_uri: str | None) -> None:
    """Mark the run of ``mlflow run`` as killed where the interrupt came before `Tracker.open`."""
    run_id = os.environ.pop("MLFLOW_RUN_ID", None)
    if run_id:
        client = connect(tracking_uri)
        client.set_terminated(run_id, "KILLED")
        _keep_killed(client, run_id)


def _keep_killed(client: MlflowClient, run_id: str) -> None:
    """Leave a process behind that turns the run back into a killed one.

    When its command has ended, `mlflow run` marks the run as failed, whatever the command marked it as: it
    means to spare a run that has ended, but looks for the status's name among the statuses' numbers.
    """
    if client.get_run(run_id).data.tags.get("mlflow.source.type") != "PROJECT":
        return  # a run of the user's own, which MLFLOW_RUN_ID names
    code = f"from persona_mlflow.tracking import restore_killed; restore_killed({run_id!r})"
    subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "MLFLOW_TRACKING_URI": client.tracking_uri},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def restore_killed(run_id: str, seconds: float = 60.0) -> None:
    """Wait until `mlflow run` has marked a killed run as failed, and mark it as killed again.

    Args:
        run_id: The run.
        seconds: How long to wait; a run that is still marked as killed by then is left so.
    """
    client = connect(None)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        info = client.get_run(run_id).info
        if info.status == "FAILED":
            client.set_terminated(run_id, "KILLED", info.end_time)
        if info.status != "KILLED":
            return
        time.sleep(0.25)


def _place(output: Path) -> str:
    """A ledger's folder, told apart from one of the same name on another machine."""
    return f"{socket.gethostname()}:{output.absolute()}"


def _short(value: Any) -> str:
    """A parameter's value; a long one becomes its hash, and its text stands in an artifact (pitfall M2)."""
    text = str(value)
    return text if len(text) <= PARAM_LIMIT else f"sha256:{digest(text, 32)}"


def _experiment_id(client: MlflowClient, name: str, tracking_uri: str | None) -> str:
    """The experiment of this name, made where it is not there.

    On a local store its artifact root is set, absolutely: MLflow's default follows the working directory.
    """
    from mlflow.exceptions import MlflowException

    uri = resolve_tracking_uri(tracking_uri)
    location = None
    if not uri.startswith(("http://", "https://", "databricks")):
        database = sqlite_path(uri)
        root = database.parent if database else Path.cwd()
        location = (root / "mlartifacts" / name).absolute().as_uri()
    existing = client.get_experiment_by_name(name)
    if existing is None:
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            existing = client.get_experiment_by_name(name)  # another process was faster
            if existing is None:
                raise
    if existing.lifecycle_stage == "deleted":
        raise UserError(
            f"experiment {name!r} was deleted in MLflow; restore it (mlflow experiments restore "
            f"-x {existing.experiment_id}), or give another --experiment-name"
        )
    return str(existing.experiment_id)


def _search(client: MlflowClient, experiment_id: str, query: str) -> list[Run]:
    """Every run that matches, newest first: one page holds 1,000 at most (pitfall M18)."""
    runs: list[Run] = []
    token = None
    while True:
        page = client.search_runs(
            [experiment_id],
            query,
            max_results=1000,
            page_token=token,
            order_by=["attributes.start_time DESC"],
        )
        runs.extend(page)
        token = page.token
        if not token:
            return runs


def find_parents(client: MlflowClient, source: str | None = None) -> list[Run]:
    """The parent runs behind a run id or an experiment name; without one, all parents of the store.

    Raises:
        UserError: There is no such run or experiment, or it holds no parent.
    """
    from mlflow.exceptions import MlflowException

    experiments = {e.name: e.experiment_id for e in client.search_experiments()}
    if source is None:
        ids = list(experiments.values())
    elif source in experiments:
        ids = [experiments[source]]
    else:
        try:
            run = client.get_run(source)
        except MlflowException as error:
            raise UserError(
                f"{source!r}: neither a run id nor an experiment; "
                f"experiments: {', '.join(experiments) or 'none'}"
            ) from error
        if run.data.tags.get(ROLE) != "parent":
            parent = run.data.tags.get(PARENT_RUN)
            hint = f"; its parent is {parent}" if parent else ""
            raise UserError(f"{source!r}: not a parent run of persona-mlflow{hint}")
        return [run]
    found = [run for i in ids for run in _search(client, i, f"tags.`{ROLE}` = 'parent'")]
    if not found and source is not None:
        raise UserError(f"experiment {source!r}: holds no parent run of persona-mlflow")
    return sorted(found, key=lambda run: run.info.start_time, reverse=True)


def load_run_outcomes(source: str, tracking_uri: str | None, allow_incomplete: bool) -> xr.Dataset:
    """`persona_mlflow.outcomes.load_outcomes` for a parent run id or an experiment name."""
    import tempfile

    import pyarrow.parquet as pq

    from persona_mlflow import outcomes

    client = connect(tracking_uri)
    parents = find_parents(client, source)
    if len({run.data.params.get("model") for run in parents}) > 1:
        listed = ", ".join(f"{r.info.run_id} ({r.data.params.get('model')})" for r in parents)
        raise UserError(f"{source!r}: holds several models; name one parent run: {listed}")
    parent = parents[0]
    tracker = Tracker(client, parent.info.experiment_id, parent.info.run_id, adopted=False)
    with tempfile.TemporaryDirectory() as folder:
        plan_path = client.download_artifacts(parent.info.run_id, outcomes.PLAN, folder)
        plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
        questions = pq.read_table(
            client.download_artifacts(parent.info.run_id, outcomes.QUESTIONS, folder)
        ).to_pandas()
        finished = {key: run for key, run in tracker.children().items() if run.info.status == "FINISHED"}

        def read(entry: Mapping[str, Any]) -> Any:
            run = finished.get(entry["key"])
            if run is None:
                return None
            with tempfile.TemporaryDirectory() as part:
                path = client.download_artifacts(run.info.run_id, outcomes.GENERATIONS, part)
                return pq.read_table(path, columns=["question_id", "correct", "status"])

        return outcomes.assemble(
            plan, questions, read, where=f"run {parent.info.run_id}", allow_incomplete=allow_incomplete
        )
