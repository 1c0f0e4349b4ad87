"""The controller's one port: JSON over HTTP for users, a WebSocket for agents.

Everything needs the bearer token of the state directory. What is malformed is refused and
counted, and harms nobody else.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from malletrain.errors import (
    BatchError,
    ConflictError,
    JournalWriteError,
    MalformedRequestError,
    UnknownJobError,
    UserError,
    WireError,
)
from malletrain.live.controller import Controller
from malletrain.live.logs import page
from malletrain.live.orders import Orders
from malletrain.live.ports import JobPaths, Offload, in_thread
from malletrain.live.requests import NodeCount, Submission
from malletrain.live.views import job_view, node_view
from malletrain.wire import MAX_MESSAGE_BYTES

MAX_BODY_BYTES = 1024 * 1024
#: A WebSocket close reason has 123 bytes at most.
_MAX_REASON_BYTES = 120
_POLICY_VIOLATION = 1008
#: What either side says that closes a connection for want of an answer to its ping.
_PING_TIMEOUT = 1011

#: Messages of one agent that may wait to be taken in.
_READ_AHEAD = 8

_T = TypeVar("_T")
_Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes; every answer is made from the controller's newest state."""

    def __init__(
        self,
        controller: Controller,
        orders: Orders,
        paths: JobPaths,
        token: str,
        shut_down: Callable[[], None],
        *,
        offload: Offload = in_thread,
    ) -> None:
        self._controller = controller
        self._orders = orders
        self._paths = paths
        self._token = token
        self._shut_down = shut_down
        self._offload = offload

    def app(self) -> ASGIApp:
        verbs = {
            "cancel": self._orders.cancel,
            "suspend": self._orders.suspend,
            "resume": self._orders.resume,
        }
        routes = [
            Route("/v1/state", self._state, methods=["GET"]),
            Route("/v1/jobs", self._jobs, methods=["GET"]),
            Route("/v1/jobs", self._submit, methods=["POST"]),
            Route("/v1/jobs/{job}", self._job, methods=["GET"]),
            Route("/v1/jobs/{job}/explain", self._explain, methods=["GET"]),
            Route("/v1/jobs/{job}/logs", self._logs, methods=["GET"]),
            *(
                Route(f"/v1/jobs/{{job}}/{verb}", _ordering(order), methods=["POST"])
                for verb, order in verbs.items()
            ),
            Route("/v1/nodes", self._nodes, methods=["GET"]),
            Route("/v1/nodes", self._add_nodes, methods=["POST"]),
            Route("/v1/nodes/{node}", self._remove_node, methods=["DELETE"]),
            Route("/v1/shutdown", self._end, methods=["POST"]),
            WebSocketRoute("/v1/agent", self._agent),
        ]
        handlers: dict[Any, Callable[[Request, Exception], Response]] = {
            HTTPException: self._http_error,
            UserError: self._user_error,
            BatchError: self._user_error,
            Exception: _server_error,
        }
        starlette = Starlette(routes=routes, exception_handlers=handlers)
        return _Guard(starlette, self._token, self._controller)

    def count(self, trouble: str) -> None:
        self._controller.counters[trouble] += 1

    # -- reading -----------------------------------------------------------------------------------

    async def _state(self, _request: Request) -> Response:
        return _json(self._controller.view())

    async def _jobs(self, _request: Request) -> Response:
        cluster = self._controller.cluster_now
        return _json([job_view(job, cluster) for job in cluster.jobs.values()])

    async def _nodes(self, _request: Request) -> Response:
        cluster = self._controller.cluster
        owners = cluster.owners
        owner_of = {n.id: cluster.jobs.get(owners.get(n.id, "")) for n in cluster.nodes.values()}
        return _json([node_view(n, owner_of[n.id]) for n in cluster.nodes.values()])

    async def _job(self, request: Request) -> Response:
        job = self._controller.find(request.path_params["job"])
        return _json(job_view(job, self._controller.cluster_now))

    async def _explain(self, request: Request) -> Response:
        job = request.path_params["job"]
        return _json(await self._offload(partial(self._orders.explain, job)))

    async def _logs(self, request: Request) -> Response:
        job_id = self._controller.find(request.path_params["job"]).spec.id
        offset, lines = _number(request, "offset"), _number(request, "lines")
        read = partial(
            page,
            self._paths.log_dir(job_id),
            firsts=self._controller.executor.first_workers(job_id),
            worker=request.query_params.get("worker"),
            offset=offset,
            lines=lines,
        )
        return _json(await self._offload(read))

    # -- ordering ----------------------------------------------------------------------------------

    async def _submit(self, request: Request) -> Response:
        submitted = await self._orders.submit(await _body(request, Submission))
        return _json(submitted, status=201)

    async def _add_nodes(self, request: Request) -> Response:
        await self._orders.add_nodes((await _body(request, NodeCount)).count)
        return _json({})

    async def _remove_node(self, request: Request) -> Response:
        abrupt = request.query_params.get("abrupt", "false")
        if abrupt not in ("true", "false"):
            raise MalformedRequestError(f"abrupt is {abrupt!r}: it must be true or false")
        await self._orders.remove_node(request.path_params["node"], is_abrupt=abrupt == "true")
        return _json({})

    async def _end(self, _request: Request) -> Response:
        self._shut_down()
        return _json({})

    # -- agents ------------------------------------------------------------------------------------

    async def _agent(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await self._controller.executor.agents.serve(_AgentSocket(websocket))

    # -- errors ------------------------------------------------------------------------------------

    def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self.count("malformed_requests")
        line = f"{error.detail}: {request.method} {request.url.path}"
        return _json({"error": line}, status=error.status_code)

    def _user_error(self, _request: Request, error: Exception) -> Response:
        if isinstance(error, MalformedRequestError):
            self.count("malformed_requests")
        return _json({"error": str(error)}, status=_status_of(error))


class _Guard:
    """Lets in who has the token."""

    def __init__(self, app: ASGIApp, token: str, controller: Controller) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._controller = controller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        if secrets.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        self._controller.counters["refused_tokens"] += 1
        line = "no bearer token" if not given else "not the bearer token of this state directory"
        refusal = _json({"error": f"{line}: it is in the file `token` there"}, status=401)
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(refusal)
        else:
            await refusal(scope, receive, send)


class _AgentSocket:
    """A WebSocket as the `Connection` of an agent."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._was_silent = False

    @property
    def was_silent(self) -> bool:
        return self._was_silent

    async def receive(self) -> bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._was_silent = message.get("code") == _PING_TIMEOUT
            return None
        data: bytes | None = message.get("bytes")
        if data is None:
            raise WireError("a text frame, where messages are binary")
        return data

    async def send(self, data: bytes) -> None:
        with _closed_as_os_error():
            await self._websocket.send_bytes(data)

    async def close(self, reason: str) -> None:
        short = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        with _closed_as_os_error():
            await self._websocket.close(_POLICY_VIOLATION, short)


@contextlib.contextmanager
def _closed_as_os_error() -> Iterator[None]:
    try:
        yield
    except (WebSocketDisconnect, RuntimeError) as error:
        raise ConnectionError(f"the connection is closed: {error}") from error


def _ordering(order: Callable[[str], Awaitable[None]]) -> _Handler:
    async def handle(request: Request) -> Response:
        await order(request.path_params["job"])
        return _json({})

    return handle


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _body(request: Request, kind: type[_T]) -> _T:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"body above the limit of {MAX_BODY_BYTES} bytes")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"the body is not what is expected here: {error}") from error


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise MalformedRequestError(
            f"{name} is {text[:40]!r}: it must be a whole number, 0 or more"
        )
    return int(text)


def _status_of(error: Exception) -> int:
    match error:
        case UnknownJobError():
            return 404
        case ConflictError():
            return 409
        case JournalWriteError():
            return 503
        case BatchError(is_transient=is_transient):
            return 503 if is_transient else 409
    return 400


def _server_error(_request: Request, error: Exception) -> Response:
    return _json({"error": f"{type(error).__name__}: {error}"}, status=500)


def bind(host: str, port: int) -> socket.socket:
    """Take the port; 0 takes any free one.

    Raises:
        UserError: it is in use, or not ours to take.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror}; end what listens there, or "
            f"choose another port (0 takes any that is free)"
        ) from error
    return listener


