"""A benchmark run: every method of a spec on one benchmark, each finished method logged at once (P2 §4)."""

from __future__ import annotations

import io
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from persona_mlflow.errors import UserError
from persona_mlflow.grid import slugify
from persona_mlflow.ledger import write_atomically
from persona_mlflow.prism.bench_spec import BenchSpec, MethodPlan, plan_methods
from persona_mlflow.prism.results import FACTS, MethodRun
from persona_mlflow.spec import digest

if TYPE_CHECKING:
    import pandas as pd

    from persona_mlflow.prism.backends import Backends
    from persona_mlflow.prism.cases import Benchmark, Case
    from persona_mlflow.prism.evaluators import Evaluator

BENCHMARK = "benchmark.json"
EXAMPLES = "examples.parquet"
PROBABILITIES = "probabilities.parquet"
"""As `persona_mlflow.prism.scoring.score_cases` gives it: a row per case × dimension."""
SCORE_LOG, REPLY_LOG = "scores.jsonl", "replies.jsonl"


class Watcher(Protocol):
    """What watches a benchmark run."""

    def start(self, what: str, total: int) -> None:
        """A method begins."""

    def advance(self, done: int) -> None:
        """So much of it is done."""

    def message(self, text: str) -> None:
        """Something to say on a line of its own."""


