"""How a rank finds the address that ranks of other hosts are told."""

import socket
from typing import Any

import pytest

from moewire import Buffer, _member, errors
from moewire import _abi as abi
from moewire._config import reach

# What a name stands for, and this host's end of the way there.
_HOSTS = {
    "first": ("127.0.1.1", "127.0.0.1"),  # this host's own name, as many systems have it
    "second": ("198.51.100.2", "198.51.100.7"),
    "localhost": ("127.0.0.1", "127.0.0.1"),
    "127.0.0.1": ("127.0.0.1", "127.0.0.1"),
    "192.0.2.1": ("192.0.2.1", "203.0.113.5"),  # the default route
}


class _Probe:
    def __init__(self, *_: object) -> None:
        self._at = ""

    def __enter__(self) -> "_Probe":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, address: tuple[str, int]) -> None:
        self._at = next(own for to, own in _HOSTS.values() if to == address[0])

    def getsockname(self) -> tuple[str, int]:
        return self._at, 0


def _resolve(name: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
    if name not in _HOSTS:
        raise socket.gaierror
    return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (_HOSTS[name][0], port))]


@pytest.mark.parametrize(
    ("master", "want"),
    [
        ("second", "198.51.100.7"),
        ("first", "203.0.113.5"),  # a loopback address is of no use to other hosts
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("nowhere", "203.0.113.5"),
        (None, "203.0.113.5"),
    ],
)
def test_own_address(monkeypatch: pytest.MonkeyPatch, master: str | None, want: str) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _resolve)
    monkeypatch.setattr(socket, "socket", _Probe)
    if master is None:
        monkeypatch.delenv("MASTER_ADDR", raising=False)
    else:
        monkeypatch.setenv("MASTER_ADDR", master)
    assert reach.own_address() == want


def test_rdma_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument goes before its variable; an index may be a number."""
    for name in ("DEVICES", "GID", "NEAR"):
        monkeypatch.delenv(f"MOEWIRE_RDMA_{name}", raising=False)
    names = ("rdma_devices", "rdma_gid", "rdma_near")
    assert [reach.native({})[n] for n in names] == [b"", b"", b""]
    monkeypatch.setenv("MOEWIRE_RDMA_DEVICES", "mlx5_*")
    monkeypatch.setenv("MOEWIRE_RDMA_GID", "v2")
    found = reach.native({"rdma_gid": 3, "rdma_near": "node:1"})
    assert [found[n] for n in names] == [b"mlx5_*", b"3", b"node:1"]
    for name in names:
        with pytest.raises(errors.InvalidArgument, match=name):
            reach.native({name: [1]})


def test_rdma_dc(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument goes before its variable, and is nothing but a bool."""
    monkeypatch.delenv("MOEWIRE_RDMA_DC", raising=False)
    assert reach.native({})["flags"] == 0
    assert reach.native({"rdma_dc": True})["flags"] == abi.MW_CONFIG_RDMA_DC
    monkeypatch.setenv("MOEWIRE_RDMA_DC", "1")
    assert reach.native({})["flags"] == abi.MW_CONFIG_RDMA_DC
    assert reach.native({"rdma_dc": None})["flags"] == abi.MW_CONFIG_RDMA_DC
    assert reach.native({"rdma_dc": False})["flags"] == 0
    for given in (1, 0, "1", []):
        with pytest.raises(errors.InvalidArgument, match=r"rdma_dc: .*allowed: True, False"):
            reach.native({"rdma_dc": given})


@pytest.mark.parametrize("asked", [True, False, None])
def test_rdma_dc_is_passed_on(monkeypatch: pytest.MonkeyPatch, asked: bool | None) -> None:
    """It is a flag among others, to which constructing a buffer adds it."""
    monkeypatch.delenv("MOEWIRE_RDMA_DC", raising=False)

    class Seen(Exception):
        pass

    def engine(*, flags: int, tuning: dict[str, Any], **_: Any) -> None:
        assert "flags" not in tuning
        raise Seen(flags)

    monkeypatch.setattr(_member, "Cpu", engine)
    with pytest.raises(Seen) as seen:
        Buffer.from_exchange(lambda own: [own], 0, 1, deterministic=True, rdma_dc=asked)
    want = abi.MW_CONFIG_DETERMINISTIC | (abi.MW_CONFIG_RDMA_DC if asked else 0)
    assert seen.value.args == (want,)


@pytest.mark.parametrize("name", ["key_file", "listen"])
def test_no_text_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is false stands for "not given" but None and the empty text."""
    for variable in ("KEY", "KEY_FILE", "LISTEN"):
        monkeypatch.delenv(f"MOEWIRE_{variable}", raising=False)
    for given in (0, False, [], 3.5):
        with pytest.raises(errors.InvalidArgument, match=f"{name}: .* given"):
            reach.native({name: given})
    for given in (None, ""):
        assert reach.native({name: given})[name] == b""


def test_tcp_zero_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument goes before its variable; other words are refused, in either."""
    monkeypatch.delenv("MOEWIRE_TCP_ZERO_COPY", raising=False)
    assert reach.native({})["tcp_zero_copy"] == 0
    monkeypatch.setenv("MOEWIRE_TCP_ZERO_COPY", "off")
    assert reach.native({})["tcp_zero_copy"] == 2
    assert reach.native({"tcp_zero_copy": "on"})["tcp_zero_copy"] == 1
    with pytest.raises(errors.InvalidArgument, match=r"tcp_zero_copy.*auto, on, off"):
        reach.native({"tcp_zero_copy": True})
    monkeypatch.setenv("MOEWIRE_TCP_ZERO_COPY", "yes")
    with pytest.raises(errors.InvalidArgument, match="MOEWIRE_TCP_ZERO_COPY"):
        reach.native({})
