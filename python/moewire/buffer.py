"""Buffer: dispatch and combine over the ranks of one group.

This module constructs a buffer and sizes it. ``_ep`` has its operations, ``_member`` its life in a
group.
"""

from __future__ import annotations

from ._base import needs_torch  # noqa: F401, isort: skip

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from . import _abi as abi
from ._base import check
from ._base.opaque import opaque_methods
from ._config import tuning as _tuning
from ._ep.flat import FlatCalls
from ._ep.flat_results import FlatHandle
from ._ep.packed import PackedCalls, Received
from ._ep.routed import RoutedCalls
from ._member import CONNECT_TIMEOUT_US, SLOW_AFTER_US, Member, Options
from ._native.runtime import size_hint
from ._rendezvous import bootstrap
from ._rendezvous.by_store import StoreRendezvous
from ._rendezvous.store import Store
from .handle import Handle, Held, refuse_foreign

__all__ = ["Buffer", "Received"]

if TYPE_CHECKING:
    import torch.distributed as dist
    from typing_extensions import Unpack

    from ._config.tuning import Tuning

STORE_PREFIX = "moewire"


@opaque_methods
class Buffer(PackedCalls, FlatCalls, RoutedCalls, Member):
    """This rank's part of a workspace that all ranks of a group share.

        buffer = moewire.Buffer(group)  # on every rank, in the same order
        rows, counts, handle, _, _ = buffer.dispatch(
            x, topk_idx, None, max_tokens, num_experts, timeout_us, use_fp8=False
        )
        y = buffer.get_next_combine_buffer(handle)
        for expert, n in enumerate(counts.tolist()):
            y[expert, :n] = run_expert(expert, rows[expert, :n])
        out, _, _ = buffer.combine(
            y, topk_idx, topk_weights, None, timeout_us, handle, zero_copy=True
        )

    The arguments and results are those of Mooncake EP's ``Buffer``, in its order; everything else
    is keyword-only. Notation: R ranks, E experts, L = E/R experts per rank (expert e lives on rank
    e // L), T tokens on this rank, K selections per token, H hidden size,
    M = ``num_max_dispatch_tokens_per_rank``. ``dispatch`` and ``combine`` have rows per expert,
    ``dispatch_flat`` and ``combine_flat`` have rows per rank. ``scatter`` and ``gather`` use a
    ``Routing``, of which many may be kept and used in any order.

    Construction is collective: every rank of the group constructs its buffers in the same order.

    Args:
        group: any ``torch.distributed`` process group. The ranks meet in its store if it has one,
            else by one ``all_gather``.
        num_ep_buffer_bytes: from ``get_ep_buffer_size_hint``; 0: sized by the first dispatch, or
            by the first routing, with 32 MiB per slot, which may be too little for dispatches
            (not on CUDA, where it has to be given). A later dispatch that does not fit is refused
            on its own rank, with both sizes, and consumes nothing. If ranks may disagree about M, H
            or E, give a size.
        disable_p2p: accepted for compatibility; CPU tensors always use shared memory.
        num_slots: operations in flight, 1 to 64. An operation is in flight while its handle is
            held and was neither combined nor released. One more dispatch raises ``BusyError``
            before it sends anything, because it would overwrite the rows of the oldest operation.
            On the CPU slots are used in turn, so one held handle stops the ``num_slots``-th
            dispatch after its own.
        copy_outputs: return ordinary tensors instead of views of the workspace.
        vector_width: bytes of vector code, 16, 32 or 64; 0: the widest; -1: plain Go code.
        connect_timeout_us: how long the construction may take, including the waits for the other
            ranks and for the store. ``DeadlineError`` names the ranks that have not come, or the
            store. -1: for ever at the store, then 60 s. Without a store the group's own timeout
            applies to its ``all_gather``.
        members: the ranks that take part for now, each once; None: all. The other ranks may come
            later.
        deterministic: rows of an expert lie in order of rank. Costs one more exchange of control
            words per dispatch. All ranks agree on it, and each rank has a thread of its own.
        slow_after_us: how long a wait on one rank may last before it is logged; -1: for ever;
            0: one second.

    Choices that change times and no result. Each rank chooses for itself (docs/performance.md
    measures them):
        stores: how a dispatch stores rows: "cached", "streaming" (past the caches; x86-64) or
            "auto": streaming where a call places 1 MiB of rows or more.
        prefetch: rows (dispatch) or tokens (combine) that are prefetched ahead of use, at most
            64; 0: none; None: the default, none.
        num_threads: threads of this rank that place and reduce rows, the caller's included, at
            most 64; default 1. They sleep between calls and end with the buffer.
        huge_pages: "never" asks for none; "advise" asks, and the kernel may refuse (``moewire
            doctor`` tries it); "require": reserved huge pages of 2 MiB for all of
            ``num_ep_buffer_bytes``, or ``SystemCallError`` or ``OutOfMemoryError``.
        numa: "local": this rank's slabs near the processor that constructs; "none".
        spin_us: how long a wait is awake before it sleeps; 0: it sleeps at once; None: 2, or
            500 where every rank can have a processor.

    Ranks of several hosts (docs/hosts.md). These are equal on all ranks, except ``listen``,
    ``tcp_zero_copy`` and ``rdma_...``, which each rank may choose:
        transport: "auto": shared memory between ranks of one host; between hosts RDMA, where both
            have a device that reaches the other, else TCP; "shm": shared memory alone; "tcp": TCP
            alone; "rdma": shared memory, and RDMA between hosts. Only "auto" chooses.
        listen: where ranks of other hosts reach this one: an address, "ADDRESS:PORT", or the
            name of an interface; by default this host's address on the way to ``MASTER_ADDR``.
        key_file: a file with the keys that all ranks share (a line "1 " and 64 hexadecimal
            digits), read again at every update. Without keys, ranks of other hosts cannot be
            reached.
        protection: of what TCP carries: "digest" (forged or changed bytes are refused) or
            "encrypt" (the bytes cannot be read on the way, either).
        ring_bytes: the size of each of the two rings per direction and rank of another host, a
            power of two; 0: 16 MiB, less with more than 16 ranks.
        unresponsive_after_us: a rank of another host is suspected when it is not heard for so long;
            0: 1 s.
        rdma_devices: RDMA devices that this rank may use: names with commas, each with a port or
            without, such as "mlx5_0,mlx5_1:2" or "mlx5_*"; "": all.
        rdma_gid: the address (GID) to send from on Ethernet: an index, "v1" or "v2", an address
            or a network ("10.0.0.0/16"), or both ("v2,10.0.0.0/16"); "": RoCE v2, IPv4 first.
        rdma_near: what the device should be near to: a GPU's PCI address ("0000:41:00.0") or
            "node:N"; "": the NUMA node that this process may run on, if it is only one.
        rdma_dc: RDMA by dynamically connected queue pairs where both ports have them; default
            False. It never ran on a device (docs/transport-verbs.md).
        tcp_zero_copy: whether TCP sends long payloads without a copy: "auto" (to other hosts, until
            the kernel says that it copies all the same), "on" or "off".

    CUDA (docs/cuda.md says on which GPU it has run):
        device: "cuda", "cuda:N" or a ``torch.device``: all tensors of this buffer lie there. Calls
            are launched on the current stream and return. The host waits only for the number of
            flat rows (where a caller asks for it, and in ``combine_flat``) and for
            ``handle.peers_have_more``. The same kind on all ranks. "cpu" or None: CPU tensors.
        on_fence: what is done about a rank of this host that was taken out and that, 0.5 s later,
            has neither ended nor stopped using its device. "wait" (or None): a call that needs
            memory that this rank may still write to waits until the rank ends or quiesces. 2 s
            beyond the call's timeout it ends the buffer with an error, unless an update comes
            first. "kill": the rank's process is killed, once none of its ranks is a member and if
            none has left by itself. A rank that left by ``close()`` or an update is never killed.
            Each rank chooses for itself. Variable: ``MOEWIRE_ON_FENCE``.

    Raises:
        InvalidArgument: an argument or a variable is wrong; the text names it.
        DeadlineError: the construction took longer than ``connect_timeout_us``.
        PeerMismatchError: ranks disagree on an argument that has to be equal.
        PeerLostError: a rank died while the ranks connected.
        SystemCallError, OutOfMemoryError: the workspace could not be had.
        LibraryError: the shared library is missing or does not fit.

    ``torch.compile`` does not trace into any call: the graph ends before the call, and another one
    begins after it. ``moewire.ops`` has operators that stay in the graph.

    Any thread may call any method; a wait in one thread does not block another. ``close()``,
    leaving ``with``, or dropping the buffer leaves the group.

    Environment, read at construction: ``MOEWIRE_DEBUG=1`` fills released memory with NaN;
    ``MOEWIRE_RECORD=0`` turns statistics, traces and warnings of slow ranks off;
    ``MOEWIRE_TRANSPORT``, ``MOEWIRE_LISTEN``, ``MOEWIRE_KEY_FILE`` (or ``MOEWIRE_KEY``, 64
    hexadecimal digits), ``MOEWIRE_PROTECTION``, ``MOEWIRE_RDMA_DEVICES``, ``MOEWIRE_RDMA_GID``,
    ``MOEWIRE_RDMA_NEAR``, ``MOEWIRE_RDMA_DC=1``, ``MOEWIRE_RING_BYTES``,
    ``MOEWIRE_UNRESPONSIVE_AFTER_US``, ``MOEWIRE_TCP_ZERO_COPY`` and, on CUDA, ``MOEWIRE_ON_FENCE``
    stand for arguments that are not given.
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
        rendezvous = bootstrap.group_rendezvous(group, STORE_PREFIX)
        self.group: dist.ProcessGroup | None = group
        self.disable_p2p = bool(disable_p2p)
        self._open(rendezvous, num_ep_buffer_bytes, options)

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

        Not a collective. The n-th construction of a process under one ``prefix`` meets the n-th
        construction of the other processes. If another process had this rank before, the new one
        joins the group that is running, at its next ``update_ep_member``.

        Args:
            store: the key-value store in which the ranks meet.
            rank: this process's rank, 0 to ``world_size`` - 1.
            world_size: R.
            prefix: keeps the keys of different groups apart in one store.
            num_ep_buffer_bytes, num_slots, copy_outputs, vector_width, connect_timeout_us, members,
                deterministic, slow_after_us, tuning: as for ``Buffer``.

        Returns:
            The buffer, connected. Its ``group`` is None.

        Raises:
            DeadlineError: ranks did not come in time; the text names them.
        """
        rendezvous = StoreRendezvous(cast("Store", store), rank, world_size, prefix)
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
        return cls._without_group(rendezvous, num_ep_buffer_bytes, options)

    @classmethod
    def from_exchange(
        cls,
        exchange: bootstrap.Exchange,
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
        """A buffer with ranks that meet by any means that carries bytes.

        Args:
            exchange: ``exchange(own)`` sends up to 1024 bytes to every rank that takes part. It
                returns the bytes of each rank, by rank, its own included, with None for a rank that
                is absent. It is called twice here and twice in every ``update_ep_member``, and
                keeps a deadline of its own.
            rank: this process's rank, 0 to ``world_size`` - 1.
            world_size: R.
            num_ep_buffer_bytes, num_slots, copy_outputs, vector_width, connect_timeout_us,
                deterministic, slow_after_us, tuning: as for ``Buffer``.

        Returns:
            The buffer, connected. Its ``group`` is None.
        """
        rendezvous = bootstrap.ExchangeRendezvous(exchange, rank, world_size)
        options = Options(
            num_slots=num_slots,
            copy_outputs=copy_outputs,
            vector_width=vector_width,
            connect_timeout_us=connect_timeout_us,
            deterministic=deterministic,
            slow_after_us=slow_after_us,
            tuning=_tuning.native(tuning),
        )
        return cls._without_group(rendezvous, num_ep_buffer_bytes, options)

    @classmethod
    def _without_group(
        cls, rendezvous: bootstrap.Rendezvous, num_bytes: int, options: Options
    ) -> Buffer:
        self = cls.__new__(cls)
        self.group = None
        self.disable_p2p = False
        self._open(rendezvous, num_bytes, options)
        return self

    @property
    def backend(self) -> dist.ProcessGroup | None:
        """The group, by its upstream name; None for ``from_store`` and ``from_exchange``."""
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

        This is address space; memory becomes resident as rows arrive.

        Args:
            num_max_dispatch_tokens_per_rank: M.
            hidden: H.
            num_ranks: R.
            num_experts: E, a multiple of R.
            num_slots: as for ``Buffer``.
            fp32_outputs: with room for dispatches that ask for ``fp32_outputs``.

        Returns:
            The size for ``num_ep_buffer_bytes``.

        Raises:
            InvalidArgument: a number is out of its bounds.
        """
        ranks = check.limited("num_ranks", num_ranks)
        shape = abi.mw_shape_t(
            num_max_tokens_per_rank=check.tokens_per_rank(num_max_dispatch_tokens_per_rank),
            hidden=check.limited("hidden", hidden),
            num_ranks=ranks,
            num_experts=check.experts(num_experts, ranks),
            num_slots=check.limited("num_slots", num_slots),
            flags=abi.MW_SHAPE_FP32_OUTPUTS if check.boolean("fp32_outputs", fp32_outputs) else 0,
        )
        return size_hint(shape)

    def get_next_combine_buffer(
        self, handle: Handle | FlatHandle, *, timeout_us: int = -1
    ) -> torch.Tensor:
        """Where expert outputs may be written in place.

        Pass the view to ``combine(..., zero_copy=True)``, or to ``combine_flat``. After an earlier
        combine of the handle, this call waits until no rank reads the outputs any more. On CUDA the
        current stream waits instead, until that combine's deadline at most.

        Args:
            handle: of the dispatch.
            timeout_us: how long to wait, in microseconds; -1 for no limit.

        Returns:
            A writable view [L, R*M, H], or [N, H] for the handle of ``dispatch_flat``: float32
            after a dispatch with ``fp32_outputs``, else bf16. Valid until the handle is released.

        Raises:
            InvalidArgument: the handle is not one of this buffer.
            DeadlineError: the outputs were still being read after ``timeout_us``.
            StaleHandleError: the handle was released.
        """
        refuse_foreign(self.runtime, handle, Held)
        check.timeout(timeout_us)
        self.runtime.refuse_closed()
        handle.finish()
        view = self.runtime.combine_view(handle, timeout_us)
        return view[: handle.num_recv_tokens] if isinstance(handle, FlatHandle) else view
