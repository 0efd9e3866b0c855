"""Links into the MLflow UI that open with the right columns, and the command that starts the UI.

The runs table of MLflow opens with no param and no metric shown. A *saved view* mends that: an experiment tag
``mlflow.sharedViewState.<share key>`` that holds the state of the table as JSON, and that a link names in
``viewStateShareKey``. The UI lists it under "Views" too. The format is the UI's own and is not documented, so
``tests/ui`` opens the links in a real browser.

Two generations of the UI read that tag. The newer one wants an envelope (``name``, ``createdAt``, ``state``),
the older one wants the state itself. The value written here is both at once: the envelope, with the keys of
the state beside it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_PARAMS: tuple[str, ...] = ("persona", "persona_group", "ppf", "tpf", "temperature")
DEFAULT_METRICS: tuple[str, ...] = ("accuracy", "parse_error_rate")
DEFAULT_NAME = "Persona × setting"

CHILD_RUN_TAGS: Mapping[str, str] = MappingProxyType({"mlflow.runType": "evaluation"})
"""Tags for every child run: the UI opens the parents of such runs on a first visit, and lists them under
"Evaluation runs". A saved view can't open a parent itself, since the UI drops that part of its state."""

LOCAL_UI = "http://127.0.0.1:5000"
"""Where ``mlflow ui`` listens when it is given no host and no port."""

_TAG_PREFIX = "mlflow.sharedViewState."
# The longest experiment tag that all supported servers store; recent ones take 20,000.
_TAG_LIMIT = 5000
_BY_CREATION = "attributes.start_time"
_WIDE = {"persona": 150, "model": 150}
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def children_filter(parent_run_id: str) -> str:
    """Return the MLflow search filter for the children of one parent run.

    Args:
        parent_run_id: Id of the parent run.

    Returns:
        A filter for the search box of the UI and for ``search_runs``.
    """
    return f"tags.mlflow.parentRunId = '{parent_run_id}'"


def shared_view(
    experiment_id: str,
    *,
    params: Sequence[str] = DEFAULT_PARAMS,
    metrics: Sequence[str] = DEFAULT_METRICS,
    parent_run_ids: Sequence[str] = (),
    name: str = DEFAULT_NAME,
    created_ms: int = 0,
) -> tuple[str, str]:
    """Build the experiment tag that holds a saved view of the runs table.

    With exactly one parent, the view holds that parent with its children under it, the first child first,
    however many other runs the experiment has. Otherwise it holds every parent with its children, the latest
    first. Both sort by creation time: in any other order, the UI lists children without their parents.

    Args:
        experiment_id: Id of the experiment that the view belongs to.
        params: Names of the params to show, in this order.
        metrics: Names of the metrics to show after them, in this order.
        parent_run_ids: Ids of the parent runs that the view is about; empty for all.
        name: Name of the view in the list "Views" of the UI.
        created_ms: Creation time that the view carries, in milliseconds since the epoch.

    Returns:
        Key and value of the tag. The same experiment, name and single parent give the same key, so that a
        later call replaces the view.

    Raises:
        UserError: If there are so many columns that no server would store the view.
    """
    one = parent_run_ids[0] if len(parent_run_ids) == 1 else ""
    columns = list(dict.fromkeys([f"params.`{p}`" for p in params] + [f"metrics.`{m}`" for m in metrics]))
    state: dict[str, Any] = {
        "searchFilter": children_filter(one) if one else "",
        "orderByKey": _BY_CREATION,
        "orderByAsc": bool(one),
        "selectedColumns": columns,
        "columnOrder": ["attributes.`Run Name`", *columns, "runDateAndNestInfo", "duration"],
        "columnWidths": {column: _width(column) for column in columns},
    }
    envelope = {"name": name, "createdAt": created_ms, "updatedAt": created_ms, "state": _deflate(state)}
    # Older UIs open the parents that the state names; newer ones ignore it.
    older = {**state, "runsExpanded": dict.fromkeys(parent_run_ids, True)}
    value = _dump({**envelope, **older})
    if len(value) > _TAG_LIMIT:
        value = _dump(envelope)
    if len(value) > _TAG_LIMIT:
        raise UserError(
            f"the view {name!r} of experiment {experiment_id} has {len(columns)} columns, which takes "
            f"{len(value)} characters where an experiment tag holds {_TAG_LIMIT}: show fewer of them"
        )
    digest = hashlib.sha256(_dump([experiment_id, name, one]).encode()).hexdigest()
    return f"{_TAG_PREFIX}persona-{digest[:16]}", value


def apply_shared_view(
    client: MlflowClient,
    experiment_id: str,
    *,
    params: Sequence[str] = DEFAULT_PARAMS,
    metrics: Sequence[str] = DEFAULT_METRICS,
    parent_run_ids: Sequence[str] = (),
    name: str = DEFAULT_NAME,
) -> str:
    """Save a view of the runs table on an experiment, unless it is there already.

    Args:
        client: Client of the store that holds the experiment.
        experiment_id: Id of the experiment.
        params: Names of the params to show, in this order.
        metrics: Names of the metrics to show after them, in this order.
        parent_run_ids: Ids of the parent runs that the view is about; empty for all (see `shared_view`).
        name: Name of the view in the list "Views" of the UI.

    Returns:
        The share key, for `runs_url` and `evaluation_url`.

    Raises:
        UserError: If there are so many columns that no server would store the view.
    """
    experiment = client.get_experiment(experiment_id)
    key, value = shared_view(
        experiment_id,
        params=params,
        metrics=metrics,
        parent_run_ids=parent_run_ids,
        name=name,
        created_ms=experiment.creation_time or 0,
    )
    if experiment.tags.get(key) != value:
        client.set_experiment_tag(experiment_id, key, value)
    return key.removeprefix(_TAG_PREFIX)


