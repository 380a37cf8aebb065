"""The limit of open files: raised where that is possible, named where it is reached."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from moewire import _abi as abi
from moewire.doctor import _machine

# Makes buffers of one rank until that fails, or there are so many.
_CHILD = """
import json, logging, resource, sys
soft, hard, most = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
import moewire
from moewire._native.lib import library
from moewire import _abi as abi
from moewire.doctor import _machine
library().version()  # Go has begun, and has raised the limit
class Lines(logging.Handler):
    def emit(self, record): lines.append(record.getMessage())
lines = []
logging.getLogger("moewire").addHandler(Lines())
logging.getLogger("moewire").setLevel(logging.INFO)
fit = _machine.limits()["open_files_with_buffers"]
fit = _machine.buffers_that_fit(1, fit)
made, failure = [], None
try:
    while len(made) < most:
        made.append(moewire.Buffer.from_exchange(lambda own: [own], 0, 1))
except moewire.MoewireError as error:
    failure = [type(error).__name__, str(error)]
now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
for buffer in made:
    buffer.close()
moewire.Buffer.from_exchange(lambda own: [own], 0, 1).close()
print(json.dumps(dict(fit=fit, made=len(made), failure=failure, now=now, lines=lines)))
"""


def _run(soft: int, hard: int, most: int) -> dict[str, Any]:
    out = subprocess.run(
        [sys.executable, "-c", _CHILD, str(soft), str(hard), str(most)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    ).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_limit_is_raised_and_that_is_said() -> None:
    found = _run(64, 256, 40)  # 40 buffers need more than 64
    assert (found["failure"], found["made"], found["now"]) == (None, 40, 256)
    assert found["lines"][0] == "open files: the limit of this process was 64 and is 256 now"
    assert len(found["lines"]) == 1


def test_doctor_says_how_many_buffers_fit() -> None:
    """So many are made, and the next one fails with the limit in its text."""
    found = _run(100, 100, 100)
    assert found["fit"] - 3 <= found["made"] <= found["fit"] + 3, found
    name, text = found["failure"]
    assert name == "NoResourceError"
    assert "too many open files, limit 100 (RLIMIT_NOFILE of this process: ulimit -n)" in text
    assert found["lines"] == []


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(1024, 4096, 4096), (4096, 4096, 4096), (1024, -1, 1 << 20), (-1, -1, -1)],
)
def test_what_the_limit_will_be(soft: int, hard: int, raised: int) -> None:
    assert _machine.raised_files(soft, hard) == raised
    assert resource.RLIM_INFINITY == -1


def test_buffers_that_fit_on_an_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One descriptor per peer and buffer for each thing that the kernel cannot do."""
    for lacking, least, most in (
        (("_maps_without_the_file",), 105, 111),
        (("_peer_pidfd_works", "_pidfd_works"), 95, 100),
        (("_maps_without_the_file", "_peer_pidfd_works", "_pidfd_works"), 57, 63),
    ):
        with monkeypatch.context() as patch:
            for name in lacking:
                patch.setattr(_machine, name, lambda: False)
            fit = _machine.buffers_that_fit(8, 1024)
        assert isinstance(fit, int) and least <= fit <= most, (lacking, fit)


def test_buffers_that_fit() -> None:
    eight = _machine.buffers_that_fit(8, 1024)
    assert isinstance(eight, int) and 313 <= eight <= 331
    assert _machine.buffers_that_fit(abi.MW_MAX_RANKS, 16) == 0
    assert _machine.buffers_that_fit(abi.MW_MAX_RANKS, -1) == "unlimited"
