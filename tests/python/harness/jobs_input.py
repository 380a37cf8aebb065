"""Jobs with one wrong argument. Each leaves the buffer usable, which is then shown."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

import moewire

from . import cases, verify
from .cases import Case
from .member import Rank

TOKENS, TOPK, HIDDEN, NUM_MAX = 4, 2, 128, 8

Wrong = Callable[[dict[str, Any]], None]


def case_for(rank: Rank, number: int = 0) -> Case:
    case = Case(
        rank.size,
        rank.size * 2,
        TOPK,
        HIDDEN,
        NUM_MAX,
        False,
        "uniform",
        (rank.seed, 900 + number),
    )
    return cases.fill(case, [TOKENS] * rank.size)


def _set(**values: Any) -> Wrong:
    return lambda arguments: arguments.update(values)


def _change(name: str, how: Callable[[Any], Any]) -> Wrong:
    return lambda arguments: arguments.update({name: how(arguments[name])})


def _made(**values: Callable[[], Any]) -> Wrong:
    """Tensors are made where they are used: each call of a job may be on another device."""
    return lambda arguments: arguments.update({name: make() for name, make in values.items()})


def _expert(value: int) -> Wrong:
    def change(arguments: dict[str, Any]) -> None:
        arguments["topk_idx"] = arguments["topk_idx"].clone()
        arguments["topk_idx"][TOKENS - 1, TOPK - 1] = value

    return change


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t()


def _many_topk(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros((TOKENS, 65), dtype=torch.int64)


def _ones(count: int = 2) -> torch.Tensor:
    return torch.ones(count, dtype=torch.int32)


def _weights() -> torch.Tensor:
    return torch.ones(TOKENS, TOPK)


# Name -> (what is wrong, words that the error must have).
DISPATCH: dict[str, tuple[Wrong, tuple[str, ...]]] = {
    "x dtype": (_change("x", torch.Tensor.float), ("x", "float32", "bfloat16")),
    "x device": (_change("x", lambda x: x.to("meta")), ("x", "meta", "cpu")),
    "x dimension": (_change("x", lambda x: x[0]), ("x", "[128]", "[any, any]")),
    "x contiguity": (_change("x", _transposed), ("x", "stride", "contiguous")),
    "x no tensor": (_change("x", lambda x: x.tolist()), ("x", "list", "torch.Tensor")),
    "x sparse": (_change("x", lambda x: x.to_sparse()), ("x", "sparse", "strided")),
    "hidden 12": (_change("x", lambda x: x[:, :12].contiguous()), ("x", "12", "multiple of 8")),
    "hidden 0": (_change("x", lambda x: x[:, :0].contiguous()), ("x", "0", "multiple of 8")),
    "fp8 hidden 64": (
        lambda a: a.update(x=a["x"][:, :64].contiguous(), use_fp8=True),
        ("x", "64", "multiple of 128"),
    ),
    "round_scale in bf16": (_set(round_scale=True), ("round_scale", "use_fp8")),
    "ue8m0 alone": (_set(use_fp8=True, use_ue8m0=True), ("use_ue8m0", "round_scale")),
    "ue8m0 hidden 128": (
        _set(use_fp8=True, round_scale=True, use_ue8m0=True),
        ("x", "128", "multiple of 512"),
    ),
    "topk_idx int16": (_change("topk_idx", torch.Tensor.short), ("topk_idx", "int16", "int64")),
    "topk_idx rows": (_change("topk_idx", lambda t: t[1:]), ("topk_idx", "[3, 2]", "[4, any]")),
    "topk_idx contiguity": (_change("topk_idx", _transposed), ("topk_idx", "contiguous")),
    "65 selections": (_change("topk_idx", _many_topk), ("topk_idx", "65", "64")),
    "no selections": (_change("topk_idx", lambda t: t[:, :0]), ("topk_idx", "0", "64")),
    "expert too large": (_expert(10_000), ("topk_idx", "10000")),
    "expert -2": (_expert(-2), ("topk_idx", "-2")),
    "too many tokens": (_set(num_max_dispatch_tokens_per_rank=3), ("4 tokens", "3")),
    "M 0": (_set(num_max_dispatch_tokens_per_rank=0), ("num_max_dispatch_tokens_per_rank", "0")),
    "M beyond the buffer": (_set(num_max_dispatch_tokens_per_rank=1 << 20), ("bytes",)),
    "M beyond int64": (_set(num_max_dispatch_tokens_per_rank=1 << 70), ("num_max_dispatch",)),
    "M no int": (_set(num_max_dispatch_tokens_per_rank=8.0), ("num_max_dispatch", "float")),
    "E not divisible": (_set(num_experts=5), ("num_experts", "5", "multiple")),
    "E 0": (_set(num_experts=0), ("num_experts", "0")),
    "E beyond the buffer": (_set(num_experts=4096), ("bytes",)),
    "E beyond all bounds": (_set(num_experts=1 << 16), ("num_experts", "65536", "8192")),
    "timeout -2": (_set(timeout_us=-2), ("timeout_us", "-2", "-1")),
    "timeout no int": (_set(timeout_us=0.5), ("timeout_us", "float")),
    "active_ranks short": (_made(active_ranks=lambda: _ones(1)), ("active_ranks", "1", "2")),
    "active_ranks dtype": (
        _made(active_ranks=lambda: _ones().long()),
        ("active_ranks", "int64", "int32"),
    ),
    "active_ranks dimension": (
        _made(active_ranks=lambda: _ones()[None]),
        ("active_ranks", "[1, 2]"),
    ),
    "active_ranks stride": (
        _made(active_ranks=lambda: _ones(4)[::2]),
        ("active_ranks", "contiguous"),
    ),
    "hook and event": (
        _set(return_recv_hook=True, async_finish=True),
        ("async_finish", "return_recv_hook"),
    ),
    "pre_reduce alone": (_set(pre_reduce=True), ("topk_weights", "None", "pre_reduce")),
    "weights alone": (_made(topk_weights=_weights), ("topk_weights", "None", "pre_reduce")),
    "weights shape": (
        _made(topk_weights=lambda: _weights()[1:], pre_reduce=lambda: True),
        ("topk_weights", "[3, 2]", "[4, 2]"),
    ),
    "weights dtype": (
        _made(topk_weights=lambda: _weights().double(), pre_reduce=lambda: True),
        ("topk_weights", "float64", "float32"),
    ),
    "weights contiguity": (
        _made(topk_weights=lambda: _transposed(_weights()), pre_reduce=lambda: True),
        ("topk_weights", "contiguous"),
    ),
    "weights no tensor": (
        _set(topk_weights=[1.0], pre_reduce=True),
        ("topk_weights", "list", "torch.Tensor"),
    ),
}

COMBINE: dict[str, tuple[Wrong, tuple[str, ...]]] = {
    "x dtype": (
        _change("x", torch.Tensor.float),
        ("x", "float32", "bfloat16", "dispatch with fp32_outputs=True"),
    ),
    "x float64": (_change("x", torch.Tensor.double), ("x", "float64", "bfloat16")),
    "x no tensor": (_change("x", lambda x: x.tolist()), ("x", "list", "torch.Tensor")),
    "x device": (_change("x", lambda x: x.to("meta")), ("x", "meta", "cpu")),
    "x rows": (
        _change("x", lambda x: x[:, 1:].contiguous()),
        ("x", "[2, 15, 128]", "[2, 16, 128]"),
    ),
    "x contiguity": (_change("x", lambda x: x.mT.contiguous().mT), ("x", "contiguous")),
    "topk_idx shape": (_change("topk_idx", lambda t: t[1:]), ("topk_idx", "[3, 2]", "[4, 2]")),
    "topk_idx dtype": (_change("topk_idx", torch.Tensor.short), ("topk_idx", "int16", "int64")),
    "topk_idx differs": (_change("topk_idx", lambda t: (t + 1) % 4), ("topk_idx", "-1")),
    "weights shape": (_change("topk_weights", lambda t: t[:, 1:]), ("topk_weights", "[4, 1]")),
    "weights dtype": (_change("topk_weights", torch.Tensor.double), ("topk_weights", "float64")),
    "weights contiguity": (_change("topk_weights", _transposed), ("topk_weights", "contiguous")),
    "out dtype": (_made(out=lambda: torch.zeros(TOKENS, HIDDEN)), ("out", "float32", "bfloat16")),
    "out shape": (
        _made(out=lambda: torch.zeros(1, HIDDEN).bfloat16()),
        ("out", "[1, 128]", "[4, 128]"),
    ),
    "out contiguity": (
        _made(out=lambda: torch.zeros(HIDDEN, TOKENS).bfloat16().t()),
        ("out", "contiguous"),
    ),
    "zero_copy elsewhere": (_set(zero_copy=True), ("zero_copy",)),
    "plain tuple": (_change("handle", tuple), ("handle", "tuple")),
    "no handle": (_set(handle=None), ("handle", "NoneType")),
    "active_ranks short": (_made(active_ranks=lambda: _ones(1)), ("active_ranks", "1", "2")),
    "timeout -2": (_set(timeout_us=-2), ("timeout_us", "-2", "-1")),
    "hook and event": (
        _set(return_recv_hook=True, async_finish=True),
        ("async_finish", "return_recv_hook"),
    ),
}


# What a device finds in a tensor, where one is.
CONTENTS = {"expert too large", "expert -2", "topk_idx differs"}
# Its words for some of ours. Of several places that are wrong it tells of any.
_OF_DEVICE = {
    "cpu": "cuda:0",
    "topk_idx[3, 1] is -1": "topk_idx[3, 1] of a combine is -1",
    "topk_weights[0, 0]": "topk_weights[",
}
_TIMEOUT_SECONDS = 60.0


def _must_refuse(
    call: Callable[..., Any],
    arguments: dict[str, Any],
    words: tuple[str, ...],
    later: bool = False,
) -> None:
    if verify.REPORTED_LATER:
        words = tuple(_OF_DEVICE.get(word, word) for word in words)
    try:
        must_report(lambda: call(**arguments), later)
    except moewire.InvalidArgument as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{error!r} does not say {missing}"
        assert isinstance(error, ValueError)
    else:
        raise AssertionError("nothing was raised")


def must_report(call: Callable[[], Any], later: bool) -> None:
    """Calls once; or again and again, if a later call raises the error."""
    end = time.monotonic() + (_TIMEOUT_SECONDS if later else 0.0)
    kept = [call()]  # nothing is released
    while time.monotonic() < end:
        time.sleep(0.001)
        kept.append(call())


def wrong_dispatches(rank: Rank) -> dict[str, str]:
    """Each wrong dispatch, then a right one; gives what failed, by name."""
    failures: dict[str, str] = {}
    with _sized_buffer(rank) as buffer:
        for number, (name, (wrong, words)) in enumerate(DISPATCH.items()):
            case, later = case_for(rank, number), verify.REPORTED_LATER and name in CONTENTS
            if rank.rank == number % rank.size:
                try:
                    arguments = _dispatch_arguments(rank, case, wrong)
                    _must_refuse(buffer.dispatch, arguments, words, later)
                except Exception:
                    failures[name] = traceback.format_exc()
            if later:
                buffer.update_ep_member()
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
    return failures


def _sized_buffer(rank: Rank) -> moewire.Buffer:
    hint = moewire.Buffer.get_ep_buffer_size_hint(NUM_MAX, HIDDEN, rank.size, rank.size * 2)
    return rank.buffer(hint)


def _dispatch_arguments(rank: Rank, case: Case, wrong: Wrong) -> dict[str, Any]:
    arguments = {
        "x": verify.bf16(case.x[rank.rank]),
        "topk_idx": torch.from_numpy(case.topk[rank.rank]),
        "active_ranks": None,
        "num_max_dispatch_tokens_per_rank": NUM_MAX,
        "num_experts": case.num_experts,
        "timeout_us": -1,
        "use_fp8": False,
    }
    wrong(arguments)
    return arguments


def wrong_combines(rank: Rank) -> dict[str, str]:
    """Each wrong combine, then the right one of the same handle."""
    failures: dict[str, str] = {}
    with _sized_buffer(rank) as buffer:
        for number, (name, (wrong, words)) in enumerate(COMBINE.items()):
            case, later = case_for(rank, number), verify.REPORTED_LATER and name in CONTENTS
            received = verify.dispatch(buffer, case, rank.rank)
            if rank.rank == number % rank.size:
                try:
                    arguments = _combine_arguments(rank, case, received, wrong)
                    _must_refuse(buffer.combine, arguments, words, later)
                except Exception:
                    failures[name] = traceback.format_exc()
            verify.combine(buffer, _after(rank, buffer, received, later))
    return failures


def _after(
    rank: Rank, buffer: moewire.Buffer, received: verify.Received, later: bool
) -> verify.Received:
    """What can be combined after a refusal: the same handle, or one dispatched after an update."""
    if not later:
        return received
    buffer.update_ep_member()
    return verify.dispatch(buffer, received.case, rank.rank)


def wrong_pre_reduced_combines(rank: Rank) -> None:
    """Other selections or weights than those that the sums were made by; then the right ones."""
    case = case_for(rank)
    case.pre_reduce = (True,) * rank.size
    wrongs = (
        (_expert(-1), ("topk_idx[3, 1] is -1", "pre_reduce")),
        (_change("topk_weights", lambda w: w + 1), ("topk_weights[0, 0]", "pre_reduce")),
    )
    with rank.buffer() as buffer:
        received = verify.dispatch(buffer, case, rank.rank)
        for wrong, words in wrongs:
            arguments = _combine_arguments(rank, case, received, wrong)
            _must_refuse(buffer.combine, arguments, words, verify.REPORTED_LATER)
            received = _after(rank, buffer, received, verify.REPORTED_LATER)
        verify.combine(buffer, received)


def wrong_float32_combines(rank: Rank) -> None:
    """bf16 outputs after a dispatch that asked for float32."""
    case = case_for(rank)
    case.fp32_outputs = True
    words = ("x", "bfloat16", "float32", "the dispatch had fp32_outputs=True")
    with rank.buffer() as buffer:
        received = verify.dispatch(buffer, case, rank.rank)
        narrow = _change("x", torch.Tensor.bfloat16)
        _must_refuse(buffer.combine, _combine_arguments(rank, case, received, narrow), words)
        float32 = buffer.get_next_combine_buffer(received.handle)
        assert float32.dtype is torch.float32 and float32.shape == (2, rank.size * NUM_MAX, HIDDEN)
        verify.combine(buffer, received, zero_copy=True)


def no_room_for_float32(rank: Rank) -> None:
    """A buffer sized for bf16 outputs refuses float32 ones; one sized for them takes both."""
    case = Case(rank.size, 2 * rank.size, 2, 512, 2048, False, "uniform", (rank.seed, 950))
    cases.fill(case, [TOKENS] * rank.size)
    sizes = (case.num_max, case.hidden, case.num_ranks, case.num_experts)
    with rank.buffer(moewire.Buffer.get_ep_buffer_size_hint(*sizes), name="narrow") as buffer:
        arguments = _dispatch_arguments(rank, case, _set(fp32_outputs=True))
        arguments["num_max_dispatch_tokens_per_rank"] = case.num_max
        _must_refuse(buffer.dispatch, arguments, ("float32 outputs", "bytes per slot"))
        verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
    hint = moewire.Buffer.get_ep_buffer_size_hint(*sizes, fp32_outputs=True)
    with rank.buffer(hint, name="wide") as buffer:
        for case.fp32_outputs in (True, False):
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))


def _combine_arguments(
    rank: Rank, case: Case, received: verify.Received, wrong: Wrong
) -> dict[str, Any]:
    arguments = {
        "x": received.new_outputs(),
        "topk_idx": torch.from_numpy(case.topk[rank.rank]),
        "topk_weights": torch.from_numpy(case.weights[rank.rank]),
        "active_ranks": None,
        "timeout_us": -1,
        "handle": received.handle,
    }
    wrong(arguments)
    return arguments


def wrong_handles(rank: Rank) -> None:
    """A handle after its release, of another buffer, and of a closed buffer."""
    case = case_for(rank)
    first, second = rank.buffer(name="first"), rank.buffer(name="second")
    foreign = verify.dispatch(second, case, rank.rank)
    received = verify.dispatch(first, case, rank.rank)
    arguments = _combine_arguments(rank, case, foreign, lambda _: None)
    _must_refuse(first.combine, arguments, ("handle", "another Buffer"))
    verify.combine(second, foreign)
    verify.combine(first, received)
    received.handle.release()
    expect(moewire.StaleHandleError, lambda: verify.combine(first, received))
    again = verify.dispatch(first, case, rank.rank)
    expect(moewire.StaleHandleError, lambda: verify.combine(first, received))
    verify.combine(first, again)
    rank.meet("before close")
    first.close()
    first.close()
    expect(moewire.ClosedError, lambda: verify.combine(first, again))
    expect(moewire.ClosedError, lambda: verify.dispatch(first, case, rank.rank))
    expect(moewire.ClosedError, first.counters)
    expect(moewire.ClosedError, lambda: first.get_next_combine_buffer(again.handle))
    again.handle.release()
    second.close()


def expect(
    kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any]
) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind} was not raised")


def disagreement(rank: Rank, name: str) -> str:
    """The ranks differ in one number of one call; both learn both values, and go on."""
    good = case_for(rank)
    arguments = _dispatch_arguments(rank, good, lambda _: None)
    if name == "scales":
        arguments["use_fp8"] = True
    if rank.rank == 1:
        arguments.update(
            {
                "scales": {"round_scale": True},
                "M": {"num_max_dispatch_tokens_per_rank": NUM_MAX - 1},
                "E": {"num_experts": rank.size * 4},
                "H": {"x": arguments["x"][:, :64].contiguous()},
                "dtype": {"use_fp8": True},
                "outputs": {"fp32_outputs": True},
            }[name]
        )
    with rank.buffer(16 << 20) as buffer:
        later = verify.REPORTED_LATER
        text = expect(
            moewire.PeerMismatchError,
            lambda: must_report(lambda: buffer.dispatch(**arguments), later),
        )
        if later:
            buffer.update_ep_member()
        verify.combine(buffer, verify.dispatch(buffer, good, rank.rank))
    return text


def connect_disagreement(rank: Rank, name: str) -> str:
    options: dict[str, Any] = {
        "num_slots": {"num_slots": 2 + rank.rank},
        "num_bytes": {"num_bytes": (16 + rank.rank) << 20},
    }[name]
    return expect(moewire.PeerMismatchError, lambda: rank.buffer(**options))


def _sealed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()[:8]


def damaged_metadata(rank: Rank, how: str) -> str:
    """Rank 1 sends altered or truncated metadata to all ranks, itself included."""
    from moewire._native.runtime import Runtime

    good = Runtime.metadata

    def damaged(self: Runtime) -> bytes:
        data = bytearray(good(self))
        if how == "truncated":
            return bytes(data[: len(data) // 2])
        if how == "empty":
            return b""
        if how == "ABI version":  # as a library of another version would send it
            at = data.index(b"MWSH")  # the part of the shared memory, sealed like the whole
            inner = data[at:-8]
            inner[8:12] = (4711).to_bytes(4, "little")
            return _sealed(bytes(data[:at]) + _sealed(bytes(inner[:-8])))
        data[int(how) % len(data)] ^= 0x40
        return bytes(data)

    Runtime.metadata = damaged if rank.rank == 1 else good  # type: ignore[method-assign]
    try:
        kinds = (moewire.MetadataError, moewire.PeerMismatchError)
        return expect(kinds, lambda: rank.buffer(connect_timeout_us=3_000_000))  # type: ignore[arg-type]
    finally:
        Runtime.metadata = good  # type: ignore[method-assign]
