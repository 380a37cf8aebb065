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
            (sent(x, topk.int()), "topk_idx: dtype torch.int32"),
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
            (back(y, topk.int()), "topk_idx: dtype torch.int32"),
            (back(y, topk, weights.cpu()), "topk_weights: device cpu given"),
            (back(y, topk, weights[:, 1:].contiguous()), "topk_weights: shape"),
            (back(y, topk, weights, None, -2), "timeout_us: -2"),
        ):
            assert expect(moewire.InvalidArgument, call).startswith(text), text
        combine(place, buffer, received, {})
