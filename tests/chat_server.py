"""A chat server of the tests' own: OpenAI's interface on a real socket, answering as a test says."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any, dict[str, str]]


def answer(text: str | None, finish: str = "stop", usage: dict[str, int] | None = None, **more: Any) -> Any:
    """A chat completion's body."""
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14} if usage is None else usage
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **more},
            }
        ],
        **({"usage": usage} if usage else {}),
    }


class Server:
    """Answers chat completions as a test says, and keeps what it was asked."""

    def __init__(self, respond: Callable[[dict[str, Any], int], Reply], models: Reply) -> None:
        self.respond, self.models = respond, models
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: list[str] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    outer.asked.append(body)
                    outer.times.append(time.monotonic())
                    outer.keys.append(self.headers["authorization"])
                    user = body["messages"][-1]["content"]
                    tries = sum(a["messages"][-1]["content"] == user for a in outer.asked)
                    outer._now += 1
                    outer.most_at_once = max(outer.most_at_once, outer._now)
                try:
                    self._send(outer.respond(body, tries))
                finally:
                    with outer._lock:
                        outer._now -= 1

            def do_GET(self) -> None:
                self._send(outer.models)

            def _send(self, reply: Reply) -> None:
                status, content, headers = reply
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
