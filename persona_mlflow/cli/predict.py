"""``persona-mlflow predict``."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.cli.options import json_option, tracking_uri_option
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from mlflow import MlflowClient
    from rich.progress import TaskID


@click.command()
@click.argument("source", metavar="PARENT|LEDGER")
@click.option(
    "--encoder", default="roberta-base", show_default=True, metavar="NAME", help="Hub id or local folder."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where finished settings and the result are kept.  [LEDGER/analyses, or outputs/best-persona/RUN]",
)
@click.option("--epochs", type=click.IntRange(1), default=50, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, metavar="N")
@click.option(
    "--learning-rate", type=float, default=2e-5, show_default=True, help="The paper does not state it."
)
@click.option(
    "--limit-settings", type=click.IntRange(1), metavar="N", help="Only N settings, drawn at random."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the split and the training."
)
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …"
)
@tracking_uri_option
@json_option
def predict(
    source: str,
    encoder: str,
    output: Path | None,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    limit_settings: int | None,
    seed: int,
    device: str,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Predict from a question's text which personas get it right (P1 Fig. 9).

    One text classifier is trained for each setting and scored on questions that it has not seen: F1 by level
    of each factor, beside the F1 of always naming the personas that are mostly right. PARENT is a parent
    run's id or an MLflow experiment's name, and gets the result as artifacts; LEDGER is the --output folder
    of a run. The same command goes on where an earlier one ended.
    """
    from persona_mlflow.analyses.best_persona import (
        by_level,
        load_best_personas,
        predict_best_personas,
        save_best_personas,
    )

    client, run_id = _find_run(source, tracking_uri)
    dataset, questions = _read(source, tracking_uri, client, run_id)
    folder = output or (Path("outputs") / "best-persona" / run_id if run_id else Path(source) / "analyses")
    with _TrainingProgress(epochs) as progress:
        try:
            result = predict_best_personas(
                dataset,
                questions,
                encoder,
                folder=folder,
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=learning_rate,
                seed=seed,
                limit=limit_settings,
                device=device,
                progress=progress.advance,
            )
        except KeyboardInterrupt:
            progress.message(f"Finished settings are kept in {folder}; the same command goes on.")
            raise
    files = save_best_personas(result, folder)
    if client is not None and run_id is not None:
        from persona_mlflow.store import retry

        for file in files:
            retry(lambda path=str(file): client.log_artifact(run_id, path, "analyses"))  # type: ignore[misc]
    levels = by_level(load_best_personas(folder))
    if as_json:
        import json

        click.echo(json.dumps(_as_json(levels), ensure_ascii=False, indent=1, allow_nan=False))
        return
    _print(levels, result["reason"].values.ravel().tolist())
    click.echo(f"\nBy setting: {files[1]}" + (f", and on run {run_id} under analyses/" if run_id else ""))
    for warning in result.attrs["warnings"]:
        click.echo(f"Warning: {warning}", err=True)


def _find_run(source: str, tracking_uri: str | None) -> tuple[MlflowClient | None, str | None]:
    """The parent run behind the source, or nothing where the source is a ledger.

    Raises:
        UserError: There is no such run, or it is not clear which one is meant.
    """
    if Path(source).is_dir():
        return None, None
    from persona_mlflow.store import connect, find_parents

    client = connect(tracking_uri)
    parents = find_parents(client, source)
    if len({run.data.params.get("model") for run in parents}) > 1:
        listed = ", ".join(f"{run.info.run_id} ({run.data.params.get('model')})" for run in parents)
        raise UserError(f"{source!r}: holds several models; name one parent run: {listed}")
    return client, parents[0].info.run_id


def _read(
    source: str, tracking_uri: str | None, client: MlflowClient | None, run_id: str | None
) -> tuple[xr.Dataset, pd.DataFrame]:
    import tempfile

    import pyarrow.parquet as pq

    from persona_mlflow.outcomes import QUESTIONS, load_outcomes

    dataset = load_outcomes(run_id or source, tracking_uri=tracking_uri, allow_incomplete=True)
    with tempfile.TemporaryDirectory() as folder:
        if client is None or run_id is None:
            path = str(Path(source) / QUESTIONS)
        else:
            path = client.download_artifacts(run_id, QUESTIONS, folder)
        return dataset, pq.read_table(path).to_pandas()


def _as_json(levels: xr.Dataset) -> dict[str, Any]:
    """The table by level as JSON values; an undefined number is null."""
    rows = []
    for label in levels["factor_level"].values.tolist():
        row = levels.sel(factor_level=label)
        values = {str(name): row[name].item() for name in levels.data_vars}
        rows.append({"factor_level": label, **{k: None if v != v else v for k, v in values.items()}})
    return {"attributes": levels.attrs, "levels": rows}


def _print(levels: xr.Dataset, reasons: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    headings = {
        "value": "F1",
        "low": "lowest",
        "high": "highest",
        "base_rate": "base rate",
        "ceiling": "ceiling",
    }
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    table.add_column("level")
    for heading in (*headings.values(), "settings"):
        table.add_column(heading, justify="right")
    for row in _as_json(levels)["levels"]:
        numbers = ("–" if row[name] is None else f"{row[name]:.4f}" for name in headings)
        table.add_row(row["factor_level"], *numbers, str(row["settings"]))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "\nF1 averaged over the test questions and the settings of a level; base rate: always naming the "
        "personas that are mostly right; ceiling: the share of questions that anyone gets right.",
        soft_wrap=True,
    )
    for reason, count in Counter(filter(None, reasons)).items():
        console.print(f"{count} of {len(reasons)} settings without an F1: {reason}", soft_wrap=True)


class _TrainingProgress:
    """A live line on a terminal, a line per setting and minute elsewhere; on stderr, with the time left.

    Args:
        epochs: Epochs of each setting.
    """

    LINE_EVERY = 60.0

    def __init__(self, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal
        self._epochs = epochs
        self._trained = 0
        self._started = time.monotonic()
        self._said = 0, self._started  # the settings finished, and when
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=self._console
        )
        self._task: TaskID | None = None

    def __enter__(self) -> _TrainingProgress:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._progress.stop()

    def advance(self, done: int, total: int, epoch: int) -> None:
        """Show that an epoch or a setting is finished."""
        self._trained += epoch > 0
        text = (
            f"{done}/{total} settings · epoch {epoch}/{self._epochs}" if epoch else f"{done}/{total} settings"
        )
        if self._live:
            if self._task is None:
                self._task = self._progress.add_task(text, total=total * self._epochs)
            self._progress.update(self._task, completed=done * self._epochs + epoch, description=text)
        elif done != self._said[0] or time.monotonic() - self._said[1] > self.LINE_EVERY:
            self._said = done, time.monotonic()
            self.message(text + self._time_left((total - done) * self._epochs - epoch))

    def message(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, soft_wrap=True)

    def _time_left(self, epochs: int) -> str:
        if not self._trained or not epochs:
            return ""
        seconds = (time.monotonic() - self._started) / self._trained * epochs
        return f" · about {math.ceil(seconds / 60)} min left"
