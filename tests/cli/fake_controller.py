"""A controller's HTTP port with prepared answers, which remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from malletrain.live.state_dir import Endpoint, StateDir

TOKEN = "let-me-in"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any


@dataclass
class FakeController:
    """Answers by `METHOD /path`; what has no answer is 404."""

    state_dir: StateDir
    answers: dict[str, tuple[int, Any] | Callable[[Request], Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> tuple[int, Any]:
        self.requests.append(request)
        prepared = self.answers.get(f"{request.method} {request.path}")
        if prepared is None:
            name = request.path.split("/")[3] if "/jobs/" in request.path else request.path
            return 404, {"error": f"no job is called {name}: see `malletrain jobs`"}
        return (200, prepared(request)) if callable(prepared) else prepared


class _Handler(BaseHTTPRequestHandler):
    controller: FakeController

    def _respond(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, value = 401, {"error": "wrong token"}
        else:
            request = Request(
                self.command,
                url.path,
                dict(parse_qsl(url.query)),
                msgspec.json.decode(body) if body else None,
            )
            status, value = self.controller.answer(request)
        content = value if isinstance(value, bytes) else msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _respond  # noqa: N815 - the base class looks for these names

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


@contextmanager
def fake_controller(state_dir: StateDir) -> Iterator[FakeController]:
    controller = FakeController(state_dir)
    handler = type("Handler", (_Handler,), {"controller": controller})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state_dir.path.mkdir(parents=True, exist_ok=True)
        state_dir.token_path.write_text(TOKEN)
        state_dir.token_path.chmod(0o600)
        state_dir.publish(Endpoint(url=f"http://127.0.0.1:{server.server_port}", pid=4242))
        try:
            yield controller
        finally:
            server.shutdown()
            thread.join()
