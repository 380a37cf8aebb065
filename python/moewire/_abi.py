"""Mirror of ``capi/include/moewire.h``: structs, constants and function signatures.

It also has the names of ``_abi_fabric``, from ``moewire_fabric.h``, and of ``_abi_observe``, for
observers.

Hand-written. ``tests/capi`` compares every size, offset and constant with what a C compiler
says, and ``SIGNATURES`` with the functions that the library exports.
"""

# Names are those of the header.
# ruff: noqa: N801

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

from . import _abi_fabric as _fabric
from . import _abi_observe as _observe
from ._abi_fabric import mw_bytes_t as mw_bytes_t
from ._abi_observe import MW_MAX_RANKS as MW_MAX_RANKS
from ._abi_observe import mw_counters_t as mw_counters_t
from ._abi_observe import mw_link_t as mw_link_t
from ._abi_observe import mw_record_t as mw_record_t

MW_ABI_VERSION = 11
MW_MAX_TOPK = 64
MW_MAX_EXTRAS = 4
MW_MAX_EXTRA_BYTES = 65535

MW_OK = 0
MW_IN_PROGRESS = 1
MW_ERR_INVALID_ARGUMENT = -1
MW_ERR_HANDLE = -2
MW_ERR_STALE_HANDLE = -3
MW_ERR_CLOSED = -4
MW_ERR_TIMEOUT = -5
MW_ERR_PEER_LOST = -6
MW_ERR_PEER_MISMATCH = -7
MW_ERR_FENCED = -8
MW_ERR_NO_MEMORY = -9
MW_ERR_SYSTEM = -10
MW_ERR_FORKED = -11
MW_ERR_PANIC = -12
MW_ERR_CANCELLED = -13
MW_ERR_NOT_COMBINED = -14
MW_ERR_METADATA = -15
MW_ERR_UPDATING = -16
MW_ERR_WOULD_BLOCK = -17
MW_ERR_CONNECTING = -18
MW_ERR_UNREACHABLE = -19
MW_ERR_REFUSED = -20
MW_ERR_NO_RESOURCE = -21
MW_ERR_BUSY = -22
MW_ERR_NOT_SUPPORTED = -23
MW_ERR_NO_DEVICE = -24
MW_ERR_DEVICE = -25

MW_CONFIG_DEBUG_FILL = 1
MW_CONFIG_DETERMINISTIC = 4
MW_CONFIG_NO_RECORD = 2
MW_CONFIG_RDMA_DC = 8
MW_CONFIG_KILL_FENCED = 16
MW_TRANSPORT_AUTO = 0
MW_TRANSPORT_SHM = 1
MW_TRANSPORT_TCP = 2
MW_TRANSPORT_RDMA = 3
MW_PROTECTION_DIGEST = 0
MW_PROTECTION_ENCRYPT = 1
MW_ZERO_COPY_AUTO = 0
MW_ZERO_COPY_ON = 1
MW_ZERO_COPY_OFF = 2
MW_STORES_AUTO = 0
MW_STORES_CACHED = 1
MW_STORES_STREAMING = 2
MW_HUGE_PAGES_NEVER = 0
MW_HUGE_PAGES_ADVISE = 1
MW_HUGE_PAGES_REQUIRE = 2
MW_NUMA_NONE = 0
MW_NUMA_LOCAL = 1
MW_DEVICE_CPU = 0
MW_DEVICE_CUDA = 1
MW_SHAPE_FP32_OUTPUTS = 1
MW_SHAPE_FLAT = 2

MW_DISPATCH_FP8 = 1
MW_DISPATCH_HAS_MORE = 2
MW_DISPATCH_ROUND_SCALE = 4
MW_DISPATCH_UE8M0 = 8
MW_DISPATCH_FP32_OUTPUTS = 16
MW_DISPATCH_FLAT = 32
MW_DISPATCH_NO_ROUTING = 64
MW_DISPATCH_PRE_REDUCE = 128
MW_DISPATCH_KEEP_HELD = 256
MW_TOPK_IDX_INT32 = 512
MW_TOPK_WEIGHTS_BF16 = 1024
MW_TOPK_WEIGHTS_FP16 = 2048
MW_COMBINE_ZERO_COPY = 1
MW_COMBINE_FLAT = 2
MW_STREAM_NONE = (1 << 64) - 1

