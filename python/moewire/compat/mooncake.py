"""Lets code that imports Mooncake EP use Moewire, unchanged.

    import moewire.compat.mooncake
    moewire.compat.mooncake.install()

    from mooncake.mooncake_ep_buffer import Buffer, EventOverlap   # Moewire's

As upstream's, the buffer lies on torch's current CUDA device. Where torch has none, or with
``device="cpu"``, it takes CPU tensors.

Only the leaf module ``mooncake.mooncake_ep_buffer`` is replaced. If ``mooncake`` is installed, its
other modules stay as they are; if not, an empty package stands in for it.
"""

from __future__ import annotations

from ._alias import Alias

_ALIAS = Alias(
    "mooncake.mooncake_ep_buffer", "moewire.compat._mooncake", ("Buffer", "EventOverlap")
)

install = _ALIAS.install
is_installed = _ALIAS.is_installed
