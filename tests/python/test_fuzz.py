"""Any arguments at all: an error of ours or a TypeError, and a buffer that works afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st

import moewire
from conftest import SEED
from moewire import deep_ep

# More for a long run; MOEWIRE_TEST_SEED repeats one.
EXAMPLES = int(os.environ.get("MOEWIRE_FUZZ_EXAMPLES", "150"))
M, H, E, K, T = 4, 128, 4, 2, 3


def fuzz(test: Callable[..., None]) -> Callable[..., None]:
    """The project's seed and number of examples; nothing is kept between runs."""
    decorated = hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        # One buffer for all examples is the point: each must leave it usable.
        suppress_health_check=list(hypothesis.HealthCheck),
    )(test)
    return pytest.mark.fuzz(hypothesis.seed(SEED)(decorated))


@pytest.fixture(scope="module")
def buffer() -> Iterator[moewire.Buffer]:
    with moewire.Buffer.from_exchange(lambda own: [own], 0, 1) as one:
        yield one


@pytest.fixture(scope="module")
def deep() -> Iterator[deep_ep.Buffer]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    one = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, explicitly_destroy=True)
    yield one
    one.destroy()
    dist.destroy_process_group()


# ------------------------------------------------------------- arguments --

ints = st.one_of(
    st.sampled_from([0, 1, 2, 3, 4, 7, 8, 128, -1, -2, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63]),
    st.integers(),
)
junk = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.binary(max_size=3), ints,
    st.lists(st.integers(-2, 3), max_size=3), st.just(torch.float32), st.just(object()),
)  # fmt: skip
dtypes = st.sampled_from(
    [torch.bfloat16, torch.int64, torch.float32, torch.int32, torch.uint8, torch.bool,
     torch.float64, torch.float8_e4m3fn, torch.complex64]
)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any type, small shape and stride; a device without memory; sparse; a subclass."""
    sizes = st.sampled_from([0, 1, 2, 3, 4, 8, 100, 128, 512])
    shape = draw(st.lists(sizes, max_size=3))
    form = draw(st.sampled_from(["plain", "turned", "step", "meta", "sparse", "parameter"]))
    if form == "meta":
        return torch.empty(shape, dtype=draw(dtypes), device="meta")
    if form == "sparse":
        return torch.zeros(shape or [1]).to_sparse()
    if form == "parameter":
        return torch.nn.Parameter(torch.zeros(shape))
    value = torch.zeros(shape, dtype=draw(dtypes))
    if form == "turned" and value.ndim > 1:
        return value.transpose(0, 1)
    return value[::2] if form == "step" and value.ndim else value


def usually(right: Any, *wrong: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The right value five times in six."""
    return st.integers(0, 5).flatmap(
        lambda n: st.one_of(*wrong, junk) if n == 0 else st.just(right)
    )


def rows(count: int = T, dtype: torch.dtype = torch.bfloat16, width: int = H) -> torch.Tensor:
    return torch.ones((count, width), dtype=dtype)


def choices() -> torch.Tensor:
    return torch.tensor([[0, 1], [2, -1], [3, 3]])


odd_choices = st.lists(ints.filter(lambda n: -(1 << 63) <= n < 1 << 63), min_size=T * K).map(
    lambda values: torch.tensor(values[: T * K]).view(T, K)
)
masks = st.lists(st.integers(-1, 2), max_size=3).map(lambda v: torch.tensor(v, dtype=torch.int32))

DISPATCH = {
    "x": usually(rows(), tensors()),
    "topk_idx": usually(choices(), tensors(), odd_choices),
    "active_ranks": usually(None, tensors(), masks),
    "num_max_dispatch_tokens_per_rank": usually(M, ints),
    "num_experts": usually(E, ints),
    "timeout_us": usually(-1, ints),
    "use_fp8": usually(False, st.just(True)),
    "async_finish": usually(False, st.just(True)),
    "return_recv_hook": usually(False, st.just(True)),
    "more": usually(False, st.just(True)),
    "round_scale": usually(False, st.just(True)),
    "use_ue8m0": usually(False, st.just(True)),
}
COMBINE = {
    "x": usually(torch.ones((E, M, H), dtype=torch.bfloat16), tensors()),
    "topk_idx": usually(choices(), tensors(), odd_choices),
    "topk_weights": usually(torch.ones((T, K)), tensors()),
    "active_ranks": usually(None, tensors(), masks),
    "timeout_us": usually(-1, ints),
    "zero_copy": usually(False, st.just(True)),
    "async_finish": usually(False, st.just(True)),
    "return_recv_hook": usually(False, st.just(True)),
    "out": usually(None, tensors(), st.just(rows())),
}

# ------------------------------------------------------------------ checks --


def attempt(call: Callable[[], Any]) -> Any:
    """The result, or None for an error that says something; others are defects."""
    try:
        return call()
    except moewire.PanicError:
        raise
    except (moewire.MoewireError, TypeError) as error:
        assert str(error)
        return None


