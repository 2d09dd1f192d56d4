"""Who a peer is: an ed25519 key that never leaves its machine.

The public half is the peer's name everywhere; transport and signatures both rest on the same key, so a
message can be laid at the door of the connection it came through, and the other way round. The secret
is 32 raw bytes in a file that only its owner may read; a key that others could have read is refused,
because whoever holds it *is* this peer. This file is the one door to `cryptography`.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from atoll.errors import LocalError
from atoll.net.transport import PeerId

SECRET_BYTES = 32


@lru_cache(4096)
def short(peer: bytes) -> str:
    """Return the eight hex digits by which people and journals call a peer."""
    return peer[:4].hex()


def verify(peer: PeerId, data: bytes, signature: bytes) -> bool:
    """Return whether `peer` signed `data`; malformed keys and signatures are simply wrong."""
    try:
        Ed25519PublicKey.from_public_bytes(peer).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Identity:
    """A key pair: `peer` is told to everybody, `secret` to nobody."""

    peer: PeerId
    secret: bytes = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity of a 32-byte secret: the same bytes are always the same peer."""
        assert len(seed) == SECRET_BYTES, f"a secret has {SECRET_BYTES} bytes, not {len(seed)}"
        return cls(PeerId(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()), seed)

    @property
    def short(self) -> str:
        return short(self.peer)

    def sign(self, data: bytes) -> bytes:
        """Return the 64 bytes that prove that this peer said `data`."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(data)

    def verify(self, peer: PeerId, data: bytes, signature: bytes) -> bool:
        """Return whether `peer` signed `data`."""
        return verify(peer, data, signature)


def server_name(peer: PeerId) -> str:
    """Return a peer's whole id in letters that may stand in a certificate and where TLS wants a host name."""
    return base64.b32encode(peer).decode().rstrip("=").lower()


def who_is_named(name: str) -> PeerId:
    """Return the peer of a `server_name`; raises `ValueError` for what is none."""
    peer = PeerId(base64.b32decode(name.upper() + "=" * (-len(name) % 8)))
    Ed25519PublicKey.from_public_bytes(peer)
    return peer


def credentials(me: Identity) -> bytes:
    """Return a fresh TLS key and the certificate in which `me` signs it, as PEM: proof of the peer, not its secret."""
    key = Ed25519PrivateKey.generate()
    signed = _certificate(key.public_key(), "atoll", server_name(me.peer), authority=False)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + signed.sign(Ed25519PrivateKey.from_private_bytes(me.secret), None).public_bytes(Encoding.PEM)


def anchor(peer: PeerId) -> bytes:
    """Return a certificate that says: trust what `peer` signs.

    TLS asks for trust in this form. Nobody signs it but a key made for the purpose: an anchor's own signature is never
    looked at, its public key is.
    """
    name = server_name(peer)
    unsigned = _certificate(Ed25519PublicKey.from_public_bytes(peer), name, name, authority=True)
    return unsigned.sign(_nobodys_key(), None).public_bytes(Encoding.DER)


@lru_cache(1)
def _nobodys_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def _certificate(key: Ed25519PublicKey, subject: str, issuer: str, *, authority: bool) -> x509.CertificateBuilder:
    """Return a certificate to be signed; it holds for ever, because the key in it lives as long as its process."""
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(subject))
        .issuer_name(_common_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .add_extension(constraints, critical=True)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def load(path: Path) -> Identity:
    """Return the identity kept at `path`, making one at the first call; two racing callers get the same."""
    try:
        if not path.exists():
            _create(path)
        return Identity.from_seed(_read(path))
    except OSError as error:
        raise LocalError(
            f"{path}: cannot keep this peer's key ({error.strerror})", hint="choose a folder that you can write to"
        ) from error


def _read(path: Path) -> bytes:
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & 0o077:
        raise LocalError(
            f"{path}: others on this machine can read this peer's key (mode {mode:04o})",
            hint=f"chmod 600 {path}  (or delete the file to become a new peer, if they may have read it)",
        )
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise LocalError(
            f"{path}: not a key: {len(secret)} bytes instead of {SECRET_BYTES}",
            hint="restore the file from a backup, or delete it to become a new peer",
        )
    return secret


def _create(path: Path) -> None:
    """Put a new secret at `path`, whole or not at all, unless another process was first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        _place(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _place(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)  # unlike a rename it never replaces a key that is already there
    except FileExistsError:
        return
    if os.name == "nt":
        return  # Windows makes names durable by itself and cannot open a folder
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
