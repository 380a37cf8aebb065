"""KV blocks of vLLM's OffloadingConnector in a block store, and its offloading on the CPU.

``tier`` is the secondary tier that a configuration names ``{"type": "moewire"}``; ``cpu`` has the
offloading spec for vLLM's CPU backend. Both need vLLM; the other modules here do not, so that they
are tested without it. docs/vllm.md says how to configure them.

Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import importlib
import logging
import sys

TIER = "moewire"  # the tier's type in a configuration

_FACTORY = "vllm.v1.kv_offload.tiering.factory"
_log = logging.getLogger("moewire")
_registered = False


def register() -> bool:
    """Names the tier to vLLM; its module is imported when a configuration names it. Idempotent.

    Returns:
        Whether vLLM knows the name. False: this vLLM has no tiers, or none is imported.
    """
    global _registered
    if _registered or "vllm" not in sys.modules:
        return _registered
    try:
        factory = importlib.import_module(_FACTORY).SecondaryTierFactory
        factory.register_tier(TIER, f"{__name__}.tier", "MoewireTier")
    except (ImportError, AttributeError) as error:
        _log.debug("vLLM has no secondary tiers: %s", error)
        return False
    except ValueError as error:  # the name is taken
        _log.error("the secondary tier %r is not registered: %s", TIER, error)
        return False
    _registered = True
    return True
