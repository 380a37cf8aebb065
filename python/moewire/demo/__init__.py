"""``moewire demo``: a trained MoE language model over several processes, against one process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from .options import parse

NEEDED = ("torch", "transformers", "accelerate", "safetensors")


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the processes, or is one of them under torchrun. 0: the texts are equal."""
    options = parse(argv)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"moewire demo: the demo needs {', '.join(missing)}, not installed in {sys.prefix}.\n"
            f"Install with: {sys.executable} -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 1
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        from . import rank

        return rank.run_from_environment(options)
    from . import launch

    return launch.run(options)
