"""Lets code that imports Mooncake EP use Moewire, unchanged.

    import moewire.compat.mooncake
    moewire.compat.mooncake.install()

    from mooncake.mooncake_ep_buffer import Buffer, EventOverlap   # Moewire's

Only the leaf module ``mooncake.mooncake_ep_buffer`` is replaced. Other modules of a really
installed ``mooncake`` stay what they are; without one, an empty package stands in for it.
"""

from __future__ import annotations

from ._alias import Alias

_ALIAS = Alias("mooncake.mooncake_ep_buffer", "moewire", ("Buffer", "EventOverlap"))

install = _ALIAS.install
is_installed = _ALIAS.is_installed
