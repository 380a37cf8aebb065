"""What is refused on one rank alone, in the names that Python's users know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from moewire import Buffer, InvalidArgument, _member, errors
from moewire import _abi as abi
from moewire._base import check
from moewire._config import reach
from moewire.compat._mooncake import Buffer as MooncakeBuffer
from moewire.deep_ep import Buffer as DeepEPBuffer
from moewire.fabric import Fabric


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
    return int(reach.native({})["flags"]) | _member._flags_from_environment()


@pytest.mark.parametrize("variable", SWITCHES)
def test_switches_from_the_environment(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0, 1 or nothing; the empty text is as good as none."""
    for name in SWITCHES:
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
    [(name, text, "0, 1") for name in SWITCHES for text in ("yes", "off", "true", " ", "2", "01")],
)
def test_no_other_words_for_switches(
    variable: str, text: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    says = re.escape(f"{variable}: {text!r} given; allowed: {allowed}")
    with pytest.raises(errors.InvalidArgument, match=f"^{says}$"):
        one_rank()


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
    rows, scales = _call(buffer, "dispatch", use_fp8=good)[0]  # its handle is not kept
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


MOST = abi.MW_MAX_RANKS


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"ranks": 0}, f"num_ranks: 0 given; allowed: 1 to {MOST}"),
        ({"ranks": MOST + 1}, f"num_ranks: {MOST + 1} given; allowed: 1 to {MOST}"),
    ],
)
def test_size_hints_say_how_many_ranks(arguments: dict[str, int], says: str) -> None:
    ranks = arguments["ranks"]
    for hint, last in (
        (Buffer.get_ep_buffer_size_hint, ranks),
        (Buffer.get_flat_buffer_size_hint, 2),
    ):
        with pytest.raises(errors.InvalidArgument, match=f"^{says}$"):
            hint(8, 128, ranks, last)


@pytest.mark.parametrize("ranks", [0, MOST + 1])
def test_rendezvous_says_how_many_ranks(ranks: int) -> None:
    says = f"^world_size: {ranks} given; allowed: 1 to {MOST}$"
    with pytest.raises(errors.InvalidArgument, match=says):
        Buffer.from_exchange(lambda own: [own], 0, ranks)
    with pytest.raises(errors.InvalidArgument, match=says):
        Buffer.from_store(dist.HashStore(), 0, ranks)


def test_members_are_named_once() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"^members: 0 twice given; allowed: each"):
        Buffer.from_store(dist.HashStore(), 0, 1, members=[0, 0])
    with pytest.raises(errors.InvalidArgument, match=r"^members: 0, 2 twice given;"):
        check.ranks("members", [0, 2, 1, 2, 0, 0], 4, 0)
    with pytest.raises(errors.InvalidArgument, match=r"^members: 3 given; allowed: a seq"):
        check.ranks("members", 3, 4, 3)  # type: ignore[arg-type]
    assert check.ranks("members", (2, 0), 4, 0) == {0, 2}


def test_extra_is_no_tensor_by_itself(buffer: Buffer) -> None:
    for one in (torch.ones(4, 1), 3):
        kind = type(one).__name__
        with pytest.raises(
            errors.InvalidArgument, match=f"^extra: a {kind} given; allowed: a list or tuple of"
        ):
            _call(buffer, "dispatch_flat", extra=one)
    for several in ([torch.ones(4, 1)], (torch.ones(4, 1),), (t for t in [torch.ones(4, 1)])):
        assert len(_call(buffer, "dispatch_flat", extra=several).recv_extra) == 1


