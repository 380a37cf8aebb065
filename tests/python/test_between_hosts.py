"""What `moewire doctor` says of ranks on several hosts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from moewire import doctor
from moewire._native.lib import library
from moewire.doctor import _between_hosts

KEY = bytes(range(32)).hex()
VARIABLES = ("KEY", "KEY_FILE", "LISTEN", "TRANSPORT", "PROTECTION", "HOST")
VARIABLES += ("RDMA_DEVICES", "RDMA_GID", "RDMA_NEAR")
NO_LIBRARY = {
    "available": False,
    "reason": "verbs: not supported: library not found; tried: libibverbs.so.1 (no such file)",
}
DEVICE = {"available": True, "reason": "mlx5_0 port 1"}


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"MOEWIRE_{name}", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)


def report(monkeypatch: pytest.MonkeyPatch, verbs: Any, **variables: str) -> dict[str, Any]:
    for name, value in variables.items():
        monkeypatch.setenv(f"MOEWIRE_{name}", value)
    return _between_hosts.report(library(), copy.deepcopy(verbs))


# Variables; what the library says of verbs; words about ranks of other hosts; of its fix.
CARRIERS: list[tuple[dict[str, str], Any, bool, str, str]] = [
    ({}, NO_LIBRARY, False, "no keys", "openssl rand -hex 32"),
    ({"KEY": KEY}, NO_LIBRARY, True, "tcp; not RDMA, because libibverbs is not", "apt install"),
    ({"KEY": KEY}, DEVICE, True, "verbs, over mlx5_0 port 1; tcp where", ""),
    ({"KEY": KEY, "TRANSPORT": "tcp"}, DEVICE, True, "tcp: MOEWIRE_TRANSPORT is tcp", ""),
    ({"KEY": KEY, "TRANSPORT": "rdma"}, DEVICE, True, "verbs, over mlx5_0 port 1", ""),
    ({"KEY": KEY, "TRANSPORT": "rdma"}, NO_LIBRARY, False, "is rdma, and libibverbs", "apt"),
    ({"KEY": KEY, "TRANSPORT": "shm"}, DEVICE, False, "is shm", "MOEWIRE_TRANSPORT=auto"),
    ({"KEY": "1 beef"}, NO_LIBRARY, False, "keys", "docs/hosts.md"),
    ({"KEY": KEY, "LISTEN": "nosuchcard"}, NO_LIBRARY, False, "nosuchcard", "docs/hosts.md"),
]


@pytest.mark.parametrize(("variables", "verbs", "available", "reason", "fix"), CARRIERS)
def test_carriers(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    verbs: Any,
    available: bool,
    reason: str,
    fix: str,
) -> None:
    found = report(monkeypatch, verbs, **{"LISTEN": "127.0.0.1", **variables})
    way = found["ranks_of_other_hosts"]
    assert way["available"] is available and reason in way["reason"], way
    assert fix in way.get("fix", ""), way
    warning = _between_hosts.no_way(found)
    assert (warning is None) == (available or not variables), warning
    assert KEY not in str(found) and "beef" not in str(found), "no key is shown"
    assert found["ranks_of_this_host"] == ("tcp" if variables.get("TRANSPORT") == "tcp" else "shm")
    if verbs is DEVICE and available and variables.get("TRANSPORT") != "rdma":
        assert "fix" not in way
    assert ("messages_on_cuda" in found) is available


@pytest.mark.parametrize(
    ("transport", "verbs", "says"),
    [
        ("auto", NO_LIBRARY, "in pinned host memory: tcp registers no device memory"),
        ("tcp", DEVICE, "in pinned host memory: tcp registers no device memory"),
        ("auto", DEVICE, "in memory of the device, if it lets RDMA devices in"),
        ("rdma", {**DEVICE, "no_device_memory": "too old"}, "in pinned host memory: too old"),
    ],
)
def test_messages_on_cuda(
    monkeypatch: pytest.MonkeyPatch, transport: str, verbs: Any, says: str
) -> None:
    found = report(monkeypatch, verbs, KEY=KEY, LISTEN="127.0.0.1", TRANSPORT=transport)
    said = found["messages_on_cuda"]
    assert said.startswith(says)
    by_rdma = transport != "tcp" and verbs is not NO_LIBRARY
    assert ("(over mlx5_0 port 1)" in said) == by_rdma
    assert said.endswith("; pinned for ranks over tcp") == (by_rdma and transport == "auto")


@pytest.mark.parametrize(
    ("why", "able"), [("", "mlx5_0 port 1 can"), ("too old", "mlx5_0 port 1 cannot: too old")]
)
def test_messages_on_cuda_by_another_device(
    monkeypatch: pytest.MonkeyPatch, why: str, able: str
) -> None:
    """If one device works, that says nothing of the device that was named."""
    chosen = {"available": True, "reason": "mlx5_7 port 2"}
    monkeypatch.setattr(_between_hosts, "_chosen", lambda _: chosen)
    verbs = {**DEVICE, "no_device_memory": why}
    found = report(monkeypatch, verbs, KEY=KEY, LISTEN="127.0.0.1", RDMA_DEVICES="mlx5_7:2")
    said = found["messages_on_cuda"]
    assert said.startswith("in memory of the device, if mlx5_7 port 2 can register that")
    assert f"({able})" in said


def test_a_wrong_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(monkeypatch, NO_LIBRARY, TRANSPORT="udp")
    assert "udp" in found["error"]
    warning = _between_hosts.no_way(found)
    assert warning is not None and "udp" in warning[0]
    assert warning[1].startswith("unset MOEWIRE_TRANSPORT ")


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"RDMA_GID": "v9"}, 'MOEWIRE_RDMA_GID is "v9"'),
        ({"LISTEN": "nowhere0"}, 'MOEWIRE_LISTEN is "nowhere0"'),
        ({"KEY": "beef"}, "MOEWIRE_KEY: "),
    ],
)
def test_errors_name_variables(
    variables: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library names a struct's field; the error names the variable that it came from."""
    warning = _between_hosts.no_way(report(monkeypatch, NO_LIBRARY, **{"KEY": KEY, **variables}))
    assert warning is not None and says in warning[0] and "config->" not in warning[0]


