"""DeepEP's interface: payloads bit by bit, the mask, what clients pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness import jobs_deep_ep
from harness import jobs_deep_ep_clients as clients
from harness import jobs_deep_ep_keywords as keywords
from harness.team import Team


@pytest.mark.parametrize(
    ("size", "hidden", "experts"), [(4, 512, 48), (2, 2048, 16), (3, 1536, 48)]
)
@pytest.mark.parametrize("noisy", [False, True], ids=["traceable", "noisy"])
def test_grid(team: Team, size: int, hidden: int, experts: int, noisy: bool) -> None:
    calls = team.run(size, jobs_deep_ep.grid, hidden, experts, noisy, timeout=150)
    assert calls == [10] * size


def test_repetitions_give_the_same_bytes(team: Team) -> None:
    for totals in team.run(4, jobs_deep_ep.same_bytes, 512, 16):
        assert len(totals) == 20 and len(set(totals)) == 1


@pytest.mark.parametrize("name", keywords.CONSTRUCT)
def test_constructor(team: Team, name: str) -> None:
    team.run(2, keywords.construct, name)


@pytest.mark.parametrize("name", keywords.DISPATCH)
def test_dispatch_arguments(team: Team, name: str) -> None:
    team.run(2, keywords.dispatch_keywords, name)


@pytest.mark.parametrize("name", keywords.COMBINE)
def test_combine_arguments(team: Team, name: str) -> None:
    team.run(2, keywords.combine_keywords, name)


def test_mask_has_one_for_masked(team: Team) -> None:
    nobody, last = [0, 0, 0], [0, 0, 1]
    for seen in team.run(3, clients.mask)[:2]:
        assert seen == [nobody, last, last, nobody, nobody]


def test_mask_needs_enable_shrink(team: Team) -> None:
    team.run(2, clients.no_mask)


@pytest.mark.parametrize("how", ["call", "hook", "event"])
def test_wait_statistics_name_the_late_rank(team: Team, how: str) -> None:
    late, *others = team.run(3, clients.wait_statistics, how)
    for operation in (0, 1):
        for waited in others:
            assert 100e6 < waited[operation][0] < 5e9, waited
        assert max(late[operation]) < 100e6, late


@pytest.mark.parametrize(
    "job", [clients.counts_without_hook, clients.small_print], ids=lambda job: job.__name__
)
def test_two_ranks(team: Team, job: object) -> None:
    team.run(2, job)


def test_clean_waits_for_every_rank(team: Team) -> None:
    assert team.run(2, clients.clean)[1] > 0.2


@pytest.mark.parametrize("shape", [(128, 7168, 8, 288), (1, 8, 1, 1), (33, 640, 3, 9)])
def test_size_hint(shape: tuple[int, int, int, int]) -> None:
    from moewire.deep_ep import Buffer

    tokens, hidden, ranks, experts = shape
    size = Buffer.get_low_latency_rdma_size_hint(*shape)
    rows = experts // ranks * ranks * tokens
    assert size % 128 == 0 and size >= 2 * rows * 2 * hidden * 2  # slots, rows in and out


@pytest.mark.parametrize("size", [2, 3], ids="R={}".format)
def test_called_like_vllm(team: Team, size: int) -> None:
    team.run(size, clients.like_vllm)


@pytest.mark.parametrize("size", [2, 4], ids="R={}".format)
def test_called_like_sglang(team: Team, size: int) -> None:
    team.run(size, clients.like_sglang)


def test_a_wait_calls_its_hook_once_and_may_drop_the_event() -> None:
    from moewire import InvalidArgument
    from moewire.deep_ep.utils import EventHandle, EventOverlap

    calls: list[int] = []
    event = EventOverlap(EventHandle())
    event.register_hook_after_wait(lambda: calls.append(1))
    with pytest.raises(InvalidArgument, match="one at a time"):
        event.register_hook_after_wait(lambda: calls.append(2))
    event.current_stream_wait()
    event.current_stream_wait()
    assert calls == [1] and event.event is not None
    with event:
        pass
    assert event.event is not None
    with event(release_handle=True) as inside:
        assert inside is event and event.event is not None
    assert event.event is None
    with event, pytest.raises(AssertionError):
        event.current_stream_wait()


@pytest.mark.parametrize("enabled", [False, True], ids=["no mask", "mask"])
def test_a_lost_rank_is_an_error_where_no_mask_can_tell(enabled: bool) -> None:
    """The core clears an entry while the hook runs."""
    from moewire import PeerLostError
    from moewire.deep_ep import EventOverlap, _events, _mask
    from moewire.event import Hook

    class Loses:
        def finish(self) -> None:
            mask.active_ranks[1] = 0

    mask = _mask.Mask(3, enabled)
    buffer: Any = SimpleNamespace(runtime=SimpleNamespace(drives=True))  # as on the CPU
    watch = _events.Watch(buffer, mask, "stats", None)
    with watch:
        pass
    hook = watch.around(EventOverlap(), Hook(Loses()))[1]
    assert hook is not None
    if enabled:
        return hook()
    with pytest.raises(PeerLostError, match=r"rank \[1\]"):
        hook()
    return None
