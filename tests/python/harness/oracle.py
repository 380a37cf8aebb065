"""What dispatch and combine must give, written naively in numpy. Knows nothing of Moewire.

bf16 is uint16 here, fp8 e4m3 is uint8.
"""

from __future__ import annotations

import numpy as np

BF16_NAN = 0x7FC0
E4M3_NAN = 0x7F
E4M3_MAX = 448.0
BLOCK = 128
LEAST_AMAX = np.float32(1e-4)


def to_float(bits: np.ndarray) -> np.ndarray:
    """bf16 to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 to bf16, to nearest, ties to even; every NaN becomes the canonical one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(BF16_NAN), rounded)


def _e4m3_values() -> np.ndarray:
    """The finite values of codes 0 to 126."""
    codes = np.arange(127)
    exponent, fraction = codes >> 3, codes & 7
    normal = (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent == 0, fraction / 8 * 2.0**-6, normal).astype(np.float64)


_VALUES = _e4m3_values()
_MIDDLES = (_VALUES[:-1] + _VALUES[1:]) / 2


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """float32 to e4m3, to nearest, ties to even, saturating; NaN becomes 0x7f."""
    magnitude = np.minimum(np.abs(values.astype(np.float64)), E4M3_MAX)
    nan = np.isnan(values)
    magnitude[nan] = 0
    code = np.searchsorted(_MIDDLES, magnitude, side="left")
    tie = (code < len(_MIDDLES)) & (_MIDDLES[np.minimum(code, len(_MIDDLES) - 1)] == magnitude)
    code = code + (tie & (code % 2 == 1))
    signed = code | np.where(np.signbit(values), 0x80, 0)
    return np.where(nan, E4M3_NAN, signed).astype(np.uint8)


def from_e4m3(codes: np.ndarray) -> np.ndarray:
    """e4m3 to float32."""
    magnitude = codes & 0x7F
    values = np.where(magnitude == E4M3_NAN, np.nan, _VALUES[np.minimum(magnitude, 126)])
    return np.where(codes & 0x80, -values, values).astype(np.float32)


def cast(x: np.ndarray, power_of_two: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """bf16 [T, H] to e4m3 [T, H] and float32 scales [T, H/128]."""
    blocks = x.reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    amax = to_float((blocks & 0x7FFF).max(axis=2))
    with np.errstate(all="ignore"):
        amax = np.where(amax < LEAST_AMAX, LEAST_AMAX, amax).astype(np.float32)
        stored = amax / np.float32(E4M3_MAX)
        scale = np.float32(E4M3_MAX) / amax
        if power_of_two:
            stored = _round_up(amax)
            scale = np.float32(1) / stored
        q = to_e4m3(to_float(blocks) * scale[:, :, None])
        return q.reshape(x.shape), stored


def _round_up(amax: np.ndarray) -> np.ndarray:
    """The least power of two that makes 448 of it reach amax, from exact logarithms."""
    fraction, exponent = np.frexp(amax.astype(np.float64) / E4M3_MAX)
    power = np.ldexp(1.0, np.where(fraction == 0.5, exponent - 1, exponent))
    return np.where(np.isfinite(amax), power, amax).astype(np.float32)


def exponent_words(scales: np.ndarray) -> np.ndarray:
    """Powers of two [T, G] as int32 [T, G/4]; what is no number becomes 255."""
    finite = np.where(np.isfinite(scales), scales, np.float32(1))
    codes = np.where(np.isfinite(scales), np.log2(finite) + 127, 255).astype(np.int64)
    four = codes.reshape(codes.shape[0], codes.shape[1] // 4, 4)
    words = four[:, :, 0] + 256 * (four[:, :, 1] + 256 * (four[:, :, 2] + 256 * four[:, :, 3]))
    return words.astype(np.uint32).view(np.int32)


def tokens_for(topk_idx: np.ndarray, expert: int) -> np.ndarray:
    """The tokens of one source that select an expert, in order, once each."""
    return np.nonzero((topk_idx == expert).any(axis=1))[0]


def _values(row: np.ndarray) -> np.ndarray:
    """bf16 to float32; float32 as it is."""
    return row if row.dtype == np.float32 else to_float(row)


def combine_by_rank(
    topk_idx: np.ndarray,
    weights: np.ndarray,
    outputs: dict[int, np.ndarray],
    hidden: int,
    num_local: int,
) -> np.ndarray:
    """What ``combine`` gives after ``pre_reduce``: a sum per rank, of which a token has several.

    Each is rounded to the dtype of the outputs; they are added in the order in which the token
    names the ranks first.
    """
    total = np.zeros((topk_idx.shape[0], hidden), dtype=np.float32)
    with np.errstate(all="ignore"):
        for token, selected in enumerate(topk_idx.tolist()):
            ranks: dict[int, list[int]] = {}  # in order of their first k
            for k, expert in enumerate(selected):
                if expert >= 0:
                    ranks.setdefault(expert // num_local, []).append(k)
            for chosen in ranks.values():
                own, in_fp32 = np.zeros(hidden, dtype=np.float32), False
                for k in chosen:
                    row = outputs[selected[k]][token]
                    own, in_fp32 = own + weights[token, k] * _values(row), row.dtype == np.float32
                total[token] = total[token] + (own if in_fp32 else to_float(to_bf16(own)))
        return to_bf16(total)


def combine(
    topk_idx: np.ndarray, weights: np.ndarray, outputs: dict[int, np.ndarray], hidden: int
) -> np.ndarray:
    """bf16 [T, H]; ``outputs[e]`` is what expert e gives for every token, bf16 or float32."""
    total = np.zeros((topk_idx.shape[0], hidden), dtype=np.float32)
    with np.errstate(all="ignore"):
        for k in range(topk_idx.shape[1]):
            for token in range(topk_idx.shape[0]):
                expert = int(topk_idx[token, k])
                if expert >= 0:
                    product = weights[token, k] * _values(outputs[expert][token])
                    total[token] = total[token] + product
        return to_bf16(total)
