"""What a report is made of: parent runs, experiments and ledger folders become one data set per model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    import xarray as xr
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from persona_mlflow.analyses.study import Study


@dataclass(frozen=True)
class Source:
    """Where one model's outcomes are.

    Attributes:
        model: Its name.
        experiment: The experiment's name.
        where: A run id or a ledger folder, as `persona_mlflow.outcomes.load_outcomes` takes it.
        run_id: The parent run that the report is logged on; None for a ledger.
    """

    model: str
    experiment: str
    where: str
    run_id: str | None


def find_sources(parents: Sequence[str], tracking_uri: str | None) -> dict[str, Source]:
    """Find what is to be reported.

    Args:
        parents: Run ids, names of experiments (the newest parent of each model, a finished one before others)
            and ledger folders; without any, the one experiment of the store.
        tracking_uri: Where runs are looked up.

    Returns:
        What the report calls a model → its source. Two of one name get what tells them apart.

    Raises:
        UserError: There is nothing to report, or the store holds several experiments and none is named.
    """
    from persona_mlflow.outcomes import PLAN
    from persona_mlflow.store import connect, find_parents, resolve_tracking_uri, sqlite_path

    found: list[Source] = []
    client: MlflowClient | None = None
    for parent in parents or (None,):
        if parent is not None and (Path(parent) / PLAN).exists():
            found.append(_ledger(Path(parent)))
            continue
        if parent is not None and (Path(parent).is_dir() or parent.startswith(("/", "./", "../"))):
            raise UserError(
                f"{parent}: is no ledger folder, since it holds no {PLAN}; name the --output folder of a "
                "run, a parent run's id or an experiment"
            )
        if client is None:
            database = sqlite_path(resolve_tracking_uri(tracking_uri))
            if database is not None and not database.exists():  # reading makes no store
                raise UserError(
                    f"{database}: no such store; run an experiment first, or name a store by --tracking-uri "
                    "or a ledger folder"
                )
            client = connect(tracking_uri)
        runs = find_parents(client, parent)
        found += [_run(run) for run in (_only_experiment(runs) if parent is None else _newest(runs))]
    return _named(dict.fromkeys(found))


def _ledger(folder: Path) -> Source:
    import json

    from persona_mlflow.outcomes import PLAN

    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return Source(_short(plan["model"]), str(plan["name"]), str(folder), None)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / PLAN}: is damaged ({error!r}); give its persona-mlflow run command again to write "
            "it anew"
        ) from error


def _run(run: Run) -> Source:
    params = run.data.params
    model = params.get("model") or params.get("resolved.model") or run.info.run_id
    return Source(_short(model), str(params.get("resolved.experiment", "")), run.info.run_id, run.info.run_id)


def _short(model: str) -> str:
    # A model by its path would fill every table.
    return model.rstrip("/").rpartition("/")[2] if Path(model).is_absolute() else model


def _newest(runs: Iterable[Run]) -> list[Run]:
    """The newest run of each model, a finished one before an unfinished; the runs come newest first."""
    newest: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.info.status != "FINISHED"):
        newest.setdefault(_run(run).model, run)
    return list(newest.values())


def _only_experiment(runs: Sequence[Run]) -> list[Run]:
    finished = [run for run in runs if run.info.status == "FINISHED"]
    if not finished:
        started = f"; {len(runs)} not finished: name one to report it as it is" if runs else ""
        raise UserError(f"no finished experiment in this store{started}; persona-mlflow run makes one")
    names = list(dict.fromkeys(_run(run).experiment for run in finished))
    if len(names) > 1:
        raise UserError(f"the store holds several experiments; name one: {', '.join(names)}")
    return _newest(finished)


def _named(sources: Iterable[Source]) -> dict[str, Source]:
    listed = list(sources)
    names = [source.model for source in listed]
    if len(set(names)) < len(names):
        names = [f"{source.model} · {source.experiment}" for source in listed]
    if len(set(names)) < len(names):
        names = [
            f"{name} · {(source.run_id or source.where)[:8] if source.run_id else source.where}"
            for name, source in zip(names, listed, strict=True)
        ]
    return dict(zip(names, listed, strict=True))


def load_predictions(source: Source, tracking_uri: str | None) -> xr.Dataset | None:
    """What ``persona-mlflow predict`` found on this experiment, if it was run."""
    import tempfile

    from persona_mlflow.analyses.best_persona import RESULT, load_best_personas
    from persona_mlflow.store import connect

    if source.run_id is None:
        path = Path(source.where) / "analyses" / RESULT
        return load_best_personas(path) if path.exists() else None
    client = connect(tracking_uri)
    if RESULT not in {Path(file.path).name for file in client.list_artifacts(source.run_id, "analyses")}:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return load_best_personas(client.download_artifacts(source.run_id, f"analyses/{RESULT}", folder))


def load_fidelity(source: Source, tracking_uri: str | None) -> xr.Dataset | None:
    """PRISM's scores of this experiment's explaining runs, if ``persona-mlflow run --prism`` was given."""
    import json
    import tempfile

    from persona_mlflow.fidelity import FOLDER
    from persona_mlflow.fidelity_analysis import FIDELITY, unpack_fidelity
    from persona_mlflow.outcomes import PLAN
    from persona_mlflow.store import connect

    if source.run_id is None:
        folder = Path(source.where)
        found = unpack_fidelity(folder / FOLDER / FIDELITY)
        if found is None:
            return None
        # The ledger may hold a later plan by now, with other questions or runs.
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return found if found.attrs.get("spec_hash") == plan.get("spec_hash") else None
    client = connect(tracking_uri)
    if FIDELITY not in {Path(file.path).name for file in client.list_artifacts(source.run_id, FOLDER)}:
        return None
    with tempfile.TemporaryDirectory() as folder_name:
        path = client.download_artifacts(source.run_id, f"{FOLDER}/{FIDELITY}", folder_name)
        return unpack_fidelity(Path(path))


def describe(source: Source, study: Study, warnings: Sequence[str]) -> dict[str, Any]:
    """What the page says of a model; see `persona_mlflow.report.page.FACTS`."""
    from persona_mlflow.summary import parent_summary

    return {
        "experiment": source.experiment,
        "run_id": source.run_id,
        "source": None if source.run_id else source.where,
        "runs": int(study.dataset["complete"].size),
        "personas": len(study.personas),
        "settings": study.settings,
        "questions": study.questions(),
        "categories": len(study.categories),
        "factors": {factor: study.levels(factor) for factor in study.factors},
        "draws": study.draws,
        "permutations": study.permutations,
        "seed": study.seed,
        "level": study.level,
        "warnings": [*warnings, *parent_summary(study.dataset)["warnings"]],
    }
