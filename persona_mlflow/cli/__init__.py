"""The command line. Each command is thin: it parses, calls the package, and prints."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from persona_mlflow import __version__
from persona_mlflow.cli.catalogue import personas, questions
from persona_mlflow.cli.plan import plan
from persona_mlflow.cli.predict import predict
from persona_mlflow.cli.prism import prism
from persona_mlflow.cli.report import report
from persona_mlflow.cli.run import run
from persona_mlflow.cli.summarize import summarize
from persona_mlflow.errors import UserError

# `mlflow run -P max_new_tokens=48` reaches us as --max_new_tokens.
SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),
    "max_content_width": 100,
}


@click.group(context_settings=SETTINGS)
@click.version_option(__version__, prog_name="persona-mlflow")
def cli() -> None:
    """Measure how far an LLM's persona-driven behaviour can be trusted.

    Exit codes: 0 done, 1 the run failed, 2 the call or the spec was wrong, 130 interrupted.
    """


for command in (run, plan, summarize, report, predict, prism, questions, personas):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character shows another
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(arguments, prog_name="persona-mlflow", standalone_mode=False)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        code = 130
    except BrokenPipeError:
        # Who read our output has seen enough; what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