MW_LINK_TCP = 1
MW_LINK_VERBS = 2
MW_LINK_UP = 1
MW_LINK_UNRESPONSIVE = 2
MW_LINK_BROKEN = 3
MW_LINK_ENDED = 4
MW_LINK_OUT = 5
MW_RECORD_DISPATCH = 1
MW_RECORD_COMBINE = 2
MW_OUTCOME_DONE = 0
MW_OUTCOME_FAILED = 1
MW_OUTCOME_CANCELLED = 2
MW_MAX_RECORDS = 1024

MW_PHASE_SENT = 1
MW_PHASE_DONE = 2

CONSTANTS: dict[str, int] = {
    name: value for name, value in globals().items() if name.startswith("MW_")
}
CONSTANTS |= _fabric.CONSTANTS

_Fields = list[tuple[str, Any]]


class mw_buffer_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_handle_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_op_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_memory_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_config_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("rank", c_uint32),
        ("num_ranks", c_uint32),
        ("num_bytes", c_uint64),
        ("num_slots", c_uint32),
        ("vector_width", c_int32),
        ("stores", c_uint32),
        ("huge_pages", c_uint32),
        ("numa", c_uint32),
        ("num_threads", c_uint32),
        ("prefetch", c_int32),
        ("spin_us", c_int32),
        ("slow_after_us", c_int64),
        ("transport", c_uint32),
        ("protection", c_uint32),
        ("listen", mw_bytes_t),
        ("keys", mw_bytes_t),
        ("host", mw_bytes_t),
        ("ring_bytes", c_uint64),
        ("unresponsive_after_us", c_int64),
        ("key_file", mw_bytes_t),
        ("rdma_devices", mw_bytes_t),
        ("rdma_gid", mw_bytes_t),
        ("rdma_near", mw_bytes_t),
        ("tcp_zero_copy", c_uint32),
        ("reserved", c_uint32),
        ("device", c_uint32),
        ("device_ordinal", c_uint32),
        ("cuda_driver", mw_bytes_t),
        ("cuda_code", mw_bytes_t),
        ("cuda_nvrtc", mw_bytes_t),
    ]


class mw_shape_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("num_slots", c_uint32),
        ("num_max_tokens_per_rank", c_int64),
        ("hidden", c_int64),
        ("num_ranks", c_int64),
        ("num_experts", c_int64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("num_topk", c_int64),
        ("extra_row_bytes", c_uint32 * MW_MAX_EXTRAS),
    ]


class mw_members_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("epoch", c_uint32),
        ("ranks", c_uint64),
        ("num_lost", c_uint64),
    ]


class mw_dispatch_result_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("peers_have_more", c_uint32),
        ("handle", mw_handle_t),
        ("memory", mw_memory_t),
        ("recv_x", c_uint64),
        ("recv_scales", c_uint64),
        ("src_info", c_uint64),
        ("combine_x", c_uint64),
        ("memory_address", c_uint64),
        ("memory_bytes", c_uint64),
        ("recv_topk_idx", c_uint64),
        ("recv_topk_weights", c_uint64),
        ("recv_extra", c_uint64 * MW_MAX_EXTRAS),
    ]


class mw_dispatch_args_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("x", c_uint64),
        ("topk_idx", c_uint64),
        ("num_tokens", c_int64),
        ("hidden", c_int64),
        ("num_topk", c_int64),
        ("num_max_tokens_per_rank", c_int64),
        ("num_experts", c_int64),
        ("active_ranks", c_uint64),
        ("num_active_ranks", c_int64),
        ("timeout_us", c_int64),
        ("slice_us", c_int64),
        ("phase", c_int32),
        ("reserved", c_int32),
        ("recv_count", c_uint64),
        ("layout_range", c_uint64),
        ("result", c_uint64),  # address of a mw_dispatch_result_t
        ("topk_weights", c_uint64),
        ("extra", c_uint64 * MW_MAX_EXTRAS),
        ("extra_row_bytes", c_uint32 * MW_MAX_EXTRAS),
        ("stream", c_uint64),
        ("peers_have_more", c_uint64),
        ("wait_ns", c_uint64),
    ]


