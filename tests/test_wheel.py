"""The wheel, built, installed and used where nothing of the checkout is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXPERIMENTS = {path.stem for path in (ROOT / "experiments").glob("*.yaml")}
BENCHMARK_RUNS = {name for name in EXPERIMENTS if name.startswith("prism-")}

pytestmark = pytest.mark.slow


class Installed:
    """The installed package: a folder that holds it and nothing else, and another to call it from."""

    def __init__(self, site: Path, folder: Path) -> None:
        self.site = site
        self.folder = folder

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_TRACKING")}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**env, "PYTHONPATH": str(self.site)},
            capture_output=True,
            text=True,
        )

    def read(self, *arguments: str) -> Any:
        """What a command of ours prints as JSON."""
        done = self.python("-m", "persona_mlflow", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("wheel")
    build = ("wheel", "--no-deps", "--wheel-dir", str(home), str(ROOT))
    install = (
        "install",
        "--no-deps",
        "--no-index",
        "--find-links",
        str(home),
        "--target",
        str(home / "site"),
    )
    for arguments in (build, (*install, "persona-mlflow")):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    (home / "elsewhere").mkdir()
    return Installed(home / "site", home / "elsewhere")


def test_only_the_wheel_is_imported_and_help_shows_every_command(installed: Installed) -> None:
    code = (
        "import json, sys, persona_mlflow, persona_mlflow.cli as c;"
        "print(json.dumps([persona_mlflow.__file__, sorted(c.cli.commands), sorted(sys.modules)]))"
    )
    file, commands, modules = json.loads(installed.python("-c", code).stdout)
    assert Path(file) == installed.site / "persona_mlflow" / "__init__.py"
    assert not {"torch", "transformers", "mlflow", "pandas"} & set(modules)
    shown = installed.python("-m", "persona_mlflow", "--help")
    assert shown.returncode == 0
    assert all(f"\n  {command} " in shown.stdout for command in commands)


def test_the_wheel_holds_the_data_and_no_tests(installed: Installed) -> None:
    files = {path.relative_to(installed.site) for path in installed.site.rglob("*") if path.is_file()}
    checkout = {
        path.relative_to(ROOT)
        for path in (ROOT / "persona_mlflow").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    experiments = {Path("persona_mlflow/experiments") / f"{name}.yaml" for name in EXPERIMENTS}
    assert {path for path in files if path.parts[0] == "persona_mlflow" and path.suffix != ".pyc"} == (
        checkout | experiments
    )
    metadata = {path.parts[0] for path in files} - {"persona_mlflow", "bin"}
    assert len(metadata) == 1
    assert any(path.name == "LICENSE" for path in files)


def test_experiments_catalogue_and_questions_are_found(installed: Installed, lettered_model: Path) -> None:
    options = ("-m", str(lettered_model), "--json")
    quickstart = installed.read("plan", "-e", "quickstart", *options)
    assert (quickstart["personas"], quickstart["settings"], quickstart["runs"]) == (4, 8, 32)
    paper = installed.read("plan", "-e", "paper", "-q", "builtin", *options)
    assert (paper["personas"], paper["settings"], paper["runs"]) == (41, 48, 1968)
    assert paper["questions"] > 20
    unknown = installed.python("-m", "persona_mlflow", "plan", "-e", "nothing")
    assert unknown.returncode == 2
    assert {name for name in EXPERIMENTS if name in unknown.stderr} == EXPERIMENTS - BENCHMARK_RUNS
    unknown = installed.python("-m", "persona_mlflow", "prism", "bench", "-e", "nothing")
    assert unknown.returncode == 2
    assert {name for name in EXPERIMENTS if name in unknown.stderr} == BENCHMARK_RUNS


def test_an_experiment_runs(installed: Installed, lettered_model: Path) -> None:
    arguments = ("--experiment", "quickstart", "-m", str(lettered_model), "--limit", "2", "--ppf", "youare")
    row = installed.read("run", *arguments, "--tpf", "justanswer", "--max-new-tokens", "2", "--json")
    assert (row["status"], row["runs"], row["questions"]) == ("FINISHED", 8, 2)
    assert {path.name for path in installed.folder.iterdir()} >= {"mlflow.db", "mlartifacts", "outputs"}
    assert Path(row["output"]).parts[0] == "outputs"
