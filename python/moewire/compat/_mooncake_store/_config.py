"""How a block is to be kept: ``ReplicateConfig``, and what the block store makes of it."""

from __future__ import annotations

import enum
from typing import Any

from ._codes import BAD_ARGUMENT, Problem, warn_once

HARD_PIN_S = 366 * 24 * 3600  # the longest that a server keeps a pin
SOFT_PIN_MS = 30 * 60 * 1000
_MAX_U64 = (1 << 64) - 1


class ObjectDataType(enum.Enum):
    """What a block is of. It has no effect."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(enum.Enum):
    """What becomes of a block's pin: it stays as it is, begins, or ends."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ReplicateConfig:
    """How a block is to be kept.

    Attributes:
        replica_num: 1 or more; there is one copy all the same, and a warning.
        nof_replica_num, dfs_replica_num: 0; others are refused.
        soft_pin_action: ENABLE pins the block for ``soft_pin_ttl_ms``, DISABLE ends its pin.
        soft_pin_ttl_ms: with ENABLE only; None: 30 minutes.
        with_hard_pin: pins the block for as long as a server can, a year.
        preferred_segment, preferred_segments, preferred_nof_segments, prefer_alloc_in_same_node,
            data_type: without effect; hashing says which server has a key.
        group_ids: None, or one for each key of the call; without effect: the keys of one call are
            a chain.
    """

    __slots__ = (
        "_soft_pin_ttl_ms",
        "data_type",
        "dfs_replica_num",
        "group_ids",
        "nof_replica_num",
        "prefer_alloc_in_same_node",
        "preferred_nof_segments",
        "preferred_segment",
        "preferred_segments",
        "replica_num",
        "soft_pin_action",
        "with_hard_pin",
    )

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.soft_pin_action = SoftPinAction.PRESERVE
        self._soft_pin_ttl_ms: int | None = None
        self.with_hard_pin = False
        self.preferred_segment = ""
        self.preferred_segments: list[str] = []
        self.preferred_nof_segments: list[str] = []
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids: list[str] | None = None

    @property
    def soft_pin_ttl_ms(self) -> int | None:
        """Milliseconds; None: 30 minutes. Anything but 0 to 2**64 - 1 raises ``TypeError``."""
        return self._soft_pin_ttl_ms

    @soft_pin_ttl_ms.setter
    def soft_pin_ttl_ms(self, value: int | None) -> None:
        given: Any = value
        if given is not None and (not isinstance(given, int) or not 0 <= given <= _MAX_U64):
            raise TypeError(f"soft_pin_ttl_ms: {given!r} given; allowed: None, 0 to {_MAX_U64}")
        self._soft_pin_ttl_ms = value

    @property
    def with_soft_pin(self) -> bool:
        """``soft_pin_action`` as older versions of Mooncake have it."""
        return self.soft_pin_action is SoftPinAction.ENABLE

    @with_soft_pin.setter
    def with_soft_pin(self, value: bool) -> None:
        self.soft_pin_action = SoftPinAction.ENABLE if value else SoftPinAction.PRESERVE

    def __str__(self) -> str:
        names = [*(name for name in self.__slots__ if name[0] != "_"), "soft_pin_ttl_ms"]
        said = ", ".join(f"{name}: {getattr(self, name)}" for name in sorted(names))
        return f"ReplicateConfig: {{ {said} }}"


def pin_of(config: ReplicateConfig | None, num_keys: int) -> float | None:
    """For how many seconds blocks are to be pinned; None: their pins stay as they are.

    Raises:
        Problem: the block store has no such thing.
    """
    if config is None:
        return None
    _check(config, num_keys)
    if config.with_hard_pin:
        return HARD_PIN_S
    if config.soft_pin_action is SoftPinAction.PRESERVE:
        return None
    if config.soft_pin_action is SoftPinAction.DISABLE:
        return 0
    ttl = SOFT_PIN_MS if config.soft_pin_ttl_ms is None else config.soft_pin_ttl_ms
    return min(ttl / 1000, HARD_PIN_S)


def _check(config: ReplicateConfig, num_keys: int) -> None:
    if not isinstance(config.replica_num, int) or config.replica_num < 1:
        raise Problem(
            BAD_ARGUMENT, f"replica_num: {config.replica_num!r} given; allowed: 1 or more"
        )
    if config.replica_num > 1:
        warn_once(f"replica_num is {config.replica_num}; a block has one copy")
    for name in ("nof_replica_num", "dfs_replica_num"):
        if getattr(config, name) != 0:
            raise Problem(BAD_ARGUMENT, f"{name}: {getattr(config, name)!r} given; allowed: 0")
    if config.soft_pin_ttl_ms is not None and config.soft_pin_action is not SoftPinAction.ENABLE:
        raise Problem(BAD_ARGUMENT, "soft_pin_ttl_ms: given without SoftPinAction.ENABLE")
    if config.group_ids is not None and len(config.group_ids) != num_keys:
        given = f"{len(config.group_ids)} given; allowed: {num_keys}, as many as keys"
        raise Problem(BAD_ARGUMENT, f"group_ids: {given}")
