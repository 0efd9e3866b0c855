"""From a model's reply to an option's letter, or to a named reason for none (science §4).

Conservative by design: only an explicit commitment counts, the last one wins, and nothing is guessed
from prose. `parse_answer` is the one entry point.

* `cleaning` removes what decorates a reply (reasoning traces, Markdown, LaTeX, zero-width characters);
* `options` compares a reply's words with the option texts;
* `rules` holds every pattern, each with examples that are tried when the module is imported;
* `claims` finds explicit commitments, `lines` letters that stand on a line of their own;
* `parser` decides.
"""

from persona_mlflow.parsing.parser import parse_answer
from persona_mlflow.parsing.result import STATUSES, ParsedAnswer, Status

__all__ = ["STATUSES", "ParsedAnswer", "Status", "parse_answer"]