def finish(event: Any, hook: Any) -> None:
    if hook is not None:
        hook()
    if event.event is not None:
        event.current_stream_wait()


def update(buffer: moewire.Buffer, members: Any, timeout_us: Any) -> None:
    """Wrong arguments change nothing; an update that fails is made again."""
    try:
        buffer.update_ep_member(members=members, timeout_us=timeout_us)
    except moewire.InvalidArgument:
        raise
    except moewire.MoewireError:
        buffer.update_ep_member()


def plain_dispatch(buffer: moewire.Buffer) -> Any:
    x = torch.arange(T * H).remainder(64).view(T, H).bfloat16()
    return x, buffer.dispatch(x, choices(), None, M, E, -1, False)


def works(buffer: moewire.Buffer) -> None:
    """Experts that pass rows on, and weights of one: every token times its selections."""
    x, (recv_x, count, handle, _, _) = plain_dispatch(buffer)
    assert count.tolist() == [1, 1, 1, 1]
    out, _, _ = buffer.combine(recv_x.clone(), choices(), torch.ones((T, K)), None, -1, handle)
    assert torch.equal(out, x * torch.tensor([[2], [1], [2]], dtype=torch.bfloat16))


# ------------------------------------------------------------------- tests --


@fuzz
@hypothesis.given(arguments=st.fixed_dictionaries(DISPATCH))
def test_dispatch(buffer: moewire.Buffer, arguments: dict[str, Any]) -> None:
    result = attempt(lambda: buffer.dispatch(**arguments))
    if result is not None:
        attempt(lambda: finish(*result[3:]))
    works(buffer)


@fuzz
@hypothesis.given(
    arguments=st.fixed_dictionaries(COMBINE),
    handle=usually("dispatched", st.just("released")),
    in_place=st.booleans(),
)
def test_combine(
    buffer: moewire.Buffer, arguments: dict[str, Any], handle: Any, in_place: bool
) -> None:
    dispatched = plain_dispatch(buffer)[1][2]
    if handle == "released":
        dispatched.release()
    if isinstance(handle, str) and handle in ("dispatched", "released"):
        handle = dispatched
    if in_place:
        view = attempt(lambda: buffer.get_next_combine_buffer(dispatched))
        arguments["x"] = arguments["x"] if view is None else view
    result = attempt(lambda: buffer.combine(**arguments, handle=handle))
    if result is not None:
        attempt(lambda: finish(*result[1:]))
    works(buffer)


@fuzz
@hypothesis.given(
    handle=junk, timeout=ints | junk, members=junk | st.lists(ints | junk, max_size=3), last=junk
)
@hypothesis.example(handle=None, timeout=0, members=None, last=None)
def test_the_other_methods(
    buffer: moewire.Buffer, handle: Any, timeout: Any, members: Any, last: Any
) -> None:
    attempt(lambda: buffer.get_next_combine_buffer(handle, timeout_us=timeout))
    attempt(lambda: update(buffer, members, timeout))
    attempt(lambda: buffer.trace(None, last, all_ranks=True))
    works(buffer)


@fuzz
@hypothesis.given(numbers=st.lists(ints | junk, min_size=4, max_size=4), slots=usually(2, ints))
def test_size_hint(numbers: list[Any], slots: Any) -> None:
    hint = attempt(lambda: moewire.Buffer.get_ep_buffer_size_hint(*numbers, num_slots=slots))
    assert hint is None or 0 < hint < 1 << 63
    attempt(lambda: deep_ep.Buffer.get_low_latency_rdma_size_hint(*numbers))


@fuzz
@hypothesis.given(
    first=st.fixed_dictionaries(
        {
            **{name: DISPATCH[name] for name in ("x", "topk_idx", "num_experts", "use_fp8")},
            "num_max_dispatch_tokens_per_rank": DISPATCH["num_max_dispatch_tokens_per_rank"],
            "round_scale": DISPATCH["round_scale"],
            "cumulative_local_expert_recv_stats": usually(None, tensors()),
            "dispatch_wait_recv_cost_stats": usually(None, tensors()),
            "return_recv_hook": DISPATCH["return_recv_hook"],
        }
    ),
    second=st.fixed_dictionaries(
        {
            **{
                name: COMBINE[name]
                for name in ("x", "topk_idx", "topk_weights", "zero_copy", "out")
            },
            "use_logfmt": usually(False, st.just(True)),
            "combine_wait_recv_cost_stats": usually(None, tensors()),
        }
    ),
    number=ints | junk,
)
def test_deep_ep(
    deep: deep_ep.Buffer, first: dict[str, Any], second: dict[str, Any], number: Any
) -> None:
    result = attempt(lambda: deep.low_latency_dispatch(**first))
    if result is not None:
        attempt(lambda: finish(*result[3:]))
        attempt(lambda: deep.low_latency_combine(**second, handle=result[2]))
    attempt(lambda: deep.low_latency_update_mask_buffer(number, bool(number)))
    attempt(lambda: deep.clean_low_latency_buffer(M, number, E))
    works(deep._buffer)
