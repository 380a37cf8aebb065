"""Mirror of ``capi/include/moewire_fabric.h``: a part of ``_abi``."""

# Names are those of the header.
# ruff: noqa: N801

from __future__ import annotations

from ctypes import POINTER, Structure, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

MW_CARRIER_TCP = 1
MW_CARRIER_RDMA = 2
MW_FABRIC_MESSAGES = 1
MW_FABRIC_ENCRYPT = 2
MW_FABRIC_RDMA_DC = 4
MW_KEYS_FILE = 1
MW_KEYS_ENV = 2
MW_KEYS_BYTES = 3
MW_EVICT_SIEVE = 0
MW_EVICT_FIFO = 1
MW_MAX_HANDSHAKE_BYTES = 1024
MW_ACCESS_WRITE = 1
MW_ACCESS_READ = 2
MW_TRANSFER_SEND = 1
MW_TRANSFER_RECV = 2
MW_TRANSFER_WRITE = 3
MW_TRANSFER_WRITE_IMM = 4
MW_TRANSFER_READ = 5
MW_TRANSFER_RECEIVE_IMM = 6
MW_UNTIL_ENDED = 1
MW_UNTIL_RELEASED = 2

CONSTANTS: dict[str, int] = {
    name: value for name, value in globals().items() if name.startswith("MW_")
}

_Fields = list[tuple[str, Any]]


class mw_bytes_t(Structure):
    _fields_: ClassVar[_Fields] = [("address", c_uint64), ("num_bytes", c_uint64)]


class mw_fabric_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_region_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_transfer_t(Structure):
    _fields_: ClassVar[_Fields] = [("id", c_uint64)]


class mw_fabric_config_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("carrier", c_uint32),
        ("key_source", c_uint32),
        ("keys", mw_bytes_t),
        ("listen", mw_bytes_t),
        ("interface_name", mw_bytes_t),
        ("advertise", mw_bytes_t),
        ("epoch", c_uint64),
        ("num_peers", c_uint32),
        ("num_connections", c_uint32),
        ("num_transfers", c_uint32),
        ("num_regions", c_uint32),
        ("send_depth", c_uint32),
        ("recv_depth", c_uint32),
        ("num_unmatched", c_uint32),
        ("num_sockets", c_uint32),
        ("slice_bytes", c_uint64),
        ("connect_timeout_us", c_int64),
        ("drain_timeout_us", c_int64),
        ("rdma_devices", mw_bytes_t),
        ("rdma_gid", mw_bytes_t),
        ("rdma_near", mw_bytes_t),
        ("tcp_zero_copy", c_uint32),
        ("eviction", c_uint32),
    ]


class mw_remote_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("address", c_uint64),
        ("num_bytes", c_uint64),
        ("key", c_uint64),
    ]


class mw_transfer_args_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("kind", c_uint32),
        ("peer", c_uint64),
        ("region", mw_region_t),
        ("offset", c_uint64),
        ("num_bytes", c_uint64),
        ("remote_address", c_uint64),
        ("remote_num_bytes", c_uint64),
        ("remote_key", c_uint64),
        ("remote_offset", c_uint64),
        ("imm", c_uint32),
        ("reserved", c_uint32),
    ]


class mw_transfer_result_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("status", c_int32),
        ("num_bytes", c_uint64),
        ("imm", c_uint32),
        ("released", c_uint32),
    ]


STRUCTS: dict[str, type[Structure]] = {
    kind.__name__: kind
    for kind in (
        mw_fabric_t,
        mw_region_t,
        mw_transfer_t,
        mw_fabric_config_t,
        mw_remote_t,
        mw_transfer_args_t,
        mw_transfer_result_t,
    )
}

_status = c_int32

# Name -> (result type, argument types).
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mw_fabric_create": (_status, (POINTER(mw_fabric_config_t), POINTER(mw_fabric_t))),
    "mw_fabric_report": (_status, (mw_fabric_t, c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_fabric_next_handshake": (
        _status,
        (mw_fabric_t, c_int64, POINTER(c_uint64), c_void_p, c_uint64, POINTER(c_uint64)),
    ),
    "mw_fabric_deliver": (_status, (mw_fabric_t, c_uint64, c_void_p, c_uint64)),
    "mw_fabric_connect": (_status, (mw_fabric_t, c_uint64, c_int64)),
    "mw_fabric_disconnect": (_status, (mw_fabric_t, c_uint64)),
    "mw_fabric_close": (_status, (mw_fabric_t, c_int64)),
    "mw_region_register": (
        _status,
        (mw_fabric_t, c_uint64, c_uint64, c_uint32, POINTER(mw_region_t)),
    ),
    "mw_region_remote": (_status, (mw_region_t, POINTER(mw_remote_t))),
    "mw_region_close": (_status, (mw_region_t,)),
    "mw_transfer_post": (
        _status,
        (mw_fabric_t, POINTER(mw_transfer_args_t), POINTER(mw_transfer_t)),
    ),
    "mw_transfer_wait": (_status, (mw_transfer_t, c_int32, c_int64, POINTER(mw_transfer_result_t))),
    "mw_transfer_error": (_status, (mw_transfer_t, c_void_p, c_uint64, POINTER(c_uint64))),
    "mw_transfer_cancel": (_status, (mw_transfer_t,)),
    "mw_transfer_close": (_status, (mw_transfer_t,)),
}
