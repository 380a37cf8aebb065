"""Imported before torch by modules that callers import: says what to install without torch."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "this part of moewire needs torch 2.6 or later, which is not installed: "
        "pip install 'moewire[torch]'",
        name="torch",
    ) from None
