"""What every launch of SGLang's dispatchers has imported already. No plug-in has run yet."""

from __future__ import annotations

import sglang_light
import torch

torch.set_num_threads(1)
sglang_light.prepare()

import sglang.srt.elastic_ep.elastic_ep  # noqa: E402
import sglang.srt.plugins  # noqa: E402, F401

# As in SGLang's schedulers, where this happens before plug-ins are loaded.
sglang_light.dispatcher("mooncake")
sglang_light.dispatcher("deepep")
sglang_light.dispatcher("deepep_v2")
