"""Which tests belong to which tier: read from the sources of Go's, told to pytest's.

A tier holds what is not in the quicker ones: `make check` runs the tests of check, `make test`
those of check and test, `make test-all` those of all as well, `make test-long` those of long.
MOEWIRE_TIER says it to tests: core/internal/testenv and tests/conftest.py read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TIERS = ("check", "test", "all", "long")

# The tiers of the tests that run under a value of MOEWIRE_TIER. Of Go's, `all` runs those that
# .ci/steps.py names to it.
RUNS = {
    "": ("check", "test", "all"),
    "check": ("check",),
    "test": ("check", "test"),
    "all": ("all",),
    "long": ("long",),
}

# What tests of tier long read, in Go, C and Python: more of everything random, and every mutant.
LONG = {
    "MOEWIRE_MUTATIONS": "1", "MOEWIRE_TEST_SEEDS": "20", "MOEWIRE_SCHEDULES": "50000",
    "MOEWIRE_CHAOS": "1000", "MOEWIRE_KILLS": "100", "MOEWIRE_SUSPICIONS": "200",
    "MOEWIRE_STORE_KILLS": "1000",
    "MOEWIRE_SOAK_PAIRS": "100000", "MOEWIRE_FUZZ_SECONDS": "120",
    "MOEWIRE_FUZZ_EXAMPLES": "5000",
}  # fmt: skip


def long_values() -> dict[str, str]:
    """LONG, but for what the environment says itself."""
    return {name: os.environ.get(name) or value for name, value in LONG.items()}


# Suites of tests/, files by a part of their name, and users of fixtures. Their tests are in tier
# all, unless their mark says otherwise: engines in environments of their own, the release wheel,
# the emulated CUDA device, network namespaces.
SUITES_OF_ALL = ("integrations", "wheel")
FILES_OF_ALL = "cuda"
FIXTURES_OF_ALL = frozenset({"wired", "relayed", "namespaces", "vllm_server"})

# How a Go test says that it is not in every tier. With testing.Short() it has two forms: a short
# one in check and test, a full one in all.
MARKS = {
    "testenv.InTest(": "test",
    "testenv.InAll(": "all",
    "testenv.InLong(": "long",
    "testenv.NumSeeds(": "short",
    "testing.Short()": "short",
    "raceEnabled": "race",  # it does less under the race detector
}

# What makes a test one of those that `make test` leaves out, all of it or its full form.
REST = {"all", "short"}

FUNCTION = re.compile(r"func (?P<receiver>\([^)]*\) )?(?P<name>\w+)")
VARIABLE = re.compile(r"var (?P<name>\w+)")

# Where the marks themselves are.
MARKING = "core/internal/testenv"


@dataclass(frozen=True)
class GoTest:
    """A test function, and what it or functions of its package that it names say of tiers."""

    package: str
    name: str
    marks: frozenset[str]

    @property
    def tier(self) -> str:
        """The one that it belongs to; with two forms, the one that has the short form."""
        return max(self.marks & set(TIERS) or {"check"}, key=TIERS.index)

    @property
    def in_rest(self) -> bool:
        """Whether `make test` leaves out all of it, or its full form."""
        return bool(self.marks & REST)


@dataclass
class Declaration:
    """A function, a method or a variable; or, without a name, what is none of these."""

    name: str
    body: str
    method: bool = False


def declarations(text: str) -> Iterable[Declaration]:
    """What a formatted Go file declares at its top level."""
    rest: list[str] = []
    lines = iter(without_comments(text).splitlines())
    for line in lines:
        found = FUNCTION.match(line) or VARIABLE.match(line)
        if not found:
            rest.append(line)
            continue
        body = [line[found.end() :]]
        if line.endswith(("{", "(")):
            for line in lines:
                body.append(line)
                if line[:1] in ("}", ")") and not line.endswith(("{", "(")):
                    break
        method = bool(found.groupdict().get("receiver"))
        yield Declaration(found["name"], "\n".join(body), method)
    yield Declaration("", "\n".join(rest))


def without_comments(text: str) -> str:
    """Nor what is between quotes: a table of mutants names tests, and is none."""
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"(?m)(^|[ \t]+)//.*$", "", text)


def marks_of(text: str) -> frozenset[str]:
    return frozenset(mark for form, mark in MARKS.items() if form in text)


class Package:
    """The tests of one folder."""

    def __init__(self, name: str, texts: dict[str, str]) -> None:
        self.name = name
        self.wrong: list[str] = []
        self.bodies: dict[str, str] = {}
        self.reached: set[str] = set()
        for file, text in sorted(texts.items()):
            for one in declarations(text):
                if one.name and not one.method and file.endswith("_test.go"):
                    self.bodies[one.name] = one.body
                elif marks_of(one.body) & (REST | {"long"}):
                    self.misplaced(one.name or file)

    def misplaced(self, name: str) -> None:
        self.wrong.append(
            f"{self.name}: {name} asks for the tier, and .ci/tiers.py does not see for which test: "
            "that has to be a function of a _test.go file which a test of the package names"
        )

    def tests(self) -> list[GoTest]:
        names = [name for name in self.bodies if re.match(r"Test($|[^a-z])", name)]
        found = [GoTest(self.name, name, self.marks(name, set())) for name in names]
        for name, body in self.bodies.items():
            if name not in self.reached and marks_of(body) & (REST | {"long"}):
                self.misplaced(name)
        return [test for test in found if test.name != "TestMain"]

    def marks(self, name: str, seen: set[str]) -> frozenset[str]:
        """What a function says, and those that it names."""
        seen.add(name)
        self.reached.add(name)
        body = self.bodies[name]
        found = marks_of(body)
        for word in set(re.findall(r"(?<![.\w])\w+", body)) & self.bodies.keys() - seen:
            found |= self.marks(word, seen)
        return found


def go_tests(root: Path, files: Iterable[str]) -> tuple[list[GoTest], list[str]]:
    """Every Go test of the tree by package, and what is wrong with how they say their tiers."""
    packages: dict[str, dict[str, str]] = {}
    for file in files:
        path = Path(file)
        if str(path.parent) != MARKING:
            packages.setdefault(str(path.parent), {})[path.name] = (root / file).read_text()
    found, wrong = [], []
    for name, texts in sorted(packages.items()):
        one = Package(name, texts)
        found += one.tests()
        wrong += one.wrong
    for test in found:
        own = sorted(test.marks & set(TIERS))
        if len(own) > 1:
            wrong.append(f"{test.package}.{test.name} is in two tiers: {', '.join(own)}")
    return found, wrong


def suite_has(suite: Path, tier: str) -> bool:
    """Whether a folder of pytest's may have tests of a tier, by what its files say."""
    files = [*sorted(suite.glob("test_*.py")), *suite.glob("conftest.py")]
    texts = [path.read_text() for path in files]
    if any(f"pytest.mark.{tier}" in text for text in texts):
        return True
    if suite.name in SUITES_OF_ALL:
        return tier == "all"
    fixtures = re.compile(r"\b(" + "|".join(sorted(FIXTURES_OF_ALL)) + r")\b")
    late = any(fixtures.search(text) for text in texts)
    late = late or any(FILES_OF_ALL in path.name for path in files)
    return tier == "test" or (tier == "all" and late)


def suite_fuzzes(suite: Path) -> bool:
    """Whether a folder of pytest's has tests with the mark `fuzz`."""
    return any("pytest.mark.fuzz" in path.read_text() for path in suite.glob("test_*.py"))
