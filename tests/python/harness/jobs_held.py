"""Jobs about operations that are held: their rows are not overwritten."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch

import moewire
from moewire._ep.held import HeldRule

from . import flat, verify
from .cases import Case
from .jobs_flat import case_for
from .jobs_flat import size_for as size_for_both
from .jobs_input import expect
from .jobs_order import small
from .member import Rank

TEXT = "2 operations are in flight and held, num_slots=2"

# What frees a slot: whether the handle stays held.
WAYS: dict[str, bool] = {"combine": True, "release": True, "drop": False}


def third_dispatch(rank: Rank) -> None:
    """A third dispatch is refused: nothing is sent, and the first two operations stay right."""
    with rank.buffer() as buffer:
        held = [verify.dispatch(buffer, small(rank, number), rank.rank) for number in range(2)]
        for _ in range(2):
            text = expect(
                moewire.BusyError, lambda: verify.dispatch(buffer, small(rank, 2), rank.rank)
            )
            assert TEXT in text, text
        assert TEXT in expect(moewire.BusyError, lambda: _flat_dispatch(buffer, rank))
        # A dispatch sent on one rank alone would change the order of operations.
        rank.meet("refused")
        for received in held:
            received.check()
            verify.combine(buffer, received)
        verify.combine(buffer, verify.dispatch(buffer, small(rank, 3), rank.rank))


def _flat_dispatch(buffer: moewire.Buffer, rank: Rank) -> None:
    case = small(rank, 2)
    weights = torch.from_numpy(case.weights[rank.rank])
    buffer.dispatch_flat(*_inputs(case, rank), weights, case.num_max, case.num_experts)


def third_flat_dispatch(rank: Rank) -> None:
    """As ``third_dispatch``, of one packed and one flat operation."""
    case = case_for(rank)
    with rank.buffer(size_for_both([case])) as buffer:
        packed = verify.dispatch(buffer, case, rank.rank)
        first = flat.dispatch(buffer, case, rank.rank)
        text = expect(moewire.BusyError, lambda: flat.dispatch(buffer, case, rank.rank))
        assert TEXT in text, text
        packed.check()
        first.check()
        verify.combine(buffer, packed)
        flat.combine(buffer, first)
        second = flat.dispatch(buffer, case, rank.rank, handle=first.got.handle)
        flat.combine(buffer, second)


def freed(rank: Rank, way: str) -> None:
    """Every operation gives its slot up, and nothing is ever refused."""
    kept: list[verify.Received] = []
    with rank.buffer() as buffer:
        for number in range(7):
            received = verify.dispatch(buffer, small(rank, number), rank.rank)
            if way == "combine":
                verify.combine(buffer, received)
            elif way == "release":
                received.handle.release()
            if WAYS[way]:
                kept.append(received)
            del received
            gc.collect()


def kept_by_cycles(rank: Rank) -> None:
    """A handle that only a cycle of objects keeps is not held, whenever Python looks for such."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with rank.buffer() as buffer:
            for number in range(5):
                cycle: list[Any] = [verify.dispatch(buffer, small(rank, number), rank.rank)]
                cycle.append(cycle)
                del cycle
    finally:
        if collects:
            gc.enable()


def held_beside_others(rank: Rank) -> str:
    """One is held while others come and go: on the CPU slots are used in turn."""
    with rank.buffer() as buffer:
        held = verify.dispatch(buffer, small(rank, 0), rank.rank)
        verify.combine(buffer, verify.dispatch(buffer, small(rank, 1), rank.rank))
        try:
            verify.combine(buffer, verify.dispatch(buffer, small(rank, 2), rank.rank))
            text = ""
        except moewire.BusyError as error:
            text = str(error)
        held.check()
        verify.combine(buffer, held)
        return text


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _mooncake(rank: Rank) -> Callable[[Case], Any]:
    from moewire.compat._mooncake import Buffer

    buffer = Buffer(rank.group(), device="cpu")
    return lambda case: buffer.dispatch(
        *_inputs(case, rank), None, case.num_max, case.num_experts, -1, False
    )[2]


def _deep_ep(rank: Rank) -> Callable[[Case], Any]:
    from moewire.deep_ep import Buffer

    buffer = Buffer(rank.group(), low_latency_mode=True, device="cpu")
    return lambda case: buffer.low_latency_dispatch(
        *_inputs(case, rank), case.num_max, case.num_experts, use_fp8=False
    )[2]


UPSTREAM = {"mooncake": _mooncake, "deep_ep": _deep_ep}


def _inputs(case: Case, rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    return verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank])


def upstream_overwrites(rank: Rank, name: str) -> list[str]:
    """With upstream's names nothing is refused; returns the warnings."""
    warnings, log = _Warnings(), logging.getLogger("moewire")
    HeldRule._warned = False
    log.addHandler(warnings)
    try:
        dispatch = UPSTREAM[name](rank)
        kept = [dispatch(small(rank, 2 * number)) for number in range(6)]
        assert len({id(handle) for handle in kept}) == 6
    finally:
        log.removeHandler(warnings)
    return warnings.texts
