"""The MLflow store: opening it, and finding runs in it. Writing them is `persona_mlflow.tracking`'s part."""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from persona_mlflow.errors import UserError
from persona_mlflow.ui import hide_password

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

SPEC_HASH = "persona_mlflow.spec_hash"
ROLE = "persona_mlflow.role"
CELL = "persona_mlflow.cell"
LEDGER = "persona_mlflow.ledger"
PARENT_RUN = "mlflow.parentRunId"
_PORTS = {"postgresql": 5432, "mysql": 3306}


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
    check_reachable(uri)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # one bar per file otherwise
    for name in ("mlflow.store.db.utils", "alembic"):  # each migration of a new database is a line otherwise
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with _creation_lock(uri):
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--tracking-uri {hide_password(uri)}: takes the database driver {error.name}; pip install "
            "psycopg2-binary (PostgreSQL) or pymysql (MySQL), and name it: postgresql+psycopg2://…"
        ) from error
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--tracking-uri {hide_password(uri)}: cannot be opened ({hide_password(reason)}); give "
            "sqlite:///FILE, postgresql://… or the http:// address of an MLflow server"
        ) from error
    return client


def check_reachable(uri: str, seconds: float = 5.0) -> None:
    """See that somebody answers at a server's address: MLflow itself goes on trying for minutes.

    Args:
        uri: A tracking URI; only addresses of servers are tried.
        seconds: How long to wait for an answer.

    Raises:
        UserError: Nobody answers, or the address is not of a kind that MLflow stores runs at.
    """
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    where = f"--tracking-uri {hide_password(uri)}"
    if scheme in ("http", "https"):
        import requests

        try:
            requests.get(uri, timeout=seconds)
        except requests.RequestException as error:
            raise UserError(
                f"{where}: no server answers there ({type(error).__name__}); start it, or mend the address"
            ) from error
    elif scheme in _PORTS:
        address = parts.hostname or "localhost", parts.port or _PORTS[scheme]
        try:
            socket.create_connection(address, seconds).close()
        except OSError as error:
            raise UserError(
                f"{where}: no database answers there ({error.strerror or error}); start it, or mend the "
                "address"
            ) from error
    elif scheme not in ("sqlite", "file", "databricks", "mssql", ""):
        raise UserError(f"{where}: no such kind of store; give sqlite:///FILE, postgresql://… or http://…")


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


def retry(call: Callable[[], T], attempts: int = 6) -> T:
    """Call again while another process holds SQLite's write lock (pitfall M15)."""
    for attempt in range(attempts):
        try:
            return call()
        except Exception as error:
            if "database is locked" not in str(error) or attempt == attempts - 1:
                raise
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("unreachable")


def search(client: MlflowClient, experiment_id: str, query: str) -> list[Run]:
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
    found = [run for i in ids for run in search(client, i, f"tags.`{ROLE}` = 'parent'")]
    if not found and source is not None:
        raise UserError(f"experiment {source!r}: holds no parent run of persona-mlflow")
    return sorted(found, key=lambda run: run.info.start_time, reverse=True)


def children_of(client: MlflowClient, experiment_id: str, parent_id: str) -> dict[str, Run]:
    """A parent's children by cell key; a finished one wins over an unfinished of the same cell."""
    found: dict[str, Run] = {}
    for run in search(client, experiment_id, f"tags.`{PARENT_RUN}` = '{parent_id}'"):
        key = run.data.tags.get(CELL)
        if key and (key not in found or run.info.status == "FINISHED"):
            found[key] = run
    return found


def load_run_outcomes(source: str, tracking_uri: str | None, allow_incomplete: bool) -> xr.Dataset:
    """`persona_mlflow.outcomes.load_outcomes` for a parent run id or an experiment name.

    A finished parent's compact file is read where it fits the plan, the children's generations otherwise.
    """
    import pyarrow.parquet as pq

    from persona_mlflow import outcomes

    client = connect(tracking_uri)
    parent = _one_model(client, source)
    where = f"run {parent.info.run_id}"
    with tempfile.TemporaryDirectory() as folder:
        plan = json.loads(_download(client, parent, outcomes.PLAN, folder).read_text(encoding="utf-8"))
        questions = pq.read_table(_download(client, parent, outcomes.QUESTIONS, folder)).to_pandas()
        if parent.info.status == "FINISHED" and _carries(client, parent, outcomes.OUTCOMES):
            path = _download(client, parent, outcomes.OUTCOMES, folder)
            compact = outcomes.unpack_outcomes(
                path, plan, questions, where=where, allow_incomplete=allow_incomplete
            )
            if compact is not None:
                return compact
            logging.getLogger(__name__).warning(
                "%s: its %s does not fit its plan; reading its children instead", where, outcomes.OUTCOMES
            )
        children = children_of(client, parent.info.experiment_id, parent.info.run_id)
        finished = {key: run for key, run in children.items() if run.info.status == "FINISHED"}

        def read(entry: Mapping[str, Any]) -> Any:
            run = finished.get(entry["key"])
            if run is None:
                return None
            with tempfile.TemporaryDirectory() as part:
                path = client.download_artifacts(run.info.run_id, outcomes.GENERATIONS, part)
                return pq.read_table(path, columns=["question_id", "correct", "status"])

        return outcomes.assemble(plan, questions, read, where=where, allow_incomplete=allow_incomplete)


def load_run_questions(source: str, tracking_uri: str | None) -> pd.DataFrame:
    """`persona_mlflow.outcomes.read_questions` for a parent run id or an experiment name."""
    import pyarrow.parquet as pq

    from persona_mlflow import outcomes

    client = connect(tracking_uri)
    with tempfile.TemporaryDirectory() as folder:
        path = _download(client, _one_model(client, source), outcomes.QUESTIONS, folder)
        return pq.read_table(path).to_pandas()


def _one_model(client: MlflowClient, source: str) -> Run:
    """The newest parent behind a source, all of whose parents must be of one model."""
    parents = find_parents(client, source)
    if len({run.data.params.get("model") for run in parents}) > 1:
        listed = ", ".join(f"{r.info.run_id} ({r.data.params.get('model')})" for r in parents)
        raise UserError(f"{source!r}: holds several models; name one parent run: {listed}")
    return parents[0]


def _carries(client: MlflowClient, run: Run, name: str) -> bool:
    return name in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}


def _download(client: MlflowClient, run: Run, name: str, folder: str) -> Path:
    from mlflow.exceptions import MlflowException

    try:
        return Path(client.download_artifacts(run.info.run_id, name, folder))
    except MlflowException as error:
        raise FileNotFoundError(f"run {run.info.run_id} has no artifact {name}") from error
