"""The grid: every persona in every setting, and which of these cells share their prompts."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from persona_mlflow.catalog import Catalogue, Persona
from persona_mlflow.factors import CORE_FACTORS, FACTORS, Draft, Level
from persona_mlflow.questions.base import Question
from persona_mlflow.spec import canonical_json, digest


@dataclass(frozen=True)
class Setting:
    """One combination of factor levels.

    Attributes:
        levels: Factor → level, for every factor that the experiment names, in its order.
        draft: The prompt and decoding that the levels make.
        contents: What each draw-shaping factor's level stands for; part of a draw's identity.
    """

    levels: Mapping[str, Level]
    draft: Draft
    contents: Mapping[str, tuple[Level, str]]

    @classmethod
    def make(cls, levels: Mapping[str, Level], catalogue: Catalogue) -> Setting:
        """Apply every factor, at its level or its default, to an empty draft."""
        draft, contents = Draft(), {}
        for name, factor in FACTORS.items():
            level = levels.get(name, factor.default)
            if name in levels or name in CORE_FACTORS:
                draft = factor.apply(draft, level, catalogue)
            if name in CORE_FACTORS or level != factor.default:
                contents[name] = (level, factor.content(level, catalogue))
        return cls(dict(levels), draft, contents)

    @property
    def all_levels(self) -> dict[str, Level]:
        """The levels of the named factors, and the paper's factors at their defaults where not named."""
        return {**{name: FACTORS[name].default for name in CORE_FACTORS}, **self.levels}


@dataclass(frozen=True)
class Cell:
    """One persona in one setting: one run of the paper, one child run in MLflow.

    Attributes:
        index: Position in the grid.
        persona: Who is asked.
        setting: How.
        identity: Everything but the question that shapes this cell's draws, as JSON values.
        key: Hash of the identity.
    """

    index: int
    persona: Persona
    setting: Setting
    identity: Mapping[str, Any]
    key: str

    @cached_property
    def slug(self) -> str:
        """A readable and unique file name stem."""
        return f"{slugify(self.persona.name)}-{self.key}"

    @property
    def name(self) -> str:
        """What the run is called: the persona, then the levels."""
        levels = " · ".join(str(level) for level in self.setting.levels.values())
        return f"{self.persona.name} · {levels}" if levels else self.persona.name

    def seed(self, question: Question) -> int:
        """The seed of this cell's draw for a question, 0 ≤ seed < 2**63.

        It depends on the experiment seed, persona, setting and question alone, never on the model, the
        batch, the order or the machine.
        """
        shaping = {name: level for name, (level, _) in self.setting.contents.items()}
        payload = canonical_json([self.identity["seed"], self.persona.name, shaping, question.id])
        return int.from_bytes(hashlib.sha256(payload.encode()).digest()[:8]) >> 1


class Grid:
    """All cells of an experiment, personas × settings in catalogue order.

    Args:
        personas: The personas.
        factors: Factor → levels, as validated.
        catalogue: Where the levels' contents stand.
        generation: What else shapes a draw: model, revision, decoding, seed, dtype, quantization.
    """

    def __init__(
        self,
        personas: Sequence[Persona],
        factors: Mapping[str, Sequence[Level]],
        catalogue: Catalogue,
        generation: Mapping[str, Any],
    ) -> None:
        self.personas = tuple(personas)
        self.factors = {name: tuple(levels) for name, levels in factors.items()}
        self.settings = tuple(
            Setting.make(dict(zip(self.factors, levels, strict=True)), catalogue)
            for levels in itertools.product(*self.factors.values())
        )
        pairs = itertools.product(self.personas, self.settings)
        self.cells = tuple(_cell(i, p, s, generation) for i, (p, s) in enumerate(pairs))

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def shape(self) -> tuple[int, ...]:
        """Personas × levels of each factor."""
        return len(self.personas), *(len(levels) for levels in self.factors.values())

    def prompt_groups(self) -> list[list[Cell]]:
        """The cells, grouped by equal prompts: those of one group can share every prefill."""
        groups: dict[object, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault((cell.persona, cell.setting.draft.prompt_identity), []).append(cell)
        return list(groups.values())

    def windows(self, questions: int, draws: int) -> Iterator[list[list[Cell]]]:
        """Cut the work into windows of whole prompt groups.

        Args:
            questions: Questions per cell.
            draws: A window closes when it holds at least this many draws.

        Yields:
            Lists of prompt groups. Only one window's texts are ever in memory.
        """
        window: list[list[Cell]] = []
        count = 0
        for group in self.prompt_groups():
            window.append(group)
            count += len(group) * questions
            if count >= draws:
                yield window
                window, count = [], 0
        if window:
            yield window


def _cell(index: int, persona: Persona, setting: Setting, generation: Mapping[str, Any]) -> Cell:
    identity = {
        **generation,
        "persona": persona.name,
        "factors": {name: list(content) for name, content in setting.contents.items()},
    }
    return Cell(index, persona, setting, identity, digest(identity))


def slugify(text: str) -> str:
    """Lower-case words joined by hyphens, fit for a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"
