"""``moewire doctor``: what this machine offers, and why something is absent."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import sys
from collections.abc import Sequence
from ctypes import byref
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import _abi as abi
from .._cuda import report as _cuda_report
from .._native.lib import Library, library, library_path
from .._version import __version__
from ..errors import LibraryError
from ..integrations import _engines, _plugin
from . import _advice, _between_hosts, _machine, _store

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def report() -> dict[str, Any]:
    """Everything that ``moewire doctor`` prints. Loads the library; needs no torch.

    Returns:
        The sections of the report, to be printed as text or JSON.
    """
    found: dict[str, Any] = {
        "moewire": __version__,
        "python": platform.python_version(),
        "torch": _package_version("torch"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "library": _library_report(),
        "cpus": {"online": os.cpu_count(), "usable": len(os.sched_getaffinity(0))},
        "memory": _memory_report(),
        "process": _process_report(),
        "liveness": _machine.liveness(),
        "limits": _machine.limits(),
        "security": _machine.security(),
        "engines": {
            _engines.SGLANG.name: _plugin.report(_engines.SGLANG),
            _engines.VLLM.name: _engines.vllm_report(),
            "transformers": _engines.transformers_report(),
        },
    }
    found["cuda_driver"] = _cuda_report.report(None if "error" in found["library"] else library())
    found["between_hosts"] = _hosts_report(found["library"])
    found["block_store"] = {} if "error" in found["library"] else _store.report()
    return {**found, "warnings": _advice.warnings(found)}


def _hosts_report(found: dict[str, Any]) -> dict[str, Any]:
    verbs = found.get("transports", {}).get("verbs", {"reason": found.get("error")})
    return _between_hosts.report(None if "error" in found else library(), verbs)


def _package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _library_report() -> dict[str, Any]:
    path = library_path()
    result: dict[str, Any] = {"path": str(path)}
    try:
        lib = library()
    except LibraryError as error:
        return {**result, "error": str(error)}
    system = system_report(lib)
    return {**result, "version": lib.version().decode(), **system}


def system_report(lib: Library) -> dict[str, Any]:
    """The library's report of this machine: vector widths, transports, devices."""
    length = ctypes.c_uint64()
    status = lib.system_report(None, 0, byref(length))
    if status != abi.MW_ERR_INVALID_ARGUMENT:  # the answer to "too small", with the length
        lib.check(status)
    text = ctypes.create_string_buffer(max(1, length.value))
    lib.check(lib.system_report(text, length.value, byref(length)))
    parsed: dict[str, Any] = json.loads(text.raw[: length.value])
    return parsed


def _memory_report() -> dict[str, Any]:
    meminfo = _meminfo()
    return {
        "total_bytes": meminfo.get("MemTotal", 0) * 1024,
        "available_bytes": meminfo.get("MemAvailable", 0) * 1024,
        "shmem_huge_pages": _selected(_read(_HUGE_PAGES / "shmem_enabled")),
        "transparent_huge_pages": _selected(_read(_HUGE_PAGES / "enabled")),
        "huge_pages_total": meminfo.get("HugePages_Total", 0),
        "huge_pages_free": meminfo.get("HugePages_Free", 0),
        "huge_pages_tried": _machine.huge_pages(),
        "control_group_limit": _control_group_limit(),
        "remark": "none is locked but for RDMA, see between hosts; /dev/shm's size does not matter",
    }


def _control_group_limit() -> int | str:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(Path(path))
        if text is not None and text.isdigit() and int(text) < 1 << 60:
            return int(text)
    return "none"


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in (_read(Path("/proc/meminfo")) or "").splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) >= 2}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _selected(text: str | None) -> str:
    """The word in brackets, by which the kernel shows the option that is on."""
    if text is None:
        return "not offered by this kernel"
    chosen = [word.strip("[]") for word in text.split() if word.startswith("[")]
    return chosen[0] if chosen else text


def _process_report() -> dict[str, Any]:
    return {
        "pid_namespace": _link("/proc/self/ns/pid"),
        "ipc_namespace": _link("/proc/self/ns/ipc"),
        "network_namespace": _link("/proc/self/ns/net"),
        "remark": "ranks in other network namespaces, or of other users, count as other hosts",
    }


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _lines(value: dict[str, Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    for name, item in value.items():
        label = name.replace("_", " ")
        if isinstance(item, dict) and "available" in item:
            lines.append(f"{indent}{label}: {_availability(item)}")
        elif isinstance(item, dict):
            lines += [f"{indent}{label}:", *_lines(item, indent + "  ")]
        else:
            lines.append(f"{indent}{label}: {_text(item)}")
    return lines


def _availability(item: dict[str, Any]) -> str:
    state = "available" if item["available"] else "not available"
    reason = item.get("reason")
    fix = item.get("fix")
    if item["available"]:
        return (f"{state}: {reason}" if reason else state) + _fix(fix)
    return f"{state}: {reason}" + _fix(fix or _advice.fix_for_absent(str(reason)))


def _fix(fix: str | None) -> str:
    return f"; fix: {fix}" if fix else ""


def _text(item: Any) -> str:
    if isinstance(item, list):
        return ", ".join(str(entry) for entry in item) or "none"
    if item is None:
        return "not installed"
    return str(item)


def _document(found: dict[str, Any]) -> str:
    lines = _lines({name: item for name, item in found.items() if name != "warnings"})
    for warning in found["warnings"]:
        lines += ["", f"warning: {warning['what']}", f"  fix: {warning['fix']}"]
    return "\n".join([*lines, *([] if found["warnings"] else ["", "no warnings"])])


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report.

    Args:
        argv: the arguments; None: those of this process.

    Returns:
        The exit status: 1 if the library cannot be loaded.
    """
    parser = argparse.ArgumentParser(prog="moewire doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    found = report()
    print(json.dumps(found, indent=2) if options.json else _document(found))
    if "error" in found["library"]:
        print("moewire doctor: the library cannot be used", file=sys.stderr)
        return 1
    return 0
