"""The tests' way to talk to an engine's process: lines at once, in parts, or never."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from engine_server import EngineServer


@pytest.fixture
def server_and_pipe() -> tuple[EngineServer, int]:
    """A server without a process, and where its process would write."""
    theirs, ours = os.pipe()
    server = EngineServer.__new__(EngineServer)
    server._read = b""
    server._process = SimpleNamespace(  # type: ignore[assignment]
        stdin=None,
        stdout=os.fdopen(theirs, "rb", buffering=0),
        kill=lambda: None,
        wait=lambda: None,
    )
    return server, ours


def test_answers_that_arrive_at_once(server_and_pipe: tuple[EngineServer, int]) -> None:
    server, pipe = server_and_pipe
    os.write(pipe, b'chatter\nanswer: {"results": [1]}\nmore\nanswer: {}\nanswer: {"re')
    assert server._answer(1) == {"results": [1]}
    assert server._answer(1) == {}
    os.write(pipe, b'sults": [2]}\n')
    assert server._answer(1) == {"results": [2]}
    os.close(pipe)
    server.close()
    server.close()


@pytest.mark.parametrize("ends", [True, False])
def test_no_answer(server_and_pipe: tuple[EngineServer, int], ends: bool) -> None:
    server, pipe = server_and_pipe
    os.write(pipe, b"chatter\nansw")
    if ends:
        os.close(pipe)
    with pytest.raises(AssertionError, match="ended, or took over"):
        server._answer(0.05)
    server.close()
    if not ends:
        os.close(pipe)
