"""Jobs about how things end: close, deadline, death, Ctrl-C, fork, views that stay."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

import moewire

from . import verify
from .jobs_input import case_for, expect
from .member import Rank


def go_on(buffer: moewire.Buffer, rank: Rank, timeout_us: int) -> tuple[list[int], torch.Tensor]:
    """A dispatch that others do not answer: the mask it leaves, and rows by source."""
    case = case_for(rank)
    mask = torch.ones(rank.size, dtype=torch.int32)
    x, topk = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank])
    result = buffer.dispatch(x, topk, mask, case.num_max, case.num_experts, timeout_us, case.fp8)
    return mask.tolist(), (result[2][1] & 0xFFFFFFFF).sum(dim=0)


def deadline(rank: Rank) -> None:
    """Rank 1 does not come: rank 0 goes on without it, in time; rank 1 is told."""
    with rank.buffer() as buffer:
        if rank.rank == 0:
            start = time.monotonic()
            mask, rows = go_on(buffer, rank, 200_000)
            assert mask == [1, 0] and rows[1] == 0
            assert 0.19 < time.monotonic() - start < 10, time.monotonic() - start
            assert buffer.members() == [0]
        rank.meet("late")
        if rank.rank == 1:
            text = expect(moewire.FencedError, lambda: verify.dispatch(buffer, case_for(rank), 1))
            assert "rejoin" in text, text
        buffer.update_ep_member()
        assert buffer.members() == [0, 1] and buffer.epoch == 2
        verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))
        rank.meet("end")


def peer_closes(rank: Rank) -> None:
    """A rank that leaves is noticed at once by one that waits without a deadline."""
    buffer = rank.buffer()
    verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))
    if rank.rank == 1:
        time.sleep(0.3)
        buffer.close()
        return
    assert go_on(buffer, rank, -1)[0] == [1, 0]


def peer_is_killed(rank: Rank) -> float:
    """Seconds from a SIGKILL to the return of the calls that waited for its rank."""
    buffer = rank.buffer()
    verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))
    rank.meet("ready")
    moment = os.path.join(rank.folder, "moment")
    if rank.rank == rank.size - 1:
        time.sleep(0.3)
        with open(moment + ".new", "w") as file:
            file.write(repr(time.monotonic()))
        os.rename(moment + ".new", moment)
        os.kill(os.getpid(), signal.SIGKILL)
    mask, _ = go_on(buffer, rank, -1)
    noticed = time.monotonic()
    assert mask == [1] * (rank.size - 1) + [0]
    with open(moment) as file:
        return noticed - float(file.read())


def close_wakes_a_waiter(rank: Rank) -> None:
    """close() in one thread ends a wait in another."""
    buffer = rank.buffer()
    if rank.rank == 0:
        threading.Timer(0.3, buffer.close).start()
        expect(
            moewire.ClosedError, lambda: verify.dispatch(buffer, case_for(rank), 0, timeout_us=-1)
        )
    rank.meet("end")
    buffer.close()


def interrupt(rank: Rank) -> None:
    """Ctrl-C ends a wait without a deadline; the buffer stays usable."""
    with rank.buffer() as buffer:
        case = case_for(rank)
        if rank.rank == 0:
            start = time.monotonic()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            expect(KeyboardInterrupt, lambda: verify.dispatch(buffer, case, 0, timeout_us=-1))
            assert time.monotonic() - start < 10
            rank.meet("interrupted")
        else:
            rank.meet("interrupted")
            received = verify.dispatch(buffer, case, 1, return_recv_hook=True)
            received.hook()
            received.handle.release()
        for _ in range(4):
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))


def interrupted_hook(rank: Rank) -> None:
    """Ctrl-C inside a hook; the hook says so from then on."""
    # Sized, so that sending needs no other rank.
    with rank.buffer(16 << 20) as buffer:
        case = case_for(rank)
        if rank.rank == 0:
            received = verify.dispatch(buffer, case, 0, timeout_us=-1, return_recv_hook=True)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            expect(KeyboardInterrupt, received.hook)
            expect(moewire.CancelledError, received.hook)
            rank.meet("interrupted")
        else:
            rank.meet("interrupted")
            verify.dispatch(buffer, case, 1).handle.release()
        for _ in range(4):
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))


def forked(rank: Rank) -> list[str]:
    """What a forked child gets from a buffer, from a new one, and from objects it drops."""
    buffer = rank.buffer()
    case = case_for(rank)
    received = verify.dispatch(buffer, case, rank.rank)
    x, topk = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank])
    again = (x, topk, None, case.num_max, case.num_experts, -1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        texts = [_error(lambda: buffer.dispatch(*again))]
        texts.append(_error(lambda: rank.buffer(name="child")))
        received = None
        gc.collect()
        buffer.close()
        os.write(writer, "\n".join(texts).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        texts = file.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    verify.combine(buffer, received)  # the parent goes on
    buffer.close()
    return texts


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _num_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:" in line for line in maps)


def views_outlive(rank: Rank) -> None:
    """Views stay readable after release and close, and unmap when they are gone."""
    before = _num_mappings()
    buffer = rank.buffer()
    received = verify.dispatch(buffer, case_for(rank), rank.rank)
    y = buffer.get_next_combine_buffer(received.handle)
    recv_x, src_info = received.recv_x, received.handle[0]
    received.handle.release()
    rank.meet("released")
    buffer.close()
    del received, buffer
    gc.collect()
    assert recv_x.float().nan_to_num().sum() is not None
    assert src_info.sum() is not None
    y.fill_(1.0)
    assert _num_mappings() > before
    part = recv_x[0, 0]
    del recv_x, src_info, y
    gc.collect()
    part.fill_(2.0)
    assert _num_mappings() > before
    del part
    gc.collect()
    assert _num_mappings() == before, _num_mappings()


def dropped_buffers_leave_nothing(rank: Rank) -> None:
    """Buffers that are dropped close themselves; descriptors and mappings do not grow."""
    counts = []
    for number in range(6):
        buffer = rank.buffer(name=f"store{number}")
        verify.combine(buffer, verify.dispatch(buffer, case_for(rank), rank.rank))
        reference = weakref.ref(buffer)
        rank.meet(f"dropping{number}")
        del buffer
        gc.collect()
        assert reference() is None
        rank.meet(f"dropped{number}")
        counts.append((len(os.listdir("/proc/self/fd")), _num_mappings()))
    assert counts[-1] == counts[1], counts


def debug_fill(rank: Rank) -> None:
    """MOEWIRE_DEBUG=1: released rows become NaN."""
    os.environ["MOEWIRE_DEBUG"] = "1"
    with rank.buffer() as buffer:
        received = verify.dispatch(buffer, case_for(rank), rank.rank)
        recv_x, counts = received.recv_x, received.recv_count.tolist()
        verify.combine(buffer, received)
        received.handle.release()
        rank.meet("released")
        verify.combine(buffer, verify.dispatch(buffer, case_for(rank, 1), rank.rank))
        for expert, count in enumerate(counts):
            assert torch.isnan(recv_x[expert, :count].float()).all(), expert


def copies(rank: Rank) -> None:
    """Ordinary tensors where asked for, and where autograd would save a view."""
    case = case_for(rank)
    x = verify.bf16(case.x[rank.rank])
    topk = torch.from_numpy(case.topk[rank.rank])
    with rank.buffer(name="views") as buffer:
        for needs_grad, how in ((False, {}), (True, {}), (True, {"return_recv_hook": True})):
            x.requires_grad_(needs_grad)
            result = buffer.dispatch(x, topk, None, 8, case.num_experts, -1, False, **how)
            received = verify.Received(case, rank.rank, result)
            received.finish()
            received.check()
            mapped = _lies_in_memfd(received.recv_x.data_ptr())
            assert mapped == (not needs_grad)
            verify.combine(buffer, received)
        with torch.no_grad():
            result = buffer.dispatch(x, topk, None, 8, case.num_experts, -1, False)
            assert _lies_in_memfd(result[0].data_ptr())
            result[2].release()
    with rank.buffer(name="copies", copy_outputs=True) as buffer:
        received = verify.dispatch(buffer, case, rank.rank)
        assert not _lies_in_memfd(received.recv_x.data_ptr())
        verify.combine(buffer, received)
        verify.combine(buffer, verify.dispatch(buffer, case_for(rank, 1), rank.rank))
        received.check()  # still there


def _lies_in_memfd(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                return "memfd:" in line
    return False


def handle_and_event(rank: Rank) -> None:
    """The small objects behave as upstream's."""
    case = case_for(rank)
    with rank.buffer() as buffer:
        received = verify.dispatch(buffer, case, rank.rank)
        handle = received.handle
        assert isinstance(handle, tuple) and len(handle) == 5
        assert copy.copy(handle) is handle and copy.deepcopy(handle) is handle
        expect(TypeError, lambda: pickle.dumps(handle))
        assert received.hook is None and received.event.event is None
        expect(AssertionError, received.event.current_stream_wait)
        with received.event:
            pass
        verify.combine(buffer, received)
        _, _, _, event, hook = buffer.dispatch(
            verify.bf16(case.x[rank.rank]),
            torch.from_numpy(case.topk[rank.rank]),
            None,
            8,
            case.num_experts,
            -1,
            False,
            True,
        )
        assert hook is None and event.event is not None
        with event:
            pass
        assert buffer.rank == rank.rank and buffer.group_size == rank.size
        assert buffer.group is None and buffer.backend is None and buffer.runtime is not None
        assert buffer._use_fallback is False
        buffer._use_fallback = True


