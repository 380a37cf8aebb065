"""``python -m moewire.demo``."""

from .. import _stdout
from . import main

if __name__ == "__main__":
    raise SystemExit(_stdout.run(main))
