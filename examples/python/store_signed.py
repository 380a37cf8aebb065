"""A client of the block store in plain Python, without Moewire: docs/wire.md, Single requests."""

import hashlib
import hmac
import os
import socket
import struct
import time
from pathlib import Path

OPEN, PUT, GET, OK, EXISTING = 0x06, 0x20, 0x21, 0, 1  # docs/wire.md has more


class Client:
    def __init__(self, server: str, key_file: str, model: str) -> None:
        number, secret = Path(key_file).read_text().split()[:2]
        seed = hmac.digest(bytes(32), bytes.fromhex(secret), "sha256")  # HKDF, RFC 5869
        self.key = hmac.digest(seed, b"moewire 2 single\1", "sha256")
        fields = [model.encode()] + [b""] * 6  # weights, dtype, layout, chunk, parallel, salt
        named = b"".join(struct.pack("<I", len(field)) + field for field in fields)
        digest = hashlib.sha256(b"moewire namespace 1" + named).digest()
        salt = hashlib.sha256(b"moewire tenant 1" + fields[-1]).digest()
        self.namespace = digest[:16] + salt[:16]
        self.key_id, self.client, self.request = int(number), os.urandom(16), 0
        self.socket = socket.create_connection(tuple(server.rsplit(":", 1)), timeout=5)
        self.server, self.life = self.socket.makefile("rwb"), bytes(16)
        self.life = self.ask(OPEN)[1][:16]  # zeros until the server has said it

    def ask(self, code: int, extra: bytes = b"", payload: bytes = b"") -> tuple[int, bytes]:
        self.request += 1
        mine = self.client + struct.pack("<Q", self.request)
        head = struct.pack("<BBBBI", 2, 7, 0, code, self.key_id) + self.life + mine
        head += hashlib.sha256(payload).digest() + struct.pack("<IHH", len(payload), 0, 0) + extra
        head += struct.pack("<Q", time.time_ns())
        tag = hmac.digest(self.key, head, "sha256")
        self.server.write(struct.pack("<I", len(head + tag)) + head + tag + payload)
        self.server.flush()
        if len(reply := self.server.read(4 + 128)) < 4 + 128:
            raise ConnectionError("the server does not believe the request, or has ended")
        head, tag = reply[4:-32], reply[-32:]
        genuine = hmac.compare_digest(hmac.digest(self.key, head, "sha256"), tag)
        if not genuine or head[1:4] != bytes([7, 1, code]) or head[24:48] != mine:
            raise ConnectionError("the reply to another request")
        size, status = struct.unpack_from("<IH", head, 80)
        payload = self.server.read(size)
        if hashlib.sha256(payload).digest() != head[48:80]:
            raise ConnectionError("the reply was changed on its way")
        return status, payload

    def put(self, key: bytes, block: bytes) -> bool:
        return self.ask(PUT, self.namespace + key, block)[0] in (OK, EXISTING)

    def get(self, key: bytes) -> bytes | None:
        status, block = self.ask(GET, self.namespace + key)
        return block if status == OK else None


if __name__ == "__main__":
    store = Client(os.environ["MOEWIRE_STORE_SERVERS"], os.environ["MOEWIRE_KEY_FILE"], "plain")
    print("stored:", store.put(b"a key", b"a block"), "read:", store.get(b"a key"))
