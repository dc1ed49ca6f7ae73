"""A local certificate authority, and the server certificate of all HTTPS listeners."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trace_etl.lite.credentials import private_files

_AUTHORITY_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=825)
_RENEW_BEFORE = timedelta(days=60)
_BACKDATED = timedelta(hours=1)  # for clients whose clock is a little behind
_NAMES = [
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
]
# A client that trusts this authority trusts it for this machine only.
_PERMITTED: list[x509.GeneralName] = [
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_network("127.0.0.0/8")),
    x509.IPAddress(ipaddress.ip_network("::1/128")),
]

Key = ec.EllipticCurvePrivateKey


def ensure(directory: Path, *, now: datetime | None = None) -> None:
    """Create or renew `ca.pem`, `ca.key`, `server.pem` and `server.key` where needed."""
    now = now or datetime.now(UTC)
    authority = _load(directory / "ca", now)
    if authority is None:
        authority = _make_authority(now)
        _save(directory / "ca", *authority)
    server = _load(directory / "server", now)
    if server is None or not _is_issued_by(server[0], authority[0]):
        _save(directory / "server", *_make_server(*authority, now))


def _load(stem: Path, now: datetime) -> tuple[x509.Certificate, Key] | None:
    """Load certificate and key; None if one is missing or damaged, or if they expire soon."""
    try:
        certificate = x509.load_pem_x509_certificate(stem.with_suffix(".pem").read_bytes())
        key = serialization.load_pem_private_key(stem.with_suffix(".key").read_bytes(), None)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    if certificate.public_key() != key.public_key():
        return None
    return (certificate, key) if certificate.not_valid_after_utc - now > _RENEW_BEFORE else None


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _save(stem: Path, certificate: x509.Certificate, key: Key) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    private_files.write(stem.with_suffix(".key"), private)
    private_files.write(
        stem.with_suffix(".pem"), certificate.public_bytes(serialization.Encoding.PEM)
    )


def _make_authority(now: datetime) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _make_name("Trace local authority")
    certificate = (
        _start_certificate(name, name, key, now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_make_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(_PERMITTED, None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _make_server(
    authority: x509.Certificate, authority_key: Key, now: datetime
) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _start_certificate(
            _make_name("Trace on this machine"), authority.subject, key, now, _SERVER_LIFE
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_make_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return certificate, key


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _make_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _make_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
