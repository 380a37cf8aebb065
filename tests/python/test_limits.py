"""The table of limits at the C ABI and in Python: the largest number of each row passes, and the
next one is refused with its name, what is given, and what is allowed.

``core/limits`` has the same test for Go, and ``make generate`` writes its table to ``_abi.LIMITS``.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from moewire import Buffer, errors
from moewire import _abi as abi
from moewire._config import device
from moewire._native.lib import library
from moewire.fabric import Fabric

_KEYS = b"1 " + b"5a" * 31 + b"5b"
_NEEDS_CUDA = "made on a device only; core/limits has it"
_NO_MORE = "the type has no larger number"


def _text(given: bytes) -> tuple[Any, abi.mw_bytes_t]:
    """The bytes, which the caller keeps, and where they are."""
    kept = ctypes.create_string_buffer(given)
    return kept, abi.mw_bytes_t(ctypes.addressof(kept), len(given))


# --- the C ABI: the text of the error that a call with one number of a row gets, "" for none


def _hint(**fields: int) -> str:
    shape = abi.mw_shape_t(
        **{
            "size": abi.SIZE_OF[abi.mw_shape_t],
            "num_slots": 1,
            "num_max_tokens_per_rank": 1,
            "hidden": 8,
            "num_ranks": 1,
            "num_experts": 1,
            **fields,
        }
    )
    num_bytes = ctypes.c_uint64()
    status = library().buffer_size_hint(ctypes.byref(shape), ctypes.byref(num_bytes))
    return library().error_text() if status else ""


def _config(**fields: int) -> abi.mw_config_t:
    sized = {"size": abi.SIZE_OF[abi.mw_config_t], "num_ranks": 1}
    return abi.mw_config_t(**{**sized, **fields})


def _create(**fields: int) -> str:
    made = abi.mw_buffer_t()
    config = _config(**fields)
    if library().buffer_create(ctypes.byref(config), ctypes.byref(made)):
        return library().error_text()
    library().check(library().buffer_close(made))
    return ""


def _create_on_cuda(**fields: int) -> str:
    kept, driver = _text(b"/nowhere/libcuda.so.1")
    on_cuda = {"device": abi.MW_DEVICE_CUDA, "num_bytes": 1 << 24, "cuda_driver": driver}
    text = _create(**on_cuda, **fields)
    assert kept and text
    return text


@contextmanager
def _connected() -> Iterator[abi.mw_buffer_t]:
    lib, made, config = library(), abi.mw_buffer_t(), _config()
    lib.check(lib.buffer_create(ctypes.byref(config), ctypes.byref(made)))
    metadata, length = ctypes.create_string_buffer(1024), ctypes.c_uint64()
    lib.check(lib.buffer_metadata(made, metadata, 1024, ctypes.byref(length)))
    all_ranks = (abi.mw_bytes_t * 1)((ctypes.addressof(metadata), length.value))
    lib.check(lib.buffer_connect(made, all_ranks, 1, 60_000_000))
    yield made
    lib.check(lib.buffer_close(made))


def _dispatch(**fields: Any) -> str:
    """A dispatch without memory for its results: what the number allows is refused for that."""
    result, op = abi.mw_dispatch_result_t(abi.SIZE_OF[abi.mw_dispatch_result_t]), abi.mw_op_t()
    args = abi.mw_dispatch_args_t(
        **{
            "size": abi.SIZE_OF[abi.mw_dispatch_args_t],
            "hidden": 8,
            "num_topk": 1,
            "num_max_tokens_per_rank": 1,
            "num_experts": 1,
            "timeout_us": -1,
            "slice_us": -1,
            "result": ctypes.addressof(result),
            **fields,
        }
    )
    with _connected() as buffer:
        assert library().buffer_dispatch(buffer, ctypes.byref(args), ctypes.byref(op)) < 0
        return library().error_text()


@contextmanager
def _routed() -> Iterator[tuple[abi.mw_buffer_t, abi.mw_routing_t]]:
    """With a routing of no tokens."""
    lib, made, op = library(), abi.mw_routing_t(), abi.mw_op_t()
    args = abi.mw_routing_args_t(
        size=abi.SIZE_OF[abi.mw_routing_args_t],
        num_topk=1,
        num_experts=1,
        timeout_us=-1,
        slice_us=-1,
    )
    with _connected() as buffer:
        lib.check(lib.routing_create(buffer, args, made, op))
        yield buffer, made
        lib.check(lib.routing_close(made))


def _num_rows(alignment: int) -> str:
    with _routed() as (_, routing):
        status = library().routing_num_rows(routing, alignment, ctypes.c_int64())
        return library().error_text() if status else ""


def _scatter(flags: int) -> str:
    args = abi.mw_scatter_args_t(size=abi.SIZE_OF[abi.mw_scatter_args_t], flags=flags)
    with _routed() as (buffer, args.routing):
        assert library().buffer_scatter(buffer, args, abi.mw_op_t()) < 0
        return library().error_text()


def _gather(flags: int) -> str:
    args = abi.mw_gather_args_t(size=abi.SIZE_OF[abi.mw_gather_args_t], flags=flags)
    with _routed() as (buffer, args.routing):
        assert library().buffer_gather(buffer, args, abi.mw_op_t()) < 0
        return library().error_text()


def _fabric(**fields: int) -> str:
    kept_keys, keys = _text(_KEYS)
    kept_listen, listen = _text(b"127.0.0.1:0")
    config = abi.mw_fabric_config_t(
        size=abi.SIZE_OF[abi.mw_fabric_config_t],
        key_source=abi.MW_KEYS_BYTES,
        keys=keys,
        listen=listen,
        **fields,
    )
    made = abi.mw_fabric_t()
    status = library().fabric_create(ctypes.byref(config), ctypes.byref(made))
    text = library().error_text() if status else ""
    assert kept_keys and kept_listen
    if not status:
        library().check(library().fabric_close(made, 60_000_000))
    return text


def _column(width: int) -> str:
    widths = (ctypes.c_uint32 * abi.MW_MAX_EXTRAS)(width)
    return _dispatch(flags=abi.MW_DISPATCH_FLAT, extra_row_bytes=widths)


Entrance = Callable[[int], str]


def _field(call: Callable[..., str], name: str) -> Entrance:
    return lambda value: call(**{name: value})


_HINTS = ("num_slots", "num_max_tokens_per_rank", "hidden")
_CONFIG = ("num_ranks", "num_bytes", "vector_width", "num_threads", "prefetch", "spin_us")
_CONFIG += ("slow_after_us", "ring_bytes", "unresponsive_after_us")
_FABRIC = ("num_peers", "num_connections", "num_transfers", "num_regions", "send_depth")
_FABRIC += ("recv_depth", "num_unmatched", "num_sockets", "slice_bytes", "connect_timeout_us")
IN_C: dict[str, Entrance] = {
    **{name: _field(_hint, name) for name in _HINTS},
    **{name: _field(_create, name) for name in _CONFIG},
    **{name: _field(_fabric, name) for name in _FABRIC},
    "device_ordinal": _field(_create_on_cuda, "device_ordinal"),
    "num_experts": lambda v: _hint(num_experts=v, num_ranks=abi.MW_MAX_RANKS),
    "num_experts per rank": _field(_hint, "num_experts"),
    "num_topk": _field(_dispatch, "num_topk"),
    "num_tokens": lambda v: _dispatch(num_tokens=v, num_max_tokens_per_rank=(1 << 31) - 1),
    "extra_row_bytes": _column,
    "expert_alignment": _num_rows,
    "timeout_us": _field(_dispatch, "timeout_us"),
}
NOT_IN_C = {
    "num_slots on CUDA": _NEEDS_CUDA,
    "num_tokens * num_topk": "it takes gigabytes of ids",
    "max_selections": "a setting of Go's alone",
    "max_experts": "a setting of Go's alone",
}
NEXT_NOT_IN_C = {"slow_after_us": _NO_MORE, "timeout_us": _NO_MORE, "connect_timeout_us": _NO_MORE}

# --- Python


def _error_of(call: Callable[[], Any]) -> str:
    try:
        made = call()
    except errors.MoewireError as error:
        return str(error)
    if hasattr(made, "close"):
        made.close()
    return ""


def _python_hint(**arguments: int) -> str:
    asked = {"num_max_dispatch_tokens_per_rank": 1, "hidden": 8, "num_ranks": 1, "num_experts": 1}
    return _error_of(lambda: Buffer.get_ep_buffer_size_hint(**{**asked, **arguments}))


def _flat_hint(**arguments: Any) -> str:
    return _error_of(
        lambda: Buffer.get_flat_buffer_size_hint(1, 8, 1, **{"num_topk": 1, **arguments})
    )


def _buffer(**arguments: Any) -> str:
    return _error_of(lambda: Buffer.from_exchange(lambda own: [own], 0, 1, **arguments))


def _python_num_rows(alignment: int) -> str:
    with Buffer.from_exchange(lambda own: [own], 0, 1) as buffer:
        routing = buffer.make_routing(torch.zeros((0, 1), dtype=torch.int64), 1)
        return _error_of(lambda: routing.num_expanded_rows(alignment))


def _python_fabric(**arguments: Any) -> str:
    return _error_of(lambda: Fabric(keys=_KEYS.decode(), listen="127.0.0.1:0", **arguments))


_ARGUMENTS = {"num_bytes": "num_ep_buffer_bytes", "timeout_us": "connect_timeout_us"}
IN_PYTHON: dict[str, Entrance] = {
    **{
        name: _field(_buffer, _ARGUMENTS.get(name, name))
        for name in (*_CONFIG, "timeout_us")
        if name != "num_ranks"
    },
    **{name: _field(_python_fabric, name) for name in _FABRIC},
    "num_ranks": lambda v: _python_hint(num_ranks=v, num_experts=v),
    "num_slots": _field(_python_hint, "num_slots"),
    "num_max_tokens_per_rank": _field(_python_hint, "num_max_dispatch_tokens_per_rank"),
    "hidden": _field(_python_hint, "hidden"),
    "num_experts": lambda v: _python_hint(num_experts=v, num_ranks=abi.MW_MAX_RANKS),
    "num_experts per rank": _field(_python_hint, "num_experts"),
    "num_topk": _field(_flat_hint, "num_topk"),
    "extra_row_bytes": lambda v: _flat_hint(extra_row_bytes=[v]),
    "expert_alignment": _python_num_rows,
    "device_ordinal": lambda v: _error_of(lambda: device.parsed(f"cuda:{v}")),
}
NOT_IN_PYTHON = {**NOT_IN_C, "num_tokens": "a dispatch has no more than M"}

# Rows whose largest number something else may refuse.
LOWER = {
    "vector_width": "not every machine has the widest",
    "slice_bytes": "no carrier has requests of that size",
}

# What an error calls a number, where that is not its name in the table.
SAYS = {
    ("C", "extra_row_bytes"): "extra_row_bytes of extra[0]",
    ("C", "num_experts per rank"): "num_experts is",
    ("Python", "num_experts per rank"): "num_experts is",
    ("Python", "num_bytes"): "num_ep_buffer_bytes",
    ("Python", "num_max_tokens_per_rank"): "num_max_dispatch_tokens_per_rank",
    ("Python", "timeout_us"): "connect_timeout_us",
    ("Python", "device_ordinal"): "device",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEY", "KEY_FILE", "RING_BYTES", "UNRESPONSIVE_AFTER_US", "LISTEN", "TRANSPORT"):
        monkeypatch.delenv(f"MOEWIRE_{name}", raising=False)


def test_each_row_has_an_entrance() -> None:
    for entrances, others in ((IN_C, NOT_IN_C), (IN_PYTHON, NOT_IN_PYTHON)):
        assert not entrances.keys() & others.keys()
        assert entrances.keys() | others.keys() == abi.LIMITS.keys()


def _refused(where: str, name: str, value: int, text: str) -> bool:
    """Whether a text refuses the value by its range."""
    before, allowed, after = text.partition("allowed")
    called = SAYS.get((where, name), name)
    return bool(allowed) and called in before and str(value) in before and after != ""


def _next(name: str, most: int) -> int:
    """The smallest number above a row that only the row refuses."""
    if name == "ring_bytes":
        return 2 * most  # a power of two
    return most + (abi.ROW_MULTIPLE if name == "hidden" else 1)


def _check(where: str, name: str, enter: Entrance, next_too: bool) -> None:
    most = abi.LIMITS[name][1]
    text = enter(most)
    if name in LOWER:
        assert f"allowed {abi.LIMITS[name][0]} to {most}" not in text
    else:
        assert not _refused(where, name, most, text), text
    if next_too:
        beyond = _next(name, most)
        text = enter(beyond)
        assert _refused(where, name, beyond, text), text
        assert str(most) in text.partition("allowed")[2], text


@pytest.mark.parametrize("name", IN_C)
def test_the_c_abi_keeps_the_table(name: str) -> None:
    _check("C", name, IN_C[name], name not in NEXT_NOT_IN_C)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_python_keeps_the_table(name: str) -> None:
    _check("Python", name, IN_PYTHON[name], True)


FLAGS: dict[str, tuple[Entrance, tuple[str, ...]]] = {
    "config": (_field(_create, "flags"), ("MW_CONFIG_",)),
    "shape": (_field(_hint, "flags"), ("MW_SHAPE_",)),
    "dispatch": (_field(_dispatch, "flags"), ("MW_DISPATCH_", "MW_TOPK_")),
    "scatter": (_scatter, ("MW_SCATTER_",)),
    "gather": (_gather, ("MW_GATHER_",)),
    "fabric": (_field(_fabric, "flags"), ("MW_FABRIC_",)),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_the_header_has_are_known(name: str) -> None:
    """And no others."""
    enter, families = FLAGS[name]
    known = 0
    for flag, bit in abi.CONSTANTS.items():
        known |= bit if flag.startswith(families) else 0
    text = enter(1 << 31)
    assert f"flags is {1 << 31:#x}, allowed bits {known:#x}" in text, text


ROOT = Path(__file__).parents[2]
_FIELD = re.compile(r"int\d+_t (\w+);\s*/\*(.*?)\*/", re.DOTALL)
_AT_MOST = re.compile(r"at\s+most\s+(\d+)")
_SPAN = re.compile(r"[\d,]+ to ([\d,]+)")


def test_headers_say_the_table() -> None:
    """What the comment of a field says of the largest number."""
    found = {}
    for header in ("moewire.h", "moewire_fabric.h", "moewire_routing.h"):
        text = (ROOT / "capi" / "include" / header).read_text()
        for name, comment in _FIELD.findall(text):
            for most in _AT_MOST.findall(comment) if name in abi.LIMITS else ():
                found[name] = int(most)
    assert {
        "num_slots",
        "num_threads",
        "prefetch",
        "spin_us",
        "send_depth",
        "expert_alignment",
    } <= found.keys()
    assert found == {name: abi.LIMITS[name][1] for name in found}


def test_the_documents_say_the_table() -> None:
    """What the row of a setting says of the largest number."""
    found = {}
    for line in (ROOT / "docs" / "configuration.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")]
        spans = _SPAN.findall(cells[-2]) if len(cells) > 2 and cells[1] in abi.LIMITS else []
        if spans:
            found[cells[1]] = int(spans[0].replace(",", ""))
    assert {"num_slots", "num_threads", "prefetch", "spin_us"} <= found.keys()
    assert found == {name: abi.LIMITS[name][1] for name in found}
