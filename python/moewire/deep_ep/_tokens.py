"""What travels of each token: what a dispatch sends and receives, what a combine adds."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch

from .._base import check
from .._base.place import Place

# Rows, or rows of one byte per element with their scales.
Rows: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
# What is added to the sums of a combine.
Bias: TypeAlias = torch.Tensor | tuple[torch.Tensor | None, ...] | None


class Tokens(NamedTuple):
    """``x`` [T, H] of any dtype; ``scales`` [T, S] of 4-byte elements, contiguous, or None."""

    x: torch.Tensor
    scales: torch.Tensor | None

    def with_rows(self, x: torch.Tensor, scales: torch.Tensor | None) -> Rows:
        """What is received in the form of what was sent."""
        return x if scales is None else (x, scales)


def tokens_of(x: Rows, place: Place) -> Tokens:
    """Checks the argument ``x`` of a dispatch."""
    if not isinstance(x, (tuple, list)):
        return unscaled("x", x, place)
    if len(x) != 2:
        raise check.refuse("x", f"{len(x)} tensors", "a tensor, or (x, scales)")
    return scaled(("x[0]", "x[1]"), x[0], x[1], place)


def unscaled(name: str, x: torch.Tensor, place: Place) -> Tokens:
    """Checks rows of any dtype."""
    return Tokens(_rows(name, x, place), None)


def scaled(names: tuple[str, str], x: torch.Tensor, scales: torch.Tensor, place: Place) -> Tokens:
    """Checks rows of one byte per element, and their scales."""
    rows = _rows(names[0], x, place)
    if rows.element_size() != 1:
        raise check.refuse(names[0], f"dtype {rows.dtype}", "1 byte per element, with scales")
    return Tokens(rows, _scales(names[1], scales, len(rows), place))


def _rows(name: str, x: torch.Tensor, place: Place) -> torch.Tensor:
    check.tensor(name, x, getattr(x, "dtype", torch.bfloat16), (None, None), place)
    check.row_bytes(name, x.shape[1] * x.element_size())
    return x


def _scales(name: str, scales: torch.Tensor, num_tokens: int, place: Place) -> torch.Tensor:
    dtypes = torch.float32, torch.int32
    dtype = getattr(scales, "dtype", None)
    dtype = dtype if dtype in dtypes else dtypes[0]
    if isinstance(scales, torch.Tensor) and scales.layout is torch.strided:
        scales = scales.contiguous()  # clients pass them column by column
    check.tensor(name, scales, dtype, (num_tokens, None), place, dtypes)
    check.extra_row_bytes(name, scales.shape[1] * scales.element_size())
    return scales


def padded(
    rows: torch.Tensor, num_rows: int, place: Place, fill: int | None = None
) -> torch.Tensor:
    """The same rows at the beginning of so many; what follows is ``fill``, None: anything."""
    if len(rows) == num_rows:
        return rows
    whole = place.empty((num_rows, *rows.shape[1:]), rows.dtype)
    whole[: len(rows)] = rows
    if fill is not None:
        whole[len(rows) :] = fill
    return whole


def biases_of(bias: Bias) -> tuple[torch.Tensor, ...]:
    """The argument ``bias`` of a combine, as ``gather`` takes it."""
    given = bias if isinstance(bias, (tuple, list)) else (bias,)
    return tuple(one for one in given if one is not None)
