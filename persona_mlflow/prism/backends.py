"""The models of a benchmark run: one at a time, loaded when first needed, shared by its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from persona_mlflow.catalog import load_catalogue
from persona_mlflow.errors import UserError

if TYPE_CHECKING:
    from persona_mlflow.engines.base import Engine
    from persona_mlflow.engines.models import Loaded
    from persona_mlflow.prism.bench_spec import BenchSpec, MethodPlan
    from persona_mlflow.prism.evaluators import Evaluator
    from persona_mlflow.prism.judges.base import ScoringJudge, TextJudge

ENDPOINT = "openai:"
"""What a reference to a model behind an endpoint begins with."""


class Backends:
    """Gives each method its evaluator, judge and engine.

    Args:
        spec: The benchmark run.
        say: Told what is loaded.
    """

    def __init__(self, spec: BenchSpec, say: Callable[[str], None]) -> None:
        self._spec = spec
        self._say = say
        self._catalogue = load_catalogue()
        self._reference = ""
        self._loaded: Loaded | None = None
        self._revisions: dict[str, str] = {}

    def name(self, reference: str) -> str:
        """What tables call a model: its short name, or the last part of a path."""
        name = self._catalogue.model(reference).name
        return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".", "~")) else name

    def revision(self, plan: MethodPlan) -> str:
        """What identifies the model's weights; empty for an endpoint, whose weights nobody sees.

        Raises:
            UserError: There is no such model.
        """
        from pathlib import Path

        from persona_mlflow.engines.gguf import file_hash
        from persona_mlflow.engines.identity import identify

        reference = plan.evaluator
        if reference.startswith(ENDPOINT):
            if not reference.removeprefix(ENDPOINT).strip():
                raise UserError("--evaluator openai: names no model; write openai:MODEL")
            return ""
        if reference not in self._revisions:
            if plan.method == "alignscore":
                path = Path(reference).expanduser()
                found = f"sha256:{file_hash(path)}" if path.is_file() else "folder"
                self._revisions[reference] = found
            else:
                model = self._catalogue.model(reference)
                known = [*self._catalogue.models, "openai:MODEL"]
                self._revisions[reference] = identify(model.id, model.revision, known=known)
        return self._revisions[reference]

    def evaluator(self, reference: str) -> Evaluator:
        """The model as PRISM's evaluator.

        Raises:
            UserError: It cannot be loaded, or gives no log-probabilities.
        """
        from persona_mlflow.prism.evaluators import load_evaluator

        if reference.startswith(ENDPOINT):
            return load_evaluator(reference, votes=self._spec.endpoint.votes, **self._endpoint())
        return load_evaluator(self._load(reference), batch_size=self._batch_size)

    def judge(self, plan: MethodPlan) -> TextJudge | ScoringJudge:
        """The judge of a method run."""
        from persona_mlflow.prism.judges import load_judge

        options: dict[str, Any] = {}
        if plan.points is not None:
            options["points"] = plan.points
        if plan.method == "alignscore":
            files = self._spec.judges
            self._say(f"Loading {plan.evaluator} …")
            return load_judge(
                "alignscore",
                checkpoint=plan.evaluator,
                tokenizer=files.alignscore_tokenizer,
                device=self._spec.engine.device,
            )
        if self._spec.max_new_tokens is not None:
            options["max_new_tokens"] = self._spec.max_new_tokens
        return load_judge(plan.method, **options)

    def engine(self, reference: str, judge: TextJudge) -> Engine:
        """What answers a judge's prompts."""
        from persona_mlflow.prism.judge_engine import load_judge_engine

        if reference.startswith(ENDPOINT):
            return load_judge_engine(reference, judge, **self._endpoint())
        return load_judge_engine(self._load(reference), judge, batch_size=self._batch_size)

    def close(self) -> None:
        """Free the model that is loaded."""
        if self._loaded is not None:
            from persona_mlflow.engines.memory import free_memory

            self._loaded, self._reference = None, ""
            free_memory()

    @property
    def _batch_size(self) -> int | Literal["auto"]:
        return 1 if self._spec.engine.deterministic else self._spec.engine.batch_size

    def _endpoint(self) -> dict[str, Any]:
        from persona_mlflow.engines.openai import endpoint_settings

        return endpoint_settings(self._spec.endpoint)

    def _load(self, reference: str) -> Loaded:
        if self._loaded is None or self._reference != reference:
            from persona_mlflow.prism.evaluators import load_local

            self.close()
            settings = self._spec.engine
            self._say(f"Loading {self._catalogue.model(reference).id} …")
            self._loaded = load_local(
                reference,
                dtype="float32" if settings.deterministic else settings.dtype,
                quantization=settings.quantization,
                device=settings.device,
            )
            self._reference = reference
        return self._loaded
