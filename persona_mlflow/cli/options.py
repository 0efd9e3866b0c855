"""Options that several commands share, and the spec that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    from persona_mlflow.spec import ExperimentSpec

Command = Callable[..., Any]

tracking_uri_option = click.option(
    "--tracking-uri",
    metavar="URI",
    help="MLflow store: sqlite:///FILE, postgresql://… or http://…  [MLFLOW_TRACKING_URI, or sqlite:///mlflow.db]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def split_list(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Read a comma-separated option."""
    return [part.strip() for part in value.split(",") if part.strip()] if value else None


def _file_or_list(value: str | None) -> tuple[list[str] | str | None, str | None]:
    """Tell a file of personas from names of personas: names → (names, None), file → ("all", file)."""
    if not value:
        return None, None
    if value == "all":
        return "all", None
    if value.endswith((".yaml", ".yml")) or Path(value).is_file():
        return "all", value
    return [part.strip() for part in value.split(",") if part.strip()], None


SPEC_OPTIONS = (
    click.option(
        "--experiment",
        "-e",
        default="quickstart",
        show_default=True,
        metavar="FILE",
        help="An experiment's YAML file, or the name of one that comes with the package.",
    ),
    click.option("--model", "-m", metavar="NAME", help="Short name, hub id, local folder or GGUF file."),
    click.option("--revision", metavar="COMMIT", help="Hub commit or tag of the model."),
    click.option(
        "--questions",
        "-q",
        metavar="SOURCE",
        help="builtin, composite, mmlu, social_iqa, normad, or a folder or a CSV, JSONL or Parquet file.",
    ),
    click.option("--categories", callback=split_list, metavar="A,B", help="Only these question categories."),
    click.option("--personas", "-p", metavar="A,B", help="Persona names, `all`, or a YAML file of personas."),
    click.option("--ppf", callback=split_list, metavar="A,B", help="Persona prompt formats."),
    click.option("--tpf", callback=split_list, metavar="A,B", help="Task prompt formats."),
    click.option("--temperature", callback=split_list, metavar="0,1", help="Temperatures; 0 is greedy."),
    click.option("--repeat", callback=split_list, metavar="0,1", help="Further seeds of each setting."),
    click.option(
        "--factor", "factors", multiple=True, metavar="NAME=A,B", help="The levels of any factor; repeatable."
    ),
    click.option("--limit", "-n", type=int, metavar="N", help="N questions in all, balanced over categories."),
    click.option("--max-new-tokens", type=int, metavar="N", help="Most tokens of an answer."),
    click.option("--seed", type=int, metavar="N", help="Seed of every draw and sample."),
    click.option("--prompts", metavar="FILE", help="Prompt formats of your own (YAML)."),
    click.option("--batch-size", metavar="N", help="Rows decoded together, or auto."),
    click.option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16."),
    click.option("--quantization", metavar="KIND", help="none, 8bit or 4bit (bitsandbytes)."),
    click.option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …"),
    click.option(
        "--deterministic", is_flag=True, default=None, help="A fixed batch size and float32 arithmetic."
    ),
)


def spec_options(command: Command) -> Command:
    """Add the options that choose and change an experiment's spec."""
    for option in reversed(SPEC_OPTIONS):
        command = option(command)
    return command


def read_spec(options: dict[str, Any]) -> ExperimentSpec:
    """Read the experiment file and lay the options over it.

    Args:
        options: The values of `spec_options`; those that were not given are None or empty.
    """
    from persona_mlflow.spec import load_spec

    names, personas_file = _file_or_list(options["personas"])
    batch_size = options["batch_size"]
    overrides: dict[str, Any] = {
        "model": options["model"] or None,
        "revision": options["revision"],
        "questions": options["questions"],
        "categories": options["categories"],
        "personas": names,
        "catalog.personas": _absolute(personas_file),
        "catalog.prompts": _absolute(options["prompts"]),
        "limit": options["limit"],
        "seed": options["seed"],
        "decoding.max_new_tokens": options["max_new_tokens"],
        "engine.batch_size": int(batch_size) if batch_size and batch_size.isdecimal() else batch_size,
        "engine.dtype": options["dtype"],
        "engine.quantization": options["quantization"],
        "engine.device": options["device"],
        "engine.deterministic": options["deterministic"],
    }
    for name in ("ppf", "tpf", "temperature", "repeat"):
        overrides[f"factors.{name}"] = options[name]
    for text in options["factors"]:
        name, equals, levels = text.partition("=")
        if not equals or not levels:
            raise UserError(f"--factor {text!r}: write NAME=LEVEL,LEVEL, such as option_order=given,reversed")
        overrides[f"factors.{name.strip()}"] = [level.strip() for level in levels.split(",")]
    return load_spec(find_experiment(options["experiment"]), overrides)


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None


def find_experiment(name: str) -> Path:
    """The file of an experiment: a path, or the name of one that comes with the package.

    Raises:
        UserError: There is none; the message lists those that come with the package.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_experiments()
    found = shipped.get(path.stem if path.parts[:-1] in ((), ("experiments",)) else "")
    if found is None:
        raise UserError(f"--experiment {name}: no such file; {choices(path.stem, shipped)}, or give a path")
    return found


def shipped_experiments() -> dict[str, Path]:
    """The experiments that come with the package, by name: beside it in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    for folder in (package / "experiments", package.parent / "experiments"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}
