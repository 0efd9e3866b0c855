"""The catalogue: personas, prompt formats and model names, as data files that a user can replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from persona_mlflow.errors import UserError, choices


@dataclass(frozen=True, slots=True)
class Persona:
    """A persona as it stands in a prompt, e.g. ``a biologist``.

    Attributes:
        name: The text that replaces ``{persona}``.
        group: Its group (P1 Appendix D.2), e.g. ``Occupational Roles``.
        subgroup: Its sub-group, or an empty string.
    """

    name: str
    group: str
    subgroup: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by its short name: where it is loaded from, and at which revision."""

    name: str
    id: str
    revision: str | None = None


@dataclass(frozen=True)
class Catalogue:
    """Everything that a spec may name.

    Attributes:
        personas: By name, in the order of the file (ordinal ties of ranks follow it).
        ppf: Persona prompt formats, name → template with ``{persona}``.
        tpf: Task prompt formats, name → template with ``{question}``.
        models: Short name → model.
    """

    personas: Mapping[str, Persona]
    ppf: Mapping[str, str]
    tpf: Mapping[str, str]
    models: Mapping[str, Model]

    def select_personas(self, names: Iterable[str], where: str) -> tuple[Persona, ...]:
        """Look personas up by name, in the catalogue's order.

        Args:
            names: Persona names; a repeated one counts once.
            where: What to call the place in a message, e.g. ``--personas``.

        Raises:
            UserError: A name is not in the catalogue, or there is none.
        """
        wanted = dict.fromkeys(names)
        for name in wanted:
            if name not in self.personas:
                raise UserError(f"{where}: no persona {name!r}; {choices(name, self.personas)}")
        if not wanted:
            raise UserError(f"{where}: no persona given; {choices('', self.personas)}")
        return tuple(p for p in self.personas.values() if p.name in wanted)

    def model(self, name: str) -> Model:
        """The model behind a short name, or behind any hub id, folder or GGUF file."""
        return self.models.get(name) or Model(name=name, id=name)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        UserError: It is missing, not UTF-8, or not YAML; the message names the line.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    try:
        return yaml.load(text, Loader=_strict_loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).split(";")[0] or "cannot be parsed"
        raise UserError(f"{path}{line}: not valid YAML ({problem})") from error


def _strict_loader() -> Any:
    """YAML's safe loader, but a key that stands in a mapping twice is an error: the last one would win."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.value in seen and isinstance(key.value, str):
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} stands there twice; remove one",
                        problem_mark=key.start_mark,
                    )
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    return Loader


def load_catalogue(
    personas: Path | None = None, prompts: Path | None = None, models: Path | None = None
) -> Catalogue:
    """Read the catalogue, with the user's files in place of or on top of the shipped ones.

    Args:
        personas: A file that replaces the personas.
        prompts: A file whose entries replace prompt formats of the same name, or add new ones.
        models: A file whose entries replace model names, or add new ones.

    Raises:
        UserError: A file is not of its form; the message names the file and the key.
    """
    ppf, tpf = _read_prompts(_shipped("prompts.yaml"))
    if prompts:
        own_ppf, own_tpf = _read_prompts(prompts)
        ppf, tpf = {**ppf, **own_ppf}, {**tpf, **own_tpf}
    known = _read_models(_shipped("models.yaml"))
    if models:
        known = {**known, **_read_models(models)}
    return Catalogue(
        personas=_read_personas(personas or _shipped("personas.yaml")), ppf=ppf, tpf=tpf, models=known
    )


def _shipped(name: str) -> Path:
    return Path(str(files("persona_mlflow.catalog") / name))


def _mapping(value: Any, where: str, of: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"{where}: expected a mapping of {of}, got {type(value).__name__}")
    return value


def _read_personas(path: Path) -> dict[str, Persona]:
    found: dict[str, Persona] = {}

    def add(names: Any, group: str, subgroup: str) -> None:
        where = f"{path}: {group}" + (f" / {subgroup}" if subgroup else "")
        if not isinstance(names, list) or not names:
            raise UserError(f"{where}: expected a list of personas, such as [a biologist, a chef]")
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise UserError(f"{where}: {name!r} is not text; put it in quotes")
            if name in found:
                raise UserError(f"{where}: {name!r} stands in the file twice; remove one")
            found[name] = Persona(name.strip(), group, subgroup)

    for group, entry in _mapping(read_yaml(path), str(path), "groups to personas").items():
        if isinstance(entry, Mapping):
            for subgroup, names in entry.items():
                add(names, str(group), str(subgroup))
        else:
            add(entry, str(group), "")
    return found


def _read_prompts(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    content = _mapping(read_yaml(path), str(path), "ppf and tpf to templates")
    for kind in content:
        if kind not in _PLACEHOLDER:
            raise UserError(f"{path}: unknown key {kind!r}; {choices(str(kind), _PLACEHOLDER)}")
    return _templates(content, "ppf", path), _templates(content, "tpf", path)


_PLACEHOLDER = {"ppf": "{persona}", "tpf": "{question}"}


def _templates(content: Mapping[Any, Any], kind: str, path: Path) -> dict[str, str]:
    if kind not in content:
        return {}
    templates = {}
    for name, template in _mapping(content[kind], f"{path}: {kind}", "names to templates").items():
        where = f"{path}: {kind}.{name}"
        if not isinstance(name, str) or not isinstance(template, str):
            raise UserError(f"{where}: name and template must be text; put them in quotes")
        if _PLACEHOLDER[kind] not in template:
            raise UserError(f"{where}: the template has no {_PLACEHOLDER[kind]}; put it where it belongs")
        templates[name] = template
    return templates


def _read_models(path: Path) -> dict[str, Model]:
    models = {}
    for name, entry in _mapping(read_yaml(path), str(path), "short names to models").items():
        entry = {"id": entry} if isinstance(entry, str) else entry
        allowed = ("id", "revision", "note")
        if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
            raise UserError(f"{path}: {name}: needs an id (a hub id, a folder or a GGUF file)")
        for key in entry:
            if key not in allowed:
                raise UserError(f"{path}: {name}: unknown key {key!r}; {choices(str(key), allowed)}")
        models[str(name)] = Model(str(name), entry["id"], entry.get("revision"))
    return models
