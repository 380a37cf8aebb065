"""Teams of processes: ranks on several hosts, or that behave as if they were."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "python"), str(TESTS / "bench")]
if importlib.util.find_spec("moewire") is None:
    sys.path.insert(0, str(TESTS.parent / "python"))

from harness import required  # noqa: E402
from harness.team import Team  # noqa: E402
from hosts.network import Relayed, Wired, lacking  # noqa: E402

SEED = int(os.environ.get("MOEWIRE_TEST_SEED") or random.SystemRandom().randrange(1 << 31))


def pytest_report_header() -> str:
    return f"moewire: MOEWIRE_TEST_SEED={SEED}"


@pytest.fixture(scope="session")
def team() -> Iterator[Team]:
    """Processes of one network; ``MOEWIRE_HOST`` says which ranks treat each other as other
    hosts."""
    one = Team(SEED)
    yield one
    one.close()


@pytest.fixture(scope="module")
def wired() -> Iterator[Wired]:
    """Two network namespaces with a pair of interfaces between them, and a team of 2 x 2."""
    need_namespaces()
    with Wired(SEED) as one:
        yield one


@pytest.fixture(scope="module")
def relayed() -> Iterator[Relayed]:
    """Two network namespaces with a relay between them, and a team of 2 x 2."""
    need_namespaces()
    with Relayed(SEED) as one:
        yield one


@pytest.fixture
def namespaces() -> None:
    """The test makes namespaces itself."""
    need_namespaces()


def need_namespaces() -> None:
    """Skips where namespaces are impossible, or fails if ``MOEWIRE_REQUIRE`` asks for ``netns``."""
    reason = lacking()
    if reason:
        required.lacking("netns", reason)
