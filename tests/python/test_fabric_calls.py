"""The structs that calls of transfers share: their layout, and that each is one call's."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

import moewire.errors as errors
from harness.fabric_pair import KEY
from moewire import _abi as abi
from moewire.fabric import Fabric, Remote, Transfer
from moewire.fabric import _calls as calls

pytestmark = pytest.mark.multirank


def test_layouts() -> None:
    """What is packed in one step lies where the struct has its fields."""
    assert calls.ARGS.size == ctypes.sizeof(abi.mw_transfer_args_t)
    assert calls.RESULT.size == ctypes.sizeof(abi.mw_transfer_result_t)
    args = abi.mw_transfer_args_t()
    calls.ARGS.pack_into(args, 0, *range(1, 13))
    values = [getattr(args, name) for name, _ in args._fields_]
    assert [getattr(value, "id", value) for value in values] == list(range(1, 13))
    result = abi.mw_transfer_result_t(1, -2, 3, 4, 5)
    assert calls.RESULT.unpack_from(result) == (1, -2, 3, 4, 5)


class Recorder:
    """Stands for the library's functions, and does what a handler of a signal could."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.inside = fabric, threading.local()
        self.seen: list[tuple[int, int, int]] = []
        fabric._lib.transfer_post = self.post
        fabric._lib.transfer_wait = self.wait
        fabric._lib.transfer_close = lambda _: 0

    def post(self, _: object, args: abi.mw_transfer_args_t, transfer: abi.mw_transfer_t) -> int:
        mine = args.peer, args.offset, args.num_bytes
        self.again()
        assert mine == (args.peer, args.offset, args.num_bytes)
        self.seen.append(mine)
        transfer.id = args.offset
        return 0

    def wait(self, transfer: abi.mw_transfer_t, *rest: object) -> int:
        result = rest[-1]
        assert isinstance(result, abi.mw_transfer_result_t)
        result.status, result.num_bytes, result.imm = 0, transfer.id, 3
        self.again()
        assert (result.num_bytes, result.imm) == (transfer.id, 3)
        return 0

    def again(self) -> None:
        """Another call in the middle of one."""
        if not getattr(self.inside, "deep", False):
            self.inside.deep = True
            assert self.begin(7).wait().num_bytes == 7
            self.inside.deep = False

    def begin(self, offset: int, num_bytes: int = 1) -> Transfer:
        """A write that no byte moves for."""
        region, remote = self.region, Remote(1, 2, 3)
        return self.fabric.write(5, region, remote, offset=offset, num_bytes=num_bytes)

    region: Any = None


def test_each_is_one_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, and calls in the middle of others, never share a struct."""
    with Fabric(listen="127.0.0.1:0", keys=KEY) as fabric:
        for name in ("transfer_post", "transfer_wait", "transfer_close"):
            monkeypatch.setattr(fabric._lib, name, getattr(fabric._lib, name))
        recorder, failures = Recorder(fabric), []

        def many(first: int) -> None:
            try:
                for offset in range(first, first + 500):
                    assert recorder.begin(offset).wait().num_bytes == offset
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=many, args=(n * 1000,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        # Other whole numbers count as ints, and are refused by the same words.
        with recorder.begin(np.int64(64), np.uint8(9)):
            assert recorder.seen[-1] == (5, 64, 9)
        for offset, says in ((True, "bool"), (1 << 63, "offset: "), (-1, "offset: ")):
            with pytest.raises(errors.InvalidArgument, match=says):
                recorder.begin(offset)
        monkeypatch.undo()
