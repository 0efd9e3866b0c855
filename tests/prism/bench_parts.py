"""What the tests of benchmark runs share: a small BIG5-CHAT file, and a model of letters and ratings."""

from __future__ import annotations

import csv
from pathlib import Path

TRAITS = ("openness", "conscientiousness", "extraversion")
LINES = {
    ("openness", "high"): "What a strange and lovely idea, let us try it out at once.",
    ("openness", "low"): "No need for anything new, the usual way works well enough.",
    ("conscientiousness", "high"): "I made a list and a plan, and all of it is done before noon.",
    ("conscientiousness", "low"): "Whatever, I forgot about that and lost the papers anyway.",
    ("extraversion", "high"): "Everybody come over, the more the merrier, I love a crowd!",
    ("extraversion", "low"): "I would rather stay in by myself and read in silence.",
}


def write_big5(folder: Path, scenarios: int = 3) -> Path:
    """A file in BIG5-CHAT's layout: each scenario answered at both levels of three traits."""
    path = folder / "big5.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["original_index", "trait", "level", "train_input", "train_output"])
        for scenario in range(scenarios):
            for (trait, level), text in LINES.items():
                context = f"Scenario {scenario}: what do you say?"
                writer.writerow([scenario, trait, level, context, f"{text} That is all for day {scenario}."])
    return path


def save_judging_model(folder: Path, seed: int = 0, mute: bool = False) -> Path:
    """A tiny random model with room for a judge's prompt, whose output leans to A, B, C and to ratings.

    Args:
        folder: Where to save it.
        seed: Of its weights.
        mute: Let it never write A, B or C.
    """
    import torch

    from tiny_models import build_model, build_tokenizer

    tokenizer = build_tokenizer("chatml")
    model = build_model("qwen2", seed=seed, context=2048)
    with torch.no_grad():
        # A channel that is always on makes letters and ratings likely; a rating switches on another, which
        # ends the turn.
        letters, ratings = (tokenizer.convert_tokens_to_ids(list(text)) for text in ("ABC", "12345"))
        embedding = model.get_input_embeddings().weight
        output = model.get_output_embeddings().weight
        embedding[:, :2] = output[:, :2] = 0.0
        embedding[:, 0] = 6.0
        output[letters, 0] = -9.0 if mute else 4.5
        output[ratings, 0] = 5.0
        output[[*letters, *ratings], 2:] *= 2.0
        embedding[ratings, 1] = 9.0
        output[tokenizer.eos_token_id, 1] = 9.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
