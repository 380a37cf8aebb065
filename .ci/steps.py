"""The steps of `make check`, `make test`, `make test-all` and their parts: runs them, times them.

    python3 .ci/steps.py check            what is quick
    python3 .ci/steps.py test             what protects a user
    python3 .ci/steps.py test rest        `make test-all`
    python3 .ci/steps.py long             what CI does not run
    python3 .ci/steps.py lint             the fast checks
    python3 .ci/steps.py venv go-test     the steps named

.ci/tiers.py says what a tier is. Every step runs even if an earlier one failed, except where it
could not work without it. The exit status is 0 only if each one that was asked for ran and
passed, or was skipped for want of what the machine lacks: the summary says
which and why, and MOEWIRE_REQUIRE makes that a failure.

The Go fuzz targets share fifty seconds. MOEWIRE_FUZZ_SECONDS makes each Go
target and each seed of tests/capi/fuzz.c run that long, MOEWIRE_FUZZ_EXAMPLES
sets the number of examples of each Python test that fuzzes. `make test-long`
gives values of its own to all three (.ci/tiers.py), where there are none.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import record
from common import BIN, ROOT
from go_steps import (
    complete,
    fuzz,
    fuzz_long,
    go_all,
    go_bench,
    go_check,
    go_compute,
    go_long,
    go_pure,
    go_race,
    go_test,
    rdma,
    rdma_long,
)  # fmt: skip
from lint_steps import gofmt, mypy, ruff, staticcheck, vet
from outcome import Step, run_steps, summary
from python_steps import install, kernels, pytest, pytest_fuzz, suites, venv, wheel
from tiers import suite_fuzzes, suite_has

TESTS = ROOT / "tests"


def pytest_steps(tier: str) -> list[Step]:
    """A step for each suite that has tests of the tier, but for the one of the release wheel."""
    here = [suite for suite in suites() if suite_has(TESTS / suite, tier)]
    return [pytest_step(suite, tier) for suite in here if suite != "wheel"]


def pytest_step(suite: str, tier: str, *, patient: bool = False) -> Step:
    name = f"pytest-{suite}" if tier == "test" else f"{tier}-{suite}"

    def action() -> None:
        pytest(suite, name)

    action.__doc__ = f"pytest tests/{suite}, what is in tier {tier}."
    needs = ("install", "wheel") if (suite, tier) == ("wheel", "all") else ("install",)
    # They wait for one another and for deadlines as long as they work.
    return Step(name, action, needs, tier, beside=tier, patient=patient)


def pytest_fuzz_step(suite: str) -> Step:
    name = f"fuzz-long-{suite}"

    def action() -> None:
        pytest_fuzz(suite, name)

    action.__doc__ = f"What fuzzes in pytest tests/{suite}, longer than in the other tiers."
    return Step(name, action, ("install",), "long")


def lint_steps() -> list[Step]:
    return [Step("venv", venv), Step("gofmt", gofmt), *linters("lint")]


def linters(beside: str) -> list[Step]:
    return [
        Step("vet", vet, beside=beside, patient=True),
        Step("staticcheck", staticcheck, beside=beside, patient=True),
        Step("ruff", ruff, ("venv",), beside=beside, patient=True),
        Step("mypy", mypy, ("venv",), beside=beside, patient=True),
    ]


def interleave(suites: list[Step], *others: Step, first: tuple[str, ...]) -> list[Step]:
    """The longest suites first: the lanes end at about the same time then."""
    begin = [step for step in suites if step.name in first]
    return [*begin, *others, *(step for step in suites if step not in begin)]


def check_steps() -> list[Step]:
    return [
        *lint_steps(),
        Step("install", install, ("venv",)),
        Step("go-check", go_check),
        *pytest_steps("check"),
    ]


def test_steps() -> list[Step]:
    return [
        Step("venv", venv),
        Step("gofmt", gofmt),
        Step("install", install, ("venv",)),
        *linters("test"),
        *interleave(
            pytest_steps("test"),
            Step("go-compute", go_compute, tier="test", beside="test", patient=True),
            Step("go-race", go_race, tier="test", beside="test"),
            Step("go-test", go_test, tier="test", beside="test"),
            Step("go-pure", go_pure, tier="test", beside="test", patient=True),
            first=("pytest-python",),
        ),
    ]


def rest_steps() -> list[Step]:
    return [
        Step("venv", venv),
        Step("install", install, ("venv",)),
        *interleave(
            pytest_steps("all"),
            Step("kernels", kernels, ("venv",), "all", beside="all", patient=True),
            Step("rdma", rdma, tier="all", beside="all"),
            Step("go-all", go_all, tier="all", beside="all"),
            first=("all-python", "all-integrations"),
        ),
        Step("wheel", wheel, ("venv", "kernels"), "all", beside="all", patient=True),
        pytest_step("wheel", "all", patient=True),
        Step("fuzz", fuzz, tier="all", beside="all", patient=True),
        Step("go-bench", go_bench, tier="all", beside="all", patient=True),
        Step("complete", complete, tier="all"),
    ]


def long_steps() -> list[Step]:
    return [
        Step("venv", venv),
        Step("install", install, ("venv",)),
        Step("go-long", go_long, tier="long"),
        Step("rdma-long", rdma_long, tier="long"),
        Step("fuzz-long", fuzz_long, tier="long"),
        *(pytest_fuzz_step(suite) for suite in suites() if suite_fuzzes(TESTS / suite)),
        *pytest_steps("long"),
    ]


# What the command line names: a part of a tier, a tier, and what `make test` leaves of tier all.
GROUPS: dict[str, Callable[[], list[Step]]] = {
    "lint": lint_steps,
    "check": check_steps,
    "test": test_steps,
    "rest": rest_steps,
    "long": long_steps,
}


def prepare_environment() -> None:
    """Defaults that make a bare `env -i PATH=... HOME=...` enough."""
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")  # uv otherwise trusts only its own list
    os.environ.setdefault("GOFLAGS", "-buildvcs=false")
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    # A model hub is never asked: all models here are made or shipped.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.environ.pop("PYTHONPATH", None)


def select(names: list[str]) -> list[Step]:
    """The steps behind names given on the command line, each once."""
    groups = {name: make() for name, make in GROUPS.items()}
    known = {step.name: step for steps in groups.values() for step in steps}
    unknown = [name for name in names if name not in {*groups, *known}]
    if unknown:
        sys.exit(f"no step {', '.join(unknown)}; there are: {', '.join([*groups, *known])}")
    wanted = [step for name in names for step in groups.get(name) or [known[name]]]
    return list({step.name: step for step in wanted}.values())


def begin(names: list[str]) -> list[str]:
    """Forgets the records of earlier runs of the tiers named; these tiers."""
    of = {"check": "check", "test": "test", "rest": "all", "long": "long"}
    tiers = [tier for name, tier in of.items() if name in names]
    for tier in tiers:
        record.begin(tier)
    return tiers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quiet", action="store_true", help="no headings and no summary")
    parser.add_argument("steps", nargs="+")
    args = parser.parse_args()
    prepare_environment()
    steps, start = select(args.steps), time.monotonic()
    tiers = begin(args.steps)
    outcome = run_steps(steps, args.quiet, [sys.executable, __file__])
    if not args.quiet:
        print(summary(outcome, time.monotonic() - start, record.slowest(tiers)), flush=True)
    return 0 if all(o.result in ("passed", "skipped") for o in outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