def more_rounds(rank: Rank) -> None:
    """Every rank learns whether any rank has more."""
    case = case_for(rank)
    with rank.buffer() as buffer:
        for more in ({0}, {1}, {0, 1}, set()):
            received = verify.dispatch(buffer, case, rank.rank, more=rank.rank in more)
            assert received.handle.peers_have_more == bool(more)
            verify.combine(buffer, received)


def active_ranks(rank: Rank) -> None:
    """Longer than R is allowed; all ones change nothing and are not written."""
    case = case_for(rank)
    mask = torch.ones(rank.size + 3, dtype=torch.int32)
    mask[rank.size :] = 7
    x, topk = verify.bf16(case.x[rank.rank]), torch.from_numpy(case.topk[rank.rank])
    with rank.buffer() as buffer:
        result = buffer.dispatch(x, topk, mask, 8, case.num_experts, -1, False)
        received = verify.Received(case, rank.rank, result)
        received.check()
        weights = torch.from_numpy(case.weights[rank.rank])
        out, _, _ = buffer.combine(received.new_outputs(), topk, weights, mask, -1, received.handle)
        want = case.combined(rank.rank, case.topk[rank.rank], case.weights[rank.rank])
        verify.same(verify.bits(out), want, "combine with a mask")
        assert mask.tolist() == [1] * rank.size + [7] * 3


def counters(rank: Rank) -> None:
    """The counters agree with the routing."""
    case = case_for(rank)
    with rank.buffer() as buffer:
        for _ in range(3):
            verify.combine(buffer, verify.dispatch(buffer, case, rank.rank))
        found = buffer.counters()
    rows = case.topk[rank.rank].size  # distinct experts, none left out
    assert found["num_dispatches"] == found["num_combines"] == 3
    assert found["num_rows_sent"] == 3 * rows == sum(found["num_rows_sent_to"])
    assert found["num_rows_reduced"] == 3 * rows
    assert len(found["num_rows_sent_to"]) == len(found["wait_ns_for"]) == rank.size
    owners = case.topk[rank.rank].reshape(-1) // case.num_local
    for peer in range(rank.size):
        assert found["num_rows_sent_to"][peer] == 3 * int((owners == peer).sum())
