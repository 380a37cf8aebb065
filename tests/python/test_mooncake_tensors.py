"""Blocks of tensors in ``mooncake.store``: whatever a block is, it is one tensor or none."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest
import torch

from moewire.compat._mooncake_store import _tensors
from moewire.compat._mooncake_store._codes import Problem

DTYPES = sorted(
    {
        str(one).removeprefix("torch.")
        for one in vars(torch).values()
        if isinstance(one, torch.dtype)
    }
)
NAMES = [*DTYPES, "Tensor", "float99", "", "__name__", "compile", "load", "\udcff"]


def block_of(dtype: str, shape: list[int], payload: bytes, mark: bytes = b"MWTENSOR") -> bytes:
    """A block by the words of the module's docstring."""
    head = mark + len(shape).to_bytes(8, "little")
    head += dtype.encode("utf-8", "surrogateescape")[:16].ljust(16, b"\0")
    for size in shape:
        head += (size % (1 << 64)).to_bytes(8, "little")
    return head + bytes(-len(head) % 64) + payload


def random_block(random: Random) -> bytes:
    """Mostly one whose payload fits its shape; negative and huge sizes among them."""
    name = random.choice(NAMES)
    sizes = (0, 1, 2, 3, 7, -1, -2, 1 << 62, (1 << 63) - 1)
    weights = (2, 6, 6, 6, 3, 1, 1, 1, 1)
    shape = random.choices(sizes, weights, k=random.choice((0, 1, 1, 2, 2, 3, 5, 64)))
    count = 1
    for size in shape:
        count *= size
    dtype = vars(torch).get(name)
    width = dtype.itemsize if isinstance(dtype, torch.dtype) else 4
    fits = 0 <= count * width < 1 << 16
    block = block_of(name, shape, random.randbytes(count * width if fits else 64))
    if random.random() < 0.2:
        block = block[: random.randrange(len(block) + 1)]
    if random.random() < 0.2:
        block += random.randbytes(random.randrange(1, 9))
    return block


def check(block: bytes) -> bool:
    """Whether it is a tensor; if so, with the bytes, the shape and the dtype that it says."""
    found = _tensors._tensor_of(bytearray(block))
    if found is None:
        return False
    num = int.from_bytes(block[8:16], "little")
    shape = [
        int.from_bytes(block[32 + 8 * i : 40 + 8 * i], "little", signed=True) for i in range(num)
    ]
    name = block[16:32].rstrip(b"\0").decode()
    begin = -(-(32 + 8 * num) // 64) * 64
    assert block[:8] == b"MWTENSOR"
    assert found.dtype is vars(torch)[name]
    assert not found.is_quantized
    assert list(found.shape) == shape
    assert found.nbytes == len(block) - begin
    if found.nbytes:
        assert bytes(found.contiguous().reshape(-1).view(torch.uint8).tolist()) == block[begin:]
    return True


@pytest.mark.check
@pytest.mark.filterwarnings("ignore:.*support is experimental")  # of torch's complex ones
def test_random_blocks_are_one_tensor_or_none(seed: int) -> None:
    random = Random(seed)
    tensors = sum(check(random_block(random)) for _ in range(3000))
    assert 300 < tensors < 2900


def test_any_bytes_are_none(seed: int) -> None:
    random = Random(seed)
    for _ in range(2000):
        block = random.randbytes(random.randrange(200))
        assert _tensors._tensor_of(bytearray(block)) is None
        assert _tensors._tensor_of(bytearray(b"MWTENSOR" + block)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_every_bit_of_a_header(dtype: torch.dtype, seed: int) -> None:
    """A bit of the mark, of the sizes or of the dtype: another tensor of as many bytes, or none."""
    whole = torch.frombuffer(bytearray(Random(seed).randbytes(48)), dtype=dtype).reshape(2, -1)
    block = b"".join(bytes(part) for part in _tensors._bytes_of(whole))
    assert check(block)
    for bit in range(8 * 48):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        is_tensor = check(bytes(flipped))
        assert not (is_tensor and bit < 8 * 8), bit


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_quantized_tensors_are_refused() -> None:
    """Torch ends the process where it is to view memory as one."""
    for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4"):
        for shape in ([0], [4]):
            assert not check(block_of(name, shape, bytes(shape[0] * vars(torch)[name].itemsize)))
    given = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(Problem, match=r"torch.qint8 given; allowed: a dtype that is not quantized"):
        _tensors._on_host(given)


def test_a_name_imports_nothing() -> None:
    """Names that a package resolves when it is asked for them are no dtypes."""
    program = (
        "import sys, torch\n"
        "from moewire.compat._mooncake_store import _tensors\n"
        "before = set(sys.modules)\n"
        "for name in (b'_dynamo', b'_inductor', b'onnx', b'_export', b'has_mps'):\n"
        "    head = b'MWTENSOR' + bytes(8) + name.ljust(16, b'\\0')\n"
        "    assert _tensors._tensor_of(bytearray(head + bytes(36))) is None\n"
        "new = {name for name in set(sys.modules) - before if name.startswith('torch')}\n"
        "assert not new, new\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)