#: All agents of a large machine may call at once.
_BACKLOG = 4096


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, which says of an unanswered ping that it is one.

    And says so at once: closing waits until what was written is sent, to a peer that reads nothing
    for as long as TCP tries. It also reads on while few messages wait, where uvicorn stops and
    starts reading anew for each.
    """

    def send_receive_event_to_app(self) -> None:
        was_paused = self.read_paused
        has_room = self.queue.qsize() < _READ_AHEAD
        self.read_paused = was_paused or has_room
        super().send_receive_event_to_app()
        if has_room:
            self.read_paused = was_paused

    def keepalive_timeout(self) -> None:
        self.queue.put_nowait({"type": "websocket.disconnect", "code": _PING_TIMEOUT})
        super().keepalive_timeout()


def _counting(
    count: Callable[[str], None],
) -> tuple[type[H11Protocol], type[WebSocketsSansIOProtocol]]:
    """Make uvicorn's protocols tell of what is no HTTP or no WebSocket, and refused by them."""

    class Http(H11Protocol):
        def send_400_response(self, msg: str) -> None:
            count("malformed_requests")
            super().send_400_response(msg)

    class Socket(_WebSocketProtocol):
        def handle_parser_exception(self) -> None:
            count("malformed_messages")
            super().handle_parser_exception()

    return Http, Socket


class HttpServer(uvicorn.Server):
    """uvicorn, which leaves signals to whoever runs it."""

    def __init__(self, api: Api, *, ping_every_s: float) -> None:
        http, socket_ = _counting(api.count)
        super().__init__(
            uvicorn.Config(
                api.app(),
                http=http,
                ws=socket_,
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_ping_interval=ping_every_s,
                ws_ping_timeout=ping_every_s,
                # Messages are small, and a compressor a connection is not.
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_on(self, listener: socket.socket) -> None:
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[listener])
