"""Lets code that imports DeepEP use Moewire, unchanged; the low-latency mode, that is.

    import moewire.compat.deep_ep
    moewire.compat.deep_ep.install()

    from deep_ep import Buffer, EventOverlap   # those of moewire.deep_ep

A really installed ``deep_ep`` is hidden in this process, as a whole.
"""

from __future__ import annotations

from ._alias import Alias

_ALIAS = Alias(
    "deep_ep",
    "moewire.deep_ep",
    ("Buffer", "Config", "EventHandle", "EventOverlap", "topk_idx_t", "__version__"),
    refused=("ElasticBuffer", "EPHandle"),
)

install = _ALIAS.install
is_installed = _ALIAS.is_installed
