"""``python -m moewire.demo``."""

from .._base import stdout
from . import main

if __name__ == "__main__":
    raise SystemExit(stdout.run(main))
