"""``persona-mlflow questions`` and ``personas``."""

from __future__ import annotations

import json
from typing import Any

import click

from persona_mlflow.cli.options import (
    PERSONA_OPTIONS,
    QUESTION_OPTIONS,
    add_options,
    experiment_option,
    json_option,
    read_spec,
)


@click.command()
@add_options(experiment_option(None), *QUESTION_OPTIONS)
@click.option("--show", type=int, default=0, metavar="N", help="Also print N of the questions.")
@json_option
def questions(show: int, as_json: bool, **options: Any) -> None:
    """Report on a question set: categories, labels, shortfalls, repeated questions."""
    found = read_spec(options).load_questions()
    shown = found.limit(show).questions if show else ()
    if as_json:
        content = {
            "name": found.name,
            "fingerprint": found.fingerprint,
            "questions": len(found.questions),
            "report": found.report.to_dict(),
            "shown": [
                {
                    "id": q.id,
                    "category": q.category,
                    "label": q.label,
                    "text": q.text,
                    "options": q.lettered,
                    "answer": q.answer_letter,
                }
                for q in shown
            ],
        }
        click.echo(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False))
        return
    click.echo(f"{found.name}: {len(found.questions):,} questions, fingerprint {found.fingerprint}")
    for line in found.report.lines():
        click.echo(line)
    for question in shown:
        click.echo(f"\n[{question.category} / {question.label}] {question.text}")
        for letter, option in question.lettered.items():
            mark = "*" if letter == question.answer_letter else " "
            click.echo(f" {mark} ({letter}) {option}")


@click.command()
@add_options(experiment_option(None), *PERSONA_OPTIONS)
@json_option
def personas(as_json: bool, **options: Any) -> None:
    """List the personas by group: the catalogue's, an experiment's, or a file's."""
    spec = read_spec(options)
    found = spec.select_personas(spec.load_catalogue())
    if as_json:
        content = [{"name": p.name, "group": p.group, "subgroup": p.subgroup} for p in found]
        click.echo(json.dumps(content, ensure_ascii=False, indent=1))
        return
    groups: dict[str, list[str]] = {}
    for persona in found:
        groups.setdefault(" / ".join(filter(None, (persona.group, persona.subgroup))), []).append(
            persona.name
        )
    for group, names in groups.items():
        click.echo(f"{group}: {', '.join(names)}")
