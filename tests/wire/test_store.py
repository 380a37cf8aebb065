"""The messages of core/store, computed from docs/wire.md with nothing but Python's own library."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

from aes_gcm import gcm

VECTORS = json.loads(
    (
        Path(__file__).parents[2] / "core" / "store" / "message" / "testdata" / "vectors.json"
    ).read_text()
)
CHUNK_BYTES = 16384
CODES = {
    "open": 0x06,
    "put": 0x20,
    "get": 0x21,
    "delete": 0x22,
    "exists": 0x23,
    "touch": 0x24,
    "pin": 0x25,
    "list": 0x26,
    "stats": 0x27,
    "flush": 0x28,
    "allocate": 0x29,
    "write": 0x2A,
    "commit": 0x2B,
    "abort": 0x2C,
    "lookup": 0x2D,
    "read": 0x2E,
    "release": 0x2F,
    "bad": 0x30,
    "share": 0x31,
}
STATUSES = [
    "ok",
    "existing",
    "miss",
    "conflict",
    "full",
    "too large",
    "quota",
    "would block",
    "bad tag",
    "malformed",
    "unknown",
    "closing",
    "failed",
    "late",
    "denied",
    "not copied",
    "unreadable",
]


def table(keys: list[str]) -> bytes:
    return b"".join(struct.pack("<H", len(key.encode())) + key.encode() for key in keys)


def tag(tag_key: bytes, namespace: bytes, key: bytes, block: bytes) -> bytes:
    secret = hashlib.sha256(b"moewire block tag" + tag_key + namespace).digest()
    outer = hashlib.sha256(b"moewire block tags" + tag_key + namespace).digest()
    said = b"moewire block nonce" + key + struct.pack("<Q", len(block))
    nonce = hashlib.sha256(said).digest()[:12]
    last = int.from_bytes(nonce[8:], "little")
    tags = [
        gcm(
            secret,
            nonce[:8] + (last ^ i).to_bytes(4, "little"),
            b"",
            block[at : at + CHUNK_BYTES],
        )[1]
        for i, at in enumerate(range(0, len(block), CHUNK_BYTES))
    ]
    return hashlib.sha256(outer + b"".join(tags)).digest()[:16]


def test_codes_and_statuses() -> None:
    assert VECTORS["Codes"] == CODES
    assert VECTORS["Statuses"] == {name: number for number, name in enumerate(STATUSES)}
    assert bytes.fromhex(VECTORS["Hello"]) == b"MWST\1\0"


def test_namespaces() -> None:
    for vector in VECTORS["Namespaces"]:
        fields = [field.encode() for field in vector["Fields"]]
        encoded = b"".join(struct.pack("<I", len(field)) + field for field in fields)
        assert encoded.hex() == vector["Bytes"]
        digest = hashlib.sha256(b"moewire namespace 1" + encoded).hexdigest()[:32]
        tenant = hashlib.sha256(b"moewire tenant 1" + fields[-1]).hexdigest()[:32]
        assert digest + tenant == vector["Digest"]


def test_requests() -> None:
    for vector in VECTORS["Requests"]:
        names = ["Namespace", "NumKeys", "Flags", "DeadlineUs", "Bytes", "Handle", "Offset"]
        start = struct.pack("<IHHIIQQ", *(vector[name] for name in names))
        ends = struct.pack("<HHI", vector["KeyBytes"], vector["Parent"], 0)
        assert (start + bytes.fromhex(vector["Tag"]) + ends).hex() == vector["Encoded"]


def test_opened() -> None:
    vector: dict[str, Any] = VECTORS["Opened"]
    names = ["Namespace", "NumKeys", "BatchBytes", "BlockBytes", "Contexts", "Storage"]
    encoded = struct.pack("<IIQQIB3x", *(vector[name] for name in names))
    assert encoded.hex() + vector["Boot"] + vector["TagKey"] == vector["Encoded"]


def test_parts_and_entries() -> None:
    for vector in VECTORS["Parts"]:
        names = ["First", "NumKeys", "Last", "Offset"]
        assert struct.pack("<HHB3xI4x", *(vector[n] for n in names)).hex() == vector["Bytes"]
    for vector in VECTORS["Entries"]:
        encoded = struct.pack("<B3xI", vector["Status"], vector["Length"]).hex() + vector["Tag"]
        assert encoded == vector["Get"]
        looked_up = encoded + struct.pack("<Q", vector["Handle"]).hex()
        assert looked_up == vector["LookedUp"]
        assert looked_up + struct.pack("<Q", vector["Place"]).hex() == vector["Placed"]


def test_share() -> None:
    share = VECTORS["Share"]
    assert struct.pack("<QQ", share["ArenaBytes"], share["HoldUs"]).hex() == share["Shared"]
    secret, name = bytes.fromhex(share["Secret"]), bytes.fromhex(share["Name"])
    for side, proof in ((1, share["Server"]), (2, share["Client"])):
        said = bytes([side]) + name + share["Namespace"].encode()
        assert hmac.digest(secret, said, "sha256").hex() == proof


def test_tables() -> None:
    for vector in VECTORS["Found"]:
        bits = sum(1 << i for i, found in enumerate(vector["Found"]) if found)
        mask = bits.to_bytes((len(vector["Found"]) + 7) // 8, "little")
        assert (struct.pack("<H", vector["Number"]) + mask).hex() == vector["Bytes"]
    assert table(VECTORS["Keys"]["Keys"]).hex() == VECTORS["Keys"]["Bytes"]
    listed = VECTORS["Listed"]
    assert (table([listed["Cursor"]]) + table(listed["Keys"])).hex() == listed["Bytes"]


def test_tags() -> None:
    tag_key = bytes.fromhex(VECTORS["Opened"]["TagKey"])
    for vector in VECTORS["Tags"]:
        block = bytes((7 * i + 3) % 256 for i in range(vector["BlockBytes"]))
        namespace, key = bytes.fromhex(vector["Namespace"]), bytes.fromhex(vector["Key"])
        assert tag(tag_key, namespace, key, block).hex() == vector["Tag"]
