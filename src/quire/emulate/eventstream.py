"""Amazon's binary event framing: lengths, their checksum, string headers, a payload, a checksum of it all."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

_STRING = 7


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message of an event stream."""
    head = b"".join(_header(name, value) for name, value in headers.items())
    # Two lengths, their checksum and the last checksum: sixteen bytes around headers and payload.
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return struct.pack(">B", len(key)) + key + struct.pack(">BH", _STRING, len(text)) + text
