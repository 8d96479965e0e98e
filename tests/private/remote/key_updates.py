"""A client whose TLS sends records without content: updates of its keys, each a few bytes, as many as one likes."""

import ctypes
import json
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepshare.private.transport.channel import HEADER, MESSAGE
from deepshare.private.transport.tls import CERTIFICATE, KEY

_POINTER, _NUMBER, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_LIBRARIES: dict[str, dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "libssl.so.3": {
        "TLS_client_method": (_POINTER, ()),
        "SSL_CTX_new": (_POINTER, (_POINTER,)),
        "SSL_CTX_use_certificate_file": (_NUMBER, (_POINTER, _TEXT, _NUMBER)),
        "SSL_CTX_use_PrivateKey_file": (_NUMBER, (_POINTER, _TEXT, _NUMBER)),
        "SSL_new": (_POINTER, (_POINTER,)),
        "SSL_set_fd": (_NUMBER, (_POINTER, _NUMBER)),
        "SSL_connect": (_NUMBER, (_POINTER,)),
        "SSL_set0_wbio": (None, (_POINTER, _POINTER)),
        "SSL_write": (_NUMBER, (_POINTER, _TEXT, _NUMBER)),
        "SSL_read": (_NUMBER, (_POINTER, _POINTER, _NUMBER)),
        "SSL_key_update": (_NUMBER, (_POINTER, _NUMBER)),
        "SSL_do_handshake": (_NUMBER, (_POINTER,)),
        "SSL_free": (None, (_POINTER,)),
        "SSL_CTX_free": (None, (_POINTER,)),
    },
    "libcrypto.so.3": {
        "BIO_new": (_POINTER, (_POINTER,)),
        "BIO_s_mem": (_POINTER, ()),
        "BIO_read": (_NUMBER, (_POINTER, _POINTER, _NUMBER)),
    },
}
_PEM = 1


class Updates:
    """A connection with a certificate, whose records are made by hand.

    Args:
        address: HOST:PORT.
        keys: Folder of the certificate.

    Raises:
        OSError: There is no such library.
    """

    def __init__(self, address: str, keys: Path) -> None:
        self._functions = _functions()
        self._open: list[tuple[str, int]] = []
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.settimeout(None)  # the library reads it itself
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
        context = self._call("SSL_CTX_new", self._call("TLS_client_method"))
        self._check(self._call("SSL_CTX_use_certificate_file", context, str(keys / CERTIFICATE).encode(), _PEM))
        self._check(self._call("SSL_CTX_use_PrivateKey_file", context, str(keys / KEY).encode(), _PEM))
        self._tls = self._call("SSL_new", context)
        self._open += [("SSL_free", self._tls), ("SSL_CTX_free", context)]
        self._call("SSL_set_fd", self._tls, self.socket.fileno())
        self._check(self._call("SSL_connect", self._tls))
        self._out = self._call("BIO_new", self._call("BIO_s_mem"))
        self._call("SSL_set0_wbio", self._tls, self._out)
        self._buffer = ctypes.create_string_buffer(1 << 16)
        self._sent, self._session = 0, bytes(16)

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message."""
        body = json.dumps(message).encode()
        frame = HEADER.pack(self._session, self._sent, MESSAGE, len(body)) + body
        self._sent += 1
        self._check(self._call("SSL_write", self._tls, frame, len(frame)) == len(frame))
        self.socket.sendall(self._made())

    def hear(self) -> dict[str, Any]:
        """A message."""
        header = HEADER.unpack(self._read(HEADER.size))
        message: dict[str, Any] = json.loads(self._read(header[3]))
        return message

    def join(self, session: str) -> None:
        """Go on within a session."""
        self._session = bytes.fromhex(session)

    def make(self, count: int) -> bytes:
        """As many updates, not sent yet."""
        made = []
        for number in range(count):
            self._call("SSL_key_update", self._tls, 0)
            self._call("SSL_do_handshake", self._tls)
            if number % 1000 == 999:
                made.append(self._made())
        return b"".join([*made, self._made()])

    def close(self) -> None:
        """Hang up."""
        for name, one in self._open:
            self._call(name, one)
        self._open = []
        self.socket.close()

    def _made(self) -> bytes:
        made = []
        while (size := self._call("BIO_read", self._out, self._buffer, len(self._buffer))) > 0:
            made.append(self._buffer.raw[:size])
        return b"".join(made)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = self._call("SSL_read", self._tls, self._buffer, min(size - len(data), len(self._buffer)))
            self._check(got > 0)
            data += self._buffer.raw[:got]
        return data

    def _call(self, name: str, *values: Any) -> Any:
        return self._functions[name](*values)

    @staticmethod
    def _check(fine: Any) -> None:
        if fine != 1:
            raise ConnectionError("TLS failed")


def _functions() -> dict[str, Any]:
    found = {}
    for library, functions in _LIBRARIES.items():
        loaded = ctypes.CDLL(library)
        for name, (result, arguments) in functions.items():
            found[name] = getattr(loaded, name)
            found[name].restype, found[name].argtypes = result, arguments
    return found
