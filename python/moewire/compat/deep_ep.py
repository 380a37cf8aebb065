"""Lets code that imports DeepEP use Moewire, unchanged: all three of its buffers.

    import moewire.compat.deep_ep
    moewire.compat.deep_ep.install()

    from deep_ep import Buffer, EventOverlap   # those of moewire.deep_ep
    from deep_ep.utils import EventHandle
    from deep_ep.hybrid_ep_buffer import indices_to_map

If ``deep_ep`` is installed, this hides all of it in this process.
"""

from __future__ import annotations

from ._alias import Alias

_ALIAS = Alias(
    "deep_ep",
    "moewire.deep_ep",
    (
        "Buffer",
        "Config",
        "EPHandle",
        "ElasticBuffer",
        "EventHandle",
        "EventOverlap",
        "HybridEPBuffer",
        "topk_idx_t",
        "__version__",
    ),
    parts=(
        Alias("deep_ep.utils", "moewire.deep_ep.utils", ("EventHandle", "EventOverlap")),
        Alias(
            "deep_ep.hybrid_ep_buffer",
            "moewire.deep_ep.hybrid_ep_buffer",
            ("HybridEPBuffer", "indices_to_map"),
        ),
    ),
)

install = _ALIAS.install
is_installed = _ALIAS.is_installed
