"""The real transport of agents: a WebSocket to the controller, with the bearer token."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from malletrain.node.uplink import Connection
from malletrain.wire import MAX_MESSAGE_BYTES

_AGENT_PATH = "/v1/agent"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class WebSocketConnector:
    """Connects to the controller at a URL, or at the one that a file names.

    File and token are read for each connection: a restarted controller may have others.
    """

    def __init__(self, controller: str, token_file: Path) -> None:
        self._controller = controller
        self._token_file = token_file

    async def __call__(self) -> Connection:
        token = self._token_file.read_text().strip()
        url = _agent_url(self._controller)
        with _as_connection_error(url):
            return _WebSocket(
                await connect(
                    url,
                    additional_headers={"Authorization": f"Bearer {token}"},
                    max_size=MAX_MESSAGE_BYTES,
                    compression=None,
                    # Within a cluster no proxy stands between, whatever the environment says.
                    proxy=None,
                    close_timeout=1.0,
                )
            )


class _WebSocket:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        with _as_connection_error():
            await self._socket.send(data)

    async def receive(self) -> bytes:
        with _as_connection_error():
            return await self._socket.recv(decode=False)

    async def flush(self) -> None:
        with _as_connection_error():
            await (await self._socket.ping())

    async def close(self) -> None:
        await self._socket.close()


def _agent_url(controller: str) -> str:
    if "://" not in controller:
        try:
            controller = msgspec.json.decode(Path(controller).read_bytes())["url"]
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise ConnectionError(f"{controller} does not name the controller's url") from error
    parts = urlsplit(controller)
    if parts.scheme not in _SCHEMES:
        raise ConnectionError(f"the controller's url {controller} must begin with http:// or ws://")
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, _AGENT_PATH, "", ""))


@contextlib.contextmanager
def _as_connection_error(url: str = "") -> Iterator[None]:
    try:
        yield
    except InvalidStatus as error:
        status = error.response.status_code
        raise ConnectionError(f"{url} refused this agent with HTTP status {status}") from error
    except (ConnectionClosed, InvalidHandshake, InvalidURI) as error:
        raise ConnectionError(f"{url or 'connection'}: {error}") from error