def runs_url(base_url: str, experiment_id: str, share_key: str) -> str:
    """Return the link that opens the runs table in a saved view.

    Args:
        base_url: Address of the MLflow UI, as `ui_base_url` gives it.
        experiment_id: Id of the experiment.
        share_key: What `apply_shared_view` returned.

    Returns:
        The link.
    """
    return _page(base_url, f"experiments/{quote(experiment_id, safe='')}/runs", viewStateShareKey=share_key)


def evaluation_url(base_url: str, experiment_id: str, share_key: str) -> str:
    """Return the link that opens the evaluation view: the tables of the runs, compared question by question.

    Args:
        base_url: Address of the MLflow UI, as `ui_base_url` gives it.
        experiment_id: Id of the experiment.
        share_key: What `apply_shared_view` returned.

    Returns:
        The link.
    """
    route = f"experiments/{quote(experiment_id, safe='')}/runs"
    return _page(base_url, route, compareRunsMode="ARTIFACT", viewStateShareKey=share_key)


def compare_url(base_url: str, experiment_ids: Sequence[str], run_ids: Sequence[str]) -> str:
    """Return the link that shows runs side by side: their params, metrics and tags.

    Args:
        base_url: Address of the MLflow UI, as `ui_base_url` gives it.
        experiment_ids: Ids of the experiments that the runs belong to.
        run_ids: Ids of the runs, at least two for a comparison.

    Returns:
        The link.
    """
    runs, experiments = _dump(list(run_ids)), _dump(list(dict.fromkeys(experiment_ids)))
    return _page(base_url, "compare-runs", runs=runs, experiments=experiments)


def ui_base_url(tracking_uri: str) -> str:
    """Return the address of the UI of a tracking store.

    Args:
        tracking_uri: Address of a tracking server, or the URI of a database.

    Returns:
        The address of the server, or that of an ``mlflow ui`` started as `ui_command` says. Credentials in
        the address of a server are left out.
    """
    parts = urlsplit(tracking_uri)
    if parts.scheme not in ("http", "https"):
        return LOCAL_UI
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


def ui_command(tracking_uri: str) -> str:
    """Return what to type, in any folder, to see the runs of a tracking store.

    Args:
        tracking_uri: Address of a tracking server, or the URI of a database.

    Returns:
        The ``mlflow ui`` line for a database, with the path of an SQLite file made absolute and a password in
        the URI shown as ``***``. For a tracking server, its address: there is nothing to start.

    Raises:
        UserError: If MLflow can't show the store, such as a folder ``./mlruns``.
    """
    scheme = urlsplit(tracking_uri).scheme
    if scheme in ("http", "https"):
        return ui_base_url(tracking_uri)
    dialect = scheme.partition("+")[0]
    if dialect not in _DATABASES:
        raise UserError(
            f"tracking URI {hide_password(tracking_uri)!r} is neither a tracking server (http://…) nor a "
            f"database that MLflow can show: write one such as sqlite:///mlflow.db; "
            f"{choices(dialect or tracking_uri, _DATABASES)}"
        )
    uri = _absolute_sqlite(tracking_uri) if dialect == "sqlite" else hide_password(tracking_uri)
    return f"mlflow ui --backend-store-uri {shlex.quote(uri)}"


def _absolute_sqlite(uri: str) -> str:
    head, _, rest = uri.partition("://")
    path, mark, query = rest.partition("?")
    if not path.startswith("/") or path in ("/", "/:memory:"):
        raise UserError(
            f"tracking URI {uri!r} names no database file: write sqlite:///mlflow.db for one in this folder, "
            "or sqlite:////absolute/path/mlflow.db"
        )
    # SQLAlchemy drops the first slash: three slashes are a relative path, four an absolute one.
    return f"{head}:///{Path(path[1:]).absolute()}{mark}{query}"


def hide_password(uri: str) -> str:
    """Put ``***`` in the place of a password in an address, or in a text that holds one."""
    # Up to the last "@", so that no part of a password with an "@" in it stays.
    shown = re.sub(r"(://[^:@/]*:).*@", r"\1***@", uri)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", shown)


def _page(base_url: str, route: str, **query: str) -> str:
    return f"{base_url.rstrip('/')}/#/{route}?{urlencode(query, quote_via=quote)}"


def _width(column: str) -> int:
    """Return the width in pixels at which the UI shows the whole name of a column."""
    name = column.partition("`")[2].rstrip("`")
    return _WIDE.get(name, max(70, 8 * len(name) + 28))


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _deflate(state: Mapping[str, Any]) -> str:
    """Pack a state as the UI does: the word ``deflate;``, then zlib in base64."""
    return "deflate;" + base64.b64encode(zlib.compress(_dump(state).encode(), 9)).decode()
