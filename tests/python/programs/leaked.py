"""Memory of a closed buffer on CUDA that could not be released is released at the interpreter's
end.

    leaked.py EMULATOR

Prints the allocations that the driver knows before the end, and after all that runs at the end.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

workspaces: list[Callable[[], list[str]]] = []


def main() -> None:
    atexit.register(lambda: print("at the end:", workspaces[0]()))  # behind what comes later
    from harness import jobs_cuda, jobs_cuda_leaked
    from harness.torch_device import pretending

    with tempfile.TemporaryDirectory() as folder, pretending():
        place = jobs_cuda.use(sys.argv[1], folder)
        workspaces.append(lambda: jobs_cuda_leaked.workspaces(place))
        jobs_cuda.in_threads(
            1, lambda rank, make: jobs_cuda_leaked.cannot_be_released(place, make, 1, "x")
        )
        print("kept:", workspaces[0]())


if __name__ == "__main__":
    main()
