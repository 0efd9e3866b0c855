"""``persona-mlflow plan``."""

from __future__ import annotations

import json
from typing import Any

import click

from persona_mlflow.cli.options import SPEC_OPTIONS, add_options, experiment_option, json_option, read_spec


@click.command()
@add_options(experiment_option("quickstart"), *SPEC_OPTIONS)
@json_option
def plan(as_json: bool, **options: Any) -> None:
    """Say what an experiment will do: its runs, prompts and answers. Loads no model."""
    from persona_mlflow.plan import make_plan

    found = make_plan(read_spec(options))
    content = {
        "experiment": found.spec.name,
        "model": found.model.name,
        "personas": len(found.grid.personas),
        "factors": {name: list(levels) for name, levels in found.grid.factors.items()},
        "settings": len(found.grid.settings),
        "runs": len(found.grid),
        "questions": len(found.questions.questions),
        "prompts": found.prompts,
        "answers": found.draws,
    }
    if found.spec.prism.evaluator:
        from persona_mlflow.fidelity import explaining_cells, sample_questions

        prism = found.spec.prism
        seed = found.spec.seed if prism.seed is None else prism.seed
        content["scored answers"] = len(explaining_cells(found)) * len(
            sample_questions(found, prism.sample, seed)
        )
    if as_json:
        click.echo(json.dumps(content, ensure_ascii=False, indent=1))
        return
    for key, value in content.items():
        if isinstance(value, dict):
            for name, levels in value.items():
                click.echo(f"{'factor ' + name:20} {', '.join(map(str, levels))}")
        else:
            click.echo(f"{key:20} {value:,}" if isinstance(value, int) else f"{key:20} {value}")
