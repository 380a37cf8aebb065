"""How a buffer's ranks reach one another, from names to fields of the C ABI."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any, Literal, TypedDict

from .. import _abi as abi
from .._base.numbers import integer, refuse, switch
from ..errors import InvalidArgument

TRANSPORTS = {
    "auto": abi.MW_TRANSPORT_AUTO,
    "shm": abi.MW_TRANSPORT_SHM,
    "tcp": abi.MW_TRANSPORT_TCP,
    "rdma": abi.MW_TRANSPORT_RDMA,
}
PROTECTIONS = {"digest": abi.MW_PROTECTION_DIGEST, "encrypt": abi.MW_PROTECTION_ENCRYPT}
# Settings of RDMA devices; the library parses them.
RDMA = {
    "rdma_devices": "names of devices, such as mlx5_0,mlx5_1:2",
    "rdma_gid": "an index, v1 or v2, an address or a network",
    "rdma_near": "a PCI address, or node:N",
}
ZERO_COPIES = {
    "auto": abi.MW_ZERO_COPY_AUTO,
    "on": abi.MW_ZERO_COPY_ON,
    "off": abi.MW_ZERO_COPY_OFF,
}


class Reach(TypedDict, total=False):
    """What ``Buffer`` takes for ranks of several hosts.

    Equal on all ranks, except ``listen``, ``tcp_zero_copy`` and names that begin with ``rdma_``.
    """

    transport: Literal["auto", "shm", "tcp", "rdma"]
    listen: str
    key_file: str | os.PathLike[str]
    protection: Literal["digest", "encrypt"]
    ring_bytes: int
    unresponsive_after_us: int
    rdma_devices: str
    rdma_gid: str | int
    rdma_near: str
    rdma_dc: bool
    tcp_zero_copy: Literal["auto", "on", "off"]


def native(reach: dict[str, Any]) -> dict[str, int | bytes]:
    """Takes the arguments of ``Reach`` out of a dictionary; refuses impossible values.

    Arguments not given come from the environment. Texts are bytes; "flags" has bits to add.
    """
    key_file = _key_file(reach.pop("key_file", None))
    keys = b"" if key_file else _keys()
    return {
        "transport": _choice("transport", reach, "MOEWIRE_TRANSPORT", TRANSPORTS, "auto"),
        "protection": _choice("protection", reach, "MOEWIRE_PROTECTION", PROTECTIONS, "digest"),
        "listen": _listen(reach.pop("listen", None), bool(keys or key_file)).encode(),
        "keys": keys,
        "key_file": key_file,
        "host": os.environ.get("MOEWIRE_HOST", "").encode(),
        "ring_bytes": _number("ring_bytes", reach),
        "unresponsive_after_us": _number("unresponsive_after_us", reach),
        **{name: _text(name, reach) for name in RDMA},
        "flags": abi.MW_CONFIG_RDMA_DC if _dc(reach.pop("rdma_dc", None)) else 0,
        "tcp_zero_copy": _choice(
            "tcp_zero_copy", reach, "MOEWIRE_TCP_ZERO_COPY", ZERO_COPIES, "auto"
        ),
    }


def _number(name: str, given: dict[str, Any]) -> int:
    """A number from the argument or the variable of that name; 0: neither.

    The library knows which of the numbers below the largest are possible.
    """
    most = abi.LIMITS[name][1]
    value = given.pop(name, None)
    if value is not None:
        return integer(name, value, 0, most)
    name = f"MOEWIRE_{name.upper()}"
    text = os.environ.get(name) or "0"
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise refuse(name, repr(text), f"0 to {most}")
    return int(text)


def _text(name: str, given: dict[str, Any]) -> bytes:
    """A text that the library reads, from the argument or the variable of that name."""
    value = given.pop(name, None)
    if value is None:
        value = os.environ.get(f"MOEWIRE_{name.upper()}", "")
    return rdma_text(name, value)


def rdma_text(name: str, value: object) -> bytes:
    """One of the ``rdma_...`` settings; only an index of ``rdma_gid`` may be a number."""
    if isinstance(value, int) and not isinstance(value, bool) and name == "rdma_gid":
        value = str(value)
    if not isinstance(value, str):
        raise refuse(name, repr(value), RDMA[name])
    return value.encode()


def _dc(given: object) -> bool:
    if given is None:
        return switch("MOEWIRE_RDMA_DC")
    return yes_or_no("rdma_dc", given)


def yes_or_no(name: str, value: object) -> bool:
    """``value``, if it is a bool; else raises."""
    if not isinstance(value, bool):
        raise refuse(name, repr(value), "True, False")
    return value


def _choice(
    name: str, given: dict[str, Any], variable: str, allowed: dict[str, int], default: str
) -> int:
    value = given.pop(name, None)
    if value is None:
        name, value = variable, os.environ.get(variable) or default
    if not isinstance(value, str) or value not in allowed:
        raise refuse(name, repr(value), ", ".join(allowed))
    return allowed[value]


def _key_file(given: str | os.PathLike[str] | None) -> bytes:
    """The path of a keyring, which the library reads now and at every update; b"" for none."""
    if given is not None and not isinstance(given, str | bytes | os.PathLike):
        raise refuse("key_file", repr(given), "a path")
    path = given or os.environ.get("MOEWIRE_KEY_FILE")
    if not given and path and os.environ.get("MOEWIRE_KEY", "").strip():
        raise InvalidArgument("MOEWIRE_KEY and MOEWIRE_KEY_FILE are both set; allowed: one of them")
    return os.fsencode(os.path.abspath(path)) if path else b""


def _keys() -> bytes:
    """The text of a keyring; never part of an error."""
    key = os.environ.get("MOEWIRE_KEY", "").strip()
    if not key:
        return b""
    return (key if " " in key else f"1 {key}").encode()


def _listen(given: str | None, keys: bool) -> str:
    """The address that ranks of other hosts are told; none is needed without keys."""
    if given is not None and not isinstance(given, str):
        raise refuse("listen", repr(given), "an address, ADDRESS:PORT, or an interface")
    return given or os.environ.get("MOEWIRE_LISTEN") or (own_address() if keys else "")


def own_address() -> str:
    """The address of this host on the way to ``MASTER_ADDR``, else to the default route.

    A host's own name often has a loopback address, which no other host can use. Then this is
    the default route's address, unless ``MASTER_ADDR`` itself is loopback. "" when there is none.
    """
    master = os.environ.get("MASTER_ADDR")
    found = _address_towards(master) if master else ""
    if not found or (_is_loopback(found) and not _is_loopback(str(master))):
        return _address_towards("192.0.2.1") or found  # RFC 5737: documentation only
    return found


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _address_towards(host: str) -> str:
    """Asks the kernel for a route; sends nothing."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
