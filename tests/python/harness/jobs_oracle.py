"""Jobs that compare many cases with the oracle."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import numpy as np
import torch.distributed as dist

import moewire

from . import cases, verify
from .cases import Case
from .member import Rank

CALLS = (
    {},
    {"return_recv_hook": True},
    {"async_finish": True},
)


def size_for(all_cases: list[Case]) -> int:
    return max(
        moewire.Buffer.get_ep_buffer_size_hint(
            c.num_max, c.hidden, c.num_ranks, c.num_experts, fp32_outputs=c.fp32_outputs
        )
        for c in all_cases
    )


def random_cases(rank: Rank, count: int, copy_outputs: bool = False) -> int:
    """Every way to call, over random cases; gives the number of combines checked."""
    todo = [cases.make(rank.seed, number, rank.size) for number in range(count)]
    checked = 0
    with rank.buffer(size_for(todo), copy_outputs=copy_outputs) as buffer:
        for number, case in enumerate(todo):
            print(case)
            checked += _one_case(rank, buffer, case, number)
    return checked


def _one_case(rank: Rank, buffer: moewire.Buffer, case: Case, number: int) -> int:
    common = rank.random(number)
    own = np.random.default_rng([rank.seed, number, rank.rank, 5])
    if common.random() < 0.3:
        time.sleep(float(own.random()) * 0.003)
    how = CALLS[int(own.integers(len(CALLS)))]
    received = verify.dispatch(buffer, case, rank.rank, **how)
    if how:
        received.finish()
        received.check()
    times = int(common.integers(1, 4))  # a handle may be combined again
    for _ in range(times):
        verify.combine(
            buffer,
            received,
            drop=_dropped(own, case, rank.rank),
            zero_copy=bool(own.integers(2)),
            own_out=bool(own.integers(2)),
            **CALLS[int(own.integers(len(CALLS)))],
        )
    return times


def _dropped(own: np.random.Generator, case: Case, rank: int) -> np.ndarray | None:
    """Selections that a combine leaves out, sometimes."""
    drop = own.random(case.topk[rank].shape) < 0.2
    return None if own.random() >= 0.3 or case.asks(rank) else drop


def vector_widths(rank: Rank, widths: tuple[int, ...], count: int) -> list[str]:
    """A digest of all combines, and received rows, for each vector width."""
    todo = [cases.make(rank.seed, 1000 + number, rank.size) for number in range(count)]
    return [_digest(rank, todo, f"width{width}", vector_width=width) for width in widths]


def tuned(rank: Rank, tuning: dict[str, Any], count: int) -> tuple[str, str]:
    """The same without and with a choice that must change times alone.

    The last cases, bf16 and fp8, are large enough for threads to share.
    """
    todo = [cases.make(rank.seed, 1100 + number, rank.size) for number in range(count)]
    for fp8, num_tokens in ((False, 96), (True, 192)):  # the same bytes
        salt = (rank.seed, 1200 + fp8)
        large = Case(rank.size, 2 * rank.size, 2, 3072, num_tokens, fp8, "uniform", salt)
        todo.append(cases.fill(large, [num_tokens] * rank.size))
    return _digest(rank, todo, "plain"), _digest(rank, todo, "tuned", **tuning)


def reserved_huge_pages(rank: Rank) -> str:
    """Why this machine cannot; empty if it did."""
    try:
        moewire.Buffer.from_store(dist.HashStore(), 0, 1, huge_pages="require").close()
    except (moewire.errors.OutOfMemoryError, moewire.errors.SystemCallError) as error:
        assert "huge pages are required" in str(error), error
        return str(error)
    todo = [Case(rank.size, 4, 2, 256, 8, True, "uniform", (rank.seed, 1300))]
    cases.fill(todo[0], [8] * rank.size)
    return "" if _digest(rank, todo, "huge", huge_pages="require") else "no digest"


def _digest(rank: Rank, todo: list[Case], name: str, **options: Any) -> str:
    digest = hashlib.sha256()
    size = size_for(todo)
    with rank.buffer(size, name=name, **options) as buffer:
        for case in todo:
            received = verify.dispatch(buffer, case, rank.rank)
            digest.update(verify.combine(buffer, received).tobytes())
    return digest.hexdigest()


def block_orders(rank: Rank, rounds: int, experts_per_rank: int, hidden: int, fp8: bool) -> int:
    """How many different orders of blocks one shape showed, with delays that force them."""
    experts = rank.size * experts_per_rank
    case = Case(rank.size, experts, 4, hidden, 8, fp8, "uniform", (rank.seed, 77, rank.size))
    cases.fill(case, [8] * rank.size)
    case.topk = [np.arange(32).reshape(8, 4) % case.num_experts] * rank.size
    seen = set()
    with rank.buffer(size_for([case])) as buffer:
        for number in range(rounds):
            place = int(rank.random(number, 3).permutation(rank.size)[rank.rank])
            rank.meet(f"round{number}")
            time.sleep(place * 0.0015)
            received = verify.dispatch(buffer, case, rank.rank)
            seen.add(received.orders())
            verify.combine(buffer, received)
    return len(seen)


def same_for_every_size(rank: Rank, num_experts: int, repeats: int) -> list[list[str]]:
    """Digests of one fixed batch, split over the ranks: by repetition, then by token block."""
    whole = Case(1, num_experts, 4, 256, 48, False, "duplicates", (rank.seed, 88))
    cases.fill(whole, [48])
    share = 48 // rank.size
    part = Case(rank.size, num_experts, 4, 256, share, False, "given", (rank.seed, 88))
    for source in range(rank.size):
        rows = slice(source * share, (source + 1) * share)
        part.x.append(whole.x[0][rows])
        part.topk.append(whole.topk[0][rows])
        part.weights.append(whole.weights[0][rows])
    part.output = lambda expert, source: whole.output(expert, 0)[source * share :][:share]
    results: list[list[str]] = []
    with rank.buffer(size_for([part])) as buffer:
        for _ in range(repeats):
            received = verify.dispatch(buffer, part, rank.rank)
            out = verify.combine(buffer, received)
            results.append([hashlib.sha256(row.tobytes()).hexdigest() for row in out])
    return results


def corrupted(rank: Rank) -> str:
    """The text of the oracle's complaint when the core flips one bit."""
    os.environ["MOEWIRE_TEST_CORRUPT"] = "1"
    case = Case(rank.size, rank.size * 2, 2, 64, 4, False, "uniform", (rank.seed, 99))
    cases.fill(case, [4] * rank.size)
    with rank.buffer(size_for([case])) as buffer:
        received = verify.dispatch(buffer, case, rank.rank)
        try:
            verify.combine(buffer, received)
        except AssertionError as error:
            return str(error)
        return "the oracle saw nothing"


