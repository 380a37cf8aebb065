"""What ``moewire doctor`` says of ranks on several hosts: the carrier, and why not another one."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import secrets
from ctypes import byref
from pathlib import Path
from typing import Any

from .. import _abi as abi
from .._config import reach
from .._native.lib import Library, fill
from ..errors import MoewireError
from ..fabric import Fabric

Part = dict[str, Any]

_DEVICES = Path("/sys/class/infiniband")
_CAP_IPC_LOCK = 14
# Two rings of 16 MiB per direction; a rank registers its own ends of them.
LOCKED_BYTES_PER_REMOTE_RANK = 2 * 16 << 20
_MAKE_KEYS = (
    "openssl rand -hex 32 | sed 's/^/1 /' > moewire.keys && chmod 600 moewire.keys; "
    "export MOEWIRE_KEY_FILE=$PWD/moewire.keys   (the same file on every host)"
)
_NAME_ADDRESS = "export MOEWIRE_LISTEN=ADDRESS   (or an interface: see `ip -brief address`)"

# Words of the library's reason, then the reason in plain words and what to do; the first fits.
_NO_RDMA: tuple[tuple[str, str, str], ...] = (
    (
        "library not found",
        "libibverbs is not installed",
        "sudo apt install libibverbs1 ibverbs-providers   (Fedora, RHEL: sudo dnf install "
        "libibverbs; without an RDMA device: none)",
    ),
    ("symbol not found", "libibverbs is too old", "sudo apt install --upgrade libibverbs1"),
    (
        "no active port",
        "no port of the device is active",
        "rdma link   (shows the ports; a cable, `sudo ip link set INTERFACE up`, or, on "
        "InfiniBand, a subnet manager is missing)",
    ),
    (
        "no RoCE address",
        "the device's network interface has no IP address",
        "sudo ip address add ADDRESS/PREFIX dev INTERFACE",
    ),
    (
        "permission denied",
        "this user may not open the device",
        "ls -l /dev/infiniband   (uverbs* must be open to this user; in a container: "
        "docker run --device=/dev/infiniband)",
    ),
    (
        "cannot allocate memory",
        "the limit of locked memory is too low, or the device has no room",
        "ulimit -l unlimited   (in a container: docker run --ulimit memlock=-1)",
    ),
)
# The library's errors name fields; a fabric's errors name its arguments.
_FIELD = re.compile(r"\b(?:config->|(?=rdma_(?:devices|gid|near|dc)\b))(\w+)")
_HIDDEN = (
    "the kernel has an RDMA device that libibverbs does not see",
    "sudo apt install ibverbs-providers   (in a container: docker run --device=/dev/infiniband "
    "--ulimit memlock=-1)",
)
_NO_DEVICE = (
    "there is no RDMA device",
    "none   (with such a card: its driver is missing; `lspci | grep -i -e infiniband -e mellanox`)",
)


def report(lib: Library | None, verbs: Part) -> Part:
    """The section ``between_hosts``. ``verbs``: what the library says of that carrier."""
    devices = rdma_devices()
    found: Part = {"rdma": _rdma(verbs, devices), "rdma_devices": devices}
    found["locked_memory"] = locked_memory()
    try:
        fields = reach.native({})
    except MoewireError as error:
        return {**found, "transport": "?", **_wrong_variable(str(error))}
    if verbs.get("available") and any(fields[name] for name in (*reach.RDMA, "flags")):
        found["rdma"] = _rdma(_chosen(fields), devices)
    names = {number: name for name, number in reach.TRANSPORTS.items()}
    found["transport"] = names[int(fields["transport"])]
    found["keys"] = _keys(bytes(fields["keys"]), os.fsdecode(bytes(fields["key_file"])))
    found["address"] = _address(bytes(fields["listen"]).decode())
    trouble = _tried(lib, fields) if lib is not None else "the library cannot be used"
    if trouble:
        found["error"] = trouble
    found["ranks_of_this_host"] = "tcp" if found["transport"] == "tcp" else "shm"
    found["ranks_of_other_hosts"] = carrier_between(found)
    if found["ranks_of_other_hosts"]["available"]:
        found["messages_on_cuda"] = _messages_on_cuda(found, verbs)
    return found


def _messages_on_cuda(found: Part, verbs: Part) -> str:
    """Where a buffer on CUDA has its messages to ranks of other hosts, by carrier.

    The library asks one device: the one that a buffer takes unless ``MOEWIRE_RDMA_...`` choose
        another.
    """
    if found["transport"] == "tcp" or not found["rdma"]["available"]:
        return "in pinned host memory: tcp registers no device memory"
    taken, asked = found["rdma"]["reason"], verbs.get("reason", "")
    why = verbs.get("no_device_memory", "")
    if taken != asked:
        able = f"cannot: {why}" if why else "can"
        text = f"in memory of the device, if {taken} can register that, which was not asked "
        text += f"({asked} {able}), and the device lets it in (see cuda driver), else pinned"
    elif why:
        text = f"in pinned host memory: {why} (over {taken})"
    else:
        text = "in memory of the device, if it lets RDMA devices in (see cuda driver), else pinned "
        text += f"(over {taken})"
    return text if found["transport"] == "rdma" else f"{text}; pinned for ranks over tcp"


def _tried(lib: Library, fields: dict[str, int | bytes]) -> str:
    """Why no buffer can be made with these settings; "" if one can."""
    config = abi.mw_config_t(abi.SIZE_OF[abi.mw_config_t], num_ranks=2)
    texts = fill(config, fields)
    buffer = abi.mw_buffer_t()
    try:
        lib.check(lib.buffer_create(byref(config), byref(buffer)))
        lib.check(lib.buffer_close(buffer))
    except MoewireError as error:
        return _by_variable(str(error))
    del texts
    return ""


def _chosen(fields: dict[str, int | bytes]) -> Part:
    """What the library says of RDMA with the devices that ``MOEWIRE_RDMA_...`` allow."""
    names: dict[str, Any] = {name: bytes(fields[name]).decode() for name in reach.RDMA}
    names["rdma_dc"] = bool(int(fields["flags"]) & abi.MW_CONFIG_RDMA_DC)
    try:
        with Fabric(carrier="rdma", keys=f"1 {secrets.token_hex(32)}", **names) as fabric:
            return {"available": True, "reason": fabric.report()["device"]}
    except MoewireError as error:
        return {"available": False, "reason": _by_variable(str(error))}


def _by_variable(text: str) -> str:
    """An error of the library or a fabric, with each field's name replaced by its variable."""
    named = _FIELD.sub(lambda field: f"MOEWIRE_{field[1].upper()}", text)
    return re.sub(r"\bMOEWIRE_KEYS\b", "MOEWIRE_KEY", named)


