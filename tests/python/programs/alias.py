"""The alias for Mooncake EP, with or without a Mooncake installed. argv: real or absent."""

import importlib
import logging
import sys

import moewire
import moewire.compat.mooncake as compat

records: list[str] = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
logging.getLogger("moewire").addHandler(handler)

if sys.argv[1] == "real":
    import mooncake.mooncake_ep_buffer as before

    assert before.Buffer == "the real one"
assert not compat.is_installed()
compat.install()
compat.install()
assert compat.is_installed()
assert len(records) == 1 and "mooncake.mooncake_ep_buffer" in records[0], records

import mooncake.mooncake_ep_buffer  # noqa: E402
from mooncake import mooncake_ep_buffer as leaf  # noqa: E402
from mooncake.mooncake_ep_buffer import Buffer, EventOverlap  # noqa: E402

assert Buffer is moewire.Buffer and EventOverlap is moewire.EventOverlap
assert leaf is mooncake.mooncake_ep_buffer
assert mooncake.mooncake_ep_buffer.Buffer is Buffer
if sys.argv[1] == "real":
    assert importlib.import_module("mooncake.other").VALUE == 7
else:
    try:
        importlib.import_module("mooncake.other")
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("mooncake.other exists")
print("aliased")
