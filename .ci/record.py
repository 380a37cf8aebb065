"""What tests ran in a run, how long each took, and whether any was forgotten.

Each step that runs tests leaves a file in build/tests, named by tier and step. `make test` begins
with an empty folder; the rest of `make test-all` adds to it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tiers import GoTest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "tests"

# What a Go test says that is in another tier.
LEFT = re.compile(r"runs in make [\w-]+ \(MOEWIRE_TIER=(\w+)\)")


@dataclass
class Test:
    """One test of one step. `left` is the tier that has it where this one does not run it."""

    name: str
    seconds: float
    outcome: str  # passed, failed, skipped
    left: str = ""


def path_of(tier: str, step: str) -> Path:
    return FOLDER / f"{tier}.{step}.json"


def begin(tier: str) -> None:
    """Forgets earlier runs of a tier; `make test` those of what follows it, too."""
    if tier == "test":
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob(f"{tier}.*.json"):
        old.unlink()


def save(tier: str, step: str, tests: Iterable[Test]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path_of(tier, step).write_text(json.dumps([asdict(test) for test in tests], indent=1))


def load(tier: str, step: str = "*") -> list[Test]:
    files = sorted(FOLDER.glob(f"{tier}.{step}.json"))
    return [Test(**one) for file in files for one in json.loads(file.read_text())]


def from_pytest(path: Path) -> list[Test]:
    """What tests/conftest.py wrote."""
    if not path.is_file():
        return []
    said = json.loads(path.read_text())
    ran = [Test(name, of["seconds"], of["outcome"]) for name, of in said["tests"].items()]
    return ran + [Test(name, 0.0, "skipped", tier) for name, tier in said["left"].items()]


def slowest(tiers: Iterable[str], number: int = 10) -> list[str]:
    """The tests that took longest, as lines: a Go test with its parts, a pytest case by itself."""
    found = []
    for file in (file for tier in tiers for file in sorted(FOLDER.glob(f"{tier}.*.json"))):
        step = file.name.split(".")[1]
        tests = [Test(**one) for one in json.loads(file.read_text())]
        found += [(t.seconds, step, t.name) for t in tests if whole(t.name) == t.name]
    found.sort(reverse=True)
    return [f"{seconds:8.1f} s  {step:16} {name}" for seconds, step, name in found[:number]]


def whole(name: str) -> str:
    """The Go test that a subtest is part of; else the same name."""
    package, found, test = name.partition(".Test")
    return f"{package}{found}{test.partition('/')[0]}" if found and "::" not in name else name


def forgotten(go: Iterable[GoTest]) -> list[str]:
    """What is wrong with the division of the tests between `make test` and the rest of `make
    test-all`.

    Each test that `make test` left to `all` must have run in the rest. None may have run in both,
    except Go tests that have a short form, or parts of another tier.
    """
    first, second = by_name("test"), by_name("all")
    rest = {f"{test.package}.{test.name}" for test in go if test.in_rest}
    left = {name for name, test in first.items() if test.left == "all"} | rest
    ran = {name for name, test in second.items() if not test.left}
    wrong = [f"{name} is in tier all, and no step ran it" for name in sorted(left - ran)]
    for name in sorted(ran & {name for name, test in first.items() if not test.left}):
        if whole(name) not in rest:
            wrong.append(f"{name} was run twice")
    return wrong


def by_name(tier: str) -> dict[str, Test]:
    """The tests of a tier; of one that several steps name, the one that ran."""
    found: dict[str, Test] = {}
    for test in load(tier):
        known = found.get(test.name)
        if known is None or (known.left and not test.left):
            found[test.name] = test
    return found
