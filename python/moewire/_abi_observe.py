"""Mirror of the parts of ``capi/include/moewire.h`` for observers: counters, records, links.

Hand-written, and compared with the header as ``_abi`` is, which has these names, too.
"""

# Names are those of the header.
# ruff: noqa: N801

from __future__ import annotations

from ctypes import Structure, c_int16, c_int64, c_uint16, c_uint32, c_uint64
from typing import Any, ClassVar

MW_MAX_RANKS = 48

_Fields = list[tuple[str, Any]]


class mw_counters_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("num_ranks", c_uint32),
        ("num_dispatches", c_uint64),
        ("num_combines", c_uint64),
        ("num_rows_sent", c_uint64),
        ("num_rows_received", c_uint64),
        ("num_rows_reduced", c_uint64),
        ("num_bytes_placed", c_uint64),
        ("num_bytes_reduced", c_uint64),
        ("num_bytes_copied", c_uint64),
        ("slab_bytes", c_uint64),
        ("wait_ns", c_uint64),
        ("num_rows_sent_to", c_uint64 * MW_MAX_RANKS),
        ("wait_ns_for", c_uint64 * MW_MAX_RANKS),
    ]


class mw_record_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("sequence", c_uint32),
        ("kind", c_uint16),
        ("outcome", c_uint16),
        ("epoch", c_uint16),
        ("last_rank", c_int16),
        ("combine", c_uint32),
        ("num_tokens", c_uint32),
        ("operation", c_uint64),
        ("start_ns", c_int64),
        ("place_ns", c_int64),
        ("sent_ns", c_int64),
        ("resume_ns", c_int64),
        ("seen_ns", c_int64),
        ("end_ns", c_int64),
        ("wait_ns", c_int64),
        ("last_alone_ns", c_int64),
        ("num_rows", c_uint32),
        ("num_rows_received", c_uint32),
        ("num_bytes", c_uint64),
        ("prefault_bytes", c_uint64),
        ("waited_for", c_uint64),
    ]


class mw_link_t(Structure):
    _fields_: ClassVar[_Fields] = [
        ("size", c_uint32),
        ("rank", c_uint32),
        ("carrier", c_uint32),
        ("state", c_uint32),
        ("num_messages_sent", c_uint64),
        ("num_bytes_sent", c_uint64),
        ("num_messages_received", c_uint64),
        ("num_bytes_received", c_uint64),
        ("num_blocked", c_uint64),
        ("num_dropped", c_uint64),
        ("num_ignored", c_uint64),
        ("num_credits", c_uint32),
        ("num_max_credits", c_uint32),
        ("heard_ns", c_int64),
        ("num_beats", c_uint64),
        ("clock_ahead_ns", c_int64),
        ("num_reconnects", c_uint64),
    ]


STRUCTS: dict[str, type[Structure]] = {
    kind.__name__: kind for kind in (mw_counters_t, mw_record_t, mw_link_t)
}
