"""Keys with rights of their own: ``moewire store key``, and what their holders see."""

from __future__ import annotations

import io
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import moewire.errors as errors
from harness.block_server import SOON_S, Served, run
from moewire.store import Client, Namespace, _key


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, "--capacity", "64MiB") as server:
        yield server


def add(server: Served, name: str, *options: str) -> Path:
    """A client's key file; the server has read its key."""
    path = server.folder / name
    done = run("key", "--add-to", str(server.key), "--new-key", str(path), *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"export MOEWIRE_KEY_FILE={path}" in done.stdout
    assert path.stat().st_mode & 0o777 == server.key.stat().st_mode & 0o777 == 0o600
    server.signal(signal.SIGHUP)
    server.says("keys were read again")
    return path


def client(server: Served, key: Path, salt: str = "") -> Client:
    namespace = Namespace("m", salt=salt)
    return Client(server.address, namespace=namespace, key_file=key, timeout_us=5_000_000)


def test_a_key_that_reads(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """What it may not do is False, counted, and one warning; what there is it sees."""
    with served.client("m") as owner:
        assert owner.put("a", b"block")
    with client(served, add(served, "reader", "--read")) as reader:
        with caplog.at_level(logging.WARNING, "moewire"):
            assert not reader.put("b", b"x")
            assert not reader.put("a", b"block")
            reader._warnings._next = 0.0
            assert reader.delete(["a"]) == 0
        assert reader.pin(["a"], 1.0) == [False]
        assert not reader.flush()
        assert reader.get("a") == b"block"
        assert reader.exists(["a", "b"]) == [True, False]
        said = reader.stats()
        assert said["replies"]["denied"] == 5
        assert said["servers"][served.address]["counts"]["denied"] == 5
    assert [record.message for record in caplog.records if "has no right" in record.message]


def test_a_key_of_a_salt(served: Served) -> None:
    """It opens the namespaces of its salt alone, and at once refuses to be a client of others."""
    key = add(served, "tenant", "--salt", "a", "--salt", "b")
    with client(served, key, "a") as mine, served.client(Namespace("m", salt="a")) as owner:
        assert mine.put("k", b"block")
        assert owner.get("k") == b"block"
        assert mine.stats()["carriers"] == {served.address: "tcp"}
    with pytest.raises(errors.RefusedError, match="may not open namespaces of this salt"):
        client(served, key)
    with pytest.raises(errors.RefusedError):
        Client(served.address, namespace=Namespace(salt="a"), key_file=key, transport="shm")


def test_a_right_is_taken_away(served: Served) -> None:
    """SIGHUP ends the sessions of a key whose line was changed. They come again with less."""
    key = add(served, "key2")
    with client(served, key) as other:
        assert other.put("a", b"x")
        text = served.key.read_text()
        assert text.endswith("\n")
        served.key.write_text(text[:-1] + " read\n")
        served.signal(signal.SIGHUP)
        served.says("keys were read again")
        end = time.monotonic() + SOON_S
        while not (said := other.stats())["broken"] or not said["servers_up"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert other.get("a") == b"x"
        assert not other.put("b", b"x")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--salt", "a b"), "--salt: 'a b' given"),
        (("--salt", "a#"), "--salt: 'a#' given"),
        (("--quota", "1GiB"), "--quota: no --salt given"),
        (("--salt", "a", "--quota", "1GB"), "--quota: '1GB' given"),
        (("--salt", "a", "--quota", "0"), "--quota: '0' given"),
        (("--new-key", "there"), "--new-key: there is there already"),
        (("--add-to", "nowhere"), "--add-to: nowhere: No such file"),
        (("--add-to", "empty"), "--add-to: empty without a key given"),
    ],
)
def test_keys_that_are_not_made(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    """Nothing was changed then."""
    files = {"keys": f"1 {'12' * 32}", "there": "", "empty": "# nothing\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    done = run("key", "--add-to", "keys", "--new-key", "new", *options, folder=tmp_path)
    assert done.returncode == 1
    assert text in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_the_file_has_one_line_more(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# mine\n7 {'12' * 32} read # x\n\n3 {'34' * 32}")
    done = run(
        *("key", "--add-to", "keys", "--new-key", "new", "--read"),
        *("--salt", "", "--salt", "b=c", "--quota", "3KiB"),
        folder=tmp_path,
    )
    assert done.returncode == 0
    number, secret = (tmp_path / "new").read_text().split()
    assert number == "8" and len(secret) == 64
    lines = keys.read_text().splitlines()
    assert lines[:4] == ["# mine", f"7 {'12' * 32} read # x", "", f"3 {'34' * 32}"]
    assert lines[4:] == [f"8 {secret} read salt= salt=b=c quota=3072"]


def test_a_quota(served: Served) -> None:
    """A salt has its bytes whatever the model, and loses the end of its own oldest chain alone."""
    key = add(served, "tenant", "--salt", "a", "--quota", "64KiB")
    with served.client("m") as other, client(served, key, "a") as mine:
        assert other.put("theirs", b"x")
        assert mine.batch_put([str(i) for i in range(16)], [b"x" * 3000] * 16) == [True] * 16
        assert mine.put("16", b"x" * 3000)
        assert mine.exists([str(i) for i in range(17)]) == [True] * 15 + [False, True]
        assert not mine.put("large", bytes(65536))
        said = mine.stats()
        assert said["replies"]["quota"] == 1
        (space,) = said["servers"][served.address]["store"]["namespaces"]
        names = ("used_bytes", "quota_bytes", "quota_used_bytes", "over_quota", "evicted_quota")
        assert [space[name] for name in names] == [65536, 65536, 65536, 1, 1]
        assert other.exists(["theirs"]) == [True]


def test_a_key_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    """What a server would refuse is not written: it would keep its old keys, or not start."""
    ring, new = tmp_path / "ring", tmp_path / "new"

    def add_to(text: str, *options: str) -> str:
        ring.write_text(text)
        done = run("key", "--add-to", str(ring), "--new-key", str(new), *options)
        assert done.returncode != 0 and ring.read_text() == text and not new.exists()
        return done.stderr

    one = f"1 {'0' * 64}\n"
    assert "--quota: '9999999999TiB' given" in add_to(
        one, "--salt", "t", "--quota", "9999999999TiB"
    )
    assert "256 keys" in add_to("".join(f"{i} {'0' * 64}\n" for i in range(1, 257)))
    assert "65530 bytes" in add_to(one + "#" + " " * (65530 - len(one) - 2) + "\n")

    class Full(io.RawIOBase):
        size = 7

        def write(self, data: object) -> int:
            self.size += 3
            return 3

        def truncate(self, size: int | None = None) -> int:
            self.size = size or 0
            return self.size

    file = Full()
    with pytest.raises(OSError, match="No space left"):
        _key._write(file, b"four", 7)
    assert file.size == 7
