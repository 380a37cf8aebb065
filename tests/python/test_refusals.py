"""What one rank alone is refused, in the words of Python's users."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from moewire import Buffer, _member, _reach, errors
from moewire import _abi as abi


def one_rank(**arguments: Any) -> Buffer:
    return Buffer.from_exchange(lambda own: [own], 0, 1, **arguments)


@pytest.fixture(scope="module")
def buffer() -> Iterator[Buffer]:
    with one_rank() as made:
        yield made


SWITCHES = {
    "MOEWIRE_DEBUG": abi.MW_CONFIG_DEBUG_FILL,
    "MOEWIRE_RECORD": abi.MW_CONFIG_NO_RECORD,
    "MOEWIRE_RDMA_DC": abi.MW_CONFIG_RDMA_DC,
}


def _flags() -> int:
    return int(_reach.native({})["flags"]) | _member._flags_from_environment()


@pytest.mark.parametrize("variable", SWITCHES)
def test_switches_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0, 1 or nothing; the empty text is as good as none."""
    for name in (*SWITCHES, "MOEWIRE_TEST_CORRUPT"):
        monkeypatch.delenv(name, raising=False)
    bit, default = SWITCHES[variable], _flags()
    assert default == 0
    seen = {}
    for text in ("", "0", "1"):
        monkeypatch.setenv(variable, text)
        seen[text] = bool(_flags() & bit)
    backwards = variable == "MOEWIRE_RECORD"
    assert seen == {"": False, "0": backwards, "1": not backwards}


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [(name, text, "0, 1") for name in SWITCHES for text in ("yes", "off", "true", " ", "2", "01")]
    + [("MOEWIRE_TEST_CORRUPT", text, "combine") for text in ("foo", "1")],
)
def test_no_other_words_for_switches(
    variable: str, text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    says = re.escape(f"{variable}: {text!r} given; allowed: {allowed}")
    with pytest.raises(errors.InvalidArgument, match=f"^{says}$"):
        one_rank()


def test_the_empty_text_corrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEWIRE_TEST_CORRUPT", "")
    assert _member._flags_from_environment() & abi.MW_CONFIG_TEST_CORRUPT_COMBINE == 0
    monkeypatch.setenv("MOEWIRE_TEST_CORRUPT", "combine")
    assert _member._flags_from_environment() & abi.MW_CONFIG_TEST_CORRUPT_COMBINE


NOT_BOOLS = ("no", 2, None, [], 0.5)
_ENDS = ["async_finish", "return_recv_hook"]
_SENT = [*_ENDS, "use_fp8", "more", "round_scale", "use_ue8m0", "fp32_outputs"]
YES_OR_NO = {
    "dispatch": [*_SENT, "pre_reduce"],
    "combine": [*_ENDS, "zero_copy"],
    "dispatch_flat": _SENT,
    "combine_flat": [*_ENDS, "zero_copy"],
}


def _call(buffer: Buffer, name: str, **more: Any) -> Any:
    """One call of an operation on four tokens, with what has to come before it."""
    x, topk_idx = torch.zeros(4, 128, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64)
    weights = torch.ones(4, 1)
    packed = {"use_fp8": False, **more} if name == "dispatch" else {"use_fp8": False}
    if name in ("dispatch", "combine"):
        got = buffer.dispatch(x, topk_idx, None, 4, 2, -1, **packed)
        if name == "dispatch":
            return got
        return buffer.combine(got[0], topk_idx, weights, None, -1, got[2], **more)
    flat = buffer.dispatch_flat(x, topk_idx, weights, 4, 2, **(more if "dispatch" in name else {}))
    if name == "dispatch_flat":
        return flat
    return buffer.combine_flat(flat.recv_x, flat.handle, **more)


@pytest.mark.parametrize("name", YES_OR_NO)
def test_calls_take_bools(buffer: Buffer, name: str) -> None:
    for argument in YES_OR_NO[name]:
        for value in NOT_BOOLS:
            if (argument, value, name) == ("use_fp8", None, "dispatch"):
                continue  # which is True, as in Mooncake EP
            says = re.escape(f"{argument}: {value!r} given; allowed: True, False")
            with pytest.raises(errors.InvalidArgument, match=f"^{says}$"):
                _call(buffer, name, **{argument: value})
        for good in (False, 0, np.False_):
            _call(buffer, name, **{argument: good})


@pytest.mark.parametrize("good", [True, 1, np.True_])
def test_what_equals_true_is_true(buffer: Buffer, good: Any) -> None:
    (rows, scales), *_ = _call(buffer, "dispatch", use_fp8=good)
    assert rows.dtype is torch.float8_e4m3fn and scales.dtype is torch.float32
    assert _call(buffer, "dispatch", return_recv_hook=good)[4] is not None
    assert _call(buffer, "dispatch", async_finish=good)[3].event is not None


@pytest.mark.parametrize("argument", ["copy_outputs", "deterministic"])
def test_constructors_take_bools(argument: str) -> None:
    for value in NOT_BOOLS:
        says = re.escape(f"{argument}: {value!r} given; allowed: True, False")
        with pytest.raises(errors.InvalidArgument, match=f"^{says}$"):
            one_rank(**{argument: value})
    for good in (True, False, 1, 0, np.True_):
        one_rank(**{argument: good}).close()
