"""What calls on CUDA keep from one to the next, and must not keep too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import moewire

from .jobs_cuda import TIMEOUT_US, Make, Place, combine, dispatch, inputs, small
from .jobs_input import expect
from .jobs_oracle import size_for


def refused_once_known(place: Place, make: Make, rank: int, seed: int) -> None:
    """A shape that was right before does not make what is wrong now right."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    weights = place.put(torch.from_numpy(case.weights[0].copy()))
    tokens, experts = x.shape[0], case.num_experts
    with make(size_for([case]), device="cuda") as buffer:

        def sent(*given: Any, **options: Any) -> Callable[[], Any]:
            changed = (*given, *(x, topk, None, 6, experts, TIMEOUT_US, False)[len(given) :])
            return lambda: buffer.dispatch(*changed, **options)

        received = dispatch(place, buffer, case, 0, {})
        for call, text in (
            (sent(x.cpu()), "x: device cpu given"),
            (sent(x.float()), "x: dtype torch.float32"),
            (sent(x[:, ::2]), "x: strides"),
            (sent(x[0]), "x: shape"),
            (sent(x, topk.cpu()), "topk_idx: device cpu given"),
            (sent(x, topk.short()), "topk_idx: dtype torch.int16"),
            (sent(x, topk[1:].contiguous()), "topk_idx: shape"),
            (sent(x, topk, None, tokens - 1), "x: "),
            (sent(x, topk, None, 6.0), "num_max_dispatch_tokens_per_rank: 6.0"),
            (sent(x, topk, None, 6, float(experts)), "num_experts: "),
            (sent(x, topk, None, 6, experts, -2), "timeout_us: -2"),
            (sent(topk_weights=weights), "topk_weights: "),
            (sent(pre_reduce=True), "topk_weights: "),
            (sent(topk_weights=weights.cpu(), pre_reduce=True), "topk_weights: device cpu given"),
        ):
            assert expect(moewire.InvalidArgument, call).startswith(text), text
        y = place.put(received.new_outputs())

        def back(*given: Any) -> Callable[[], Any]:
            changed = (*given, *(y, topk, weights, None, TIMEOUT_US)[len(given) :])
            return lambda: buffer.combine(*changed, received.handle)

        for call, text in (
            (back(y.cpu()), "x: device cpu given"),
            (back(y.float()), "x: dtype torch.float32"),
            (back(y[:, 1:].contiguous()), "x: shape"),
            (back(y, topk.short()), "topk_idx: dtype torch.int16"),
            (back(y, topk, weights.cpu()), "topk_weights: device cpu given"),
            (back(y, topk, weights[:, 1:].contiguous()), "topk_weights: shape"),
            (back(y, topk, weights, None, -2), "timeout_us: -2"),
        ):
            assert expect(moewire.InvalidArgument, call).startswith(text), text
        combine(place, buffer, received, {})


def fresh_results(place: Place, make: Make, rank: int, seed: int) -> None:
    """Each dispatch has small results of its own, and tensors that no other has."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    with make(size_for([case]), device="cuda", num_slots=2) as buffer:
        given = (x, topk, None, 6, case.num_experts, TIMEOUT_US, False)
        held = [buffer.dispatch(*given) for _ in range(2)]
        place.synchronize()
        before = [(count.tolist(), handle[1].tolist()) for _, count, handle, _, _ in held]
        wanted = torch.bincount(topk.cpu().flatten() + 1, minlength=case.num_experts + 1)[1:]
        assert [count for count, _ in before] == [wanted.tolist()] * 2
        for result in held:
            result[2].release()
        nothing = place.put(torch.full_like(topk.cpu(), -1))  # every slot once more
        later = [buffer.dispatch(x, nothing, *given[2:]) for _ in range(2)]
        place.synchronize()
        assert [sum(count.tolist()) for _, count, _, _, _ in later] == [0, 0]
        assert [(count.tolist(), handle[1].tolist()) for _, count, handle, _, _ in held] == before
        # The slots are the same again, and so is their memory; the tensors are not.
        for old, new in zip(held, later, strict=True):
            assert old[0].data_ptr() == new[0].data_ptr() and old[0] is not new[0]
            assert old[2][0].data_ptr() == new[2][0].data_ptr() and old[2][0] is not new[2][0]
        assert held[0][0].data_ptr() != held[1][0].data_ptr()


def views_of_every_shape(place: Place, make: Make, rank: int, seed: int) -> None:
    """Rows are where this dispatch has put them, after any earlier use of the slot."""
    case = small(seed, 1)
    x, topk = inputs(place, case, 0)
    fp32 = place.put(torch.zeros((6, 256), dtype=torch.bfloat16))
    shapes = [(x, 6, False), (x, 12, False), (fp32, 6, False), (x, 6, True), (fp32, 12, True)]
    order = torch.randperm(4 * len(shapes), generator=torch.Generator().manual_seed(seed)).tolist()
    with make(1 << 24, device="cuda", num_slots=2) as buffer:
        for given, num_max, fp8 in (shapes[number % len(shapes)] for number in order):
            result = buffer.dispatch(given, topk, None, num_max, case.num_experts, -1, fp8)
            rows, src_info = result[0], result[2][0]
            raw = result[2]._result
            data, scales = rows if isinstance(rows, tuple) else (rows, None)
            assert tuple(data.shape) == (case.num_experts, num_max, given.shape[1])
            assert data.dtype is (torch.float8_e4m3fn if fp8 else torch.bfloat16)
            assert (data.data_ptr(), src_info.data_ptr()) == (raw.recv_x, raw.src_info)
            assert tuple(src_info.shape) == (case.num_experts, num_max)
            assert (scales is not None) is fp8
            assert scales is None or scales.data_ptr() == raw.recv_scales
            place.synchronize()
