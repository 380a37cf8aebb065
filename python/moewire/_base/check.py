"""Checks of arguments on the tensors' side; errors name the argument, its value and what is
allowed.

Ranges of numbers are those of the library (``LIMITS``). It checks them for its own callers, and
what only it can know: expert ids, and the sizes that the buffer was created for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

from .. import _abi as abi
from .numbers import boolean as boolean
from .numbers import integer as integer
from .numbers import limited as limited
from .numbers import refuse as refuse
from .place import HOST, Place

FP8_BLOCK = abi.QUANT_BLOCK
BF16_BLOCK = abi.ROW_MULTIPLE
# UE8M0 scales of this many blocks share one int32.
UE8M0_PACK = abi.SCALES_PER_WORD


# One more than the longest timeout that can be asked for.
TIMEOUT_END = abi.LIMITS["timeout_us"][1] + 1


def timeout(value: object) -> int:
    """A deadline in microseconds, -1 for none."""
    if type(value) is int and -1 <= value < TIMEOUT_END:  # almost every call
        return value
    return limited("timeout_us", value)


# Looked up once, not at every call.
_TENSOR = torch.Tensor
_STRIDED = torch.strided


def plain(value: Any, dtype: torch.dtype) -> bool:
    """Whether ``value`` is certainly a contiguous CPU tensor of ``dtype``.

    A quick test for almost every call; ``tensor`` decides about the others, and says why not.
    """
    return (
        type(value) is _TENSOR
        and value.dtype is dtype
        and value.is_cpu
        and value.layout is _STRIDED
        and value.is_contiguous()
    )


# Whether a value is certainly a contiguous tensor of a dtype, where the buffer's rows lie.
Quick: TypeAlias = Callable[[Any, torch.dtype], bool]


def plain_on(place: Place) -> Quick:
    """``plain`` for tensors of a device."""
    holds = place.holds

    def plain_there(value: Any, dtype: torch.dtype) -> bool:
        return (
            isinstance(value, _TENSOR)
            and value.dtype is dtype
            and holds(value)
            and value.layout is _STRIDED
            and value.is_contiguous()
        )

    return plain_there


def tensor(
    name: str,
    value: object,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    place: Place = HOST,
    dtypes: tuple[torch.dtype, ...] = (),
) -> None:
    """Checks for a contiguous tensor of ``dtype`` and ``shape``; None stands for any size.

    It must lie on the device of ``place``. ``dtypes``: all types that a caller may
    give, if there are several; ``dtype`` is then the type of the given tensor, or the first of
    them.
    """
    if not isinstance(value, torch.Tensor):
        raise refuse(name, type(value).__name__, "a torch.Tensor")
    if not place.holds(value):
        allowed = f"device {place.name}, on which the buffer was made"
        raise refuse(name, f"device {value.device}", allowed)
    if value.dtype is not dtype:
        allowed = ", ".join(map(str, dtypes or (dtype,)))
        raise refuse(name, f"dtype {value.dtype}", f"dtype {allowed}")
    if value.layout is not torch.strided:
        raise refuse(name, f"layout {value.layout}", "layout torch.strided")
    given = tuple(value.shape)
    if given != shape and not _fits(given, shape):
        raise refuse(name, f"shape {list(given)}", f"shape {_text(shape)}")
    if not value.is_contiguous():
        raise refuse(name, f"strides {value.stride()} for shape {list(given)}", "contiguous")


def known(
    name: str,
    value: torch.Tensor | None,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    place: Place = HOST,
    quick: Quick = plain,
    dtypes: tuple[torch.dtype, ...] = (),
) -> None:
    """``tensor`` for a shape that is wholly known: quick if the tensor is right."""
    if not (quick(value, dtype) and value is not None and value.shape == shape):
        tensor(name, value, dtype, shape, place, dtypes)


def outputs(
    x: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    name: str = "x",
    place: Place = HOST,
) -> None:
    """Checks for expert outputs of the ``dtype`` that their dispatch chose."""
    given = getattr(x, "dtype", None)
    if given is not dtype and given in (torch.float32, torch.bfloat16):
        how = "dispatch with fp32_outputs=True for float32"
        if dtype is torch.float32:
            how = "the dispatch had fp32_outputs=True"
        raise refuse(name, f"dtype {given}", f"dtype {dtype} ({how})")
    tensor(name, x, dtype, shape, place)


def num_extras(name: str, count: int) -> None:
    """Checks how many tensors go along with flat rows."""
    if count > abi.MW_MAX_EXTRAS:
        raise refuse(name, f"{count} of them", f"at most {abi.MW_MAX_EXTRAS}")


def several(name: str, given: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tensors of a list; a tensor, whose rows would be taken for them, is refused."""
    if isinstance(given, torch.Tensor) or not isinstance(given, Iterable):
        raise refuse(name, f"a {type(given).__name__}", "a list or tuple of tensors")
    return tuple(given)