def _wrong_variable(text: str) -> Part:
    """``text`` begins with the variable's name."""
    fix = f"unset {text.partition(':')[0]}   (or one of what is allowed)"
    way = {"available": False, "reason": text, "fix": fix}
    return {"error": text, "ranks_of_other_hosts": way}


def _keys(keys: bytes, path: str) -> Part:
    if path and not os.path.exists(path):
        return {"available": False, "reason": f"there is no file {path}", "fix": _MAKE_KEYS}
    if path or keys:
        return {"available": True, "reason": f"from {path or 'MOEWIRE_KEY'}"}
    reason = "neither MOEWIRE_KEY_FILE nor MOEWIRE_KEY is set"
    return {"available": False, "reason": reason, "fix": _MAKE_KEYS}


def _address(listen: str) -> Part:
    listen = listen or reach.own_address()
    if not listen:
        reason = "MOEWIRE_LISTEN is not set, and there is no route to other hosts"
        return {"available": False, "reason": reason, "fix": _NAME_ADDRESS}
    origin = "MOEWIRE_LISTEN" if os.environ.get("MOEWIRE_LISTEN") else "the way to other hosts"
    return {"available": True, "reason": f"{listen}, by {origin}", "loopback": _loopback(listen)}


def _loopback(listen: str) -> bool:
    host = listen if listen.count(":") != 1 else listen.partition(":")[0]
    try:
        return ipaddress.ip_address(host.partition("]")[0].strip("[")).is_loopback
    except ValueError:
        return listen == "lo"


def _rdma(verbs: Part, devices: list[str]) -> Part:
    if verbs.get("available"):
        return {"available": True, "reason": verbs.get("reason", "")}
    text = str(verbs.get("reason", ""))
    what, fix = _why_no_rdma(text, devices)
    return {"available": False, "reason": what, "fix": fix, "library_says": text}


def _why_no_rdma(text: str, devices: list[str]) -> tuple[str, str]:
    for words, what, fix in _NO_RDMA:
        if words in text:
            return what, fix
    if "no RDMA device" in text or "not implemented" in text:
        return _HIDDEN if devices else _NO_DEVICE
    return text or "the library does not say why", "see the reason"


