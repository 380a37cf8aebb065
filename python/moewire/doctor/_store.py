"""The part of ``moewire doctor`` about block stores: what a client started here would find."""

from __future__ import annotations

import os
import stat
from typing import Any, Literal, cast

from .._base.numbers import switch
from ..errors import MoewireError, RefusedError
from ..integrations import _engines, _plugin
from ..store import Client, Namespace
from . import _machine

SERVERS, KEY_FILE, MOONCAKE = "MOEWIRE_STORE_SERVERS", "MOEWIRE_KEY_FILE", "MOEWIRE_MOONCAKE_STORE"
_OWN = Namespace(salt="moewire doctor")
_TIMEOUT_US = 2_000_000
PROTECTION = "MOEWIRE_STORE_PROTECTION"
_OTHER_SALTS = "the key has no right to the namespace"


def report() -> dict[str, Any]:
    """The section. Asks the servers that the environment names, for 4 s at most.

    Returns:
        What there is, in words; "problem" and "fix" if clients started here cannot work.
    """
    names, key = os.environ.get(SERVERS, ""), os.environ.get(KEY_FILE, "")
    wrong = _key_problem(key)
    found: dict[str, Any] = {
        "servers": names or f"{SERVERS} is unset",
        "key_file": f"{KEY_FILE} is unset" if not key else wrong[0] if wrong else "its owner's",
        "same_host": _same_host(),
        "mooncake_store": _mooncake(),
        "remark": _engines.RECOMPUTE,
    }
    if names and not key:
        wrong = f"{SERVERS} is set and {KEY_FILE} is not", f"export {KEY_FILE}=FILE"
    if names and not wrong:
        wrong = _ask(found, names, key)
    if wrong:
        found["problem"], found["fix"] = wrong
    return found


def _key_problem(path: str) -> tuple[str, str] | None:
    """What is wrong with the key file, and what to do; None without one."""
    if not path:
        return None
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # a pipe's writer may never come
            return f"{path}: not a file", f"export {KEY_FILE}=FILE"
        with open(path, "rb"):
            pass
    except OSError as error:
        return f"{path}: {error.strerror}", f"export {KEY_FILE}=FILE   (one that can be read)"
    others = 0o026 if found.st_uid == 0 else 0o066  # the group may read a file of root's
    if found.st_mode & others:
        return f"{path}: others may use it (mode {found.st_mode & 0o777:o})", f"chmod 600 {path}"
    return None


def _ask(found: dict[str, Any], names: str, key: str) -> tuple[str, str] | None:
    """Adds what each server says, and returns what is wrong."""
    try:
        protection = cast(Literal["digest", "encrypt"], os.environ.get(PROTECTION) or "digest")
        with Client(
            names, namespace=_OWN, key_file=key, timeout_us=_TIMEOUT_US, protection=protection
        ) as client:
            said = client.stats()
    except RefusedError as error:
        if _OTHER_SALTS in str(error):
            found["answers"] = "yes; the key may open namespaces of its salts alone"
            return None
        return f"{names}: {error}", f"the server's key and clock, {PROTECTION} (docs/store.md)"
    except MoewireError as error:
        return f"{names}: {error}", "the server's address (docs/store.md)"
    silent = [name for name, answer in said["servers"].items() if answer is None]
    found["answers"] = {
        name: "none" if answer is None else f"yes, blocks by {said['carriers'].get(name, 'tcp')}"
        for name, answer in said["servers"].items()
    }
    if not silent:
        return None
    why = "; ".join(said.get("why_not", [])) or f"no answer within {_TIMEOUT_US // 1_000_000} s"
    return f"no answer of {', '.join(silent)}: {why}", "moewire store serve   (at that address)"


def _same_host() -> dict[str, Any]:
    """Whether blocks of a server of this host can be read where they lie."""
    security = _machine.security()
    lacking = [
        text
        for text, answer in (
            ("memfd_create", security["memory_files"]),
            ("abstract unix sockets", security["abstract_sockets"]),
            (
                "MADV_POPULATE_READ (Linux 5.14)",
                "allowed" if _machine.populates_for_reading() else "refused",
            ),
        )
        if answer != "allowed"
    ]
    if lacking:
        return {"available": False, "reason": f"lacks {', '.join(lacking)}: blocks come by TCP"}
    return {"available": True}


def _mooncake() -> str:
    """What MOEWIRE_MOONCAKE_STORE does in a process started like this one."""
    try:
        on = switch(MOONCAKE)
    except MoewireError as error:
        return f"engines end at their start: {error}"
    if not on:
        return f"off: {MOONCAKE} is not 1; moewire.compat.mooncake_store.install() puts it in place"
    loading = [
        engine.name for engine in (_engines.SGLANG, _engines.VLLM) if _plugin.is_loaded_by(engine)
    ]
    if not loading:
        return f"{MOONCAKE}=1 does nothing here: no vLLM or SGLang that loads moewire's plug-in"
    return f"on: mooncake.store is the block store in processes of {' and '.join(loading)}"
