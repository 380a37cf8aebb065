"""A buffer's choices that change no result, from names to fields of the C ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .. import _abi as abi
from .._base.numbers import integer, refuse
from . import device as _gpu_config
from . import reach as _reach
from .reach import Reach

if TYPE_CHECKING:
    import torch

STORES = {
    "auto": abi.MW_STORES_AUTO,
    "cached": abi.MW_STORES_CACHED,
    "streaming": abi.MW_STORES_STREAMING,
}
HUGE_PAGES = {
    "never": abi.MW_HUGE_PAGES_NEVER,
    "advise": abi.MW_HUGE_PAGES_ADVISE,
    "require": abi.MW_HUGE_PAGES_REQUIRE,
}
NUMA = {"none": abi.MW_NUMA_NONE, "local": abi.MW_NUMA_LOCAL}


class Tuning(Reach, total=False):
    """Keyword arguments of ``Buffer``: each rank's own choices, and, from ``Reach``, all ranks'."""

    stores: Literal["auto", "cached", "streaming"]
    prefetch: int | None
    huge_pages: Literal["never", "advise", "require"]
    numa: Literal["none", "local"]
    num_threads: int
    spin_us: int | None
    device: str | torch.device | None
    on_fence: Literal["wait", "kill"] | None


def native(tuning: Tuning) -> dict[str, int | bytes]:
    """Fields of ``mw_config_t``; refuses impossible values, by name."""
    given: dict[str, Any] = dict(tuning)
    device, reach = given.pop("device", None), _reach.native(given)
    fields: dict[str, int | bytes] = {
        **reach,
        **_gpu_config.native(device),
        "flags": int(reach["flags"]) | _gpu_config.fence_flags(given.pop("on_fence", None), device),
        "stores": _named("stores", given.pop("stores", "auto"), STORES),
        "huge_pages": _named("huge_pages", given.pop("huge_pages", "never"), HUGE_PAGES),
        "numa": _named("numa", given.pop("numa", "none"), NUMA),
        "num_threads": _threads(given.pop("num_threads", 1)),
        "prefetch": _number("prefetch", given.pop("prefetch", None)),
        "spin_us": _number("spin_us", given.pop("spin_us", None)),
    }
    for name in given:
        raise TypeError(f"Buffer has no argument {name!r}")
    return fields


def _named(name: str, value: object, allowed: dict[str, int]) -> int:
    if not isinstance(value, str) or value not in allowed:
        raise refuse(name, repr(value), ", ".join(allowed))
    return allowed[value]


def _threads(value: object) -> int:
    """The ABI says 0 for the default, which has a number here."""
    return integer("num_threads", value, 1, abi.LIMITS["num_threads"][1])


def _number(name: str, value: object) -> int:
    """The ABI says 0 for the default and -1 for none."""
    if value is None:
        return 0
    return integer(name, value, 0, abi.LIMITS[name][1]) or -1