def along(name: str, value: object, num_tokens: int, place: Place = HOST) -> None:
    """Checks for a contiguous tensor of any dtype with a row for each token."""
    if not isinstance(value, torch.Tensor):
        raise refuse(name, type(value).__name__, "a torch.Tensor")
    if value.dim() < 1:
        raise refuse(name, "shape []", f"shape [{num_tokens}, ...]")
    tensor(name, value, value.dtype, (num_tokens, *value.shape[1:]), place)


def _fits(given: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    if len(given) != len(shape):
        return False
    for size, want in zip(given, shape):  # noqa: B905, SIM110, on the way of every call
        if size != want and want is not None:
            return False
    return True


def _text(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def experts(value: object, num_ranks: int, name: str = "num_experts") -> int:
    """The number of experts, a positive multiple of the number of ranks."""
    number = limited(name, value, "num_experts")  # before small tensors are made for them
    if number % num_ranks:
        raise refuse(name, number, f"a multiple of the {num_ranks} ranks")
    return number


def scales(fp8: bool, round_scale: bool, ue8m0: bool) -> None:
    """Refuses an option of scales without the option that it depends on."""
    if round_scale and not fp8:
        raise refuse("round_scale", "True with use_fp8 False", "with use_fp8 only")
    if ue8m0 and not round_scale:
        raise refuse("use_ue8m0", "True with round_scale False", "with round_scale only")


def hidden(value: int, fp8: bool, ue8m0: bool = False, name: str = "x") -> None:
    """The hidden size: whole blocks of 128 for fp8, four of them for ue8m0, 8 for bf16."""
    block = (FP8_BLOCK * UE8M0_PACK if ue8m0 else FP8_BLOCK) if fp8 else BF16_BLOCK
    most = abi.LIMITS["hidden"][1]
    if not block <= value <= most or value % block:
        kind = ("with use_ue8m0" if ue8m0 else "with use_fp8") if fp8 else "for bf16"
        raise refuse(name, f"hidden size {value}", f"a multiple of {block} up to {most} {kind}")


def tokens_per_rank(value: object) -> int:
    """The most tokens that a rank may dispatch."""
    return limited("num_max_dispatch_tokens_per_rank", value, "num_max_tokens_per_rank")


def row_bytes(name: str, size: int) -> int:
    """Bytes of a token's row that is sent over a routing."""
    multiple, most = 2 * abi.ROW_MULTIPLE, 2 * abi.LIMITS["hidden"][1]
    if not multiple <= size <= most or size % multiple:
        raise refuse(name, f"{size} bytes per token", f"a multiple of {multiple} up to {most}")
    return size


def extra_row_bytes(name: str, value: object) -> int:
    """Bytes per token of a tensor that goes along with flat rows; 0 would be no tensor."""
    return integer(name, value, 1, abi.LIMITS["extra_row_bytes"][1])


def tokens(num_tokens: int, num_max_tokens: int) -> None:
    """No more tokens than ``num_max_dispatch_tokens_per_rank``."""
    if num_tokens > num_max_tokens:
        allowed = f"at most num_max_dispatch_tokens_per_rank = {num_max_tokens}"
        raise refuse("x", f"{num_tokens} tokens", allowed)


def topk(num_topk: int) -> None:
    """The number of selections per token."""
    least, most = abi.LIMITS["num_topk"]
    if not least <= num_topk <= most:
        raise refuse("topk_idx", f"{num_topk} selections per token", f"{least} to {most}")


def active_ranks(
    value: torch.Tensor | None, num_ranks: int, place: Place = HOST
) -> tuple[int, int]:
    """Address and length of ``active_ranks``; (0, 0) for None."""
    if value is None:
        return 0, 0
    tensor("active_ranks", value, torch.int32, (None,), place)
    count = value.numel()
    if count < num_ranks:
        raise refuse("active_ranks", f"{count} entries", f"at least the {num_ranks} ranks")
    return value.data_ptr(), count


def not_both(async_finish: bool, return_recv_hook: bool) -> None:
    """Refuses both flags: an operation ends by its event or by its hook."""
    if async_finish and return_recv_hook:
        raise refuse("async_finish and return_recv_hook", "both", "at most one of them")


def ranks(name: str, given: Sequence[int] | None, num_ranks: int, self: int) -> frozenset[int]:
    """A set of ranks with this one in it, each named once; None: all."""
    if given is None:
        return frozenset(range(num_ranks))
    if not isinstance(given, Iterable):
        raise refuse(name, repr(given), "a sequence of ranks, or None")
    listed = [integer(name, rank, 0, num_ranks - 1) for rank in given]
    chosen = frozenset(listed)
    if len(listed) > len(chosen):
        twice = sorted(rank for rank in chosen if listed.count(rank) > 1)
        raise refuse(name, f"{', '.join(map(str, twice))} twice", "each once")
    if self not in chosen:
        raise refuse(name, str(sorted(chosen)), f"ranks with this one, {self}, among them")
    return chosen
