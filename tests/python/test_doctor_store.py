"""What ``moewire doctor`` says of the block store that the environment names."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest

from harness.block_server import Served, free_port, run
from moewire import doctor
from moewire.doctor import _machine, _store
from moewire.integrations import _plugin


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (_store.SERVERS, _store.KEY_FILE, _store.MOONCAKE, _store.PROTECTION):
        monkeypatch.delenv(name, raising=False)


def test_without_variables() -> None:
    found = _store.report()
    assert "problem" not in found and "answers" not in found
    assert (found["servers"], found["key_file"]) == (
        "MOEWIRE_STORE_SERVERS is unset",
        "MOEWIRE_KEY_FILE is unset",
    )
    assert found["same_host"] == {"available": True}
    assert '"kv_load_failure_policy": "recompute"' in found["remark"]
    assert found["mooncake_store"].startswith("off: ")


def test_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers, one that does not, and one that refuses the key."""
    with Served(tmp_path, "--capacity", "16MiB") as server:
        monkeypatch.setenv(_store.SERVERS, server.address)
        assert "MOEWIRE_KEY_FILE is not" in _store.report()["problem"]
        monkeypatch.setenv(_store.KEY_FILE, str(server.key))
        found = _store.report()
        assert found["answers"] == {server.address: "yes, blocks by shm"}
        assert "problem" not in found
        silent = f"127.0.0.1:{free_port()}"
        monkeypatch.setenv(_store.SERVERS, f"{server.address},{silent}")
        found = _store.report()
        assert found["answers"] == {server.address: "yes, blocks by shm", silent: "none"}
        assert f"no answer of {silent}: " in found["problem"]
        other = tmp_path / "other"
        other.write_text(f"2 {secrets.token_hex(32)}\n")
        other.chmod(0o600)
        monkeypatch.setenv(_store.KEY_FILE, str(other))
        monkeypatch.setenv(_store.SERVERS, server.address)
        assert "refused" in _store.report()["problem"]
        (warning,) = (w for w in doctor.report()["warnings"] if "block store" in w["what"])
        assert "refused" in warning["what"] and warning["fix"]


def test_key_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    monkeypatch.setenv(_store.KEY_FILE, str(key))
    assert "No such file" in _store.report()["problem"]
    text = secrets.token_hex(32)
    key.write_text(f"1 {text}\n")
    key.chmod(0o644)
    found = _store.report()
    assert "others may use it (mode 644)" in found["problem"]
    assert found["fix"] == f"chmod 600 {key}"
    assert text not in str(found)
    key.chmod(0o600 if os.getuid() else 0o440)  # containers mount secrets so
    assert _store.report()["key_file"] == "its owner's"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv(_store.KEY_FILE, str(pipe))
    assert "not a file" in _store.report()["problem"]


def test_keys_of_salts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with such a key work, though it may not open a namespace of doctor's own."""
    with Served(tmp_path, "--capacity", "16MiB") as server:
        path = tmp_path / "tenant"
        done = run("key", "--add-to", str(server.key), "--new-key", str(path), "--salt", "t")
        assert done.returncode == 0
        server.signal(signal.SIGHUP)
        server.says("keys were read again")
        monkeypatch.setenv(_store.SERVERS, server.address)
        monkeypatch.setenv(_store.KEY_FILE, str(path))
        found = _store.report()
        assert "problem" not in found and "salts alone" in found["answers"]


def test_servers_that_encrypt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(tmp_path, "--capacity", "16MiB", "--protection", "encrypt") as server:
        monkeypatch.setenv(_store.SERVERS, server.address)
        monkeypatch.setenv(_store.KEY_FILE, str(server.key))
        assert _store.PROTECTION in _store.report()["fix"]
        monkeypatch.setenv(_store.PROTECTION, "encrypt")
        assert "problem" not in _store.report()


def test_what_the_kernel_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "populates_for_reading", lambda: False)
    found = _store.report()["same_host"]
    assert not found["available"] and "MADV_POPULATE_READ" in found["reason"]


@pytest.mark.parametrize(
    ("value", "loaded", "text"),
    [
        ("0", True, "off: "),
        ("1", False, "does nothing here: no vLLM or SGLang"),
        ("1", True, "in processes of SGLang and vLLM"),
        ("yes", True, "engines end at their start: MOEWIRE_MOONCAKE_STORE: 'yes' given"),
    ],
)
def test_mooncakes_store(
    monkeypatch: pytest.MonkeyPatch, value: str, loaded: bool, text: str
) -> None:
    monkeypatch.setenv(_store.MOONCAKE, value)
    monkeypatch.setattr(_plugin, "is_loaded_by", lambda engine: loaded)
    assert text in _store.report()["mooncake_store"]
