"""Translates the library's names of struct fields into the names that Python's users know."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import MoewireError, from_status

if TYPE_CHECKING:
    from .lib import Library

# What an error calls fields of a configuration, where that is not the field's own name.
Names = Mapping[str, str]
ARGUMENTS: Names = {"num_bytes": "num_ep_buffer_bytes", "interface_name": "interface"}
# Fields of a buffer that only a variable sets.
_VARIABLES: Names = {
    "keys": "MOEWIRE_KEY",
    "host": "MOEWIRE_HOST",
    "cuda_driver": "MOEWIRE_CUDA_DRIVER",
    "cuda_code": "MOEWIRE_TEST_CUDA_CODE",
}
# Those that come from an argument or from the variable of that name, and that the library reads.
_EITHER = (
    "listen",
    "key_file",
    "ring_bytes",
    "unresponsive_after_us",
    "rdma_devices",
    "rdma_gid",
    "rdma_near",
)
# Other words of the library, anywhere in a text.
_WORDS = {
    "config->flags MW_FABRIC_ENCRYPT": "encrypt",
    "config->flags MW_FABRIC_RDMA_DC": "rdma_dc",
    "MW_CARRIER_TCP": 'carrier="tcp"',
    "MW_CARRIER_RDMA": 'carrier="rdma"',
    "num_max_tokens_per_rank": "num_max_dispatch_tokens_per_rank",
    ": wire: ": ": ",  # a package
}


def of_buffer(fields: Mapping[str, int | bytes]) -> Names:
    """What to call the fields of a buffer: by its argument, or by the variable it came from.

    The value tells which of the two. If both are equal, a caller may correct either.
    """
    names = {**ARGUMENTS, **_VARIABLES}
    for field in _EITHER:
        variable = f"MOEWIRE_{field.upper()}"
        if _says(os.environ.get(variable, ""), fields.get(field)):
            names[field] = variable
    return names


def _says(text: str, value: int | bytes | None) -> bool:
    if not text:
        return False
    if isinstance(value, int):
        return text.isdigit() and int(text) == value
    return value in (os.fsencode(text), os.fsencode(os.path.abspath(text)))


def renamed(text: str, names: Names = ARGUMENTS) -> str:
    """An error text of the library as users read it."""
    for word, instead in _WORDS.items():
        text = text.replace(word, instead)
    return re.sub(r"\bconfig->(\w+)", lambda field: names.get(field[1], field[1]), text)


def error(lib: Library, status: int, names: Names = ARGUMENTS) -> MoewireError:
    """The exception for the call of this thread that has just failed."""
    return from_status(status, renamed(lib.error_text(), names))


def check(lib: Library, status: int, names: Names = ARGUMENTS) -> int:
    """Returns the status, or raises its exception if it is an error."""
    if status < 0:
        raise error(lib, status, names)
    return status
