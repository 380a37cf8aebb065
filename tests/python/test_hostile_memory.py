"""`moewire top` and `moewire trace` beside processes that are broken or hostile.

With any content and behaviour of their memory files, the commands end in time, show all other
ranks, and say in one line what is wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from conftest import SEED
from harness.telemetry_page import BEGIN, HEAD_BYTES, RING, memory, page, put
from moewire import InvalidArgument, top, trace
from moewire import _abi as abi
from moewire._observe import area as _area
from moewire._observe import input_file, live

GROUP = 0x7E57_0000_0000  # of no inode
TIMEOUT_SECONDS = 30


def moewire(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moewire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


def seen_by_top(group: int) -> tuple[dict[str, Any], str]:
    """The group as `moewire top` shows it, and what it says beside that."""
    done = moewire("top", "--once", "--json", "--interval", "0.05")
    assert done.returncode == 0, (done.returncode, done.stderr)
    (found,) = (one for one in json.loads(done.stdout) if one["group"] == group)
    return found, done.stderr


@pytest.fixture
def group(tmp_path: Path) -> Iterator[int]:
    """A group with one rank, 0, that is as it should be."""
    number = GROUP + os.getpid()
    with memory(0, page(0, 3, number)):
        yield number


TOO_MANY = f"num_ranks is 4294967295, at most {abi.MW_MAX_RANKS}"
# Word, value, and what is said of it.
WILD = [
    pytest.param(2, 1 | 0xFFFFFFFF << 32, TOO_MANY, id="ranks"),
    pytest.param(2, 1, "num_ranks is 0, at least 1", id="no ranks"),
    pytest.param(2, 3 | 3 << 32, "rank is 3, at most 2", id="rank"),
    pytest.param(5, 1 << 63, f"num_experts is {1 << 63}, at most 8192", id="experts"),
    pytest.param(6, 1 | 1024 << 32, "record_bytes is 1, at least 128", id="record"),
    pytest.param(6, 128 | 1 << 63, f"capacity is {1 << 31}, at most 1024", id="capacity"),
    pytest.param(7, RING | 0xFFFFFFF8 << 32, "experts_offset is", id="experts' place"),
    pytest.param(7, 0xFFFFFFFF | 8192 << 32, "ring_offset is", id="ring's place"),
    pytest.param(8, 0xFFFFFFF8, f"area_offset is 4294967288, at most {BEGIN}", id="control"),
    pytest.param(8, 3 * 4096 | 1 << 63, "waits_for_offset is", id="waits_for's place"),
    pytest.param(9, 0xFFFFFFFF | 48 << 32, "beat_offset is", id="beat's place"),
    pytest.param(9, 4224 | 1 << 40, "num_buckets is 256, at most 48", id="buckets"),
    pytest.param(19, 0xFFFFFFFF | 128 << 32, "links_offset is", id="links' place"),
    pytest.param(19, 204800 | 1 << 63, "link_bytes is", id="links' size"),
]


@pytest.mark.parametrize(("word", "value", "says"), WILD)
def test_a_wild_word_costs_its_row(
    word: int, value: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_processes", lambda: [os.getpid()])
    with memory(0, page(0, 3, GROUP)), memory(1, put(page(1, 3, GROUP), word, value)):
        found = live.find()
    (group,) = found.groups
    assert [rank.rank for rank in group.ranks] == [0]
    (refused,) = found.refused
    assert str(refused).startswith(f"rank 1 of process {os.getpid()}: damaged: word {says}")
    assert "allowed" in refused.why


def test_top_beside_damaged_memory(group: int) -> None:
    """As the commands show it: exit status, the healthy rank, one line for the other."""
    with memory(1, put(page(1, 3, group), 2, 1 | 0xFFFFFFFF << 32)):
        found, said = seen_by_top(group)
        text = moewire("top", "--once", "--interval", "0.05").stdout
    assert [rank["rank"] for rank in found["ranks"]] == [0]
    line = f"rank 1 of process {os.getpid()}: damaged: word {TOO_MANY}"
    assert f"not shown: {line}" in said
    assert f"not shown:\n  {line}" in text or f"\n  {line}" in text.partition("not shown:")[2]


@pytest.mark.parametrize(
    ("head", "size"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"x" * 100, None, id="short"),
        pytest.param(b"", 1 << 45, id="huge and empty"),
        pytest.param(bytes(page())[: BEGIN + 64], None, id="ends in the header"),
        pytest.param(bytes(page())[: BEGIN + 9000], None, id="ends in the experts"),
        pytest.param(bytes(page()), 1 << 45, id="huge"),
    ],
)
def test_files_of_any_size(group: int, head: bytes, size: int | None) -> None:
    begin = time.monotonic()
    with memory(2, head, size):
        found, said = seen_by_top(group)
    assert time.monotonic() - begin < TIMEOUT_SECONDS / 2
    assert [rank["rank"] for rank in found["ranks"]] == [0]
    assert size == 1 << 45 or "not shown: rank 2 of process" in said


def test_a_file_that_shrinks_under_the_reader(group: int) -> None:
    """The file has no seals. A cut while it is read ends no reader."""
    stop = threading.Event()
    head = page(1, 3, group)

    def shrink(file: int) -> None:
        while not stop.is_set():
            os.ftruncate(file, 4096)
            os.pwrite(file, head, 0)

    with memory(1, head) as file:
        thread = threading.Thread(target=shrink, args=(file,))
        thread.start()
        try:
            for _ in range(3):
                found, _ = seen_by_top(group)
                assert found["ranks"][0]["rank"] == 0
            _read_often(0.5)
        finally:
            stop.set()
            thread.join()


def test_a_file_that_is_cut_off_after_it_was_read() -> None:
    """Nothing is mapped: what was read stays, and no process ends by SIGBUS."""
    _run(
        "import os\nfrom harness.telemetry_page import memory, page\n"
        "from moewire import top\n"
        "from moewire._observe import live\n"
        "live._processes = lambda: [os.getpid()]\n"
        f"with memory(0, page(0, 1, {GROUP})) as file:\n"
        "    found, samples = top.look()\n"
        "    os.ftruncate(file, 0)\n"
        "    (group,) = getattr(found, 'groups', found)\n"
        "    assert top.Sample.of(group.ranks[0]).totals\n"
        "    maps = open('/proc/self/maps').read()\n"
        "assert 'moewire-rank' not in maps, maps\n"
    )


def _read_often(seconds: float) -> None:
    """Many looks in one process that may end by a signal."""
    _run(
        f"import time\nfrom moewire import top\nend = time.monotonic() + {seconds}\n"
        "while time.monotonic() < end: top.look()\n"
    )


def _run(program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_process_with_any_name(group: int) -> None:
    """Its name need not be text; /proc shows it as it is."""
    name = ctypes.create_string_buffer(b"\xff) R \xfe")
    program = "import ctypes, os, sys, time; from harness.telemetry_page import memory, page\n"
    program += f"with memory(1, page(1, 3, {group})):\n"
    program += f"    ctypes.CDLL(None).prctl(15, {name.value!r}, 0, 0, 0)\n"
    program += "    print(flush=True); sys.stdin.read()\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        found, _ = seen_by_top(group)
        child.stdin.close()
    assert [rank["pid"] for rank in found["ranks"]] == [os.getpid(), child.pid]
    assert "dead" not in [rank["state"] for rank in found["ranks"]]


# ------------------------------------------------------ files of other kinds --


def _pipe(folder: Path) -> int:
    os.mkfifo(folder / "pipe")
    return os.open(folder / "pipe", os.O_PATH)


def _device(folder: Path) -> int:
    return os.open("/dev/zero", os.O_RDONLY)


def _regular(folder: Path) -> int:
    (folder / "file").write_bytes(page(0, 1, GROUP))
    return os.open(folder / "file", os.O_RDONLY)


@pytest.mark.parametrize("make", [_pipe, _device, _regular])
def test_what_is_no_memory_file(
    make: Callable[[Path], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a mount namespace of its own, any file can have the name of a memory file."""
    file = make(tmp_path)
    link = (f"/proc/self/fd/{file}", "/memfd:moewire-rank-5 (deleted)")
    monkeypatch.setattr(live, "_processes", lambda: [os.getpid()])
    monkeypatch.setattr(live, "_links", lambda pid: iter([link]))
    begin = time.monotonic()
    found = live.find()
    os.close(file)
    assert time.monotonic() - begin < 5
    assert found.groups == []
    (refused,) = found.refused
    assert refused.why.startswith("not readable: no "), refused