def rdma_devices(folder: Path = _DEVICES) -> list[str]:
    """Ports of RDMA devices that the kernel shows, as text."""
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        state, layer, rate = (_word(port / name) for name in ("state", "link_layer", "rate"))
        state = state.partition(": ")[2].lower() or "unknown"
        found.append(f"{port.parts[-3]} port {port.name}: {state}, {layer}, {rate}")
    return found


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def locked_memory() -> Part:
    """How much memory this process may lock; RDMA needs it for the rings of links."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    effective = _capabilities() >> _CAP_IPC_LOCK & 1
    unlimited = soft == resource.RLIM_INFINITY or bool(effective)
    return {
        "limit": "unlimited" if unlimited else soft,
        "needed_per_remote_rank": LOCKED_BYTES_PER_REMOTE_RANK,
        "remark": "for RDMA alone (memlock); shared memory and TCP lock none",
    }


def _capabilities() -> int:
    for line in _word(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def carrier_between(found: Part) -> Part:
    """The carrier that would reach a rank of another host, and why that one."""
    transport, rdma = found["transport"], found["rdma"]
    if transport == "shm":
        fix = "export MOEWIRE_TRANSPORT=auto"
        return {"available": False, "reason": "MOEWIRE_TRANSPORT is shm", "fix": fix}
    for name in ("keys", "address"):
        if not found[name]["available"]:
            return {**found[name], "reason": f"no {name}: {found[name]['reason']}"}
    if "error" in found:
        # The library's words for a key that others could read or change.
        exposed = "use 0600" in found["error"]
        fix = "chmod 600 $MOEWIRE_KEY_FILE" if exposed else "see the error, and docs/hosts.md"
        return {"available": False, "reason": found["error"], "fix": fix}
    if transport == "rdma" and not rdma["available"]:
        return {**rdma, "reason": f"MOEWIRE_TRANSPORT is rdma, and {rdma['reason']}"}
    if transport == "tcp":
        return {"available": True, "reason": "tcp: MOEWIRE_TRANSPORT is tcp"}
    if rdma["available"]:
        rest = "" if transport == "rdma" else "; tcp where the device does not reach a rank"
        return {"available": True, "reason": f"verbs, over {rdma['reason']}{rest}"}
    reason = f"tcp; not RDMA, because {rdma['reason']}"
    return {"available": True, "reason": reason, "fix": rdma["fix"]}


# ------------------------------------------------------------------ warnings --

Advice = tuple[str, str]  # what is wrong, and what helps


def asked_for(found: Part) -> bool:
    """Whether the settings say that there will be other hosts."""
    keys = found.get("keys", {}).get("available", False)
    return bool(keys or "error" in found or found["transport"] in ("rdma", "tcp"))


def no_way(found: Part) -> Advice | None:
    """Ranks of other hosts are expected, but cannot be reached."""
    way = found["ranks_of_other_hosts"]
    if not asked_for(found) or way["available"]:
        return None
    return f"ranks of other hosts cannot be reached: {way['reason']}", way.get("fix", "see it")


def loopback(found: Part) -> Advice | None:
    """The address that other hosts are told is a loopback address, which is their own, too."""
    if not found.get("address", {}).get("loopback") or os.environ.get("MOEWIRE_HOST"):
        return None
    return (
        f"the address for other hosts is {found['address']['reason']}: only ranks of this machine "
        "reach it",
        _NAME_ADDRESS,
    )


def unused_device(found: Part) -> Advice | None:
    """There is an RDMA device, but TCP would be used."""
    if found["rdma"]["available"] or not found["rdma_devices"]:
        return None
    return f"RDMA is not used: {found['rdma']['reason']}", found["rdma"]["fix"]


def little_locked(found: Part) -> Advice | None:
    """RDMA would be used, but could not register the rings of many ranks."""
    limit, each = (found["locked_memory"][name] for name in ("limit", "needed_per_remote_rank"))
    if not found["rdma"]["available"] or limit == "unlimited" or limit >= 8 * each:
        return None
    return (
        f"{limit} bytes may be locked; RDMA locks {each} for each rank of another host",
        "ulimit -l unlimited   (for good: '* - memlock unlimited' in "
        "/etc/security/limits.conf; in a container: docker run --ulimit memlock=-1)",
    )
