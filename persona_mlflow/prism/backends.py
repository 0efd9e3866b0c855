"""The models of a benchmark run: one at a time, loaded when first needed, shared by its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
        spec = self._spec
        if reference.startswith(ENDPOINT):
            from persona_mlflow.prism.evaluators import load_evaluator

            end = spec.endpoint
            return load_evaluator(
                reference,
                base_url=end.base_url,
                api_key_env=end.api_key_env,
                concurrency=end.concurrency,
                requests_per_minute=end.requests_per_minute,
                prices=self._prices(),
                cost_cap=end.cost_cap,
                votes=end.votes,
            )
        from persona_mlflow.prism.hf_evaluator import HFEvaluator

        loaded = self._load(reference)
        return HFEvaluator(
            loaded.model,
            loaded.tokenizer,
            name=self.name(reference),
            details=_details(loaded),
            batch_size=spec.engine.batch_size,
        )

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
        from persona_mlflow.prism.judges import judge_decoding

        spec = self._spec
        decoding = judge_decoding(judge)
        if reference.startswith(ENDPOINT):
            from persona_mlflow.prism.endpoint import OpenAIEngine

            end = spec.endpoint
            default = end.api_key_env == "OPENAI_API_KEY"
            return OpenAIEngine(
                reference.removeprefix(ENDPOINT),
                base_url=end.base_url,
                key_variable=None if default else end.api_key_env,
                decoding=decoding,
                concurrency=end.concurrency,
                requests_per_minute=end.requests_per_minute,
                prices=self._prices(),
                cost_cap=end.cost_cap,
            )
        from persona_mlflow.engines.hf import HFEngine

        loaded = self._load(reference)
        return HFEngine(
            loaded.model,
            loaded.tokenizer,
            decoding,
            name=self.name(reference),
            details=_details(loaded),
            batch_size=spec.engine.batch_size,
            deterministic=spec.engine.deterministic,
        )

    def close(self) -> None:
        """Free the model that is loaded."""
        if self._loaded is not None:
            from persona_mlflow.engines.memory import free_memory

            self._loaded, self._reference = None, ""
            free_memory()

    def _load(self, reference: str) -> Loaded:
        if self._loaded is None or self._reference != reference:
            from persona_mlflow.engines.models import load_model

            self.close()
            model = self._catalogue.model(reference)
            settings = self._spec.engine
            self._say(f"Loading {model.id} …")
            self._loaded = load_model(
                model.id,
                dtype="float32" if settings.deterministic else settings.dtype,
                quantization=settings.quantization,
                device=settings.device,
                revision=model.revision,
            )
            self._reference = reference
        return self._loaded

    def _prices(self) -> Any:
        from persona_mlflow.prism.endpoint import Prices

        end = self._spec.endpoint
        if end.price_prompt is None and end.price_completion is None:
            return None
        return Prices(end.price_prompt or 0.0, end.price_completion or 0.0)


def _details(loaded: Loaded) -> dict[str, str | int | float | bool]:
    return {"revision": loaded.revision, "quantization": loaded.quantization}
