"""A routing: which rows go where, on both sides."""

from __future__ import annotations

from .._base import needs_torch  # noqa: F401, isort: skip

import ctypes
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import _abi as abi
from .._base import check
from .._base.opaque import opaque_methods
from .._base.place import HOST
from .._native.plan import SLICE_US
from . import selections
from .engine import Engine

if TYPE_CHECKING:
    from typing_extensions import Self


@opaque_methods
class Routing:
    """Which tokens of this rank go to which ranks, and which rows come; from ``make_routing``.

    It is ordinary memory, holds no slot, and may be used as often as the group's epoch lasts, in
    any order, also interleaved with other routings, and with dispatches of which no handle is held
    meanwhile. It is freed when it is dropped. It may be read even when its buffer is closed. Any
    thread may use it.

    Notation: that of ``Buffer``. N rows come to this rank, in order of their source ranks and,
    within one, of their tokens.
    """

    def __init__(self, engine: Engine, raw: abi.mw_routing_t) -> None:
        self._engine, self._raw = engine, raw
        info = abi.mw_routing_info_t(size=abi.SIZE_OF[abi.mw_routing_info_t])
        engine.check(engine.lib.routing_info(raw, info))
        self._info = info

    @property
    def num_tokens(self) -> int:
        """T of this rank."""
        return int(self._info.num_tokens)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self._info.num_rows)

    @property
    def num_topk(self) -> int:
        """K; 0 for a routing that was made without ``topk_idx``."""
        return int(self._info.num_topk)

    @property
    def num_experts(self) -> int:
        """E."""
        return int(self._info.num_experts)

    @property
    def num_local_experts(self) -> int:
        """L."""
        return int(self._info.num_local_experts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the routing takes."""
        return int(self._info.num_bytes)

    @property
    def counts(self) -> list[int]:
        """How many selections each expert of this rank has, over all ranks' tokens: L numbers."""
        return self._listed(abi.MW_ROUTING_COUNTS, torch.int32, self.num_local_experts)

    @property
    def rows_from(self) -> list[int]:
        """The first row of each source rank, and N at the end: R + 1 numbers."""
        return self._listed(abi.MW_ROUTING_ROWS_FROM, torch.int64, self._engine.num_ranks + 1)

    @property
    def tokens_for(self) -> list[int]:
        """How many of this rank's tokens go to each rank: R numbers."""
        return self._listed(abi.MW_ROUTING_TOKENS_FOR, torch.int32, self._engine.num_ranks)

    def recv_topk_idx(self) -> torch.Tensor:
        """The experts of each row.

        Returns:
            A new int64 tensor [N, K]: 0 to L-1 on this rank, -1 where a selection is not here.
        """
        shape = (self.num_rows, self.num_topk)
        return self._placed(abi.MW_ROUTING_LOCAL_IDS, torch.int64, shape)

    def source_tokens(self) -> torch.Tensor:
        """The token of each row on its source rank; ``rows_from`` says which rank that is.

        Returns:
            A new int32 tensor [N].
        """
        return self._placed(abi.MW_ROUTING_SOURCE_TOKENS, torch.int32, (self.num_rows,))

    def num_expanded_rows(self, expert_alignment: int = 1) -> int:
        """How many rows a scatter with ``expanded=True`` has.

        Args:
            expert_alignment: the first row of each expert, and the number of all rows, are a
                multiple of it.

        Returns:
            The number of rows, those between experts included.

        Raises:
            InvalidArgument: ``expert_alignment`` is out of its bounds, or the routing was made
                without ``topk_idx``.
        """
        alignment = check.limited("expert_alignment", expert_alignment)
        rows = ctypes.c_int64()
        self._engine.check(self._engine.lib.routing_num_rows(self._raw, alignment, rows))
        return rows.value

    def expanded_rows(self, expert_alignment: int = 1) -> torch.Tensor:
        """Where each selection of each row lies in a scatter with ``expanded=True``.

        Args:
            expert_alignment: as for ``num_expanded_rows``.

        Returns:
            A new int32 tensor [N, K] of row numbers, -1 where a selection is not here.

        Raises:
            InvalidArgument: as for ``num_expanded_rows``.
        """
        alignment = check.limited("expert_alignment", expert_alignment)
        shape = (self.num_rows, self.num_topk)
        return self._placed(abi.MW_ROUTING_EXPANDED_ROWS, torch.int32, shape, alignment)

    def _listed(self, what: int, dtype: torch.dtype, count: int) -> list[int]:
        found: list[int] = self._table(what, dtype, (count,)).tolist()
        return found

    def _table(
        self, what: int, dtype: torch.dtype, shape: tuple[int, ...], alignment: int = 0
    ) -> torch.Tensor:
        """One of the routing's tables, as a tensor of the host."""
        engine, length = self._engine, ctypes.c_uint64()
        table = HOST.empty(shape, dtype)
        engine.check(
            engine.lib.routing_read(
                self._raw, what, alignment, table.data_ptr(), table.nbytes, length
            )
        )
        return table

    def _placed(self, *what: Any) -> torch.Tensor:
        """The same on the buffer's device."""
        return self._engine.place.copied(self._table(*what))

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.lib.forked:
            engine.lib.routing_close(self._raw)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a moewire.Routing cannot be copied or pickled; it belongs to its process")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def make(
    engine: Engine,
    topk_idx: torch.Tensor | None,
    num_experts: int,
    in_rank: torch.Tensor | None,
    expert_counts: torch.Tensor | None,
    timeout_us: int,
) -> Routing:
    """Makes a routing; the arguments are those of ``Buffer.make_routing``."""
    args = abi.mw_routing_args_t(
        size=abi.SIZE_OF[abi.mw_routing_args_t],
        num_experts=check.experts(num_experts, engine.num_ranks),
        timeout_us=check.timeout(timeout_us),
        slice_us=SLICE_US,
    )
    engine.refuse_closed()
    engine.may_lead()
    ids, mask = _read_ids(engine, args, topk_idx, in_rank)
    if expert_counts is not None:
        shape = (num_experts,)
        check.tensor("num_tokens_per_expert", expert_counts, torch.int32, shape, engine.place)
        expert_counts = expert_counts.cpu()
        args.num_tokens_per_expert = expert_counts.data_ptr()
    raw, lib = abi.mw_routing_t(), engine.lib
    try:
        engine.collective(
            lambda buffer, args, op: lib.routing_create(buffer, args, raw, op),
            args,
            (ids, mask, expert_counts),
        )
        return Routing(engine, raw)
    except BaseException:
        if raw.id and not lib.forked:
            lib.routing_close(raw)
        raise


