"""Importing the package loads nothing and starts nothing."""

import os
import sys

import moewire
import moewire.cli
import moewire.compat.deep_ep
import moewire.compat.mooncake
import moewire.errors
import moewire.integrations.sglang
import moewire.integrations.vllm

assert moewire.__version__
assert issubclass(moewire.InvalidArgument, (moewire.MoewireError, ValueError))
assert "torch" not in sys.modules and "numpy" not in sys.modules
moewire.compat.mooncake.install()
moewire.compat.deep_ep.install()
moewire.integrations.sglang.activate()  # no SGLang, and not asked for
moewire.integrations.vllm.activate()
assert "torch" not in sys.modules

from moewire._native import lib  # noqa: E402

assert lib._library is None
assert len(os.listdir("/proc/self/task")) == 1
with open("/proc/self/maps") as maps:
    assert "libmoewire" not in maps.read()
assert {"Buffer", "EventOverlap", "Handle"} <= set(dir(moewire))
try:
    moewire.nothing  # noqa: B018
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError("moewire.nothing exists")
print("lazy")
