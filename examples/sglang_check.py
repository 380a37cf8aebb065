#!/usr/bin/env python3
"""Which libraries SGLang's expert-parallel backends would use in this environment.

MOEWIRE_SGLANG=1 python examples/sglang_check.py
"""

import importlib

from sglang.srt.plugins import load_plugins

LIBRARIES = {"mooncake": "mooncake.mooncake_ep_buffer", "deepep": "deep_ep"}

load_plugins()  # as SGLang does in each of its processes
for backend, library in LIBRARIES.items():
    try:
        buffer = importlib.import_module(library).Buffer
    except ImportError:
        print(f"--moe-a2a-backend {backend}: not installed")
        continue
    ours = buffer.__module__.startswith("moewire.")
    print(f"--moe-a2a-backend {backend}: {'Moewire' if ours else buffer.__module__}")
