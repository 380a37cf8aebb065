"""``python -m moewire.demo``."""

from . import main

if __name__ == "__main__":
    raise SystemExit(main())
