"""Lets code that imports Mooncake EP use Moewire, unchanged.

    import moewire.compat.mooncake
    moewire.compat.mooncake.install()

    from mooncake.mooncake_ep_buffer import Buffer, EventOverlap   # Moewire's

As upstream's, the buffer lies on torch's current CUDA device; where torch has none, and with
``device="cpu"``, it takes CPU tensors.

Only the leaf module ``mooncake.mooncake_ep_buffer`` is replaced. Other modules of a really
installed ``mooncake`` stay what they are; without one, an empty package stands in for it.
"""

from __future__ import annotations

from ._alias import Alias

_ALIAS = Alias(
    "mooncake.mooncake_ep_buffer", "moewire.compat._mooncake", ("Buffer", "EventOverlap")
)

install = _ALIAS.install
is_installed = _ALIAS.is_installed
