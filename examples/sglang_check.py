#!/usr/bin/env python3
"""Which libraries SGLang's expert-parallel backends would use in this environment.

    MOEWIRE_SGLANG=1 python examples/sglang_check.py

SGLang must be installed with all that it asks for; `moewire doctor` looks without importing it.
"""

import importlib

try:
    from sglang.srt.plugins import load_plugins
except ImportError as error:
    raise SystemExit(
        f"SGLang cannot be imported: {error}. Install it with its dependencies: "
        "pip install sglang==0.5.23   (without them, `moewire doctor` still says what it finds)"
    ) from error

LIBRARIES = {
    "mooncake": ("mooncake.mooncake_ep_buffer", "Buffer"),
    "deepep": ("deep_ep", "Buffer"),
    "deepep_v2": ("deep_ep", "ElasticBuffer"),
}

load_plugins()  # as SGLang does in each of its processes
for backend, (library, name) in LIBRARIES.items():
    try:
        buffer = getattr(importlib.import_module(library), name)
    except (ImportError, AttributeError):
        print(f"--moe-a2a-backend {backend}: not installed")
        continue
    ours = buffer.__module__.startswith("moewire.")
    print(f"--moe-a2a-backend {backend}: {'Moewire' if ours else buffer.__module__}")
