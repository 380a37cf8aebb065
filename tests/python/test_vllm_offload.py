"""What vLLM's tier does with a store: requests, lookups, loads and stores. Without vLLM."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from harness.fake_store import Completion, Hand
from harness.offload_world import ROW, TIMEOUT, World
from moewire.integrations.vllm.offload._requests import MAX_KEYS, Answer, Kind, Request
from moewire.integrations.vllm.offload._touches import Touches


@pytest.fixture
def world() -> World:
    return World()


def keys(n: int, first: int = 0) -> list[bytes]:
    return [b"key %d" % number for number in range(first, first + n)]


def asked(world: World) -> list[str]:
    return [one.kind for one in world.client.all]


def ask(world: World, kind: Kind) -> list[Answer]:
    answers: list[Answer] = []
    rows = [] if kind is Kind.EXISTS else [memoryview(bytearray(ROW))]
    world.requests.ask(Request(kind, [b"k"], answers.append, rows))
    return answers


def test_what_a_request_waits_for_goes_first(world: World) -> None:
    for kind in (Kind.PUT, Kind.GET, Kind.EXISTS):
        ask(world, kind)
    assert asked(world) == []  # asking sends nothing
    world.requests.poll()
    assert asked(world) == ["exists", "get", "put"]


def test_a_client_without_room_is_asked_again(world: World) -> None:
    world.client.room = 1
    answers = [ask(world, Kind.GET), ask(world, Kind.GET)]
    world.requests.poll()
    assert asked(world) == ["get"] and world.counts.would_block == 1
    world.client.answer()
    world.requests.poll()
    assert asked(world) == ["get", "get"] and [len(one) for one in answers] == [1, 0]


@pytest.mark.parametrize(("kind", "deadlines"), [(Kind.EXISTS, 4), (Kind.GET, 4), (Kind.PUT, 40)])
def test_a_request_that_is_not_taken_is_given_up(world: World, kind: Kind, deadlines: int) -> None:
    world.client.room = 0
    answers = ask(world, kind)
    world.now += deadlines * TIMEOUT
    world.requests.poll()
    assert answers == []
    world.now += 0.001
    world.requests.poll()
    (answer,) = answers
    assert answer.ok == [False] and "took no request" in str(answer.error)
    assert world.requests.idle()


def test_what_a_client_raises_ends_that_request_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> int:
        raise PermissionError("the key is wrong")

    monkeypatch.setattr(world.client, "submit_get", refused)
    bad, good = ask(world, Kind.GET), ask(world, Kind.EXISTS)
    world.settle()
    assert "the key is wrong" in str(bad[0].error) and good[0].error is None


@pytest.mark.parametrize(
    "wrong",
    [Completion(0, [], [], None), Completion(0, [True, True], [ROW] * 2, None),
     Completion(0, [True], [], None)],
)  # fmt: skip
def test_an_answer_of_another_length_is_a_failure(world: World, wrong: Completion) -> None:
    answers = ask(world, Kind.GET)
    world.requests.poll()
    world.client.asked.clear()
    world.client.end(wrong)
    world.client.end(wrong._replace(id=77))  # and of another request nothing
    world.requests.poll()
    assert answers[0].ok == [False] and "answers for 1 keys" in str(answers[0].error)


def test_a_client_that_never_ends_a_request_is_closed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """So that it leaves the memory alone: then the load can be given up."""
    answers = ask(world, Kind.GET)
    world.requests.poll()
    for _ in range(3):  # other kinds go on meanwhile
        world.now += 19.0
        ask(world, Kind.EXISTS)
        world.requests.poll()
        world.client.asked.rotate(1)
        world.client.answer()
        world.requests.poll()
    assert answers == [] and world.requests.open
    world.now += 4.0
    world.requests.poll()
    assert world.client.closed and not world.requests.open and answers[0].error
    assert "it is closed" in caplog.text
    after = ask(world, Kind.PUT)
    world.requests.poll()
    assert after[0].ok == [False] and world.requests.idle()


def test_a_client_that_ends_requests_may_take_its_time(world: World) -> None:
    for _ in range(3):
        ask(world, Kind.GET)
    world.requests.poll()
    for _ in range(2):
        world.now += 50.0
        world.client.answer()
        world.requests.poll()
    assert world.requests.open
    world.now += 61.0
    world.requests.poll()
    assert not world.requests.open


def test_draining_waits_for_answers_and_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.requests, "_clock", time.monotonic)
    ask(world, Kind.GET)
    world.requests.drain(0.05)
    assert not world.requests.idle()
    threading.Timer(0.05, world.client.answer).start()
    world.requests.drain(30)
    assert world.requests.idle()
    world.client.room = 0  # the client takes nothing
    ask(world, Kind.PUT)
    world.requests.drain(0.05)
    assert not world.requests.idle()


def test_a_failure_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for error in ("down", "down", None, "down"):
        ask(world, Kind.EXISTS)
        world.settle(error)
    assert caplog.text.count("does not serve vLLM: down") == 2


def test_lookups_of_one_step_are_one_request_in_their_order(world: World) -> None:
    world.client.blocks |= dict.fromkeys(keys(2), b"")
    for key in keys(3):
        assert world.lookups.of(key, "a") is None
    world.requests.poll()
    assert asked(world) == []
    world.lookups.flush()
    world.lookups.flush()  # nothing new
    world.settle()
    assert [one.keys for one in world.client.all] == [keys(3)]
    assert [world.lookups.of(key, "b") for key in keys(3)] == [True, True, False]
    assert (world.counts.lookup_blocks, world.counts.lookup_hits) == (3, 2)


def test_more_lookups_than_a_request_may_have(world: World) -> None:
    for key in keys(MAX_KEYS + 1):
        world.lookups.of(key, "a")
    world.lookups.flush()
    world.requests.poll()
    assert [one.keys for one in world.client.all] == [keys(MAX_KEYS), keys(1, MAX_KEYS)]


def test_a_lookup_without_an_answer_is_a_miss_in_the_end(world: World) -> None:
    world.lookups.of(b"k", "a")
    world.lookups.flush()
    world.requests.poll()
    world.now += 8 * TIMEOUT
    assert world.lookups.of(b"k", "a") is None
    world.now += 0.001
    assert world.lookups.of(b"k", "a") is False and world.counts.lookup_failures == 1
    world.client.blocks[b"k"] = b""
    world.settle()  # too late
    assert world.lookups.of(b"k", "a") is False and world.counts.lookup_hits == 0


def test_a_failed_lookup_is_a_miss(world: World) -> None:
    world.client.blocks[b"k"] = b""
    world.lookups.of(b"k", "a")
    world.lookups.flush()
    world.settle("down")
    assert world.lookups.of(b"k", "a") is False and world.counts.lookup_failures == 1


def test_a_block_that_could_not_be_loaded_stays_missing(world: World) -> None:
    """While its request runs; another request asks again."""
    world.client.blocks[b"k"] = b""
    world.lookups.of(b"k", "a")
    world.lookups.flush()
    world.settle()
    assert world.lookups.of(b"k", "a") is True
    world.lookups.mark_miss([b"k", b"other"])
    assert world.lookups.of(b"k", "a") is False
    world.lookups.forget("a")
    assert world.lookups.of(b"k", "b") is None


def test_a_request_that_ends_takes_its_lookups_along(world: World) -> None:
    world.lookups.of(b"k", "a")
    world.lookups.forget("a")
    world.lookups.flush()
    assert world.requests.idle()  # no request asks any more
    world.lookups.of(b"k", "b")
    world.lookups.of(b"k", "c")
    world.lookups.flush()
    world.requests.poll()
    world.lookups.forget("b")
    assert world.lookups.of(b"k", "c") is None
    world.lookups.forget("c")
    world.lookups.of(b"k", "d")  # while the answer to b and c is under way
    world.client.blocks[b"k"] = b""
    world.settle()
    assert world.lookups.of(b"k", "d") is None
    world.lookups.forget("d")
    assert not world.lookups._lookups and not world.lookups._keys_of


def test_what_was_stored_is_loaded(world: World) -> None:
    values = [world.fill(chunk, 10 + chunk) for chunk in range(3)]
    world.transfers.store(1, keys(3), [0, 1, 2])
    assert world.transfers.backlog == 3 * ROW and world.transfers.ended() == []
    world.settle()
    (ended,) = world.transfers.ended()
    assert (ended.job, ended.is_load, ended.ok, ended.num_bytes) == (1, False, keys(3), 3 * ROW)
    assert world.transfers.backlog == 0 and world.transfers.ended() == []
    world.transfers.load(2, keys(3)[::-1], [7, 8, 9])
    world.settle()
    (ended,) = world.transfers.ended()
    assert (ended.job, ended.is_load, ended.ok) == (2, True, keys(3)[::-1])
    assert [world.row(chunk) for chunk in (7, 8, 9)] == values[::-1]
    assert (world.counts.store_blocks, world.counts.load_blocks) == (3, 3)


def test_blocks_that_the_store_has_are_not_sent(world: World) -> None:
    world.client.blocks[keys(3)[1]] = b"x" * ROW
    world.transfers.store(1, keys(3), [0, 1, 2])
    world.settle()
    put = [one for one in world.client.all if one.kind == "put"]
    assert [one.keys for one in put] == [[keys(3)[0], keys(3)[2]]]
    (ended,) = world.transfers.ended()
    assert ended.ok == keys(3) and ended.num_bytes == 2 * ROW
    assert (world.counts.store_present, world.counts.store_blocks) == (1, 2)


def test_a_load_keeps_what_came(world: World) -> None:
    """A block that is gone, and one of another length, are misses; the others count."""
    world.client.blocks |= {b"key 0": b"a" * ROW, b"key 1": b"b" * (ROW - 1), b"key 3": b"d" * ROW}
    world.transfers.load(1, keys(4), [0, 1, 2, 3])
    world.settle()
    (ended,) = world.transfers.ended()
    assert ended.ok == [b"key 0", b"key 3"] and ended.gone == [b"key 1", b"key 2"]
    assert (world.counts.load_blocks, world.counts.load_misses) == (2, 2)


def test_a_load_that_fails_does_not_say_that_blocks_are_gone(world: World) -> None:
    world.client.blocks[b"key 0"] = b"a" * ROW
    world.transfers.load(1, keys(1), [0])
    world.settle("down")
    (ended,) = world.transfers.ended()
    assert (ended.ok, ended.gone, world.counts.load_failures) == ([], [], 1)


def test_stores_are_shed_when_much_is_under_way() -> None:
    """The first blocks of a chain are kept: the last ones are of no use without them."""
    world = World(backlog=3 * ROW + 1)
    world.transfers.store(1, keys(2), [0, 1])
    world.transfers.store(2, keys(3, 10), [2, 3, 4])
    world.transfers.store(3, keys(1, 20), [5])
    assert world.transfers.backlog == 3 * ROW and world.counts.store_shed_blocks == 3
    world.settle()
    ended = {one.job: one.ok for one in world.transfers.ended()}
    assert ended == {1: keys(2), 2: keys(1, 10), 3: []}
    assert world.transfers.backlog == 0
    world.transfers.store(4, keys(1, 20), [5])
    world.settle()
    assert world.transfers.ended()[0].ok == keys(1, 20)


@pytest.mark.parametrize("kind", ["exists", "put"])
def test_a_store_that_fails_gives_its_room_back(world: World, kind: str) -> None:
    world.transfers.store(1, keys(2), [0, 1])
    world.requests.poll()
    if kind == "put":
        world.client.answer()
        world.requests.poll()
    assert [one.kind for one in world.client.asked] == [kind]
    world.settle("down")
    assert world.transfers.ended()[0].ok == [] and world.transfers.backlog == 0
    assert world.counts.store_failures == 2


def test_requests_are_of_bounded_size() -> None:
    row = 6 << 20
    world = World(num_rows=5, backlog=1 << 30, row=row)
    for chunk in range(5):
        world.memory[chunk * row] = chunk
    world.transfers.load(1, keys(5), [4, 3, 2, 1, 0])
    world.requests.poll()
    asked = world.client.all
    assert [one.keys for one in asked] == [keys(2), keys(2, 2), keys(1, 4)]
    assert [[rows[0] for rows in one.buffers] for one in asked] == [[4, 3], [2, 1], [0]]


@pytest.mark.parametrize("seed", range(20))
def test_every_job_ends_once_and_never_with_wrong_bytes(seed: int) -> None:
    rng = random.Random(seed)
    world = World(backlog=10 * ROW)
    running: dict[int, tuple[list[bytes], list[int]]] = {}
    free = list(range(64))

    def check() -> None:
        for ended in world.transfers.ended():
            wanted, chunks = running.pop(ended.job)
            free.extend(chunks)
            assert ended.keys == wanted and set(ended.ok) <= set(wanted)
            for key, chunk in zip(wanted, chunks, strict=True):
                if ended.is_load and key in ended.ok:
                    assert world.row(chunk) == key[-1:] * ROW

    for number in range(200):
        n = rng.randint(1, 5)
        if len(free) >= n:
            wanted = rng.sample([b"key %c" % c for c in range(65, 85)], n)
            chunks = [free.pop() for _ in wanted]
            running[number] = (wanted, chunks)
            if rng.random() < 0.5:
                for key, chunk in zip(wanted, chunks, strict=True):
                    world.fill(chunk, key[-1])
                world.transfers.store(number, wanted, chunks)
            else:
                world.transfers.load(number, wanted, chunks)
        if rng.random() < 0.3 and world.client.blocks:
            world.client.blocks.pop(rng.choice(list(world.client.blocks)))  # evicted
        world.client.room = rng.randint(0, 4)
        world.now += rng.random() / 4
        world.requests.poll()
        for _ in range(min(len(world.client.asked), rng.randint(0, 3))):
            world.client.asked.rotate(rng.randint(0, 3))
            world.client.answer(rng.choice([None, None, None, "down"]))
        check()
    world.client.room = 1 << 30
    world.settle()
    check()
    assert not running and world.transfers.backlog == 0 and world.requests.idle()
    assert world.counts.load_blocks and world.counts.store_blocks, f"seed {seed}"


class Slow(Hand):
    """Its touch waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def touch(self, keys: Any) -> None:
        super().touch(keys)
        self.begun.set()
        self.go.wait(10)
        raise OSError("down")  # a hint: of no account


def test_touches_wait_for_no_store_and_are_bounded() -> None:
    client = Slow()
    touches = Touches(client)
    touches.add(keys(1))
    assert client.begun.wait(10)
    touches.add(keys(20 * MAX_KEYS))  # while the call is under way
    touches.add(keys(1))
    assert len(touches._keys) == 8 * MAX_KEYS
    client.go.set()
    for _ in range(1000):
        if len(client.touched) == 9:
            break
        threading.Event().wait(0.01)
    touches.close()
    assert [len(one) for one in client.touched] == [1, *[MAX_KEYS] * 8]
    touches.add(keys(1))
    assert touches._keys == {}
    touches.close()
