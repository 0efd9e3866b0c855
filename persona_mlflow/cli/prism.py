"""``persona-mlflow prism``: does the text fit the persona?"""

from __future__ import annotations

import click

from persona_mlflow.cli.prism_bench import bench
from persona_mlflow.cli.prism_report import report
from persona_mlflow.cli.prism_score import score
from persona_mlflow.cli.prism_validate import sheets, validate


@click.group()
def prism() -> None:
    """Measure whether responses fit a persona (PRISM), and judges of it on benchmarks."""


for command in (score, bench, report, sheets, validate):
    prism.add_command(command)
