"""Options that several commands share, and the spec that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


FEWEST_DRAWS = 20


def check_draws(option: str, number: int) -> None:
    """Refuse a number of draws from which no bounds and no p-value can be told; 0 leaves them out."""
    if 0 < number < FEWEST_DRAWS:
        raise UserError(f"{option} {number}: too few to tell anything; give {FEWEST_DRAWS} or more, or 0")


def split_list(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Read a comma-separated option."""
    return [part.strip() for part in value.split(",") if part.strip()] if value is not None else None


def _names_or_file(value: str | None) -> tuple[list[str] | str | None, str | None]:
    """Tell a file of personas from names of personas: names → (names, None), file → ("all", file)."""
    if value is None:
        return None, None
    if value == "all":
        return "all", None
    if value.endswith((".yaml", ".yml")) or Path(value).is_file():
        return "all", value
    return [part.strip() for part in value.split(",") if part.strip()], None


QUESTION_OPTIONS = (
    click.option(
        "--questions",
        "-q",
        metavar="SOURCE",
        help="builtin, composite, mmlu, social_iqa, normad, or a folder or a CSV, JSONL or Parquet file.",
    ),
    click.option("--categories", callback=split_list, metavar="A,B", help="Only these question categories."),
    click.option(
        "--limit", "-n", type=int, metavar="N", help="N questions in all, balanced over categories."
    ),
    click.option("--seed", type=int, metavar="N", help="Seed of every draw and sample."),
    click.option("--drop", callback=split_list, metavar="A,B", help="Leave out duplicates, equal_options."),
)
PERSONA_OPTIONS = (
    click.option("--personas", "-p", metavar="A,B", help="Persona names, `all`, or a YAML file of personas."),
)
ENDPOINT_OPTIONS = (
    click.option("--base-url", metavar="URL", help="The endpoint's address.  [OpenAI's own]"),
    click.option("--api-key-env", metavar="NAME", help="Variable that holds its key.  [OPENAI_API_KEY]"),
    click.option("--requests-per-minute", type=float, metavar="N", help="Most requests a minute."),
    click.option("--concurrency", type=int, metavar="N", help="Most requests at once.  [8]"),
    click.option("--price-prompt", type=float, metavar="X", help="Per million prompt tokens."),
    click.option("--price-completion", type=float, metavar="X", help="Per million completion tokens."),
    click.option("--cost-cap", type=float, metavar="X", help="Most that one call may spend."),
)
_ENDPOINT_KEYS = (
    *("base_url", "api_key_env", "requests_per_minute", "concurrency"),
    *("price_prompt", "price_completion", "cost_cap"),
)
SPEC_OPTIONS = (
    click.option("--model", "-m", metavar="NAME", help="Short name, hub id, local folder or GGUF file."),
    click.option("--revision", metavar="COMMIT", help="Hub commit or tag of the model."),
    *QUESTION_OPTIONS,
    *PERSONA_OPTIONS,
    click.option("--ppf", callback=split_list, metavar="A,B", help="Persona prompt formats."),
    click.option("--tpf", callback=split_list, metavar="A,B", help="Task prompt formats."),
    click.option("--temperature", callback=split_list, metavar="0,1", help="Temperatures; 0 is greedy."),
    click.option("--repeat", callback=split_list, metavar="0,1", help="Further seeds of each setting."),
    click.option(
        "--factor", "factors", multiple=True, metavar="NAME=A,B", help="The levels of any factor; repeatable."
    ),
    click.option("--max-new-tokens", type=int, metavar="N", help="Most tokens of an answer."),
    click.option("--prompts", metavar="FILE", help="Prompt formats of your own (YAML)."),
    click.option("--batch-size", metavar="N", help="Rows decoded together, or auto."),
    click.option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16."),
    click.option("--quantization", metavar="KIND", help="none, 8bit or 4bit (bitsandbytes)."),
    click.option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …"),
    click.option(
        "--deterministic",
        is_flag=False,
        flag_value="true",
        type=bool,
        help="One row at a time, in float32: no answer can depend on its batch.",
    ),
    click.option(
        "--engine",
        metavar="KIND",
        help="transformers loads the model; openai asks an OpenAI-compatible server.  [transformers]",
    ),
    *ENDPOINT_OPTIONS,
    click.option(
        "--prism",
        metavar="EVALUATOR",
        help="Score how far the explaining answers fit their persona: a model as --model, or openai:NAME.",
    ),
    click.option(
        "--prism-sample", metavar="N", help="Questions that are scored in each run; 0 or all for all.  [20]"
    ),
    click.option("--prism-base-url", metavar="URL", help="Endpoint of an openai: evaluator."),
)


