"""``moewire store``: the commands, and the life of a server."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import moewire.errors as errors
from harness.block_server import Served, free_port, run
from moewire.store import Client, Namespace, _serve


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("memory"), "--capacity", "64MiB") as server:
        yield server


def test_a_file_server_keeps_its_blocks(tmp_path: Path, seed: int) -> None:
    options = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "16MiB")
    data = Random(seed).randbytes(50_000)
    with Served(tmp_path, *options) as server:
        with server.client("m") as client:
            assert client.put("killed", data)
            assert client.flush()
            server.kill()
            server.start()
        with server.client("m") as client:
            assert client.get("killed") == data
            assert client.put("ended", data)
        assert server.end() == 0
        server.start()
        with server.client("m") as client:
            assert client.get("ended") == client.get("killed") == data
        second = run("serve", *options, "--listen", "127.0.0.1:0", "--key-file", str(server.key))
        assert second.returncode == 1
        assert "in use by another process" in second.stderr


def test_keys_are_read_again(served: Served, tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        new = tmp_path / "new"
        new.write_text(f"2 {secrets.token_hex(32)}\n")
        new.chmod(0o600)
        with pytest.raises(errors.RefusedError):
            Client(server.address, namespace="m", key_file=new)
        server.key.write_text(new.read_text() + server.key.read_text())
        server.signal(signal.SIGHUP)
        server.says("keys were read again")
        Client(server.address, namespace="m", key_file=new).close()
        server.key.write_text("nothing\n")
        server.signal(signal.SIGHUP)
        server.says("the keys stay")
        Client(server.address, namespace="m", key_file=new).close()


def test_commands(served: Served, tmp_path: Path) -> None:
    reach = ("--servers", served.address, "--key-file", str(served.key))
    with served.client(Namespace("seen", dtype="bf16")) as client:
        assert client.batch_put(["ab", b"a\n\xff", "c"], [b"x"] * 3) == [True] * 3
    stat = run("stat", *reach)
    assert stat.returncode == 0
    assert f"{served.address}: " in stat.stdout
    assert "of 64.0 MiB" in stat.stdout
    assert '"num_blocks": ' in run("stat", "--json", *reach).stdout
    assert f"{served.address}: ok" in run("check", *reach).stdout
    listed = run("list", *reach, "--namespace", "seen", "--field", "dtype=bf16", "--prefix", "a")
    assert sorted(listed.stdout.splitlines()) == ["a\\n\\xff", "ab"]
    wrong = run("list", *reach, "--namespace", "seen", "--field", "model=x")
    assert (wrong.returncode, "--field: 'model=x' given" in wrong.stderr) == (1, True)
    gone = f"127.0.0.1:{free_port()}"
    some = ("--servers", f"{gone},{served.address}", "--key-file", str(served.key))
    checked = run("check", *some)
    assert checked.returncode == 1
    assert f"{gone}: a block was not stored: " in checked.stdout
    assert f"{served.address}: ok" in checked.stdout, "those behind it are checked, too"
    for words in (("stat",), ("list", "--namespace", "seen", "--field", "dtype=bf16")):
        partly = run(*words, *some)
        assert partly.returncode == 1
        assert f"{gone}: connect: connection refused" in partly.stderr
    assert "keys of 1 servers are left out" in partly.stderr
    timed = run("bench", "--servers", gone, "--key-file", str(served.key), "--seconds", "0.1")
    assert timed.returncode == 1
    assert f"a block was not stored: dial tcp {gone}: connect: connection refused" in timed.stderr
    soon = run("stat", *reach, "--timeout", "nan")
    assert (soon.returncode, "--timeout: nan given" in soon.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "MOEWIRE_KEY_FILE; there is no mode without"),
        (("--key-file", "nowhere"), "key_file: "),
        (("--new-key", "key", "--capacity", "1GB"), "--capacity: '1GB' given"),
        (("--new-key", "key", "--capacity", "1MiB"), "capacity_bytes: "),
        (("--new-key", "key", "--storage", "file"), "path: None given"),
        (("--new-key", "key", "--path", "x"), "path: 'x' given"),
        (("--new-key", "key", "--listen", "9900"), 'listen has "9900", allowed is address:port'),
        (("--new-key", "key", "--listen", "127.0.0.1:99999"), 'listen has "127.0.0.1:99999"'),
        (("--new-key", "key", "--durability", "each"), "durability: 'each' given; allowed: group"),
        (("--new-key", "there"), "--new-key: there is there already"),
        (("--new-key", "key", "--key-file", "there"), "--new-key, --key-file: both given"),
    ],
)
def test_a_server_that_does_not_start(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    (tmp_path / "there").write_text("")
    done = run("serve", *options, folder=tmp_path)
    assert done.returncode == 1
    assert text in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_new_key(served: Served) -> None:
    """The key is its owner's alone, and the printed line is all that a client needs."""
    assert served.key.stat().st_mode & 0o777 == 0o600
    assert served.line == (
        f"export MOEWIRE_STORE_SERVERS={served.address} MOEWIRE_KEY_FILE={served.key}"
    )


def test_what_an_operator_reads(tmp_path: Path) -> None:
    options = ("--storage", "file", "--path", str(tmp_path / "blocks"), "--capacity", "16MiB")
    with Served(tmp_path, *options) as server:
        with server.client("m") as client:
            assert client.put("a", b"x") and client.put("b", b"x")
        unknown = tmp_path / "unknown"
        unknown.write_text(f"2 {secrets.token_hex(32)}\n")
        unknown.chmod(0o600)
        for _ in range(3):
            with pytest.raises(errors.RefusedError):
                Client(server.address, namespace="m", key_file=unknown)
        assert "was refused" in server.says("127.0.0.1:")
        server.signal(signal.SIGTERM)
        assert "draining: 0 requests of" in server.says("moewire store: "), "one line in 10 s"
        server.says("its files are sealed")
        server.says("ended")
        assert server.process.wait(20) == 0
        server.kill()
        server.start()
        assert "2 blocks with 0 MiB were found again in " in server.says("found again")


class _Drains:
    """A server that says something while it drains, and whose disk may not answer."""

    def __init__(self, problem: Exception | None) -> None:
        self.problem = problem
        self.lines = ["before"]
        self.taken = threading.Event()

    def stats(self) -> dict[str, int]:
        return {"requests_running": 3, "clients": 1}

    def log(self) -> list[str]:
        lines, self.lines = self.lines, []
        if "meanwhile" in lines:
            self.taken.set()
        return lines

    def drain(self, timeout_us: int) -> None:
        self.lines.append("meanwhile")
        assert self.taken.wait(20), "it is passed on only afterwards"
        self.lines.append("last")
        if self.problem:
            raise self.problem


@pytest.mark.parametrize("problem", [None, errors.DeadlineError("the disk does not answer")])
def test_what_is_logged_in_a_drain(
    capsys: pytest.CaptureFixture[str], problem: Exception | None
) -> None:
    assert _serve._close(_Drains(problem), "file") == (problem is None)  # type: ignore[arg-type]
    first, *lines, end = capsys.readouterr().err.splitlines()
    assert first == "moewire store: draining: 3 requests of 1 clients"
    assert lines == [f"moewire store: {line}" for line in ("before", "meanwhile", "last")]
    assert ("the disk does not answer" if problem else "its files are sealed") in end
