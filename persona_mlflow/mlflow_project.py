"""What differs under ``mlflow run``: the run that it made is the parent, and it ends that run itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from persona_mlflow.errors import UserError
from persona_mlflow.store import SPEC_HASH, connect

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def adopt(client: MlflowClient, run_id: str, spec_hash: str) -> Run:
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
        keep_killed(client, run_id)


def keep_killed(client: MlflowClient, run_id: str) -> None:
    """Leave a process behind that turns the run back into a killed one.

    When its command has ended, `mlflow run` marks the run as failed, whatever the command marked it as: it
    means to spare a run that has ended, but looks for the status's name among the statuses' numbers.
    """
    if client.get_run(run_id).data.tags.get("mlflow.source.type") != "PROJECT":
        return  # a run of the user's own, which MLFLOW_RUN_ID names
    code = f"from persona_mlflow.mlflow_project import restore_killed; restore_killed({run_id!r})"
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
