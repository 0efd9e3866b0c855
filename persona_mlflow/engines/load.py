"""The engine that a plan asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from persona_mlflow.engines.base import Decoding

if TYPE_CHECKING:
    from persona_mlflow.engines.base import Engine
    from persona_mlflow.plan import Plan


def load_plan_engine(plan: Plan, say: Callable[[str], None]) -> Engine:
    """Load the model of a plan, or reach for the endpoint that serves it.

    Args:
        plan: What is to run.
        say: Told what is loaded, and how.

    Raises:
        UserError: The model cannot be loaded.
    """
    if plan.spec.engine.is_endpoint:
        return _endpoint_engine(plan, say)
    from persona_mlflow.engines.hf import load_engine

    say(f"Loading {plan.model.id} …")
    started = time.monotonic()
    settings = plan.spec.engine
    engine = load_engine(
        plan.model.id,
        decoding=Decoding(**plan.spec.decoding.model_dump()),
        batch_size=settings.batch_size,
        dtype=settings.dtype,
        quantization=settings.quantization,
        device=settings.device,
        revision=plan.commit,
        deterministic=settings.deterministic,
    )
    found = engine.describe()
    say(
        f"Loaded in {time.monotonic() - started:.1f} s: {found['dtype']} on {found['device']}, "
        f"system role {found['system_role']}"
    )
    return engine


def _endpoint_engine(plan: Plan, say: Callable[[str], None]) -> Engine:
    from persona_mlflow.engines.openai import OpenAIEngine, endpoint_settings

    settings = plan.spec.engine
    engine = OpenAIEngine(
        plan.model.id,
        decoding=Decoding(**plan.spec.decoding.model_dump()),
        send_top_k=plan.sends_top_k,
        extra_body=settings.extra_body,
        check_persona=True,
        timeout_s=settings.timeout_s,
        **endpoint_settings(settings),
    )
    found = engine.describe()
    say(
        f"Asking {plan.model.id} at {found['base_url']}, up to {settings.concurrency} requests at once. "
        "Whether the same seed gives the same answer again is up to the server."
    )
    return engine