def _read_ids(
    engine: Engine,
    args: abi.mw_routing_args_t,
    topk_idx: torch.Tensor | None,
    in_rank: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Checks what says where tokens go, and fills it in; what it is on the host, to be kept."""
    tokens: int | None = None
    if topk_idx is not None:
        given = getattr(topk_idx, "dtype", torch.int64)
        dtype = torch.int32 if given is torch.int32 else torch.int64
        allowed = (None, None)
        check.tensor("topk_idx", topk_idx, dtype, allowed, engine.place, selections.IDS)
        check.topk(topk_idx.shape[1])
        topk_idx = topk_idx.cpu().to(torch.int64)
        tokens, args.num_topk = topk_idx.shape
        args.topk_idx = topk_idx.data_ptr()
    elif in_rank is None:
        raise check.refuse("is_token_in_rank", "None without topk_idx", "a torch.Tensor")
    if in_rank is not None:
        shape = (tokens, engine.num_ranks)
        check.tensor("is_token_in_rank", in_rank, torch.bool, shape, engine.place)
        tokens, in_rank = in_rank.shape[0], in_rank.cpu()
        args.is_token_in_rank = in_rank.data_ptr()
    args.num_tokens = tokens
    return topk_idx, in_rank


def refuse_foreign(engine: Engine, routing: object) -> Routing:
    """The routing, if it is one of this buffer."""
    if not isinstance(routing, Routing):
        allowed = "what make_routing returned"
        raise check.refuse("routing", f"a {type(routing).__name__}", allowed)
    if routing._engine is not engine:
        raise check.refuse("routing", "a routing of another Buffer", "one of this Buffer's")
    return routing
