"""Buffer: dispatch and combine over the ranks of one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from . import _abi as abi
from . import _bootstrap, _check, _combine, _dispatch, _results, _tuning
from ._flat import FlatCalls, refuse_foreign
from ._flat_results import FlatHandle
from ._meeting import Store, StoreMeeting
from ._member import CONNECT_TIMEOUT_US, SLOW_AFTER_US, Member, Options
from ._results import RecvX
from ._runtime import size_hint
from .event import EventOverlap, Hook, completion, phase_for
from .handle import Handle, Held

Received: TypeAlias = tuple[RecvX, torch.Tensor, Handle, EventOverlap, Hook | None]

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack

    from ._tuning import Tuning

STORE_PREFIX = "moewire"


class Buffer(FlatCalls, Member):
    """This rank's part of a workspace that all ranks of a group share.

    Takes the arguments of Mooncake EP's ``Buffer``, in its order, with its results; everything
    else is keyword-only. Notation: R ranks, E experts, L = E/R experts per rank (expert e
    lives on rank e // L), T tokens on this rank, K selections per token, H hidden size,
    M = ``num_max_dispatch_tokens_per_rank``. ``dispatch`` and ``combine`` have rows per expert,
    ``dispatch_flat`` and ``combine_flat`` rows per rank.

    Construction is collective: every rank of the group constructs, in the same order.

    Args:
        group: any ``torch.distributed`` process group. Its store is used if it has one, else
            one ``all_gather``.
        num_ep_buffer_bytes: from ``get_ep_buffer_size_hint``; 0: sized by the first dispatch.
            A later dispatch that does not fit is refused on its own rank, with both sizes, and
            consumes nothing: ranks that may disagree about M, H or E should give a size.
        disable_p2p: accepted for compatibility; CPU tensors always use shared memory.
        num_slots: operations in flight, 1 to 64.
        copy_outputs: return ordinary tensors instead of views of the workspace.
        vector_width: bytes of vector code, 16, 32 or 64; 0: the widest; -1: plain Go code.
        connect_timeout_us: how long to wait for the other ranks; -1: for ever at the store,
            then 60 s. Without a store the group's own timeout holds for its ``all_gather``.
        members: the ranks that take part for now; None: all. The others may come later.
        deterministic: rows of an expert lie in order of rank, for one more exchange of words
            per dispatch. All ranks agree on it, and each rank has a thread of its own.
        slow_after_us: how long a wait on one rank may last before the log says so; -1: for
            ever; 0: a second.

    Choices that change times and no result, each rank's own (docs/performance.md measures them):
        stores: how a dispatch stores rows: "cached", "streaming" (past the caches; x86-64) or
            "auto": streaming where a call places 1 MiB of rows and more.
        prefetch: rows (dispatch) or tokens (combine) that are asked for ahead of use, at most
            64; 0: none; None: the default, none.
        num_threads: threads of this rank that place and reduce rows, the caller's included, at
            most 64; 1. They sleep between calls and end with the buffer.
        huge_pages: "never" asks for none; "advise" asks, and the kernel may refuse (``moewire
            doctor`` tries it); "require": reserved ones of 2 MiB for all of
            ``num_ep_buffer_bytes``, or ``SystemCallError`` or ``OutOfMemoryError``.
        numa: "local": this rank's slabs near the processor that constructs; "none".
        spin_us: how long a wait is awake before it sleeps; 0: it sleeps at once; None: 2, or
            500 where every rank can have a processor.

    Ranks of several hosts (docs/hosts.md); equal on all ranks, but for ``listen`` and ``rdma_...``:
        transport: "auto": shared memory between ranks of one host, else TCP; "shm": shared memory
            alone; "tcp": TCP alone; "rdma": RDMA between hosts. Only "auto" chooses.
        listen: where ranks of other hosts reach this one: an address, "ADDRESS:PORT", or the
            name of an interface; by default this host's address on the way to ``MASTER_ADDR``.
        key_file: a file with the keys that all ranks share (a line "1 " and 64 hexadecimal
            digits), read again at every update; without keys there is no way between hosts.
        protection: of what TCP carries: "digest" (forged or changed bytes are refused) or
            "encrypt" (nobody reads them, either).
        ring_bytes: two rings of this size per direction and rank of another host, a power of
            two; 0: 16 MiB.
        silent_after_us: a rank of another host that is not heard for so long is suspected; 0: 1 s.
        rdma_devices: RDMA devices that this rank may use: names with commas, each with a port or
            without, such as "mlx5_0,mlx5_1:2" or "mlx5_*"; "": all.
        rdma_gid: the address (GID) to send from on Ethernet: an index, "v1" or "v2", an address
            or a network ("10.0.0.0/16"), or both ("v2,10.0.0.0/16"); "": RoCE v2, IPv4 first.
        rdma_near: what the device should be near to: a GPU's PCI address ("0000:41:00.0") or
            "node:N"; "": the NUMA node that this process may run on, if it is one.
        tcp_zero_copy: whether TCP sends long payloads without a copy: "auto" (to other hosts, until
            the kernel says that it copies all the same), "on" or "off". Each rank's own choice.

    Any thread may call any method; a wait in one thread does not block another. ``close()``,
    leaving ``with``, or dropping the buffer leaves the group.

    Environment, read at construction: ``MOEWIRE_DEBUG=1`` fills released memory with NaN;
    ``MOEWIRE_RECORD=0`` turns statistics, traces and warnings of slow ranks off;
    ``MOEWIRE_TRANSPORT``, ``MOEWIRE_LISTEN``, ``MOEWIRE_KEY_FILE`` (or ``MOEWIRE_KEY``, 64
    hexadecimal digits), ``MOEWIRE_PROTECTION``, ``MOEWIRE_RDMA_DEVICES``, ``MOEWIRE_RDMA_GID``
    and ``MOEWIRE_RDMA_NEAR`` stand for arguments that are not given;
    ``MOEWIRE_TEST_CORRUPT=combine`` flips a bit in every combine (a test of the tests).
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        num_ep_buffer_bytes: int = 0,
        disable_p2p: bool = False,
        *,
        num_slots: int = 2,
        copy_outputs: bool = False,
        vector_width: int = 0,
        connect_timeout_us: int = CONNECT_TIMEOUT_US,
        members: Sequence[int] | None = None,
        deterministic: bool = False,
        slow_after_us: int = SLOW_AFTER_US,
        **tuning: Unpack[Tuning],
    ) -> None:
        options = Options(
            num_slots=num_slots,
            copy_outputs=copy_outputs,
            vector_width=vector_width,
            connect_timeout_us=connect_timeout_us,
            members=members,
            deterministic=deterministic,
            slow_after_us=slow_after_us,
            tuning=_tuning.native(tuning),
        )
        meeting = _bootstrap.meet_in_group(group, STORE_PREFIX)
        self.group: dist.ProcessGroup | None = group
        self.disable_p2p = bool(disable_p2p)
        self._open(meeting, num_ep_buffer_bytes, options)

    @classmethod
    def from_store(
        cls,
        store: dist.Store,
        rank: int,
        world_size: int,
        num_ep_buffer_bytes: int = 0,
        *,
        prefix: str = STORE_PREFIX,
        num_slots: int = 2,
        copy_outputs: bool = False,
        vector_width: int = 0,
        connect_timeout_us: int = CONNECT_TIMEOUT_US,
        members: Sequence[int] | None = None,
        deterministic: bool = False,
        slow_after_us: int = SLOW_AFTER_US,
        **tuning: Unpack[Tuning],
    ) -> Buffer:
        """A buffer without a process group: ranks meet in a ``torch.distributed.Store``.

        No collective. The n-th construction of a process under one ``prefix`` meets the n-th
        of the others. A process whose rank was taken before joins the group that is running,
        at its next ``update_ep_member``. ``DeadlineError`` names the ranks that did not come.
        """
        meeting = StoreMeeting(cast("Store", store), rank, world_size, prefix)
        options = Options(
            num_slots=num_slots,
            copy_outputs=copy_outputs,
            vector_width=vector_width,
            connect_timeout_us=connect_timeout_us,
            members=members,
            deterministic=deterministic,
            slow_after_us=slow_after_us,
            tuning=_tuning.native(tuning),
        )
        return cls._without_group(meeting, num_ep_buffer_bytes, options)

    @classmethod
    def from_exchange(
        cls,
        exchange: _bootstrap.Exchange,
        rank: int,
        world_size: int,
        num_ep_buffer_bytes: int = 0,
        *,
        num_slots: int = 2,
        copy_outputs: bool = False,
        vector_width: int = 0,
        connect_timeout_us: int = CONNECT_TIMEOUT_US,
        deterministic: bool = False,
        slow_after_us: int = SLOW_AFTER_US,
        **tuning: Unpack[Tuning],
    ) -> Buffer:
        """A buffer whose ranks meet by any means that carries bytes.

        ``exchange(own)`` sends up to 1024 bytes to every rank that takes part and returns
        theirs by rank, its own included, with None for a rank that is absent. It is called
        twice here and twice in every ``update_ep_member``.
        """
        meeting = _bootstrap.ExchangeMeeting(exchange, rank, world_size)
        options = Options(
            num_slots=num_slots,
            copy_outputs=copy_outputs,
            vector_width=vector_width,
            connect_timeout_us=connect_timeout_us,
            deterministic=deterministic,
            slow_after_us=slow_after_us,
            tuning=_tuning.native(tuning),
        )
        return cls._without_group(meeting, num_ep_buffer_bytes, options)

    @classmethod
    def _without_group(
        cls, meeting: _bootstrap.Meeting, num_bytes: int, options: Options
    ) -> Buffer:
        self = cls.__new__(cls)
        self.group = None
        self.disable_p2p = False
        self._open(meeting, num_bytes, options)
        return self

    @property
    def backend(self) -> dist.ProcessGroup | None:
        """The group, as upstream calls it too; None for ``from_store``."""
        return self.group

    @staticmethod
    def get_ep_buffer_size_hint(
        num_max_dispatch_tokens_per_rank: int,
        hidden: int,
        num_ranks: int,
        num_experts: int,
        *,
        num_slots: int = 2,
        fp32_outputs: bool = False,
    ) -> int:
        """Bytes to construct with for operations up to this shape, in bf16 or fp8.

        ``fp32_outputs``: with room for dispatches that ask for it. This is address space;
        memory becomes resident as rows arrive.
        """
        ranks = _check.integer("num_ranks", num_ranks, 1, (1 << 31) - 1)
        name = "num_max_dispatch_tokens_per_rank"
        shape = abi.mw_shape_t(
            num_max_tokens_per_rank=_check.integer(
                name, num_max_dispatch_tokens_per_rank, 1, _check.MAX_TOKENS
            ),
            hidden=_check.integer("hidden", hidden, 1, _check.MAX_HIDDEN),
            num_ranks=ranks,
            num_experts=_check.experts(num_experts, ranks),
            num_slots=_check.integer("num_slots", num_slots, 1, 64),
            flags=abi.MW_SHAPE_FP32_OUTPUTS if fp32_outputs else 0,
        )
        return size_hint(shape)

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        active_ranks: torch.Tensor | None,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        timeout_us: int,
        use_fp8: bool | None = None,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        more: bool = False,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        fp32_outputs: bool = False,
        topk_weights: torch.Tensor | None = None,
        pre_reduce: bool = False,
    ) -> Received:
        """Sends each token's row to the ranks that own its experts. Collective.

        Args:
            x: bf16 [T, H], contiguous; H a multiple of 128 (fp8) or 8 (bf16); T <= M.
            topk_idx: int64 [T, K], contiguous, K <= 64; -1 selects nothing.
            active_ranks: int32, at least R entries, contiguous, 1 for active; or None for all.
                Entries of lost ranks are cleared in place.
            num_max_dispatch_tokens_per_rank: M, the same on every rank.
            num_experts: E, a multiple of R, the same on every rank.
            timeout_us: microseconds for each phase, -1 for none.
            use_fp8: cast rows to fp8 e4m3 with one scale per 128 values; None is True.
            async_finish: the returned event finishes the receive phase.
            return_recv_hook: the returned hook finishes the receive phase.
            more: this rank will dispatch again for the same batch; every rank reads the
                answer of all in ``handle.peers_have_more``.
            round_scale: with fp8, scales are rounded up to powers of two.
            use_ue8m0: with round_scale, scales are exponent bytes; H a multiple of 512. Both
                the same on every rank.
            fp32_outputs: the expert outputs that go to ``combine`` are float32, which takes
                twice their room in the workspace. The same on every rank.
            topk_weights: float32 [T, K], contiguous, with ``pre_reduce`` only. Copied.
            pre_reduce: the combine of this handle is pre-reduced (see ``combine``): a rank of
                another host brings one row per token back, not one per token and expert. Each
                rank's own choice.

        Returns ``(recv_x, recv_count, handle, event, hook)``:
            - recv_x: bf16 [L, R*M, H], or with fp8 a pair: float8_e4m3fn [L, R*M, H] and
              float32 scales [L, R*M, H/128], column-major (token stride 1); with use_ue8m0
              int32 [L, R*M, H/512], column-major, group g in byte g % 4 of int g // 4.
            - recv_count: int32 [L], rows per local expert; rows from there on are undefined. So
              are, among the rows before it, those of a rank that was lost after it had reserved
              them and before they were there: no entry of ``layout_range`` covers them, and no
              combine reads them.
            - handle: see ``Handle``; keep it as long as recv_x is read.
            - event: ``EventOverlap``; hook: a callable with ``return_recv_hook``, else None.

        recv_x and the handle's src_info are views of the workspace, valid until the handle is
        released; later they hold other numbers. They are ordinary tensors with
        ``copy_outputs=True``, and where autograd would save them (x requires grad).
        Contents are valid only after the hook or event. x and topk_idx may be overwritten as
        soon as the call returns. A hook or event that is dropped before it was used cancels
        the operation, unless the handle is kept: its combine then finishes the receive.

        ``InvalidArgument`` consumes nothing: the call may be repeated. ``PeerMismatchError``
        is raised on every rank if ranks disagree on M, H, E, dtype, scales or the dtype of
        outputs; the buffer stays usable.
        A rank that dies, or is later than ``timeout_us``, is taken out of the group: no
        exception; its entry in ``active_ranks`` becomes 0, in place, exactly when its rows are
        not in the result. ``FencedError``: it was this rank that the others took out.
        """
        request = _dispatch.Request(
            x,
            topk_idx,
            active_ranks,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            timeout_us,
            _dispatch.flags(use_fp8 is None or use_fp8, more, round_scale, use_ue8m0, fp32_outputs)
            | (abi.MW_DISPATCH_PRE_REDUCE if pre_reduce else 0),
            phase_for(async_finish, return_recv_hook),
            topk_weights,
        )
        recv_x, recv_count, handle = _dispatch.run(self.runtime, request, self._copy_outputs)
        if request.phase == abi.MW_PHASE_DONE:
            return recv_x, recv_count, handle, EventOverlap(), None
        event, hook = completion(handle, async_finish, return_recv_hook, (x, topk_idx))
        return recv_x, recv_count, handle, event, hook

    def combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        active_ranks: torch.Tensor | None,
        timeout_us: int,
        handle: Handle,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """Brings expert outputs back and sums them with the routing weights. Collective.

        ``out[t]`` = sum over k, in order of k, of ``topk_weights[t, k]`` times the output row
        of expert ``topk_idx[t, k]``: multiplied and added in float32, rounded once to bf16
        (nearest even). The bits depend on the inputs alone. A token without a live selection
        gives zeros.

        After a dispatch with ``pre_reduce``: ``out[t]`` = sum over the ranks that the token went
        to, in the order in which its selections name them first, of each one's sum, which is
        that above over its selections alone, rounded to the dtype of x. These sums are added in
        float32 and rounded once to bf16. The bits depend on the inputs and on the number of
        ranks, not on where ranks are.

        Args:
            x: bf16 [L, R*M, H], or float32 after a dispatch with ``fp32_outputs``; contiguous,
                expert outputs in the positions of the inputs.
            topk_idx: int64 [T, K] as dispatched; -1 leaves a selection out (not after
                ``pre_reduce``: ``InvalidArgument``).
            topk_weights: float32 [T, K], contiguous; after ``pre_reduce`` those of the dispatch
                (``InvalidArgument`` names the first that differs).
            active_ranks, timeout_us, async_finish, return_recv_hook: as for ``dispatch``.
            handle: of the dispatch. Its receive phase is finished here if its hook has not
                run. A handle may be combined more than once.
            zero_copy: x is what ``get_next_combine_buffer(handle)`` returned (checked).
            out: bf16 [T, H], contiguous; written and returned. None: a new tensor.

        Returns ``(out, event, hook)``. x may be overwritten as soon as the call returns; out
        is complete after the hook or event, and never if that is dropped unused.
        ``StaleHandleError`` after a release; ``NotCombinedError`` names a rank that released
        without combining.
        """
        refuse_foreign(self.runtime, handle, Handle)
        out = _combine.output(out, handle)
        request = _combine.Request(
            x,
            topk_idx,
            topk_weights,
            active_ranks,
            timeout_us,
            bool(zero_copy),
            out,
            phase_for(async_finish, return_recv_hook),
        )
        operation = _combine.run(self.runtime, handle, request)
        event, hook = completion(operation, async_finish, return_recv_hook, (x, out))
        return out, event, hook

    def get_next_combine_buffer(
        self, handle: Handle | FlatHandle, *, timeout_us: int = -1
    ) -> torch.Tensor:
        """Where expert outputs may be written in place: [L, R*M, H], a writable view.

        [N, H] for the handle of ``dispatch_flat``. float32 after a dispatch with
        ``fp32_outputs``, else bf16. Pass it to ``combine(..., zero_copy=True)``, or to
        ``combine_flat``. Waits, after an earlier combine of the handle, until nobody reads it
        any more. Valid until the handle is released.
        """
        refuse_foreign(self.runtime, handle, Held)
        _check.timeout(timeout_us)
        self.runtime.refuse_closed()
        handle.finish()
        address = self.runtime.combine_buffer(handle._id, timeout_us)
        mapping = self.runtime.mapping(handle._result)
        view = _results.combine_view(mapping, address, handle._plan)
        return view[: handle.num_recv_tokens] if isinstance(handle, FlatHandle) else view
