"""Mutual TLS between two parties."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from deepshare.errors import EngineError

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"


@dataclass(frozen=True)
class Tls:
    """Files in PEM format for mutual TLS: the authority that both trust, one's own certificate and its key."""

    authority: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """TLS that requires a client certificate of the same authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        # A ticket arrives after the handshake: while the client's other thread writes, the two may wait for each other,
        # and closing a connection on which nobody has read it cuts what was sent before.
        context.num_tickets = 0
        return self._loaded(context)

    def client_context(self) -> ssl.SSLContext:
        """TLS that checks the server's certificate and host name, and presents its own certificate."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.authority)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            folder = self.certificate.parent
            raise EngineError(
                f"{folder}: its certificates cannot be used ({error}): make a set with private keys"
            ) from error
        return context


def tls_of(folder: Path) -> Tls:
    """The certificates in the folder of one party.

    Raises:
        EngineError: A file is missing.
    """
    folder = folder.resolve()
    tls = Tls(folder / AUTHORITY, folder / CERTIFICATE, folder / KEY)
    for path in (tls.authority, tls.certificate, tls.key):
        if not path.is_file():
            raise EngineError(f"there is no {path}: make a set with deepshare private keys, or give the right folder")
    return tls