def experiment_option(default: str | None) -> Callable[[Command], Command]:
    """The option that names the experiment's file."""
    return click.option(
        "--experiment",
        "-e",
        default=default,
        show_default=True,
        metavar="FILE",
        help="An experiment's YAML file, or the name of one that comes with the package.",
    )


def add_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Decorate a command with several options, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def read_spec(options: Mapping[str, Any]) -> ExperimentSpec:
    """Read the experiment file and lay the options over it.

    Args:
        options: The values of the options above; one that was not given, or that the command does not
            have, changes nothing. Without an experiment, the spec's defaults stand.
    """
    from persona_mlflow.spec import FACTOR_OPTIONS, load_spec, parse_spec, with_overrides

    for name, value in options.items():
        if value == "":
            raise UserError(f"--{name.replace('_', '-')}: is empty; give a value, or leave the option out")
    names, personas_file = _names_or_file(options.get("personas"))
    overrides: dict[str, Any] = {
        **{name: options.get(name) for name in ("model", "revision", "questions", "categories")},
        **{name: options.get(name) for name in ("limit", "seed", "drop")},
        "personas": names,
        "catalog.personas": _absolute(personas_file),
        "catalog.prompts": _absolute(options.get("prompts")),
        "decoding.max_new_tokens": options.get("max_new_tokens"),
        "engine.batch_size": _whole(options.get("batch_size")),
        **{
            f"engine.{name}": options.get(name)
            for name in ("dtype", "quantization", "device", "deterministic", *_ENDPOINT_KEYS)
        },
        "engine.kind": options.get("engine"),
        "prism.evaluator": options.get("prism"),
        "prism.sample": _whole(options.get("prism_sample")),
        "prism.base_url": options.get("prism_base_url"),
        **{f"factors.{name}": options.get(name) for name in FACTOR_OPTIONS},
    }
    for text in options.get("factors") or ():
        name, equals, levels = text.partition("=")
        if not equals or not levels:
            raise UserError(f"--factor {text!r}: write NAME=LEVEL,LEVEL, such as option_order=given,reversed")
        overrides[f"factors.{name.strip()}"] = [level.strip() for level in levels.split(",")]
    if options.get("experiment") is None:
        given = {key for key, value in overrides.items() if value is not None}
        content = with_overrides({"name": "defaults"}, overrides, "options")
        spec = parse_spec(content, source="options", overridden=given)
    else:
        spec = load_spec(find_experiment(options["experiment"]), overrides)
    if spec.prism.evaluator is None:
        for name in ("prism_sample", "prism_base_url"):
            if options.get(name) is not None:
                raise UserError(
                    f"--{name.replace('_', '-')}: nothing is scored; name an evaluator by --prism"
                )
    return spec


def _whole(text: str | None) -> int | str | None:
    """A number where the text is one; the spec says what is wrong with any other."""
    return int(text) if text and text.isdecimal() else text


def _absolute(path: str | None) -> str | None:
    return str(Path(path).absolute()) if path else None


def find_experiment(name: str, prism: bool = False) -> Path:
    """The file of an experiment: a path, or the name of one that comes with the package.

    Args:
        name: What the user wrote.
        prism: Whether a benchmark run of PRISM is meant.

    Raises:
        UserError: There is none; the message lists those that come with the package.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_experiments(prism)
    found = shipped.get(path.stem if path.parts[:-1] in ((), ("experiments",)) else "")
    if found is None:
        raise UserError(f"--experiment {name}: no such file; {choices(path.stem, shipped)}, or give a path")
    return found


def shipped_experiments(prism: bool = False) -> dict[str, Path]:
    """The experiments that come with the package, by name: beside it in a checkout, inside it in a wheel.

    Args:
        prism: Benchmark runs of PRISM in place of experiments of the sweep.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "experiments", package.parent / "experiments"):
        if folder.is_dir():
            files = sorted(folder.glob("*.yaml"))
            return {path.stem: path for path in files if path.name.startswith("prism-") == prism}
    return {}