class mw_combine_args_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("handle", mw_handle_t),
        ("x", c_uint64),
        ("topk_idx", c_uint64),
        ("topk_weights", c_uint64),
        ("out", c_uint64),
        ("num_tokens", c_int64),
        ("num_topk", c_int64),
        ("active_ranks", c_uint64),
        ("num_active_ranks", c_int64),
        ("timeout_us", c_int64),
        ("slice_us", c_int64),
        ("phase", c_int32),
        ("reserved", c_int32),
        ("stream", c_uint64),
        ("wait_ns", c_uint64),
    ]


STRUCTS: dict[str, type[Structure]] = {
    kind.__name__: kind
    for kind in (
        mw_buffer_t,
        mw_handle_t,
        mw_op_t,
        mw_memory_t,
        mw_config_t,
        mw_shape_t,
        mw_bytes_t,
        mw_members_t,
        mw_dispatch_result_t,
        mw_dispatch_args_t,
        mw_combine_args_t,
    )
}
STRUCTS |= _observe.STRUCTS | _fabric.STRUCTS

_status = c_int32

# Name -> (result type, argument types).
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mw_abi_version": (c_uint32, ()),
    "mw_version": (c_char_p, ()),
    "mw_last_error": (c_char_p, ()),
    "mw_system_report": (_status, (c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_cuda_report": (
        _status,
        (POINTER(mw_bytes_t), POINTER(mw_bytes_t), c_void_p, c_uint64, POINTER(c_uint64)),
    ),
    "mw_buffer_size_hint": (_status, (POINTER(mw_shape_t), POINTER(c_uint64))),
    "mw_buffer_create": (_status, (POINTER(mw_config_t), POINTER(mw_buffer_t))),
    "mw_buffer_metadata": (_status, (mw_buffer_t, c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_buffer_connect": (_status, (mw_buffer_t, POINTER(mw_bytes_t), c_uint32, c_int64)),
    "mw_buffer_update": (_status, (mw_buffer_t,)),
    "mw_buffer_install": (_status, (mw_buffer_t,)),
    "mw_buffer_members": (_status, (mw_buffer_t, POINTER(mw_members_t))),
    "mw_buffer_close": (_status, (mw_buffer_t,)),
    "mw_buffer_counters": (_status, (mw_buffer_t, POINTER(mw_counters_t))),
    "mw_buffer_paths": (_status, (mw_buffer_t, c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_buffer_stats": (_status, (mw_buffer_t, c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_buffer_links": (
        _status,
        (mw_buffer_t, POINTER(mw_link_t), c_uint32, POINTER(c_uint32)),
    ),
    "mw_buffer_trace": (
        _status,
        (mw_buffer_t, c_uint32, POINTER(mw_record_t), c_uint32, POINTER(c_uint32)),
    ),
    "mw_buffer_events": (_status, (mw_buffer_t, c_uint64, c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_event_count": (POINTER(c_uint64), ()),
    "mw_buffer_dispatch": (_status, (mw_buffer_t, POINTER(mw_dispatch_args_t), POINTER(mw_op_t))),
    "mw_buffer_combine": (_status, (mw_buffer_t, POINTER(mw_combine_args_t), POINTER(mw_op_t))),
    "mw_buffer_combine_buffer": (_status, (mw_buffer_t, mw_handle_t, c_int64, POINTER(c_uint64))),
    "mw_buffer_combine_buffer_on": (
        _status,
        (mw_buffer_t, mw_handle_t, c_uint64, POINTER(c_uint64)),
    ),
    "mw_handle_release": (_status, (mw_handle_t,)),
    "mw_handle_release_on": (_status, (mw_handle_t, c_uint64)),
    "mw_op_wait": (_status, (mw_op_t, c_int32, c_int64)),
    "mw_op_test": (_status, (mw_op_t,)),
    "mw_op_cancel": (_status, (mw_op_t,)),
    "mw_op_close": (_status, (mw_op_t,)),
    "mw_memory_retain": (_status, (mw_memory_t,)),
    "mw_memory_release": (_status, (mw_memory_t,)),
}
SIGNATURES |= _fabric.SIGNATURES

SIZE_OF: dict[type[Structure], int] = {kind: ctypes.sizeof(kind) for kind in STRUCTS.values()}
