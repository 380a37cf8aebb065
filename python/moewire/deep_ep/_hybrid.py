"""HybridEP's ``HybridEPBuffer``: a third interface to the same rows, expert by expert."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from .. import _abi as abi
from .._base import check
from .._base.opaque import opaque_methods
from .._cuda import torch_cuda
from .._ep.routing import Routing
from . import _hybrid_checks as checks
from . import _hybrid_map as maps
from ._elastic import ElasticBuffer
from ._hybrid_checks import HybridHandle
from ._routed import check_selections
from ._shared_core import SharedCore
from ._tokens import Tokens, padded

if TYPE_CHECKING:
    import torch.distributed as dist

    from .._ep.routed import Scattered

_MOST_TOPK = abi.LIMITS["num_topk"][1]
_MOST_PADDING = abi.LIMITS["expert_alignment"][1]
# Rows of a routing are a multiple of 16 bytes.
_WORDS = 2


Permuted: TypeAlias = tuple[
    torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor, HybridHandle
]


@dataclass
class BufferConfig:
    """What clients compare with what they need. Nothing is bound by it: rows go in rounds."""

    hidden_dim: int
    max_num_of_tokens_per_rank: int
    num_of_experts_per_rank: int


@dataclass
class Configurer:
    """Where clients look for the sizes."""

    buffer_config: BufferConfig = field(repr=False)


@opaque_methods
class HybridEPBuffer:
    """HybridEP's communication buffer, over routings. Construction is collective.

    Notation as in ``moewire.Buffer``: R ranks, E experts, L = E/R, T tokens of hidden size H on
    this rank. T has no bound and may differ between ranks. All buffers of one process group share
    one workspace, also with those of ``ElasticBuffer``. Calls wait ``timeout_us`` at most for
    another rank, 100 s.

    Args:
        group: any ``torch.distributed`` process group; gloo will do.
        hidden_dim: H that the workspace is for; alike on all ranks.
        max_num_of_tokens_per_rank: kept, for clients that compare it with T.
        num_local_experts: L, for calls that do not say it.
        use_fp8, num_sms_dispatch_api, num_sms_combine_api, num_sms_preprocessing_api,
            num_blocks_permute, num_blocks_unpermute, load_cached_kernels, use_shared_buffer,
            enable_custom_allgather, num_of_hybrid_ep_ranks_per_nvlink_domain, use_mnnvl: accepted
            and not used.
        device: as for ``moewire.deep_ep.Buffer``.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        MoewireError: as for ``moewire.Buffer``.
    """

    timeout_us = 100_000_000

    def __init__(
        self,
        group: dist.ProcessGroup,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
        *,
        device: str | torch.device | None = None,
    ) -> None:
        hidden = check.integer("hidden_dim", hidden_dim, 1, abi.LIMITS["hidden"][1])
        tokens = check.integer("max_num_of_tokens_per_rank", max_num_of_tokens_per_rank, 0, 1 << 31)
        local = check.integer("num_local_experts", num_local_experts, 1, 1 << 31)
        self.configurer = Configurer(BufferConfig(hidden, tokens, local))
        self._num_local_experts = local
        self.group, self.group_size = group, group.size()
        room = ElasticBuffer.get_buffer_size_hint(group, 0, hidden)
        self._core = SharedCore(group, room, torch_cuda.chosen(device))
        self._place = self._core.buffer.runtime.place
        self.rank: int = self._core.buffer.rank
        self._everyone: Routing | None = None

    def dispatch_with_permute(
        self,
        *,
        hidden: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        scaling_factor: torch.Tensor | None = None,
        num_permuted_tokens: int | torch.Tensor | None = None,
        pad_multiple: int | None = None,
        handle: tuple[object, ...] | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: int | None = None,
        use_host_meta: bool | None = None,
    ) -> Permuted:
        """Sends a row to each selected expert. Collective; returns when the rows are there.

        Args:
            hidden: [T, H] of any dtype, rows of a multiple of 16 bytes; any strides, as the tables.
            routing_map: bool [T, E]: each token's experts, up to 64. It goes before topk_idx. All
                ranks give it or none does.
            topk_idx: int64 [T, K], -1 selects nothing; K is the same on all ranks.
            topk_weights: float32 [T, K], with topk_idx, in place of probs.
            probs: float32 [T, E]. Not with topk_idx and topk_weights.
            scaling_factor: float32 or int32 [T, S], which travels with rows of 1 byte per element.
            num_of_experts: E; None: of num_of_experts_per_rank, or of the constructor. With a
                handle both are None, or the handle's.
            num_permuted_tokens: how many rows results have, at least those that come. None: those.
            pad_multiple: each expert's rows are made a multiple of it, with zeros; None: 1.
            handle: of an earlier dispatch; its routing and padding are used again.
            use_fp8, non_blocking, fuse_permute_dispatch, num_dispatched_tokens, use_host_meta:
                accepted and not used.

        Returns:
            ``(rows, probs, scaling_factor, tokens_per_expert, handle)``. Rows [rows, H] by local
            expert, and within one in order of source rank and token; float32 [rows] or None;
            [rows, S] or None; int64 [L], padding included. What did not come is 0.

        Raises:
            InvalidArgument: an argument is wrong; the text names it. Nothing was sent, unless more
                than ``num_permuted_tokens`` rows came.
            StaleHandleError: the handle is of an earlier epoch.
            MoewireError: as for ``moewire.Buffer.scatter``.
        """
        rows, probs, routing_map = map(checks.contiguous, (hidden, probs, routing_map))
        tokens = checks.tokens_of(rows, scaling_factor, self._place)
        num = checks.optional("num_permuted_tokens", num_permuted_tokens)
        if handle is None:
            experts = self._num_experts(num_of_experts, num_of_experts_per_rank)
            checks.check_probs(probs, len(tokens.x), experts, self._place)
            if probs is not None and topk_weights is not None and routing_map is None:
                raise check.refuse("probs and topk_weights", "both", "one of them")
            alignment = check.integer("pad_multiple", pad_multiple or 1, 1, _MOST_PADDING)
            ids = self._ids(len(tokens.x), experts, routing_map, topk_idx, topk_weights)
            made = self._routed(ids, experts, alignment)
        else:
            checks.refuse_routing(routing_map, topk_idx, topk_weights)
            made = checks.for_tokens(checks.checked(handle), tokens, pad_multiple)
            self._check_experts(made, num_of_experts, num_of_experts_per_rank)
            checks.check_probs(probs, len(tokens.x), made.routing.num_experts, self._place)
        weights = topk_weights if routing_map is None else None
        if probs is not None:
            weights = maps.weights_of(probs, made.topk_idx)
        self._grow(tokens, made)
        came = self._scatter(made, tokens, weights, num)
        counts = [-(-n // made.alignment) * made.alignment for n in made.routing.counts]
        per_expert = torch.tensor(counts, dtype=torch.int64, device="cpu")
        return came.rows, came.weights, came.extra, per_expert, made

    def combine_with_unpermute(
        self,
        *,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: tuple[object, ...],
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Brings rows back to their tokens and adds them up, without weights. Collective.

        The rows of a token on one rank are added there in float32 in order of the experts (with
        topk_idx: of k) and rounded to bf16; these, in order of rank, in float32, rounded once.

        Args:
            hidden: bf16 [rows, H], as dispatched; rows that did not come do not count.
            probs: float32 [rows], likewise.
            handle: of a dispatch.
            pad_multiple: None, or the dispatch's.
            fuse_unpermute_combine, num_dispatched_tokens: accepted and not used.

        Returns:
            ``(tokens, probs)``: bf16 [T, H]; float32 [T, E], 0 where there is no selection, or
            None without probs.

        Raises:
            MoewireError: as for ``dispatch_with_permute``.
        """
        made = checks.padded_by(checks.checked(handle), pad_multiple)
        num = made.routing.num_expanded_rows(made.alignment)
        x = checks.first("hidden", hidden, num, (torch.bfloat16, 2), self._place)
        check.hidden(x.shape[1], False, name="hidden")
        weights = None
        if probs is not None:
            weights = checks.first("probs", probs, num, (torch.float32, 1), self._place)
        out, home = self._core.buffer.gather(
            made.routing,
            x,
            topk_weights=weights,
            owners_only=True,
            expanded=True,
            expert_alignment=made.alignment,
            timeout_us=self.timeout_us,
        )
        if home is None:
            return out, None
        return out, maps.dense_of(home, made.topk_idx, made.routing.num_experts)

    def _num_experts(self, experts: int | None, local: int | None) -> int:
        if experts is None and local is None:
            local = self._num_local_experts
        if local is None:
            return check.experts(experts, self.group_size, "num_of_experts")
        name, most = "num_of_experts_per_rank", abi.LIMITS["num_experts"][1] // self.group_size
        number = check.integer(name, local, 1, most) * self.group_size
        if experts not in (None, number):
            raise check.refuse("num_of_experts", experts, f"None, or {number} as of {name} {local}")
        return int(number)

    def _check_experts(self, made: HybridHandle, experts: int | None, local: int | None) -> None:
        """Refuses numbers of experts that are not the handle's."""
        of_handle = made.routing.num_experts
        if (experts, local) != (None, None) and self._num_experts(experts, local) != of_handle:
            given, allowed = f"{experts}, {local}", f"None, or those of the handle's {of_handle}"
            raise check.refuse("num_of_experts, num_of_experts_per_rank", given, allowed)

    def _ids(
        self,
        num_tokens: int,
        experts: int,
        routing_map: torch.Tensor | None,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """int64 [T, K], of which form the selections are given in. The map's K is agreed on."""
        if routing_map is None:
            if topk_idx is None:
                raise check.refuse("routing_map and topk_idx", "None", "one of them, or a handle")
            check_selections(num_tokens, topk_idx, topk_weights, self._place)
            return topk_idx
        shape = num_tokens, experts
        check.tensor("routing_map", routing_map, torch.bool, shape, self._place)
        most = self._most(maps.widest(routing_map))
        if most > _MOST_TOPK:
            text = f"{most} experts of a token on some rank"
            raise check.refuse("routing_map", text, f"up to {_MOST_TOPK}")
        return maps.ids_of(routing_map, max(1, most))

    def _most(self, number: int) -> int:
        """The greatest of all ranks' numbers. Collective."""
        buffer, wait = self._core.buffer, self.timeout_us
        if self._everyone is None:
            ranks = self._place.empty((1, self.group_size), torch.int64)
            ranks[0] = torch.arange(self.group_size, dtype=ranks.dtype, device=ranks.device)
            self._everyone = buffer.make_routing(ranks, self.group_size, timeout_us=wait)
        own = self._place.empty((1, _WORDS), torch.int64).fill_(number)
        return int(buffer.scatter(self._everyone, own, timeout_us=wait).rows.max())

    def _routed(self, ids: torch.Tensor, experts: int, alignment: int) -> HybridHandle:
        routing = self._core.buffer.make_routing(ids, experts, timeout_us=self.timeout_us)
        flag = torch.zeros(1, dtype=torch.int32, device="cpu")
        return HybridHandle(routing, ids.clone(), alignment, flag)

    def _grow(self, tokens: Tokens, made: HybridHandle) -> None:
        """Keeps the sizes that clients compare at least as large as what was sent."""
        sizes = self.configurer.buffer_config
        sizes.hidden_dim = max(sizes.hidden_dim, tokens.x.shape[1])
        sizes.max_num_of_tokens_per_rank = max(sizes.max_num_of_tokens_per_rank, len(tokens.x))
        local = made.routing.num_local_experts
        sizes.num_of_experts_per_rank = max(sizes.num_of_experts_per_rank, local)

    def _scatter(
        self, made: HybridHandle, tokens: Tokens, weights: torch.Tensor | None, num: int | None
    ) -> Scattered:
        """Rows by expert, in as many as were asked for; what did not come is 0."""
        came = self._core.buffer.scatter(
            made.routing,
            tokens.x,
            topk_weights=weights,
            extra=tokens.scales,
            expanded=True,
            expert_alignment=made.alignment,
            zero_gaps=True,
            timeout_us=self.timeout_us,
        )
        if num is None:
            return came
        if num < len(came.rows):  # only now: the other ranks had to get their rows
            allowed = f"at least the {len(came.rows)} rows that came"
            raise check.refuse("num_permuted_tokens", num, allowed)

        def whole(rows: torch.Tensor | None) -> torch.Tensor | None:
            return None if rows is None else padded(rows, num, self._place, 0)

        rows = padded(came.rows, num, self._place, 0)
        return came._replace(rows=rows, weights=whole(came.weights), extra=whole(came.extra))

    def __getattr__(self, name: str) -> Any:
        if name in ("dispatch", "combine"):
            raise AttributeError(
                f"moewire.deep_ep.HybridEPBuffer has no {name}, of rows that are not by expert: "
                f"use {name}_with_{'' if name == 'dispatch' else 'un'}permute, or ElasticBuffer"
            )
        raise AttributeError(f"moewire.deep_ep.HybridEPBuffer has no {name}")
