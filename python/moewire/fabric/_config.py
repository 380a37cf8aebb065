"""The configuration of a fabric: its arguments, checked and put into one struct."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from .. import _abi as abi
from .._base.numbers import boolean, limited, refuse
from .._config.reach import ZERO_COPIES, yes_or_no

CARRIERS = {"tcp": abi.MW_CARRIER_TCP, "rdma": abi.MW_CARRIER_RDMA}
EVICTIONS = {"sieve": abi.MW_EVICT_SIEVE, "fifo": abi.MW_EVICT_FIFO}


def one_of(name: str, value: str, allowed: Mapping[str, int]) -> None:
    if value not in allowed:
        raise refuse(name, repr(value), ", ".join(allowed))


def flags_of(messages: bool, encrypt: bool, rdma_dc: bool) -> int:
    return (
        (abi.MW_FABRIC_MESSAGES if boolean("messages", messages) else 0)
        | (abi.MW_FABRIC_ENCRYPT if boolean("encrypt", encrypt) else 0)
        | (abi.MW_FABRIC_RDMA_DC if yes_or_no("rdma_dc", rdma_dc) else 0)
    )


def config_of(
    carrier: str,
    tcp_zero_copy: str,
    eviction: str,
    source: int,
    flags: int,
    numbers: Mapping[str, int],
) -> abi.mw_fabric_config_t:
    """The configuration without its texts, which the caller has to keep alive."""
    checked = {name: limited(name, value) for name, value in numbers.items()}
    return abi.mw_fabric_config_t(
        size=ctypes.sizeof(abi.mw_fabric_config_t),
        flags=flags,
        carrier=CARRIERS[carrier],
        key_source=source,
        tcp_zero_copy=ZERO_COPIES[tcp_zero_copy],
        eviction=EVICTIONS[eviction],
        **checked,
    )
