"""The evaluator behind an OpenAI-compatible endpoint: by its log-probabilities, or by sampled votes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from persona_mlflow.engines.openai_client import ChatClient
from persona_mlflow.engines.openai_connection import KEY_VARIABLE, Call, Reply, RequestRefused
from persona_mlflow.engines.pacing import Usage
from persona_mlflow.errors import UserError
from persona_mlflow.prism.evaluators import VARIANTS, Facts, LabelScore, unscored
from persona_mlflow.prism.prompt import LABELS, SYSTEM, LabelPrompt

_PROBE = f"{'. '.join(LABELS)}. Answer with the letter A, B or C."
# Whether a server samples at all is asked with a question that has many answers, at a temperature that evens
# them out: eight draws alike are then no chance.
_SAMPLING_PROBE = "Write one random English word."
_PROBE_DRAWS, _PROBE_TEMPERATURE = 8, 2.0

# Prompts by number, with the answers that they got.
_Open = dict[Hashable, tuple[LabelPrompt, list[Reply]]]

_FILTERED = "the endpoint's content filter withheld the answer"


class OpenAIEvaluator:
    """A model behind an OpenAI-compatible endpoint; safe to use from several threads.

    Only the endpoint's list of likely tokens is seen: a label that is not on it gets probability 0 and is
    counted in `LabelScore.cut_off`.

    Where the endpoint gives no log-probabilities and `votes` is not 0, each prompt is asked that many times
    for one token, at temperature 1 and with a seed for each vote. A label's probability is its share of all
    votes. A reply that is no label counts for none, so the label mass is the share of those that are; a label
    without a vote gets probability 0 and is counted in `LabelScore.cut_off`. With n votes a probability p has
    a standard error of √(p (1 − p) / n). A server that does not sample, whatever temperature it is sent, is
    found out at the start.

    Args:
        base_url: The endpoint, e.g. ``http://127.0.0.1:8080/v1``; None is OpenAI's own.
        model: The model's name there.
        api_key_env: Environment variable that holds the key. The key itself is never stored or shown.
        top_logprobs: Likely tokens to ask for, 1 to 20.
        votes: Votes for each prompt where there are no log-probabilities; 0 refuses such an endpoint.
        concurrency: Calls at once.
        extra_body: Further fields of each request, as a server of your own may take.
        **client: Further settings of the client, see `ChatClient`: requests_per_minute, retries, timeout_s,
            backoff_s, prices, cost_cap.

    Attributes:
        usage: What was used so far.

    Raises:
        UserError: The package `openai` or the key is missing, the endpoint cannot be reached, or it gives no
            log-probabilities and there are to be no votes, or no sampled ones; found out at the start.
    """

    def __init__(
        self,
        base_url: str | None,
        model: str,
        *,
        api_key_env: str = KEY_VARIABLE,
        top_logprobs: int = 20,
        votes: int = 0,
        concurrency: int = 4,
        extra_body: Mapping[str, Any] | None = None,
        **client: Any,
    ) -> None:
        if not 1 <= top_logprobs <= 20:
            raise UserError(f"top_logprobs: {top_logprobs} is not valid: use a whole number from 1 to 20")
        if votes < 0:
            raise UserError(f"votes: {votes} is not valid: use a whole number, or 0 for none")
        self._client = ChatClient(
            model, base_url=base_url, api_key_env=api_key_env, concurrency=concurrency, **client
        )
        self.usage: Usage = self._client.usage
        self._extra = dict(extra_body or {})
        self._likely = {"temperature": 0.0, "logprobs": True, "top_logprobs": top_logprobs, **self._extra}
        self._top = top_logprobs
        self._served = ""
        self._votes = 0 if self._gives_logprobs(votes) else votes
        if self._votes:
            self._check_sampling()

    def describe(self) -> Facts:
        """Endpoint, model asked for, model served, and settings; never the key."""
        return {**self.identity(), "served_model": self._served, **self._client.describe()}

    def identity(self) -> Facts:
        """Endpoint, model, and what the scores are: log-probabilities or votes."""
        return {
            "engine": "openai",
            "base_url": self._client.url,
            "model": self._client.model,
            "top_logprobs": 0 if self._votes else self._top,
            "scores": f"shares of {self._votes} sampled votes" if self._votes else "log-probabilities",
        }

    def label_scores(self, groups: Iterable[Sequence[LabelPrompt]]) -> Iterator[list[LabelScore]]:
        """Score prompts, some at once (see `Evaluator`).

        Raises:
            CostCapReached: The cost cap does not allow the next call.
            UserError: The endpoint refuses a call, or fails more often than it is retried. Prompts that are
                answered by then are yielded first.
        """
        open_: _Open = {}
        for replies in self._client.answers(self._calls(groups, open_)):
            scores = []
            for reply in replies:
                prompt, got = open_[reply.key]
                got.append(reply)
                if len(got) == max(1, self._votes):
                    scores.append(count_votes(prompt, got) if self._votes else read_labels(prompt, reply))
                    del open_[reply.key]
            if scores:
                yield scores

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _calls(self, groups: Iterable[Sequence[LabelPrompt]], open_: _Open) -> Iterator[Call]:
        """The calls for all prompts; a prompt stands in `open_` until its answers are in."""
        number = 0
        for group in groups:
            for prompt in group:
                open_[number] = prompt, []
                for vote in range(max(1, self._votes)):
                    fields = self._vote(prompt.key, vote) if self._votes else self._likely
                    yield Call(number, prompt.system, prompt.user, 1, fields)
                number += 1

    def _gives_logprobs(self, votes: int) -> bool:
        """One call at the start: is there anyone, and do they give log-probabilities? (pitfall L7)"""
        self._client.check()
        what = f"evaluator {self._client.model} at {self._client.url}"
        mend = (
            "use an endpoint or a model that gives them, a local model as evaluator, or the option votes=N "
            "(such as 30): shares of N sampled answers in their place"
        )
        try:
            reply = self._client.ask(Call(0, SYSTEM, _PROBE, 1, self._likely))
        except RequestRefused as error:
            if "logprob" not in error.detail.lower():
                raise
            if votes:
                return False
            raise UserError(
                f"{what}: the endpoint or model refuses log-probabilities ({error.detail}): ask for fewer "
                f"(top_logprobs); or {mend}"
            ) from None
        self._served = reply.model
        if likely_tokens(reply) and reply.logprobs[0].top_logprobs:
            return True
        if votes:
            return False
        raise UserError(
            f"{what}: the endpoint answers without log-probabilities (logprobs, top_logprobs), and PRISM "
            f"scores by them: {mend}"
        )

    def _check_sampling(self) -> None:
        """Some servers decode greedily whatever temperature they are sent: all votes would be one."""
        fields = [
            self._vote(("probe",), i) | {"temperature": _PROBE_TEMPERATURE} for i in range(_PROBE_DRAWS)
        ]
        calls = [Call(i, "", _SAMPLING_PROBE, 1, field) for i, field in enumerate(fields)]
        said = {reply.text for replies in self._client.answers(calls) for reply in replies}
        if len(said) == 1:
            raise UserError(
                f"evaluator {self._client.model} at {self._client.url}: gives {said.pop()!r} in all of "
                f"{_PROBE_DRAWS} draws of one token at temperature {_PROBE_TEMPERATURE:g}: it does not "
                "sample, or says nothing in one token, so votes are worth nothing. Let the server sample "
                "(transformers serve takes do_sample in generation_config, see extra_body), or use a local "
                "model"
            )

    def _vote(self, key: Sequence[Hashable], vote: int) -> dict[str, Any]:
        """A vote's sampling; its seed hangs on the prompt's key and the vote's number alone."""
        text = "\0".join(map(str, (*key, vote))).encode("utf-8", "surrogatepass")
        seed = int.from_bytes(hashlib.sha256(text).digest()[:4]) & 0x7FFF_FFFF
        return {"temperature": 1.0, "top_p": 1.0, "seed": seed, **self._extra}


