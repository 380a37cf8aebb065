"""AES-256-GCM as NIST FIPS 197 and SP 800-38D describe it: slow, short, and from no other library.

A reference to compare with, never to protect anything.
"""

from __future__ import annotations


def _times(a: int, b: int) -> int:
    """The product in GF(2^8) modulo x^8 + x^4 + x^3 + x + 1."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def _s_box() -> list[int]:
    box = []
    for value in range(256):
        inverse = next((n for n in range(256) if _times(value, n) == 1), 0)
        rotations = [inverse << n | inverse >> (8 - n) for n in range(5)]
        total = 0x63
        for rotated in rotations:
            total ^= rotated & 0xFF
        box.append(total)
    return box


S_BOX = _s_box()
DOUBLE = [_times(value, 2) for value in range(256)]


def round_keys(key: bytes) -> list[bytes]:
    """The 15 round keys of a key of 32 bytes."""
    words = [key[i : i + 4] for i in range(0, 32, 4)]
    constant = 1
    while len(words) < 60:
        word = words[-1]
        if len(words) % 8 == 0:
            word = bytes(S_BOX[b] for b in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _times(constant, 2)
        elif len(words) % 8 == 4:
            word = bytes(S_BOX[b] for b in word)
        words.append(bytes(a ^ b for a, b in zip(words[-8], word, strict=True)))
    return [b"".join(words[i : i + 4]) for i in range(0, 60, 4)]


def _mix(column: bytes) -> list[int]:
    every = column[0] ^ column[1] ^ column[2] ^ column[3]
    return [column[i] ^ every ^ DOUBLE[column[i] ^ column[(i + 1) % 4]] for i in range(4)]


def encrypt_block(keys: list[bytes], block: bytes) -> bytes:
    """One block of AES."""
    state = bytes(a ^ b for a, b in zip(block, keys[0], strict=True))
    for number, key in enumerate(keys[1:], 1):
        state = bytes(S_BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16))
        if number < len(keys) - 1:
            state = bytes(b for i in range(0, 16, 4) for b in _mix(state[i : i + 4]))
        state = bytes(a ^ b for a, b in zip(state, key, strict=True))
    return state


def _ghash(h: int, data: bytes) -> int:
    """The polynomial of data at h; the leftmost bit is that of x^0."""
    total = 0
    powers = [h]  # h, h*x, h*x^2, ...
    for _ in range(127):
        last = powers[-1]
        powers.append(last >> 1 ^ (0xE1 << 120 if last & 1 else 0))
    for i in range(0, len(data), 16):
        total ^= int.from_bytes(data[i : i + 16], "big")
        product = 0
        for bit in range(128):
            if total >> (127 - bit) & 1:
                product ^= powers[bit]
        total = product
    return total


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def gcm(key: bytes, nonce: bytes, plain: bytes, extra: bytes) -> tuple[bytes, bytes]:
    """The ciphertext and the tag of a nonce of 12 bytes."""
    keys = round_keys(key)
    h = int.from_bytes(encrypt_block(keys, bytes(16)), "big")
    stream = b"".join(
        encrypt_block(keys, nonce + (i + 2).to_bytes(4, "big"))
        for i in range((len(plain) + 15) // 16)
    )
    cipher = bytes(a ^ b for a, b in zip(plain, stream, strict=False))
    lengths = (8 * len(extra)).to_bytes(8, "big") + (8 * len(cipher)).to_bytes(8, "big")
    total = _ghash(h, _padded(extra) + _padded(cipher) + lengths)
    mask = encrypt_block(keys, nonce + (1).to_bytes(4, "big"))
    return cipher, bytes(a ^ b for a, b in zip(total.to_bytes(16, "big"), mask, strict=True))
