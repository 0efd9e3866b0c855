"""pyproject.toml, constraints.txt, conda.yaml and the lazy imports agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def _pins(lines: list[str]) -> dict[str, str]:
    pins = {}
    for line in lines:
        line = line.split("#")[0].strip()
        if line:
            name, version = line.split("==")
            pins[canonicalize_name(name)] = version
    return pins


def _wanted() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] + project["optional-dependencies"]["quickstart"]
    requirements = [Requirement(text) for text in texts]
    return {canonicalize_name(r.name): r for r in requirements}


def test_constraints_pin_every_dependency_inside_its_range() -> None:
    pins = _pins((ROOT / "constraints.txt").read_text().splitlines())
    for name, requirement in _wanted().items():
        assert name in pins, f"constraints.txt does not pin {name}"
        assert requirement.specifier.contains(pins[name]), f"{name}: {pins[name]} is outside {requirement}"


def test_conda_environment_agrees_with_constraints_and_pyproject() -> None:
    dependencies = yaml.safe_load((ROOT / "conda.yaml").read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    pins = _pins(pip)
    assert pins.items() <= _pins((ROOT / "constraints.txt").read_text().splitlines()).items()
    assert set(_wanted()) <= set(pins)


def test_conda_python_is_one_that_the_project_allows() -> None:
    dependencies = yaml.safe_load((ROOT / "conda.yaml").read_text())["dependencies"]
    (python,) = [str(d) for d in dependencies if str(d).startswith("python=")]
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert Requirement(f"python{required}").specifier.contains(python.removeprefix("python="))


def test_mlproject_names_the_environment_and_the_command() -> None:
    project = yaml.safe_load((ROOT / "MLproject").read_text())
    assert project["conda_env"] == "conda.yaml"
    main = project["entry_points"]["main"]
    assert set(re.findall(r"\{(\w+)\}", main["command"])) == set(main["parameters"])
    assert (ROOT / main["parameters"]["experiment"]["default"]).is_file()


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["summarize", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("torch", "transformers", "mlflow", "pandas", "xarray", "pydantic", "pyarrow", "scipy")
    code = (
        "import sys\n"
        "from persona_mlflow.cli import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "finally:\n"
        f"    print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().endswith("[]"), done.stderr
    assert "Usage:" in done.stdout