class Bench:
    """Runs the methods of a spec on a benchmark.

    Args:
        spec: What to compare.
        benchmark: The examples.
        output: Where everything is kept; the caller holds its lock.
        backends: Gives the models.
        watcher: Who watches.
    """

    def __init__(
        self, spec: BenchSpec, benchmark: Benchmark, output: Path, backends: Backends, watcher: Watcher
    ) -> None:
        self.spec = spec
        self.benchmark = benchmark
        self.output = output
        self.backends = backends
        self.watcher = watcher
        self.plans = plan_methods(spec)
        _check_slugs(self.plans, backends)

    def run(self, finished: Callable[[MethodRun, Path], None]) -> list[MethodRun]:
        """Run what is not finished yet.

        Args:
            finished: Called with each method run and its folder as soon as it is complete, also with those
                that an earlier call completed.

        Returns:
            The method runs, in the order of the plan.

        Raises:
            UserError: A model that cannot be had, or what the methods raise; what was done is on record.
        """
        for plan in self.plans:
            self.backends.revision(plan)  # a model that is not there is found out before the first is loaded
        self._check_output()
        runs = []
        try:
            for plan in self.plans:
                folder = self.folder(plan)
                found = self._finished(plan, folder)
                if found is None:
                    found = self._method(plan, folder)
                    self._write_benchmark()  # not before: a call that is refused changes nothing
                    found.save(folder)
                runs.append(found)
                finished(found, folder)
        finally:
            self.backends.close()
        return runs

    def _check_output(self) -> None:
        """Refuse a folder that holds another benchmark; more or fewer groups of the same one may follow.

        Raises:
            UserError: It does.
        """
        path = self.output / BENCHMARK
        try:
            there = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}); name another --output") from error
        swap = dict(there.get("report", {})).get("options", {}).get("swap")
        now = self.benchmark.report.options.get("swap")
        if there and (there.get("name"), swap) != (self.benchmark.name, now):
            found, wanted = (
                f"{name} (swap {what})" if what else str(name)
                for name, what in ((there.get("name"), swap), (self.benchmark.name, now))
            )
            raise UserError(f"{self.output}: holds {found}, not {wanted}; name another --output")

    def folder(self, plan: MethodPlan) -> Path:
        """Where a method run is kept."""
        return self.output / slugify(self.backends.name(plan.evaluator)) / self._blank(plan).slug

    def key(self, plan: MethodPlan) -> str:
        """Identifies a method run's results: equal keys mean the same scores of the same examples."""
        spec = self.spec
        shape: dict[str, Any] = {
            "benchmark": self.benchmark.fingerprint,
            "evaluator": plan.evaluator,
            "revision": self.backends.revision(plan),
            "method": plan.method,
            "points": plan.points,
            "temperature": plan.temperature,
            "layout": plan.layout,
            "seed": spec.seed,
            "seeds": spec.seeds if plan.temperature else 1,
            "engine": {k: getattr(spec.engine, k) for k in ("dtype", "quantization", "deterministic")},
        }
        if plan.method == "prism":
            from persona_mlflow.prism.dimensions import load_dimensions

            shape |= {"wording": load_dimensions().fingerprint, "order_cases": spec.order_cases}
            shape |= {"votes": spec.endpoint.votes, "base_url": spec.endpoint.base_url}
        elif plan.method != "alignscore":
            judge: Any = self.backends.judge(plan)
            shape |= {"judge": dict(judge.identity()), "tokens": judge.max_new_tokens}
            shape |= {"base_url": spec.endpoint.base_url}
        return digest(shape, 32)

    def _blank(self, plan: MethodPlan) -> MethodRun:
        import pandas as pd

        return MethodRun(
            benchmark=self.benchmark.name,
            fingerprint=self.benchmark.fingerprint,
            evaluator=self.backends.name(plan.evaluator),
            method=plan.method,
            frame=pd.DataFrame(),
            points=plan.points,
            temperature=plan.temperature,
            layout=plan.layout,
        )

    def _finished(self, plan: MethodPlan, folder: Path) -> MethodRun | None:
        """The method run that an earlier call completed, if its results are these ones."""
        if not (folder / FACTS).exists():
            return None
        found = MethodRun.load(folder)
        if found.facts.get("key") != self.key(plan):
            return None
        self.watcher.message(f"On record already: {found.evaluator}, {found.label}.")
        return found

    def _method(self, plan: MethodPlan, folder: Path) -> MethodRun:
        blank = self._blank(plan)
        started = time.time()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            from persona_mlflow.prism.scoring import LabelMassWarning

            warnings.simplefilter("always", LabelMassWarning)
            run = (
                self._prism(plan, blank, folder)
                if plan.method == "prism"
                else self._judge(plan, blank, folder)
            )
        said = list(dict.fromkeys(str(warning.message) for warning in caught))
        for text in said:
            self.watcher.message(f"Note: {run.evaluator}, {run.label}: {text}.")
        common = {
            "key": self.key(plan),
            "reference": plan.evaluator,
            "seed": self.spec.seed,
            "started": started,
            "ended": time.time(),
            "warnings": said,
        }
        return replace(run, facts={**run.facts, **common})

    # ------------------------------------------------------------------------------------------ methods

    def _prism(self, plan: MethodPlan, blank: MethodRun, folder: Path) -> MethodRun:
        from persona_mlflow.prism.dimensions import load_dimensions
        from persona_mlflow.prism.scoring import score_cases

        evaluator = self.backends.evaluator(plan.evaluator)
        self.watcher.start(f"{blank.evaluator}, {blank.label}", len(self.benchmark))
        scores = score_cases(
            self.benchmark.cases,
            evaluator,
            output=folder / SCORE_LOG,
            seed=self.spec.seed,
            layout=plan.layout,
            progress=lambda done, _: self.watcher.advance(done),
        )
        buffer = io.BytesIO()
        scores.to_parquet(buffer, index=False)
        write_atomically(folder / PROBABILITIES, buffer.getvalue())
        facts: dict[str, Any] = {
            "model": dict(evaluator.describe()),
            "wording": load_dimensions().fingerprint,
            "cut_off": int(scores["cut_off"].sum()),
            "unscored_prompts": int((scores["reason"] != "").sum()),
        }
        mass = scores["label_mass"].dropna()
        if len(mass):
            facts["label_mass"] = float(mass.mean())
        facts["label_variant"] = {str(k): int(n) for k, n in scores["label_variant"].value_counts().items()}
        if self.spec.order_cases:
            facts["order_sensitivity"] = self._order(evaluator, plan.layout)
        return replace(blank, frame=prism_frame(self.benchmark, scores, self.spec.seed), facts=facts)

    def _order(self, evaluator: Evaluator, layout: str) -> dict[str, Any]:
        """How far the order of the labels decides, on a seeded sample of the cases."""
        from persona_mlflow.prism.scoring import order_sensitivity

        cases = sample_cases(self.benchmark, self.spec.order_cases, self.spec.seed)
        self.watcher.message(f"Asking {len(cases)} cases in all six orders of the labels …")
        found = order_sensitivity(cases, evaluator, layout=layout)
        return {
            "cases": len(cases),
            "spread": found.spread,
            "deviation": found.deviation,
            "flips": found.flips,
            "letters": dict(found.letters),
            "unscored": found.unscored,
        }

    def _judge(self, plan: MethodPlan, blank: MethodRun, folder: Path) -> MethodRun:
        from persona_mlflow.prism.judges import judge_examples

        judge: Any = self.backends.judge(plan)
        engine = self.backends.engine(plan.evaluator, judge) if hasattr(judge, "queries") else None
        seeds = [self.spec.seed + i for i in range(self.spec.seeds)]
        total = len(self.benchmark) * (len(seeds) if plan.temperature else 1)
        self.watcher.start(f"{blank.evaluator}, {blank.label}", total)
        frame = judge_examples(
            self.benchmark.examples,
            judge,
            engine,
            output=folder / REPLY_LOG,
            seeds=seeds,
            temperature=plan.temperature,
            progress=lambda done, _: self.watcher.advance(done),
        )
        profiles = {example.case.id: example.case.profile.label for example in self.benchmark}
        facts: dict[str, Any] = {"judge": dict(judge.identity()), "unscored": dict(frame.attrs["unscored"])}
        if engine is not None:
            facts["model"] = dict(engine.describe())
            usage = getattr(engine, "usage", None)
            if usage is not None:
                facts["cost"] = usage.cost
        frame = frame.assign(profile=frame["id"].map(profiles))
        return replace(blank, frame=frame, comparable=judge.comparable, facts=facts)

    def _write_benchmark(self) -> None:
        """Leave the examples, and what was left out and why."""
        self.output.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        self.benchmark.to_frame().to_parquet(buffer, index=False)
        write_atomically(self.output / EXAMPLES, buffer.getvalue())
        content = {
            "name": self.benchmark.name,
            "fingerprint": self.benchmark.fingerprint,
            **composition(self.benchmark),
            "report": self.benchmark.report.as_dict(),
        }
        text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False, default=str)
        write_atomically(self.output / BENCHMARK, text.encode("utf-8", "replace"))


