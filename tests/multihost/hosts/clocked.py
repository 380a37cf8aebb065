"""One rank as a program, so that it can be started with its own clock."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.member import Rank
from hosts import observed


def main() -> None:
    """Arguments: rank, ranks, folder, seed, the file to write a trace to; variables as JSON."""
    rank, size, folder, seed, path, variables = sys.argv[1:]
    os.environ.update(json.loads(variables))
    observed.traced(Rank(int(rank), int(size), folder, int(seed)), path)


if __name__ == "__main__":
    main()
