"""What HybridEP's calls take: handles, tables, rows; each is checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._base import check
from .._ep.routing import Routing
from ._tokens import Tokens, scaled, unscaled

if TYPE_CHECKING:
    from .._base.place import Place


class HybridHandle(NamedTuple):
    """What a dispatch leaves for any number of later calls. Its last item is upstream's."""

    routing: Routing
    topk_idx: torch.Tensor  # int64 [T, K], of this rank's tokens
    alignment: int
    overflow_flag: torch.Tensor  # int32 [1]: always 0, no row is ever dropped


def checked(handle: object) -> HybridHandle:
    """A handle, or a tuple of its items, which code that walks through tuples makes of one."""
    is_one = isinstance(handle, tuple) and len(handle) == len(HybridHandle._fields)
    if not (is_one and isinstance(handle[0], Routing)):  # type: ignore[index]
        allowed = "what HybridEPBuffer.dispatch_with_permute returned"
        raise check.refuse("handle", type(handle).__name__, allowed)
    return HybridHandle(*handle)  # type: ignore[misc]


def tokens_of(rows: torch.Tensor, scales: torch.Tensor | None, place: Place) -> Tokens:
    """Checks what is sent of each token."""
    if scales is None:
        return unscaled("hidden", rows, place)
    return scaled(("hidden", "scaling_factor"), rows, scales, place)


def padded_by(made: HybridHandle, pad_multiple: int | None) -> HybridHandle:
    """A handle of rows that are padded as the caller says, if it says so."""
    if pad_multiple and pad_multiple != made.alignment:
        raise check.refuse("pad_multiple", pad_multiple, f"None, or the handle's {made.alignment}")
    return made


def for_tokens(made: HybridHandle, tokens: Tokens, pad_multiple: int | None) -> HybridHandle:
    """A handle that fits what is to be sent."""
    num_tokens = made.routing.num_tokens
    if len(tokens.x) != num_tokens:
        allowed = f"the {num_tokens} of the handle"
        raise check.refuse("hidden", f"{len(tokens.x)} tokens", allowed)
    return padded_by(made, pad_multiple)


def contiguous(given: Any) -> Any:
    """Clients pass gradients and parts of tables, with any strides."""
    can = isinstance(given, torch.Tensor) and given.layout is torch.strided
    return given.contiguous() if can else given


def refuse_routing(*given: object) -> None:
    """With a handle it is not said where rows go."""
    if any(one is not None for one in given):
        names = "routing_map, topk_idx, topk_weights"
        raise check.refuse(names, "one of them", "None with a handle; probs may be given")


def optional(name: str, number: int | torch.Tensor | None) -> int | None:
    """Clients give tensors of one element, too."""
    if isinstance(number, torch.Tensor) and number.numel() == 1:
        number = number.item()
    return None if number is None else check.integer(name, number, 0, 1 << 31)


def check_probs(probs: torch.Tensor | None, num_tokens: int, experts: int, place: Place) -> None:
    """Checks a table of probabilities, if there is one."""
    if probs is not None:
        check.tensor("probs", probs, torch.float32, (num_tokens, experts), place)


def first(
    name: str, given: torch.Tensor, num: int, kind: tuple[torch.dtype, int], place: Place
) -> torch.Tensor:
    """The rows that came, of at least as many; ``kind``: their dtype and dimensions."""
    dtype, dims = kind
    rows: torch.Tensor = contiguous(given)
    check.tensor(name, rows, dtype, (None,) * dims, place)
    if len(rows) < num:
        raise check.refuse(name, f"{len(rows)} rows", f"at least {num}")
    return rows[:num]