@pytest.mark.parametrize(
    ("variable", "value"), [("DEVICES", "nosuch0"), ("GID", "203.0.113.77"), ("NEAR", "x")]
)
def test_a_device_has_to_be_allowed(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not enough that some device works, if others were named."""
    assert report(monkeypatch, DEVICE, KEY=KEY)["rdma"]["available"]
    found = report(monkeypatch, DEVICE, KEY=KEY, **{f"RDMA_{variable}": value})
    assert not found["rdma"]["available"] and "fix" in found["rdma"], found["rdma"]
    if variable == "NEAR":  # which the library refuses before it looks for devices
        assert 'MOEWIRE_RDMA_NEAR is "x"' in found["rdma"]["library_says"]


# What the library says, whether the kernel shows a device; words of the reason and of the fix.
REASONS = [
    ("library not found; tried: libibverbs.so.1", False, "not installed", "libibverbs1"),
    ("symbol not found: ibv_reg_mr", False, "too old", "upgrade"),
    ("verbs: not supported: no RDMA device", False, "there is no RDMA device", "none"),
    ("verbs: not supported: no RDMA device", True, "libibverbs does not see", "ibverbs-providers"),
    ("ibv_get_device_list: function not implemented", False, "there is no RDMA device", "none"),
    ("rxe0 has no active port (port 1 is in state 1; 4 is active)", True, "no port", "rdma link"),
    ("no RoCE address among 3", True, "no IP address", "ip address add"),
    ("ibv_open_device rxe0: permission denied", True, "may not open", "/dev/infiniband"),
    ("ibv_create_cq: cannot allocate memory", True, "locked memory", "ulimit -l"),
    ("something else", False, "something else", "see the reason"),
]


@pytest.mark.parametrize(("says", "device", "reason", "fix"), REASONS)
def test_why_not_rdma(says: str, device: bool, reason: str, fix: str) -> None:
    what, helps = _between_hosts._why_no_rdma(says, ["rxe0 port 1"] if device else [])
    assert reason in what and fix in helps


def test_devices_that_the_kernel_shows(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("rxe0", "1: DOWN")):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "link_layer").write_text("Ethernet\n")
        (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    assert _between_hosts.rdma_devices(tmp_path) == [
        "mlx5_0 port 1: active, Ethernet, 100 Gb/sec (4X EDR)",
        "rxe0 port 1: down, Ethernet, 100 Gb/sec (4X EDR)",
    ]
    assert _between_hosts.rdma_devices(tmp_path / "absent") == []


LOOPBACK = ("127.0.0.1", "127.0.0.1:4000", "lo", "[::1]:7", "::1")
NO_LOOPBACK = ("10.0.0.1", "10.0.0.1:4000", "eth0", "fd00::1", "[fd00::1]:7")


@pytest.mark.parametrize("listen", [*LOOPBACK, *NO_LOOPBACK])
def test_loopback(monkeypatch: pytest.MonkeyPatch, listen: str) -> None:
    monkeypatch.setenv("MOEWIRE_LISTEN", listen)
    address = _between_hosts._address(listen)
    assert address["available"] and address["loopback"] is (listen in LOOPBACK), address


def test_key_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that others may read or change is refused; so is a file without keys. Each has its
    fix."""
    file = tmp_path / "keys"

    def warned(text: str, mode: int) -> tuple[str, str] | None:
        file.write_text(text)
        file.chmod(mode)
        found = report(monkeypatch, NO_LIBRARY, KEY_FILE=str(file), LISTEN="127.0.0.1")
        assert found["keys"] == {"available": True, "reason": f"from {file}"}
        assert KEY not in str(found)
        return _between_hosts.no_way(found)

    assert warned(f"1 {KEY}\n", 0o600) is None
    for mode in (0o644, 0o622):
        warning = warned(f"1 {KEY}\n", mode)
        assert warning is not None and "than its owner" in warning[0]
        assert warning[1] == "chmod 600 $MOEWIRE_KEY_FILE"
    warning = warned("1 beef\n", 0o600)
    assert warning is not None and "line 1" in warning[0] and "docs/hosts.md" in warning[1]
    found = report(monkeypatch, NO_LIBRARY, KEY_FILE=str(tmp_path / "absent"))
    warning = _between_hosts.no_way(found)
    assert warning is not None and "absent" in warning[0] and "openssl" in warning[1]


def test_all_of_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEWIRE_KEY", KEY)
    monkeypatch.setenv("MOEWIRE_LISTEN", "127.0.0.1")
    text = doctor._document(doctor.report())
    for words in ("between hosts:", "ranks of other hosts: ", "ranks of this host: ", "rdma: "):
        assert words in text, text
    assert "only ranks of this machine reach it" in text
    assert KEY not in text