def test_memory_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_processes", lambda: [os.getpid()])
    other = os.geteuid() + 4321
    with memory(0, page(0, 1, GROUP)) as file:
        if os.geteuid() == 0:
            os.fchown(file, other, -1)
            owner = other
        else:  # as the other user would see it
            owner = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: other)
            monkeypatch.setattr(input_file, "_is_mapped", lambda uid, text: True)
        found = live.find()
    assert found.groups == []
    (refused,) = found.refused
    assert refused.why == f"not readable: owned by uid {owner}"


def test_a_user_without_a_number() -> None:
    """All users that a namespace does not know have one number there: it tells nothing."""
    assert input_file._is_mapped(1000, "         0          0 4294967295\n")
    assert input_file._is_mapped(0, "0 100000 65536")
    assert not input_file._is_mapped(65534, "0 1000 1")
    assert input_file._is_mapped(65534, "0 100000 65536")


# ---------------------------------------------------------------- any words --

words = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0, 1, 48, 49, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]),
)
places = st.one_of(st.integers(0, 31), st.integers(0, 52 * 512 - 1), st.integers(9216, 9232))


@pytest.mark.fuzz
@seed(SEED)
@settings(
    max_examples=int(os.environ.get("MOEWIRE_FUZZ_EXAMPLES", "150")), deadline=None, database=None
)
@given(st.lists(st.tuples(places, words), max_size=6), st.lists(st.tuples(places, words)))
def test_any_words(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    """A page with any words is shown, now and after a change, and traced; or it is damaged."""
    try:
        samples = [_sample(one), _sample([*one, *two])]
    except _area.Damaged as error:
        assert str(error)
        return
    before, now = samples
    group = live.Group(7, 1, [0, 1, 2], [now.rank])
    shown = top.describe_group(group, {1: now}, {1: before})
    assert len(shown["ranks"][0]["last_count"]) == now.rank.area.num_ranks <= abi.MW_MAX_RANKS
    json.dumps(shown, allow_nan=False)
    assert top.show([shown])
    json.dumps(trace._trace_of([now.rank]), allow_nan=False)


def _sample(changes: list[tuple[int, int]]) -> top.Sample:
    head = page()
    for word, value in changes:
        put(head, word, value)
    data = bytes(head)
    begin = _area.find_area(data)
    if begin is None:
        raise _area.Damaged("no magic")
    return top.Sample.of(live.Rank(1, _area.parse(data, begin, data), 1, "S"))


def test_records_that_make_no_sense_are_left_out() -> None:
    head = page()
    put(head, RING // 8 + 1, 9)  # of no kind
    area = _area.parse(bytes(head), BEGIN, bytes(head))
    assert (area.records, area.num_damaged_records) == ([], 1)
    good = bytes(page())
    assert len(_area.parse(good, BEGIN, good).records) == 1
    overwritten = bytearray(good)
    overwritten[BEGIN + RING] ^= 1
    assert _area.parse(good, BEGIN, bytes(overwritten)).records == []
    assert len(good) == HEAD_BYTES


# -------------------------------------------------------------- trace files --


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _deep(path: Path) -> None:
    path.write_text("[" * 200_000)


def _out_of_reach(path: Path) -> None:
    clock = {"id": "a", "wall_clock_ns": 10**400, "ranks": [], "ahead_ns": {}}
    path.write_text(json.dumps({"traceEvents": [], "otherData": {"moewire_clock": clock}}))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_fifo, "a pipe into which nothing was written for 0.1 s"),
        (_device_link, "neither a regular file nor a pipe"),
        (_huge, "at most 1073741824 allowed"),
        (_deep, "recursion"),
        (_out_of_reach, "more than 2\\^63 ns away"),
        (Path.mkdir, "neither a regular file nor a pipe"),
    ],
)
def test_merge_refuses_what_is_no_trace(
    make: Callable[[Path], None], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_file, "PIPE_TIMEOUT_S", 0.1)
    path = tmp_path / "t.json"
    make(path)
    with pytest.raises(InvalidArgument, match=f"t.json: .*{says}.*; allowed: a trace of moewire"):
        trace.merge([str(path)])


