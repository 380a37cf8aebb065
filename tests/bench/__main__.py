"""``python tests/bench``: see ``documents``."""

import sys

from documents import command

if __name__ == "__main__":
    sys.exit(command())
