"""How many tokens an experiment's prompts have: counted on a sample of them where a tokenizer is at hand."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING

from persona_mlflow.engines.base import Request
from persona_mlflow.errors import UserError
from persona_mlflow.grid import Cell
from persona_mlflow.model_size import model_folder
from persona_mlflow.prompting import PromptRenderer, fill_persona, fill_question

if TYPE_CHECKING:
    from persona_mlflow.plan import Plan

CHARACTERS_PER_TOKEN = 4.0
TEMPLATE_TOKENS = 25.0
SAMPLE = 320
"""Prompts that are tokenised."""


@dataclass(frozen=True)
class TokenModel:
    """Tokens of a prompt by its characters: ``per_prompt + per_character × characters``.

    Attributes:
        per_prompt: Tokens of the chat template, and all else that every prompt has.
        per_character: Tokens per character of the persona prompt and the task prompt.
        residual: Standard deviation of what that misses, in tokens of one prompt.
        sampled: Prompts that it was fitted to; 0 where it is assumed.
        longest: Tokens of the longest prompt of the sample; 0 where there is none.
    """

    per_prompt: float = TEMPLATE_TOKENS
    per_character: float = 1 / CHARACTERS_PER_TOKEN
    residual: float = 0.0
    sampled: int = 0
    longest: int = 0

    def tokens(self, prompts: float, characters: float) -> float:
        """Tokens of so many prompts that have so many characters together."""
        return self.per_prompt * prompts + self.per_character * characters

    def error(self, prompts: float) -> float:
        """Half-width of the 95 % interval of `tokens` that the sample leaves; 0 where nothing was sampled."""
        return 1.96 * self.residual * prompts / sqrt(self.sampled) if self.sampled else 0.0


class Characters:
    """The characters of an experiment's prompts, without writing all of the prompts.

    Args:
        plan: The experiment.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._questions: dict[str, int] = {}

    def of(self, cell: Cell) -> int:
        """Characters of a cell's prompts, over all questions."""
        draft = cell.setting.draft
        count = len(self._plan.questions.questions)
        system = len(fill_persona(draft.persona_template, cell.persona.name))
        frame, times = len(draft.task_template), draft.task_template.count("{question}")
        frame -= times * len("{question}")
        return count * (system + frame) + times * self._all_questions(cell)

    @cached_property
    def longest(self) -> int:
        """Characters of the longest prompt."""
        return max(len(r.system) + len(r.user) for r in self._plan.longest_requests())

    def _all_questions(self, cell: Cell) -> int:
        draft = cell.setting.draft
        if draft.arrangement not in self._questions:
            self._questions[draft.arrangement] = sum(
                len(fill_question("{question}", shown.text, shown.options))
                for shown in map(draft.arrange, self._plan.questions.questions)
            )
        return self._questions[draft.arrangement]


def sample_requests(plan: Plan, seed: int = 0) -> Iterator[Request]:
    """Prompts out of all of an experiment, without end: each prompt format in turn, anything else by chance.

    The draws of a prompt are those that the sweep would ask it for; a draw's key is its cell's index and the
    question's id.
    """
    from dataclasses import replace

    from persona_mlflow.engines.base import Draw
    from persona_mlflow.plan import make_request

    rng = random.Random(seed)
    formats: dict[object, list[list[Cell]]] = {}
    for group in plan.grid.prompt_groups():
        formats.setdefault(group[0].setting.draft.prompt_identity, []).append(group)
    while True:
        for groups in formats.values():
            cells, question = rng.choice(groups), rng.choice(plan.questions.questions)
            draws = tuple(
                Draw((cell.index, question.id), cell.setting.draft.temperature, cell.seed(question))
                for cell in cells
            )
            yield replace(make_request(cells[0], question), draws=draws)


def fit_tokens(plan: Plan, renderer: PromptRenderer, sample: int = SAMPLE) -> TokenModel:
    """Tokenise a sample of an experiment's prompts, and fit tokens to characters by least squares.

    Raises:
        UserError: The chat template drops a part of a prompt.
    """
    source = sample_requests(plan)
    requests = [next(source) for _ in range(sample)]
    lengths = [len(r.system) + len(r.user) for r in requests]
    tokens = [len(renderer.render(r.system, r.user)) for r in requests]
    return fit(lengths, tokens)


def fit(characters: Sequence[int], tokens: Sequence[int]) -> TokenModel:
    """Fit tokens to characters by least squares.

    Args:
        characters: Of each prompt of a sample.
        tokens: Its tokens.
    """
    n = len(characters)
    mean_x, mean_y = sum(characters) / n, sum(tokens) / n
    pairs = list(zip(characters, tokens, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else 0.0
    intercept = mean_y - slope * mean_x
    residual = sqrt(sum((y - intercept - slope * x) ** 2 for x, y in pairs) / max(1, n - 2))
    return TokenModel(intercept, slope, residual, n, max(tokens))


def local_renderer(plan: Plan) -> PromptRenderer | None:
    """The renderer of the plan's model, if its tokenizer is on this machine; the model is not loaded.

    For a model behind an endpoint, the tokenizer of the same name on this machine.
    """
    folder = model_folder(plan.model.id)
    if folder is None or not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    from persona_mlflow.engines.models import quiet_transformers

    with quiet_transformers():
        try:
            return PromptRenderer(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))
        except (OSError, ValueError, KeyError, ImportError, UserError):
            return None


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