def _written(path: Path) -> str:
    """A trace file larger than what a pipe holds."""
    args = {"operation": "dispatch"}
    event = {"ph": "X", "name": "a", "pid": 0, "tid": 0, "dur": 1.0, "args": args}
    path.write_text(json.dumps(trace.document([{**event, "ts": float(i)} for i in range(5000)])))
    assert path.stat().st_size > 1 << 18
    return str(path)


@pytest.mark.parametrize(
    "shell",
    [
        "{merge} <(cat {file}) {file}",
        "{merge} <(head -c 9 {file}; sleep 0.3; tail -c +10 {file}) {file}",
        "mkfifo {file}.pipe; (sleep 0.3; cat {file} > {file}.pipe) & {merge} {file}.pipe {file}",
        "cat {file} | {merge} /dev/stdin {file}",
        "ln -s {file} {file}.link; {merge} {file}.link {file}",
    ],
    ids=["process", "in-parts", "fifo", "stdin", "link"],
)
def test_merge_reads_what_can_be_read_once(shell: str, tmp_path: Path) -> None:
    file, out = _written(tmp_path / "t.json"), tmp_path / "out.json"
    merge = f"{sys.executable} -m moewire trace merge -o {out}"
    words = ["bash", "-c", shell.format(merge=merge, file=file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    slices = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == 5000  # both inputs have the same ones


def test_no_more_of_a_pipe_is_read_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "MAX_FILE_BYTES", 1 << 20)
    endless = subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE)
    assert endless.stdout is not None
    with endless, endless.stdout:
        with pytest.raises(InvalidArgument, match="more than 1048576 bytes, which are allowed"):
            trace.merge([f"/dev/fd/{endless.stdout.fileno()}"])
        endless.kill()


def test_many_overlapping_slices_are_quick() -> None:
    count = 30_000
    events = [
        {"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": float(i), "dur": 1e9, "args": {}}
        for i in range(count)
    ]
    begin = time.monotonic()
    found = trace.document(events)
    assert time.monotonic() - begin < 10
    assert [e["tid"] for e in found["traceEvents"] if e["ph"] == "X"] == list(range(count))
