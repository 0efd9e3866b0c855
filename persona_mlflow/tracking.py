"""MLflow: the one module that writes runs.

Run ids are always explicit (`MlflowClient`): the fluent API's stack is per thread, and a set
``MLFLOW_RUN_ID`` would turn a child into its parent. Under ``mlflow run`` the run that it made is the parent.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow import mlflow_project
from persona_mlflow.errors import UserError
from persona_mlflow.spec import digest, is_finite
from persona_mlflow.store import (
    CELL,
    LEDGER,
    PARENT_RUN,
    ROLE,
    SPEC_HASH,
    children_of,
    connect,
    resolve_tracking_uri,
    retry,
    search,
    sqlite_path,
)
from persona_mlflow.ui import CHILD_RUN_TAGS

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARAM_LIMIT = 500
UNDEFINED = "metric_undefined."
"""What the tag begins with that says why a metric has no value."""
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
        role: What the run is, in its tag `persona_mlflow.store.ROLE`.
        tags: Further tags, such as why a metric is undefined.
    """

    cell: str
    name: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    files: Path
    tables: Sequence[str]
    start: float
    end: float
    role: str = "cell"
    tags: Mapping[str, str] = field(default_factory=dict)


class Tracker:
    """A parent run (one experiment and model, or one benchmark) and its children.

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
        self._role = "parent"

    @classmethod
    def open(
        cls,
        tracking_uri: str | None,
        experiment: str,
        *,
        run_name: str,
        spec_hash: str,
        params: Mapping[str, Any],
        ledger: str,
        description: str = "",
        role: str = "parent",
    ) -> Tracker:
        """Find or make the parent run: the run of ``mlflow run``, an earlier one of this spec, or a new one.

        Args:
            tracking_uri: The store.
            experiment: Experiment name; not used under ``mlflow run``, whose experiment stands.
            run_name: The parent's name.
            spec_hash: Identifies the spec: an earlier parent of it with the same ledger is continued.
            ledger: The ledger's id.
            params: Logged where they are not there yet; a parameter is never changed.
            description: Shown by the UI on the run.
            role: What the parent is, in its tag `persona_mlflow.store.ROLE`.

        Raises:
            UserError: The store cannot be opened, or ``MLFLOW_RUN_ID`` names no run that can be the parent.
        """
        client = connect(tracking_uri)
        # Taken out of the environment, so that no worker or library mistakes the parent for its own run.
        adopted_id = os.environ.pop("MLFLOW_RUN_ID", None)
        if adopted_id:
            run = mlflow_project.adopt(client, adopted_id, spec_hash)
            tracker = cls(client, run.info.experiment_id, adopted_id, adopted=True)
        else:
            experiment_id = _experiment_id(client, experiment, tracking_uri)
            tracker = cls(client, experiment_id, "", adopted=False)
        tracker._spec_hash, tracker._role = spec_hash, role
        tracker._start(run_name, params, ledger, description)
        return tracker

    def _start(self, run_name: str, params: Mapping[str, Any], ledger: str, description: str) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.tracking.context.registry import resolve_tags

        tags = {SPEC_HASH: self._spec_hash, ROLE: self._role, LEDGER: ledger}
        if description:
            tags["mlflow.note.content"] = description
        earlier = self._earlier_parents(ledger)
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
        retry(
            lambda: self.client.log_batch(
                self.parent_id, params=new, tags=[RunTag(key, value) for key, value in tags.items()]
            )
        )

    def _earlier_parents(self, ledger: str) -> list[Run]:
        """The parents of this spec and ledger, newest first."""
        query = f"tags.`{SPEC_HASH}` = '{self._spec_hash}' and tags.`{ROLE}` = '{self._role}'"
        runs = search(self.client, self.experiment_id, query)
        return [run for run in runs if run.data.tags.get(LEDGER) == ledger]

    def reopen(self) -> None:
        """Say that the parent is at work; one that ended is at work again."""
        retry(lambda: self.client.update_run(self.parent_id, status="RUNNING"))

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
        return children_of(self.client, self.experiment_id, self.parent_id)

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
            ROLE: child.role,
            CELL: child.cell,
            **CHILD_RUN_TAGS,
            **child.tags,
            "mlflow.loggedArtifacts": json.dumps([{"path": path, "type": "table"} for path in child.tables]),
        }
        if unfinished is None:
            run = retry(
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
        retry(lambda: self.client.log_batch(run_id, metrics=metrics, params=params))
        self.client.log_artifacts(run_id, str(child.files))
        retry(lambda: self.client.set_terminated(run_id, "FINISHED", stamp))
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
        self._log(self.parent_id, metrics or {}, undefined or {}, tags or {}, files)

    def log_later(
        self,
        run: Run,
        *,
        metrics: Mapping[str, float],
        undefined: Mapping[str, str],
        tags: Mapping[str, Any],
        files: Path,
    ) -> None:
        """Log results on a run that may be finished, and stays so; the tags come last.

        Args:
            run: The parent or a child, with its tags: a metric that was undefined and is no more loses the
                tag that says so.
            metrics: As in `log_parent`.
            undefined: As in `log_parent`.
            tags: Written when all else is there, so that they can say that it is.
            files: As in `log_parent`.
        """
        run_id = run.info.run_id
        self._log(run_id, metrics, undefined, {}, files)
        for name in metrics:
            if f"{UNDEFINED}{name}" in run.data.tags:
                retry(lambda name=name: self.client.delete_tag(run_id, f"{UNDEFINED}{name}"))  # type: ignore[misc]
        self._log(run_id, {}, {}, tags, None)

    def _log(
        self,
        run_id: str,
        metrics: Mapping[str, float],
        undefined: Mapping[str, str],
        tags: Mapping[str, Any],
        files: Path | None,
    ) -> None:
        from mlflow.entities import Metric, RunTag

        stamp = round(time.time() * 1000)
        marks = {f"{UNDEFINED}{name}": reason for name, reason in undefined.items()}
        retry(
            lambda: self.client.log_batch(
                run_id,
                metrics=[Metric(k, v, stamp, 0) for k, v in metrics.items() if is_finite(v)],
                tags=[RunTag(key, str(value)[:5000]) for key, value in {**tags, **marks}.items()],
            )
        )
        if files is not None:
            self.client.log_artifacts(run_id, str(files))

    def close(self, status: str) -> None:
        """End the parent, last of all runs, so that the UI's newest rows start with it (pitfall M16)."""
        retry(lambda: self.client.set_terminated(self.parent_id, status))
        if self.adopted and status == "KILLED":
            mlflow_project.keep_killed(self.client, self.parent_id)


def _user_tags() -> dict[str, str]:
    from mlflow.tracking.context.default_context import DefaultRunContext

    return dict(DefaultRunContext().tags())


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
