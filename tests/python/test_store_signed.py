"""examples/python/store_signed.py, a client without Moewire, and Moewire's own client."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from harness.block_server import Served

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "python" / "store_signed.py"
SIZES = [0, 1, 70_000, 900_000]

sys.path.insert(0, str(PROGRAM.parent))
from store_signed import Client as Plain  # noqa: E402


def test_each_reads_what_the_other_has_written(tmp_path: Path, seed: int) -> None:
    with Served(tmp_path, "--capacity", "64MiB") as server, server.client("plain") as own:
        plain = Plain(server.address, str(server.key), "plain")
        for n in SIZES:
            block = Random(seed + n).randbytes(n)
            assert plain.put(b"theirs %d" % n, block)
            assert own.get(f"theirs {n}") == block
            assert own.put(f"ours {n}", block)
            assert plain.get(b"ours %d" % n) == block
            assert plain.put(b"theirs %d" % n, block), "the same block is fine"
            assert not plain.put(b"theirs %d" % n, block + b"x")
        assert plain.get(b"none") is None
        (said,) = own.stats()["servers"].values()
        plain.server.close()
        plain.socket.close()
        assert said["counts"]["single_requests"] == 1 + 5 * len(SIZES) + 1 - len(SIZES)


def test_it_is_short_and_has_nothing_but_the_standard_library() -> None:
    text = PROGRAM.read_text()
    assert len(text.splitlines()) <= 60
    imported = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported <= sys.stdlib_module_names


def program(server: Served) -> subprocess.CompletedProcess[str]:
    names = {"MOEWIRE_STORE_SERVERS": server.address, "MOEWIRE_KEY_FILE": str(server.key)}
    return subprocess.run(
        [sys.executable, "-S", str(PROGRAM)],
        env=os.environ | names,
        timeout=60,
        text=True,
        capture_output=True,
    )


def test_the_program(tmp_path: Path) -> None:
    with Served(tmp_path, "--capacity", "8MiB") as server:
        done = program(server)
    assert done.stdout == "stored: True read: b'a block'\n", done.stderr


@pytest.mark.parametrize("arguments", [("--signed", "off"), ("--protection", "encrypt")])
def test_a_server_without_them(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Served(tmp_path, "--capacity", "8MiB", *arguments) as server:
        done = program(server)
    assert done.returncode and "Connection" in done.stderr.splitlines()[-1], done.stderr
