"""PRISM as a scorer in ``mlflow.genai.evaluate``: how far does each reply show its persona?

Runs offline, on the embedded model, in the current folder:

    pip install "persona-mlflow[quickstart]"
    python examples/genai_evaluate.py

Each row has a profile (whom the reply should sound like), the context that it answers, and the reply. To
score an application's replies as they are made, leave ``outputs`` out and give ``evaluate`` a ``predict_fn``.
"""

from __future__ import annotations

import os
import sys

# Before mlflow is imported: nothing leaves this machine.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import mlflow

from persona_mlflow.prism import prism_scorer
from persona_mlflow.store import connect, resolve_tracking_uri

ROWS = [
    {
        # A Big Five trait and its level.
        "inputs": {"profile": "high agreeableness", "context": "I lost my keys on the way home."},
        "outputs": "Oh no, I am so sorry! Shall I come over and help you look for them?",
    },
    {
        # One of the personas, or any other, by name.
        "inputs": {"profile": "a chef", "context": "What should I do with my evening?"},
        "outputs": "Roast a chicken: salt it now, let it rest, and taste the sauce twice.",
    },
    {
        # A character, described in sections; the reply as a chat message.
        "inputs": {
            "profile": {"name": "Mara", "sections": {"personality": "bold", "style": "short, dry remarks"}},
            "context": "The bridge is out. Will you jump?",
        },
        "outputs": {"role": "assistant", "content": "Watch me."},
    },
]


def main() -> None:
    """Score the rows, and say what came out and where to look."""
    evaluator = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    uri = resolve_tracking_uri(None)  # MLFLOW_TRACKING_URI, or sqlite:///mlflow.db in this folder
    connect(uri)
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("prism-genai")

    result = mlflow.genai.evaluate(data=ROWS, scorers=[prism_scorer(evaluator)])

    print(f"\nPRISM on {len(ROWS)} rows, evaluator {evaluator} (S in [0, 1]; 1 = shows the profile):")
    for name, value in sorted(result.metrics.items()):
        print(f"  {name:<34} {value:.4f}")
    print(f"\nRun {result.run_id} in experiment prism-genai. Each row with its scores and their rationale:")
    print(f"  mlflow ui --backend-store-uri {uri}")


if __name__ == "__main__":
    main()