def float32_outputs(rank: Rank, ue8m0: bool, fp8: bool) -> list[dict[str, int]]:
    """In place and copied, twice each, after a bf16 or fp8 dispatch; what each has moved."""
    case = Case(rank.size, 2 * rank.size, 3, 512, 16, fp8, "uniform", (rank.seed, 55))
    case.round_scale = case.ue8m0 = ue8m0
    case.fp32_outputs = True
    cases.fill(case, [16] * rank.size)
    moved = []
    with rank.buffer() as buffer:  # sized by the first dispatch
        for zero_copy in (True, False):
            before = buffer.counters()
            received = verify.dispatch(buffer, case, rank.rank)
            for how in CALLS:
                verify.combine(buffer, received, zero_copy=zero_copy, **how)
            after = buffer.counters()
            names = ("num_rows_received", "num_rows_reduced", "num_bytes_reduced")
            moved.append({n: after[n] - before[n] for n in (*names, "num_bytes_copied")})
    return moved


def one_token_none_elsewhere(rank: Rank) -> Any:
    """T = 0 on all ranks but one; their pointers must not be needed."""
    tokens = [3 if source == rank.size - 1 else 0 for source in range(rank.size)]
    for fp8 in (False, True):
        case = Case(rank.size, rank.size, 2, 128, 4, fp8, "uniform", (rank.seed, 66))
        cases.fill(case, tokens)
        with rank.buffer(name=f"fp8 {fp8}") as buffer:  # sized by the first dispatch
            for how in CALLS:
                received = verify.dispatch(buffer, case, rank.rank, **how)
                assert callable(received.hook) == bool(how.get("return_recv_hook"))
                received.finish()
                received.check()
                verify.combine(buffer, received, **how)
