"""The frames of core/wire, computed from docs/wire.md with nothing but Python's own library."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from aes_gcm import gcm

VECTORS = json.loads(
    (Path(__file__).parents[2] / "core" / "wire" / "testdata" / "vectors.json").read_text()
)
CHUNK_BYTES = 16384
DIGEST, ENCRYPT = 1, 2
HELLO, WELCOME, CONFIRM, REFUSAL, MESSAGE, DATAGRAM, SINGLE = 1, 2, 3, 4, 5, 6, 7
DECLINED = 16


def keyring() -> dict[int, bytes]:
    lines = (line.split("#")[0].split() for line in VECTORS["Keyring"].splitlines())
    return {int(fields[0]): bytes.fromhex(fields[1]) for fields in lines if fields}


def hkdf(secret: bytes, salt: bytes, info: bytes, num_bytes: int) -> bytes:
    """RFC 5869 with SHA-256, for at most 32 bytes."""
    extracted = hmac.digest(salt or bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")[:num_bytes]


def framed(key: bytes, header: bytes) -> bytes:
    """Length, header, time and tag."""
    signed = header + struct.pack("<Q", VECTORS["TimeNs"])
    return struct.pack("<I", len(signed) + 32) + signed + hmac.digest(key, signed, "sha256")


def hello(
    shake: dict[str, Any],
    kind: int,
    *,
    server_nonce: bytes = b"",
    from_server: bool = False,
    blob: bytes = b"",
    reason: int = 0,
) -> bytes:
    """The header of a frame of the handshake."""
    client, server = bytes.fromhex(shake["ClientID"]), bytes.fromhex(shake["ServerID"])
    start = struct.pack("<BBBBI", 2, kind, shake["Protection"], from_server, shake["KeyID"])
    nonces = bytes.fromhex(shake["ClientNonce"]) + server_nonce.ljust(32, b"\0")
    ids = server + client if from_server else client + server
    return start + nonces + ids + struct.pack("<HHI", reason, 0, 0) + blob


def session_keys(shake: dict[str, Any]) -> dict[str, bytes]:
    nonces = bytes.fromhex(shake["ClientNonce"] + shake["ServerNonce"])
    said = hashlib.sha256(bytes.fromhex(shake["Hello"] + shake["Welcome"])).digest()
    secret = keyring()[shake["KeyID"]]
    labels = [
        "session id",
        "export",
        *(f"{what} from {who}" for what in ("header", "payload") for who in ("client", "server")),
    ]
    return {
        label: hkdf(
            secret,
            nonces,
            b"moewire 2 " + label.encode() + said,
            8 if label == "session id" else 32,
        )
        for label in labels
    }


@pytest.fixture(params=VECTORS["Handshakes"], ids=["digest", "encrypt"])
def shake(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_keyring() -> None:
    assert [len(key) for key in keyring().values()] == [32, 32]


def test_handshake(shake: dict[str, Any]) -> None:
    key = hkdf(keyring()[shake["KeyID"]], b"", b"moewire 2 handshake", 32)
    nonce = bytes.fromhex(shake["ServerNonce"])
    blobs = [bytes.fromhex(shake[side]) for side in ("ClientBlob", "ServerBlob")]
    welcome = hello(shake, WELCOME, server_nonce=nonce, from_server=True, blob=blobs[1])
    refusal = hello(shake, REFUSAL, from_server=True, reason=DECLINED)
    assert framed(key, hello(shake, HELLO, blob=blobs[0])).hex() == shake["Hello"]
    assert framed(key, welcome).hex() == shake["Welcome"]
    assert framed(key, refusal).hex() == shake["Refusal"]
    keys = session_keys(shake)
    confirm = hello(shake, CONFIRM, server_nonce=nonce)
    assert framed(keys["header from client"], confirm).hex() == shake["Confirm"]
    assert int.from_bytes(keys["session id"], "little") == shake["SessionID"]
    assert hmac.digest(keys["export"], b"vectors", "sha256").hex() == shake["Exported"]


def chunks(payload: bytes, seq: int) -> list[tuple[bytes, bytes]]:
    """The pieces of a payload that get a tag each, with their nonces."""
    return [
        (struct.pack("<QI", seq, number), payload[begin : begin + CHUNK_BYTES])
        for number, begin in enumerate(range(0, len(payload), CHUNK_BYTES))
    ]


def digest(key: bytes, payload: bytes, seq: int) -> bytes:
    if not payload:
        return bytes(32)
    tags = [gcm(key, nonce, b"", chunk)[1] for nonce, chunk in chunks(payload, seq)]
    return hashlib.sha256(b"".join(tags)).digest()


def encrypted(key: bytes, payload: bytes, seq: int) -> bytes:
    return b"".join(b"".join(gcm(key, nonce, chunk, b"")) for nonce, chunk in chunks(payload, seq))


def test_messages(shake: dict[str, Any]) -> None:
    keys = session_keys(shake)
    for message in shake["Messages"]:
        sender = "server" if message["FromServer"] else "client"
        key, seq = keys[f"payload from {sender}"], message["Seq"]
        payload = bytes((7 * i + 3) % 256 for i in range(message["PayloadBytes"]))
        if shake["Protection"] == ENCRYPT:
            said, sent = bytes(32), encrypted(key, payload, seq)
        else:
            covered = payload[: len(payload) - message["ApartBytes"]]
            said, sent = digest(key, covered, seq), payload
        flags = message["FromServer"] | message["Reply"] << 1 | message["Refused"] << 2
        header = struct.pack("<BBBBI", 2, MESSAGE, shake["Protection"], flags, shake["KeyID"])
        header += struct.pack("<QQQQ", shake["SessionID"], seq, message["Request"], len(payload))
        header += struct.pack("<BBHI", message["Code"], 0, message["Status"], message["ApartBytes"])
        header += said + bytes.fromhex(message["Extra"])
        assert framed(keys[f"header from {sender}"], header).hex() == message["Frame"]
        assert len(sent) == message["WireBytes"]
        assert hashlib.sha256(sent).hexdigest() == message["WireSHA256"]


def test_singles() -> None:
    for single in VECTORS["Singles"]:
        key = hkdf(keyring()[single["KeyID"]], b"", b"moewire 2 single", 32)
        payload = bytes((7 * i + 3) % 256 for i in range(single["PayloadBytes"]))
        header = struct.pack("<BBBBI", 2, SINGLE, single["Reply"], single["Code"], single["KeyID"])
        header += bytes.fromhex(single["Server"] + single["Client"])
        header += struct.pack("<Q", single["Request"]) + hashlib.sha256(payload).digest()
        header += struct.pack("<IHH", len(payload), single["Status"], 0)
        header += bytes.fromhex(single["Extra"])
        assert framed(key, header).hex() == single["Frame"]


def test_datagrams() -> None:
    assert [datagram["DatagramBytes"] for datagram in VECTORS["Datagrams"]] == [0, 37, 1024]
    for datagram in VECTORS["Datagrams"]:
        key = hkdf(keyring()[datagram["KeyID"]], b"", b"moewire 2 note", 32)
        said = bytes((7 * i + 3) % 256 for i in range(datagram["DatagramBytes"]))
        assert (
            framed(key, struct.pack("<BBHI", 2, DATAGRAM, 0, datagram["KeyID"]) + said).hex()
            == datagram["Frame"]
        )


def test_aes_gcm_reference() -> None:
    """Test cases 13 and 14 of the GCM specification (McGrew and Viega)."""
    cipher, tag = gcm(bytes(32), bytes(12), b"", b"")
    assert (cipher, tag.hex()) == (b"", "530f8afbc74536b9a963b4f1c4cb738b")
    cipher, tag = gcm(bytes(32), bytes(12), bytes(16), b"")
    assert cipher.hex() == "cea7403d4d606b6e074ec5d3baf39d18"
    assert tag.hex() == "d0d1c8a799996bf0265b98b5d48ab919"
