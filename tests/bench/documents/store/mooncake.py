"""A peer: Mooncake's store over TCP: its master, a process that has the memory, and a client.

It comes from the wheel ``mooncake-transfer-engine-non-cuda``, as in ``hosts.mooncake``. The
client is ``mooncake_process.py``, which times its own calls. Its memory is registered, and it has
four connections: with one, batches take up to four times as long.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from moewire.bench.peers import Unavailable
from moewire.errors import MoewireError

from ..hosts.mooncake import environment
from ..peers import venvs
from ..peers.mooncake import PACKAGE, VERSION
from .ports import free
from .work import Work, processor_seconds

_PROCESS = Path(__file__).with_name("mooncake_process.py")
_CONNECTIONS = 4
_ANSWER_S, _END_S = 120, 10


class Mooncake:
    """Three processes."""

    name = "mooncake"
    version = f"{PACKAGE} {VERSION}"

    def __init__(self) -> None:
        root = venvs.installed(PACKAGE, VERSION)
        self._environment = environment(root, _CONNECTIONS)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, closed with the peer
        master = f"127.0.0.1:{free()}"
        try:
            self._start_master(root, master)
            python = str(root / "bin" / "python")
            # -P: not the modules that lie beside the program.
            for role in ("memory", "client"):
                self._start([python, "-P", str(_PROCESS), role, master], subprocess.PIPE)
                self._answer()
        except (MoewireError, OSError) as error:
            self.close()
            raise Unavailable(f"it did not start: {error}") from error

    def _start_master(self, root: Path, address: str) -> None:
        program = next(root.glob("lib/python*/site-packages/mooncake/mooncake_master"), None)
        if program is None:
            raise MoewireError(f"{self.version} has no mooncake_master")
        host, _, port = address.partition(":")
        where = ["-rpc_address", host, "-rpc_port", port, "-metrics_port", str(free())]
        program.chmod(0o755)
        self._start([str(program), *where, "-logtostderr"], subprocess.DEVNULL)

    def _start(self, command: list[str], reads: int) -> None:
        self._processes.append(
            subprocess.Popen(
                command,
                env=self._environment,
                stdin=reads,
                stdout=subprocess.PIPE if reads == subprocess.PIPE else subprocess.DEVNULL,
                stderr=self._said,
            )
        )

    def takes(self, work: Work) -> bool:
        return True

    def fill(self, work: Work) -> None:
        keys = [[key.decode() for key in group] for group in work.block_keys()]
        self._ask("fill", work.op, keys, work.num_bytes)

    def right(self) -> bool:
        return bool(self._ask("right"))

    def run(self, seconds: float) -> list[float]:
        return list(self._ask("run", seconds))

    def busy(self) -> float:
        return sum(processor_seconds(process.pid) for process in self._processes)

    def _ask(self, *words: object) -> Any:
        with contextlib.suppress(BrokenPipeError):
            to = _pipe(self._processes[-1].stdin)
            to.write(json.dumps(words).encode() + b"\n")
            to.flush()
        return self._answer()

    def _answer(self) -> Any:
        answers = _pipe(self._processes[-1].stdout)
        if not select.select([answers], [], [], _ANSWER_S)[0]:
            raise MoewireError(f"mooncake did not answer for {_ANSWER_S} s: {self._last_words()}")
        line = answers.readline()
        if not line:
            raise MoewireError(f"mooncake's process ended: {self._last_words()}")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise MoewireError(f"mooncake: {answer}")
        return answer

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return " / ".join(lines[-2:]) or "it said nothing"

    def close(self) -> None:
        """The client first: it ends with its input, the master by a signal."""
        for process in reversed(self._processes):
            if process.stdin is None:
                process.terminate()
            else:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._said.close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