def likely_tokens(reply: Reply) -> dict[str, float]:
    """Log-probability by token text at the first position of an answer; empty where there are none."""
    if not reply.logprobs:
        return {}
    likely: dict[str, float] = {}
    for token in [*(reply.logprobs[0].top_logprobs or ()), reply.logprobs[0]]:
        # Two ids may decode to one text; the drawn token stands in the list, too.
        if token.token not in likely:
            likely[token.token] = min(0.0, float(token.logprob))
    return likely


def read_labels(prompt: LabelPrompt, reply: Reply) -> LabelScore:
    """The score in the log-probabilities of an answer's first token."""
    likely: Mapping[str, float] = likely_tokens(reply)
    if not likely:
        reason = "the endpoint gave no log-probabilities for this prompt"
        return unscored(prompt, _FILTERED if reply.notes else reason)
    found = {
        variant: tuple(likely.get(variant + label, -math.inf) for label in LABELS) for variant in VARIANTS
    }
    variant, log_p = max(found.items(), key=lambda item: math.fsum(map(math.exp, item[1])))
    cut_off = sum(value == -math.inf for value in log_p)
    if cut_off == len(LABELS):
        return unscored(
            prompt, f"none of the labels {', '.join(LABELS)} is among the {len(likely)} likely tokens"
        )
    return LabelScore(prompt.key, prompt.order, log_p, variant + LABELS[0], cut_off)


def count_votes(prompt: LabelPrompt, replies: Sequence[Reply]) -> LabelScore:
    """The score in one-token answers, each drawn at temperature 1.

    Many servers take the blank before a letter away, so ``A`` and `` A`` count as one.
    """
    votes = Counter(reply.text.strip() for reply in replies)
    log_p = tuple(math.log(votes[label] / len(replies)) if votes[label] else -math.inf for label in LABELS)
    cut_off = sum(value == -math.inf for value in log_p)
    if cut_off == len(LABELS):
        reason = f"none of {len(replies)} sampled answers is one of the labels {', '.join(LABELS)}"
        return unscored(prompt, _FILTERED if all(reply.notes for reply in replies) else reason)
    return LabelScore(prompt.key, prompt.order, log_p, LABELS[0], cut_off)
