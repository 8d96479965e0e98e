"""Certificates for a trial: one authority, one certificate for each party."""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deepshare.errors import EngineError
from deepshare.files import write_atomically
from deepshare.private.transport.tls import AUTHORITY, CERTIFICATE, KEY, Tls, tls_of

DAYS = 30
_HOST = re.compile(
    r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*", re.I
)


def tls_of_host(folder: Path) -> Tls:
    """The certificates in the folder of a party that others connect to.

    Raises:
        EngineError: A file is missing, or the certificate names no host, so that nobody would connect.
    """
    tls = tls_of(folder)
    try:
        x509.load_pem_x509_certificate(tls.certificate.read_bytes()).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound as error:
        raise EngineError(f"{tls.certificate} names no host, as a client's: give the folder of the server") from error
    except (OSError, ValueError) as error:
        raise EngineError(f"{tls.certificate} is no certificate: make a set with private keys") from error
    return tls


def make_keys(folder: Path, hosts: Sequence[str], clients: int = 1) -> None:
    """Write a folder for each party with the authority, its certificate and its key; the authority's key is not kept.

    Args:
        folder: Folder to write; its folders `server`, `dealer` and `client` must not exist.
        hosts: Names and addresses of the server, and of a dealer that runs.
        clients: How many; the folders of several are `client-1`, `client-2` and so on, each with a key of its own.

    Raises:
        EngineError: There are keys already, a host is no name, or the folder cannot be written.
    """
    names = [_name(host) for host in hosts]
    listening = ("server", "dealer")
    parties = [*listening, *(["client"] if clients == 1 else [f"client-{number + 1}" for number in range(clients)])]
    there = [str(folder / party) for party in parties if (folder / party).exists()]
    if there:
        raise EngineError(f"{', '.join(there)} is there already: give another folder, or delete it")
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("DeepShare trial authority", authority_key, None, None, ())
    for party in parties:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(f"DeepShare {party}", key, authority, authority_key, names if party in listening else ())
        _write(folder / party, authority, signed, key)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
    hosts: Sequence[x509.GeneralName],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signer = issuer_key or key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(issuer is None), critical=True)
    )
    if issuer is not None:
        # Both parties of an engine may listen and connect.
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise EngineError(f"{host!r} is no name or address of a host: give --host such as a.example") from None
        return x509.DNSName(host)


def _write(folder: Path, authority: x509.Certificate, own: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        folder.mkdir(parents=True, mode=0o700)
        write_atomically(folder / AUTHORITY, authority.public_bytes(pem))
        write_atomically(folder / CERTIFICATE, own.public_bytes(pem))
        write_atomically(folder / KEY, secret, 0o600)
    except OSError as error:
        raise EngineError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
