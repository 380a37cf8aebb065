"""Lets code that imports DeepEP use Moewire, unchanged: ``Buffer`` and ``ElasticBuffer``.

    import moewire.compat.deep_ep
    moewire.compat.deep_ep.install()

    from deep_ep import Buffer, EventOverlap   # those of moewire.deep_ep
    from deep_ep.utils import EventHandle

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
        "topk_idx_t",
        "__version__",
    ),
    parts=(Alias("deep_ep.utils", "moewire.deep_ep.utils", ("EventHandle", "EventOverlap")),),
)

install = _ALIAS.install
is_installed = _ALIAS.is_installed
