"""Go's fuzz targets, each for a while, and the result on each."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

# What is run once more where Go's own deadline failed a target: inputs, about as many as
# the slowest target manages in five seconds.
COUNTED_INPUTS = 2000

# What `go test -fuzz` prints of an input that fails.
FOUND = "Failing input written to"
DEADLINE = "context deadline exceeded"

Watched = Callable[[Sequence[str]], tuple[int, str]]


def deadline_alone(text: str) -> bool:
    """Whether nothing failed but Go's own clock.

    The coordinator of `go test -fuzz` compares its deadline with that of a derived context, which
    may be told a moment later; then the end of -fuzztime counts as a failure
    (https://github.com/golang/go/issues/75804). It prints that line alone under the
    target's name: a finding names its input, and a message of a test names its file.
    """
    lines = text.splitlines()
    failed = [at for at, line in enumerate(lines) if line.startswith("--- FAIL: ")]
    if len(failed) != 1 or FOUND in text:
        return False
    said = [line.strip() for line in lines[failed[0] + 1 :] if line.startswith("    ")]
    return said == [DEADLINE]


def watched(command: Sequence[str], root: Path) -> tuple[int, str]:
    """Runs a command, shows what it writes as it comes, and returns its status and that.

    One that cannot be started has the status of a shell, 127.
    """
    said: list[str] = []
    try:
        program = subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as err:
        return 127, f"cannot start: {err}\n"
    with program:
        assert program.stdout is not None
        for line in program.stdout:
            print(line, end="", flush=True)
            said.append(line)
    return program.returncode, "".join(said)


def fuzz_target(
    target: str, package: str, seconds: str, run: Watched, more: Sequence[str] = ()
) -> str:
    """Fuzzes one target, with more flags; what is wrong with it, or nothing.

    Where only Go's deadline failed, the target runs again for a count of inputs, which no
    deadline ends; that run's status is the result.
    """
    flags = ["go", "test", "-run=^$", f"-fuzz=^{target}$", *more]
    for budget in (f"{seconds}s", f"{COUNTED_INPUTS}x"):
        command = [*flags, f"-fuzztime={budget}", f"./{package}"]
        print("+", *command, flush=True)
        status, text = run(command)
        if status == 0:
            return ""
        if not deadline_alone(text):
            break
    return f"exit status {status}: {' '.join(command)}"
