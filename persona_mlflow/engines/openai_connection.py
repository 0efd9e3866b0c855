"""One try of one request to an OpenAI-compatible server: what is sent, and what the reply or error means."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from persona_mlflow.engines.pacing import retry_after
from persona_mlflow.errors import UserError, choices

if TYPE_CHECKING:
    import openai

KEY_VARIABLE = "OPENAI_API_KEY"
EXTRA = 'pip install "persona-mlflow[openai]"'

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRANSIENT = (408, 409, 425, 429)
_LONGEST_HOLD_S = 600.0
_CHECK_S = 10.0
_SECRET = re.compile(r"\b(?:sk|key|gsk|hf)[-_][\w*.-]{6,}|(?i:bearer)\s+\S+")


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        key: Identity of the call; comes back on its reply.
        system: The system message; an empty one is not sent.
        user: The user message.
        max_tokens: Most tokens of the answer.
        fields: Further fields of the request: temperature, seed, logprobs …
    """

    key: Hashable
    system: str
    user: str
    max_tokens: int
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    Attributes:
        key: The call's key.
        text: The answer's text; a refusal's where that is all there is.
        finish_reason: ``length`` where the limit of tokens cut it, else ``stop``.
        tokens: Prompt and completion tokens; None where the server reported none.
        notes: ``content_filter`` where the endpoint's filter withheld the answer.
        logprobs: The answer's log-probabilities, token by token, as the package `openai` holds them.
        model: The model that the server names.
    """

    key: Hashable
    text: str
    finish_reason: Literal["stop", "length"]
    tokens: tuple[int, int] | None = None
    notes: str = ""
    logprobs: Any = None
    model: str = ""


class RequestRefused(UserError):
    """The endpoint refuses a request for what it asks.

    Attributes:
        detail: The endpoint's own words, without anything that may be a key.
    """

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


class Passing(Exception):
    """A try failed, and the next may not.

    Attributes:
        retry_after: Seconds that the server asks to wait.
        charged: Whether the try may have been charged.
    """

    def __init__(self, what: str, *, retry_after: float | None = None, charged: bool = False) -> None:
        super().__init__(what)
        self.retry_after = retry_after
        self.charged = charged


class Connection:
    """The way to one model behind an endpoint; safe to use from several threads.

    Args:
        model: The model's name at the endpoint.
        base_url: The endpoint; None is OpenAI's. A proxy in the environment is not used for this machine's
            own addresses.
        api_key_env: Environment variable with the key. With a `base_url` the default one may be missing.
        timeout_s: Seconds to wait for one answer.

    Attributes:
        url: The endpoint's address.
        limit_field: What the server calls the limit of tokens, as far as is known.

    Raises:
        UserError: The package `openai` or the key is missing, or the address is none.
    """

    def __init__(self, model: str, base_url: str | None, api_key_env: str, timeout_s: float) -> None:
        try:
            import openai as package
        except ImportError as error:
            raise UserError(f"an OpenAI-compatible endpoint takes the package openai: {EXTRA}") from error
        if not model:
            raise UserError("endpoint: the model's name is empty; give the name that the endpoint knows")
        kwargs: dict[str, Any] = {}
        if base_url is not None and _host(base_url) in _LOOPBACK:
            kwargs["http_client"] = package.DefaultHttpxClient(trust_env=False)
        self._key = os.environ.get(api_key_env, "").strip()
        if not self._key and (api_key_env != KEY_VARIABLE or not base_url):
            raise UserError(
                f"endpoint {base_url or 'OpenAI'}: the environment variable {api_key_env} with its key is "
                "not set"
            )
        # A server of one's own takes no key, and the package must send something.
        self._client = package.OpenAI(
            api_key=self._key or "none", base_url=base_url, max_retries=0, timeout=timeout_s, **kwargs
        )
        self._model = model
        self.url = str(self._client.base_url).rstrip("/")
        self.limit_field = "max_tokens"

    def check(self) -> None:
        """Reach the server once, with the key; asks for its list of models, which costs nothing.

        Raises:
            UserError: No server answers, or it refuses the key.
        """
        import openai as package

        try:
            self._client.models.list(timeout=_CHECK_S)
        except (package.AuthenticationError, package.PermissionDeniedError) as error:
            raise self._wrong_key(error) from None
        except package.APIConnectionError as error:
            raise UserError(
                f"endpoint {self.url}: no server answers ({self._reason(error)}); check base_url, and that "
                "the server runs"
            ) from None
        except Exception:  # a server without such a list, or with one of its own form
            return

    def send(self, call: Call) -> Reply:
        """Try a request once.

        Raises:
            Passing: It may work later.
            UserError: It will not.
        """
        import openai as package

        messages: list[Any] = [{"role": "system", "content": call.system}] if call.system.strip() else []
        messages.append({"role": "user", "content": call.user})
        limit_field = self.limit_field
        try:
            reply = self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                stream=False,
                extra_body={limit_field: call.max_tokens, **call.fields},
            )
        except package.APITimeoutError:
            raise Passing("timeout", charged=True) from None
        except package.APIConnectionError as error:
            raise Passing(f"no connection: {self._reason(error)}") from None
        except package.APIStatusError as error:
            return self._refused(error, call, limit_field)
        except (package.APIResponseValidationError, ValueError) as error:
            raise Passing(f"a body that is no JSON: {self._reason(error)[:80]}", charged=True) from None
        return _accept(reply, call)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _refused(self, error: openai.APIStatusError, call: Call, limit_field: str) -> Reply:
        """What an error status means: try later, give up, or a prompt that is filtered."""
        status, code = error.status_code, str(getattr(error, "code", "") or "")
        reason = self._reason(error)
        where = f"endpoint {self.url}"
        if status in (401, 403):
            raise self._wrong_key(error)
        if code == "insufficient_quota" or status == 402:
            raise UserError(f"{where}: the account's quota is used up ({reason}); mend that and run again")
        if status in _TRANSIENT or (status >= 500 and status != 501):
            after = retry_after(error.response.headers)
            if after is not None and after > _LONGEST_HOLD_S:
                raise UserError(f"{where}: asks to wait {after:.0f} s ({reason}); run again then")
            raise Passing(f"status {status}: {reason}", retry_after=after)
        if code == "content_filter":
            # Refused before it was read, so without a cost.
            return Reply(call.key, "", "stop", (0, 0), notes="content_filter")
        if "max_completion_tokens" in reason and limit_field == "max_tokens":
            self.limit_field = "max_completion_tokens"  # what newer models call it
            raise Passing("the limit of tokens goes by another name")
        if status == 404 or "model" in code:
            raise self._unknown_model(status, reason)
        raise RequestRefused(
            f"{where}: refuses the request for {self._model!r} (status {status}: {reason})", reason
        )

    def _wrong_key(self, error: openai.APIStatusError) -> UserError:
        # Not the server's own words: some repeat the key in them.
        return UserError(
            f"endpoint {self.url}: refuses the key (status {error.status_code}): put a valid one into the "
            "environment variable for it"
        )

    def _unknown_model(self, status: int, reason: str) -> UserError:
        try:
            names = [str(model.id) for model in self._client.models.list(timeout=_CHECK_S).data][:200]
        except Exception:  # no such list
            names = []
        hint = f"; {choices(self._model, names)}" if 0 < len(names) <= 50 else "; check the name and base_url"
        return UserError(
            f"endpoint {self.url}: has no model {self._model!r} (status {status}: {reason}){hint}"
        )

    def _reason(self, error: BaseException) -> str:
        """The first line of an error's message or its cause's, without anything that may be a key."""
        body = getattr(error, "body", None)
        detail = None
        if isinstance(body, Mapping):
            detail = body.get("message") or body.get("detail") or body.get("error")
        if not isinstance(detail, str) or not detail.strip():
            cause = error.__cause__
            detail = str(cause if cause is not None and str(cause) else error).strip() or type(error).__name__
        line = detail.strip().splitlines()[0]
        return _SECRET.sub("…", line.replace(self._key, "…") if self._key else line)[:300]


def _accept(reply: Any, call: Call) -> Reply:
    """Take a body for an answer only if it is one."""
    try:
        choice = reply.choices[0]
        finish, message = choice.finish_reason, choice.message
        text = message.content or getattr(message, "refusal", None) or ""
    except (AttributeError, TypeError, IndexError):
        raise Passing("a body without an answer", charged=True) from None
    if not isinstance(text, str) or finish not in ("stop", "length", "content_filter"):
        raise Passing(f"an answer that ended with {finish!r}", charged=True)
    usage = getattr(reply, "usage", None)
    sent, got = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    return Reply(
        call.key,
        text,
        "length" if finish == "length" else "stop",
        (sent, got) if isinstance(sent, int) and isinstance(got, int) else None,
        notes="content_filter" if finish == "content_filter" else "",
        logprobs=getattr(getattr(choice, "logprobs", None), "content", None),
        model=str(getattr(reply, "model", "") or ""),
    )


def _host(base_url: str) -> str:
    """The host of an endpoint's address.

    Raises:
        UserError: It is no address, or holds what may be a secret; the message does not repeat that.
    """
    try:
        parts = urlsplit(base_url)
        host = parts.hostname
    except ValueError:
        raise UserError("endpoint: the address is none; write it like http://127.0.0.1:8000/v1") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "endpoint: the address holds a name or password, or a query; leave them out, and give the key by "
            "the environment"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"endpoint {base_url!r}: is no address; write it like http://127.0.0.1:8000/v1")
    return host