def test_cuda_without_a_size_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has no name of C and, without a driver, says that there is none."""
    monkeypatch.setenv("MOEWIRE_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    says = (
        "^num_ep_buffer_bytes: 0 given; allowed: on CUDA what get_ep_buffer_size_hint gives "
        r"\(and there is no CUDA device here: no driver is installed, .*/nowhere/libcuda.so.1"
    )
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        with pytest.raises(errors.InvalidArgument, match=says) as raised:
            one_rank(device=device)
        assert "config->" not in str(raised.value) and "mw_" not in str(raised.value).lower()


def test_active_ranks_may_have_more_entries_than_ranks(buffer: Buffer) -> None:
    """As many as an engine may have one day: those of ranks count, and no other is written."""
    x, topk_idx = torch.zeros(4, 128, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64)
    active = torch.tensor([5, 0, 7], dtype=torch.int32)
    _, count, *_ = buffer.dispatch(x, topk_idx, active, 4, 2, -1, use_fp8=False)
    assert count.tolist() == [4, 0]
    assert active[0] != 0 and active[1:].tolist() == [0, 7]


_LISTEN = r'is "nowhere0": no address, ADDRESS:PORT or interface of this machine$'
_RING = r"is 4097, allowed a power of two from 4096 to \d+, and 0$"
# Of each setting that the library reads: a bad value, and what is said of it after its name.
LIBRARY_READS: dict[str, tuple[Any, str]] = {
    "listen": ("nowhere0", _LISTEN),
    "key_file": ("/no/such/file", ": reading keys: open /no/such/file: no such file or directory$"),
    "ring_bytes": (4097, _RING),
    "unresponsive_after_us": (7, r"is 7, allowed 0 \(1s\), and 20000 to 3600000000$"),
    "rdma_devices": ("a:0", r'is "a:0" with the port "0", '),
    "rdma_gid": ("v9", 'is "v9", allowed are an index'),
    "rdma_near": ("x", 'is "x", allowed is the PCI address'),
}


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LIBRARY_READS, "key", "host"):
        monkeypatch.delenv(f"MOEWIRE_{name.upper()}", raising=False)


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("name", LIBRARY_READS)
def test_what_the_library_refuses_has_its_argument(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error names the argument, or the variable if the value came from it, also if both are
    set."""
    value, says = LIBRARY_READS[name]
    variable = f"MOEWIRE_{name.upper()}"
    with pytest.raises(errors.InvalidArgument, match=f"^invalid argument: {name} ?{says}"):
        one_rank(**{name: value})
    monkeypatch.setenv(variable, str(value))
    with pytest.raises(errors.InvalidArgument, match=f"^invalid argument: {variable} ?{says}"):
        one_rank()
    monkeypatch.setenv(variable, "4096")  # right or wrong: the argument goes before it
    with pytest.raises(errors.InvalidArgument, match=f"^invalid argument: {name} ?{says}"):
        one_rank(**{name: value})


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("KEY", "beef", ": reading keys: line 1: the key has 4 characters, not 64$"),
        ("HOST", "h" * 65537, " has 65537 bytes, allowed 0 to 65536$"),
    ],
)
def test_what_only_a_variable_says(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MOEWIRE_{variable}", value)
    says = f"^invalid argument: MOEWIRE_{variable}{says}"
    with pytest.raises(errors.InvalidArgument, match=says) as raised:
        one_rank()
    assert "beef" not in str(raised.value)  # a key is not shown


@pytest.mark.usefixtures("no_variables")
def test_a_key_file_that_goes_away(tmp_path: Path) -> None:
    """It is read again at an update, and has its name there, too."""
    keys = tmp_path / "keys"
    keys.write_text("1 " + "5a" * 31 + "5b")
    keys.chmod(0o600)
    with one_rank(key_file=keys, listen="127.0.0.1") as made:
        keys.unlink()
        with pytest.raises(errors.InvalidArgument, match=f"^invalid argument: key_file: .*{keys}"):
            made.update_ep_member()


def test_numbers_of_calls_have_their_arguments_names(buffer: Buffer) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"^invalid argument: vector_width is 5, "):
        one_rank(vector_width=5)
    many = r"num_ranks 2 x num_max_dispatch_tokens_per_rank \d+ exceeds"
    for hint in (Buffer.get_ep_buffer_size_hint, Buffer.get_flat_buffer_size_hint):
        with pytest.raises(errors.InvalidArgument, match=many):
            hint((1 << 31) - 1, 8, 2, 2)
    _call(buffer, "dispatch")  # which gives the buffer its size
    x, topk_idx = torch.zeros(4, 128, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64)
    with pytest.raises(
        errors.InvalidArgument, match=r": num_max_dispatch_tokens_per_rank 1048576, hidden 128 and"
    ):
        buffer.dispatch(x, topk_idx, None, 1 << 20, 2, -1)


_KEY = "1 " + "5a" * 31 + "5b"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"listen": "x"}, 'listen has "x", allowed is address:port'),
        ({"keys": None, "key_file": "/no/file"}, "key_file: reading keys: open /no/file: no such"),
        ({"keys": None, "keys_file": "/no/file"}, "keys_file: reading keys: open /no/file: no"),
        ({"keys": None, "keys_variable": "NO_SUCH"}, "keys_variable: reading keys: environment"),
        ({"keys": "beef"}, "keys: reading keys: line 1: has 1 fields"),
        ({"rdma_gid": 3}, 'rdma_gid is given, allowed with carrier="rdma" alone'),
        ({"rdma_dc": True}, 'rdma_dc is given, allowed with carrier="rdma" alone'),
        ({"carrier": "rdma", "encrypt": True}, 'encrypt is given, allowed with carrier="tcp" al'),
        ({"carrier": "rdma", "interface": "lo"}, 'interface is given, allowed with carrier="tcp"'),
    ],
)
def test_fabrics_say_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"^invalid argument: {re.escape(says)}"):
        Fabric(**{"keys": _KEY, **arguments})


@pytest.mark.parametrize("kind", [Buffer, MooncakeBuffer, DeepEPBuffer], ids=str)
def test_a_rank_outside_its_group_gets_an_error(kind: Any) -> None:
    """What ``torch.distributed.new_group`` gives a rank that it leaves out is a number."""
    with pytest.raises(InvalidArgument, match="a group that this rank is not in"):
        kind(dist.GroupMember.NON_GROUP_MEMBER)
