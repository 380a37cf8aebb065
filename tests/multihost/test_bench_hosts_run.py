"""``tests/bench hosts`` between two namespaces, small and short, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LITTLE = ["--repeat", "1", "--warmup", "1", "--idle-wait", "0", "--connections", "1,2"]
SHAPE = ["--tokens", "8", "--hidden", "128", "--experts", "8", "--topk", "2", "--ranks", "4"]
# The interrupt must work even where the process that runs the tests ignores it.
MAIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv[1:1] = ['hosts']; from documents import command; sys.exit(command())"
)


@pytest.fixture
def environment(namespaces: None, tmp_path: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *LITTLE, *SHAPE, *arguments]


@pytest.mark.slow
def test_a_short_run(environment: dict[str, str], tmp_path: Path) -> None:
    """Every series over two links. Bytes and results are compared by the command itself."""
    path = tmp_path / "result.json"
    arguments = command("--sizes", "7000", "--links", "0,2000", "--peers", "gloo")
    done = subprocess.run(
        [*arguments, "--json", str(path)], env=environment, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 Gbit/s, 7000 B, 8 in flight, 2 connections" in done.stdout
    result = json.loads(path.read_text())
    writes = result["writes"]["cells"]
    assert len(writes) == 2 * 3
    expected = {"moewire, digest", "moewire, encrypt", "moewire, digest, from Python", "gloo"}
    for cell in writes:
        assert expected < set(cell["series"])
        assert cell["series"][cell["floor"]]["of_floor"] == 1
    (exchange,) = result["exchanges"]
    for link in exchange["links"]:
        assert {"sockets dispatch", "moewire, encrypt combine", "gloo combine"} < set(link["steps"])
        for name, step in link["steps"].items():
            rows = "per_rank" if name.startswith(("moewire", "sockets")) else "per_expert"
            if name.endswith("dispatch"):
                assert step["wire_bytes_per_token"] > exchange["bytes_per_token"][rows]


@pytest.mark.parametrize(("what", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left(
    environment: dict[str, str], tmp_path: Path, what: signal.Signals, status: int
) -> None:
    """Only the command gets the signal, not its process group."""
    started = subprocess.Popen(
        command("--sizes", "1000", "--peers", "none", "--repeat", "100000"),
        env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with started as process:
        try:
            # Both namespaces, and both sides.
            wait_for(lambda: sum(b"spawn_main" in words for words in session(process.pid)) == 2)
            os.kill(process.pid, what)
            said = process.communicate(timeout=60)[0]
        finally:
            process.kill()
    assert process.returncode == status, said
    wait_for(lambda: not list(session(process.pid)))
    assert not list(tmp_path.iterdir())


def session(number: int) -> Iterator[bytes]:
    """Command lines of a session's processes."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and os.getsid(int(folder.name)) == number:
                yield (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            pass


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