def prism_frame(benchmark: Benchmark, scores: pd.DataFrame, seed: int) -> pd.DataFrame:
    """PRISM's scores as a method run holds them.

    Args:
        benchmark: The examples.
        scores: As `persona_mlflow.prism.scoring.score_cases` gives them.
        seed: The seed of the order of the labels.

    Returns:
        One row per example, with `persona_mlflow.prism.results.COLUMNS`, e_d under each dimension's name and
        the mean ``label_mass`` of its prompts.
    """
    from persona_mlflow.prism.dimensions import DIMENSIONS

    frame = benchmark.to_frame().drop(columns=["context", "response"])
    by_case = scores.groupby("case", sort=False)
    frame["score"] = frame["id"].map(by_case["S"].first()).astype(float)
    refused = scores[scores["reason"] != ""].groupby("case", sort=False)["reason"].first()
    frame["reason"] = frame["id"].map(refused).fillna("").astype(str)
    frame["seed"] = seed
    wide = scores.pivot(index="case", columns="dimension", values="e")
    for dimension in DIMENSIONS:
        frame[dimension] = frame["id"].map(wide[dimension]).astype(float)
    frame["label_mass"] = frame["id"].map(by_case["label_mass"].mean()).astype(float)
    return frame


def sample_cases(benchmark: Benchmark, size: int, seed: int) -> list[Case]:
    """A seeded sample of a benchmark's cases, in its order; all of them where there are no more."""
    from persona_mlflow.prism.cases import content_hash

    drawn = sorted(benchmark.cases, key=lambda case: content_hash("order", seed, case.id))[:size]
    ids = {case.id for case in drawn}
    return [case for case in benchmark.cases if case.id in ids]


def composition(benchmark: Benchmark) -> Mapping[str, int]:
    """Groups, positives and negatives (P2 Table 1)."""
    positives = sum(example.positive for example in benchmark)
    return {
        "groups": len(benchmark.groups),
        "positives": positives,
        "negatives": len(benchmark) - positives,
    }


def _check_slugs(plans: list[MethodPlan], backends: Backends) -> None:
    seen: dict[str, str] = {}
    for reference in dict.fromkeys(plan.evaluator for plan in plans):
        slug = slugify(backends.name(reference))
        if slug in seen:
            raise UserError(
                f"evaluators {seen[slug]!r} and {reference!r} go by one name ({slug}): run them with an "
                "--output of their own each"
            )
        seen[slug] = reference
