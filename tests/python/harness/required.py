"""What a test lacks: hardware, a package, a right.

The test is skipped and says so; where ``MOEWIRE_REQUIRE`` names that, or ``all``, it fails.
"""

from __future__ import annotations

import os
from typing import NoReturn


def is_required(what: str) -> bool:
    """Whether a test that lacks this fails."""
    return bool({what, "all"} & set(os.environ.get("MOEWIRE_REQUIRE", "").split(",")))


def lacking(what: str, why: str) -> NoReturn:
    """Skips the test, or fails it where what it lacks is required."""
    import pytest  # ranks inside an engine have none

    if is_required(what):
        pytest.fail(f"MOEWIRE_REQUIRE={what}: {why}")
    pytest.skip(why)
