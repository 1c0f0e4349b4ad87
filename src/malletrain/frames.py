"""Messages on a byte stream: a 4-byte big-endian length, then that many bytes."""

from __future__ import annotations

import asyncio
import struct

from malletrain.errors import WireError

_LENGTH = struct.Struct(">I")


def frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


class Unframer:
    """Cuts the bytes of a stream back into messages, for code that reads without asyncio."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete.

        Raises:
            WireError: a message is longer than the limit.
        """
        self._pending += data
        messages = []
        while len(self._pending) >= _LENGTH.size:
            end = _LENGTH.size + _length(self._pending, self._limit_bytes)
            if len(self._pending) < end:
                break
            messages.append(bytes(self._pending[_LENGTH.size : end]))
            del self._pending[:end]
        return messages


async def read_frame(reader: asyncio.StreamReader, limit_bytes: int) -> bytes | None:
    """Return the next message, or None where the stream ends.

    Raises:
        WireError: a message is longer than the limit, or the stream ends inside one.
    """
    try:
        head = await reader.readexactly(_LENGTH.size)
        return await reader.readexactly(_length(head, limit_bytes))
    except asyncio.IncompleteReadError as error:
        if error.expected == _LENGTH.size and not error.partial:
            return None
        raise WireError("the stream ended inside a message") from error
    except ConnectionError:
        return None


def _length(head: bytes | bytearray, limit_bytes: int) -> int:
    length: int = _LENGTH.unpack_from(head)[0]
    if length > limit_bytes:
        raise WireError(f"message of {length} bytes, the limit is {limit_bytes}")
    return length
