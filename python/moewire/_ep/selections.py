"""The types of expert ids and routing weights that are taken: those that routers make.

On the CPU the library widens them, in memory that it keeps. On CUDA torch converts them.
"""

from __future__ import annotations

import torch

from .. import _abi as abi
from .._base.place import Place

# Looked up once, not at every call.
_INT64, _FLOAT32 = torch.int64, torch.float32
_IDS = {torch.int32: abi.MW_TOPK_IDX_INT32}
_WEIGHTS = {
    torch.bfloat16: abi.MW_TOPK_WEIGHTS_BF16,
    torch.float16: abi.MW_TOPK_WEIGHTS_FP16,
}
# All types that are taken, for errors about others.
IDS, WEIGHTS = (_INT64, *_IDS), (_FLOAT32, *_WEIGHTS)
_OF_FLAG = {flag: dtype for dtype, flag in (_IDS | _WEIGHTS).items()}
_WEIGHT_FLAGS = abi.MW_TOPK_WEIGHTS_BF16 | abi.MW_TOPK_WEIGHTS_FP16


def flags(topk_idx: object, topk_weights: object) -> int:
    """``MW_TOPK_*`` bits of a call's tensors; 0 for int64 and float32, and for wrong types."""
    ids, weights = getattr(topk_idx, "dtype", _INT64), getattr(topk_weights, "dtype", _FLOAT32)
    if ids is _INT64 and weights is _FLOAT32:
        return 0
    return _IDS.get(ids, 0) | _WEIGHTS.get(weights, 0)


def dtypes(bits: int) -> tuple[torch.dtype, torch.dtype]:
    """The types of ids and weights, by a call's flags."""
    ids = torch.int32 if bits & abi.MW_TOPK_IDX_INT32 else _INT64
    return ids, _OF_FLAG.get(bits & _WEIGHT_FLAGS, _FLOAT32)


def widened(
    topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, place: Place
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids and weights that lie there as int64 and float32."""
    bits = flags(topk_idx, topk_weights)
    if bits & abi.MW_TOPK_IDX_INT32 and place.holds(topk_idx):
        topk_idx = topk_idx.to(_INT64)
    if topk_weights is not None and bits & _WEIGHT_FLAGS and place.holds(topk_weights):
        topk_weights = topk_weights.to(_FLOAT32)
    return topk_idx, topk_weights
