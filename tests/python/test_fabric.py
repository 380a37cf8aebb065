"""``moewire.fabric``: transfers between two processes, what is held, what is refused."""

from __future__ import annotations

import gc
import secrets
import threading
import weakref
from pathlib import Path

import pytest
import torch

import moewire
import moewire.errors as errors
from harness.fabric_pair import KEY, PEER, SOON, pair
from moewire.fabric import Fabric, Remote

pytestmark = pytest.mark.multirank


def one(**options) -> Fabric:
    return Fabric(**{"listen": "127.0.0.1:0", "keys": KEY, **options})


def test_numbers_and_memory(seed: int) -> None:
    """Writes, reads and numbers, from a tensor and from a buffer, in slices and in one."""
    torch.manual_seed(seed)
    with pair(slice_bytes=5000) as (fabric, other):
        tensor = torch.randint(0, 256, (300, 100), dtype=torch.uint8)
        data = tensor.numpy().tobytes()
        with fabric.register(tensor) as region:
            with fabric.write(PEER, region, other.remote, offset=7, remote_offset=11) as transfer:
                assert transfer.wait(SOON).num_bytes == len(data) - 7
            assert other.do("look", 11, 11 + len(data) - 7) == data[7:]
            assert other.do("look", 0, 11) == bytes(11)

            other.begin("receive_imm")
            number = 0xFFFFFFFF
            with fabric.write_imm(PEER, region, other.remote, number) as transfer:
                assert transfer.wait(SOON).num_bytes == len(data)
            assert other.end()[1] == number
            assert other.do("look", 0, len(data)) == data

            fresh = secrets.token_bytes(1000)
            other.do("fill", 4000, fresh)
            with fabric.read(
                PEER, region, other.remote, num_bytes=1000, remote_offset=4000
            ) as transfer:
                assert transfer.wait(SOON).num_bytes == 1000
            assert tensor.numpy().tobytes() == fresh + data[1000:]

            with fabric.receive_imm(PEER) as transfer:
                assert transfer.test() is None
                with pytest.raises(errors.DeadlineError, match="within 1000 us"):
                    transfer.wait(1000)
                other.begin("write_imm", tuple(region.remote), 9)
                assert transfer.wait(SOON).imm == 9
                assert transfer.test() == transfer.wait()
            other.end()


def test_messages() -> None:
    with pair(messages=True) as (fabric, other):
        mine = bytearray(300)
        with fabric.register(mine) as region:
            with fabric.recv(PEER, region, num_bytes=100) as transfer:
                other.begin("send", b"hello")
                assert transfer.wait(SOON) == (5, 1)
                other.end()
            assert mine[:6] == b"hello\0"
            # Given up: ended at once, released with its connection.
            late = fabric.recv(PEER, region)
            late.cancel()
            with pytest.raises(errors.CancelledError):
                late.wait(SOON, released=False)
            with pytest.raises(errors.BusyError):
                region.close()
            assert not region.closed
            fabric.disconnect(PEER)
            with pytest.raises(errors.CancelledError):
                late.wait(SOON)
            late.close()
        assert region.closed
        with pytest.raises(errors.NotSupportedError, match="for messages"):
            fabric.receive_imm(PEER)


def test_a_lost_connection_and_the_next() -> None:
    with pair() as (fabric, other):
        waiting = fabric.receive_imm(PEER)
        other.do("disconnect")
        with pytest.raises(errors.UnreachableError, match="connection ended"):
            waiting.wait(SOON)
        waiting.close()
        waiting.close()
        with pytest.raises(errors.UnknownHandleError):
            waiting.wait(SOON)

        def reconnected() -> bool:
            try:
                fabric.connect(PEER, SOON)
            except errors.UnreachableError:
                return False
            return True

        while not reconnected():
            pass
        other.begin("receive_imm")
        with Fabric.retry(lambda: fabric.write_imm(PEER, None, other.remote, 3)) as transfer:
            transfer.wait(SOON)
        assert other.end()[1] == 3


def test_connect_waits_for_room() -> None:
    """At ``num_connections`` connect waits the whole timeout; the error names the obstacle."""
    for wait_us, timeout_us, how, says in (
        (0, 1000, errors.WouldBlockError, "1 connections, cap 1"),
        (400_000, SOON, errors.UnreachableError, "no connection after"),  # by its own attempt
    ):
        with one(num_connections=1, connect_timeout_us=wait_us) as fabric:
            # Takes the place, and no peer answers. A late second look finds the attempt over.
            over = (errors.DeadlineError, errors.UnreachableError)
            with pytest.raises(over):
                fabric.connect(PEER, 1000)
            with pytest.raises(how, match=says):
                fabric.connect(PEER + 1, timeout_us)


def test_memory_is_held_until_released() -> None:
    """A buffer cannot be resized, a tensor not be freed, while a region has it."""
    with one() as fabric:
        buffer = bytearray(64)
        region = fabric.register(buffer, read=False)
        assert region.num_bytes == 64 and region.remote.num_bytes == 64
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        region.close()
        region.close()
        buffer.extend(b"more")

        tensor = torch.zeros(8)
        alive = weakref.ref(tensor)
        region = fabric.register(tensor)
        del tensor
        gc.collect()
        assert alive() is not None
        region.close()
        del region
        gc.collect()
        assert alive() is None

        left = fabric.register(buffer)
    assert left.closed and fabric.closed
    buffer.extend(b"and more")
    fabric.close()
    for call in (
        lambda: fabric.register(buffer),
        lambda: fabric.next_handshake(0),
        lambda: left.remote,
    ):
        with pytest.raises(errors.UnknownHandleError):
            call()


def test_closing_ends_waits() -> None:
    fabric = one()
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            fabric.next_handshake()
        except errors.MoewireError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    fabric.close()
    thread.join(60)
    assert isinstance(seen[0], errors.ClosedError | errors.UnknownHandleError)


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        (b"constant", "a buffer that is read-only"),
        (bytearray(), "a buffer that is empty"),
        (memoryview(bytearray(8))[::2], "a buffer that is not contiguous"),
        (3, "a int given; allowed: a writable buffer or a torch tensor"),
        (torch.zeros(4, 4).T, r"a tensor with strides \(1, 4\)"),
        (torch.zeros(0), "a tensor without elements"),
        (torch.zeros(2, device="meta"), "a tensor on meta"),
    ],
)
def test_bad_memory(memory: object, says: str) -> None:
    with one() as fabric, pytest.raises(errors.InvalidArgument, match=says):
        fabric.register(memory)


def test_bad_arguments() -> None:
    with one() as fabric, fabric.register(bytearray(10)) as region:
        remote = Remote(0, 100, 1)
        for says, call in {
            "peer: -1": lambda: fabric.connect(-1),
            "timeout_us: -2": lambda: fabric.connect(1, -2),
            "offset: -1": lambda: fabric.write(1, region, remote, offset=-1),
            "imm: 4294967296": lambda: fabric.write_imm(1, region, remote, 1 << 32),
            "11 bytes at 0, the region has 10": lambda: fabric.write(
                1, region, remote, num_bytes=11
            ),
            "of the peer's region": lambda: fabric.read(1, region, remote, remote_offset=91),
        }.items():
            with pytest.raises(errors.InvalidArgument, match=says):
                call()
        with pytest.raises(errors.ConnectingError):
            fabric.write(1, region, remote)
        with pytest.raises(errors.ConnectingError):
            Fabric.retry(lambda: fabric.write(1, region, remote), 1000)
        with pytest.raises(errors.DeadlineError, match="peer 1"):
            fabric.connect(1, 1000)
        with pytest.raises(errors.MetadataError):
            fabric.deliver(1, b"no handshake")
        assert fabric.report()["carrier"] == "tcp"
        assert fabric.report()["eviction"] == "sieve"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keys": None}, "0 of them given; allowed: exactly one"),
        ({"keys_file": "x"}, "2 of them"),
        ({"key_file": "x"}, "keys, key_file, keys_variable: 2 of them"),
        ({"key_file": "x", "keys_file": "x"}, "key_file, keys_file: both names .* one of them"),
        ({"keys": None, "key_file": "/nonexistent"}, "no such file"),
        ({"keys": None, "key_file": 5}, "key_file: a int given"),
        ({"keys": "1 " + "ab" * 31}, "the key has 62 characters"),
        ({"keys": None, "keys_file": "/nonexistent"}, "no such file"),
        ({"keys": None, "keys_variable": "NO_KEYS"}, "NO_KEYS is not set"),
        ({"listen": "somewhere"}, "somewhere"),
        ({"listen": ""}, "listen and interface are empty: say where to listen"),
        ({"listen": "0.0.0.0:0"}, r"listen has 0\.0\.0\.0:0.*: advertise must say"),
        ({"advertise": "10.0.0.1:0"}, r"advertise has 10\.0\.0\.1:0, which peers cannot dial"),
        ({"listen": ",".join(["127.0.0.1:0"] * 17)}, "listen and interface have 17 addresses"),
        ({"num_peers": 70000}, "num_peers: 70000"),
        ({"keys": 5}, "keys: a int given"),  # bytes(5) would be five zeros
        ({"keys": None, "keys_file": 5}, "keys_file: a int given"),
        ({"keys": None, "keys_variable": 5}, "keys_variable: a int given"),
        ({"listen": None}, "listen: a NoneType given"),
        ({"interface": b"lo"}, "interface: a bytes given"),
        ({"rdma_near": 0}, "rdma_near: 0 given; allowed: a PCI address"),
        ({"rdma_gid": 3}, 'rdma_gid is given, allowed with carrier="rdma"'),
        ({"rdma_dc": 1}, "rdma_dc: 1 given; allowed: True, False"),
        ({"rdma_dc": True}, 'rdma_dc is given, allowed with carrier="rdma"'),
    ],
)
def test_bad_configuration(options: dict[str, object], says: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=says) as caught:
        one(**options)
    assert "abab" not in str(caught.value)
    assert "Config." not in str(caught.value)  # names of another language


def test_keys_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both fabrics get the same key in different ways; another key does not connect."""
    path = tmp_path / "keys"
    path.write_text(f"# of the test\n{KEY}\n")
    path.chmod(0o600)
    monkeypatch.setenv("FABRIC_KEYS", KEY)  # after the library was loaded
    with (
        one(keys=None, key_file=str(path)) as a,
        one(keys=None, keys_variable="FABRIC_KEYS") as b,
        a.couriers(lambda peer, handshake: b.deliver(0, handshake)),
        b.couriers(lambda peer, handshake: a.deliver(0, handshake)),
    ):
        a.connect(0, SOON)
    one(keys=None, keys_file=path).close()  # the argument's old name
    other = f"3 {secrets.token_hex(32)}"
    with (
        one(connect_timeout_us=300_000) as a,
        one(keys=other, connect_timeout_us=300_000) as b,
        a.couriers(lambda peer, handshake: refuse(b, handshake)),
        b.couriers(lambda peer, handshake: refuse(a, handshake)),
        pytest.raises(errors.UnreachableError),
    ):
        a.connect(0, SOON)


def refuse(fabric: Fabric, handshake: bytes) -> None:
    """Hands over a handshake that was signed with another key of the same number."""
    with pytest.raises(errors.MetadataError, match="wrong tag"):
        fabric.deliver(0, handshake)


@pytest.mark.parametrize("handshake", ["text", None, 5, [1]])
def test_handshakes_are_bytes(handshake: object) -> None:
    with one() as fabric:
        with pytest.raises(errors.InvalidArgument, match=r"handshake: a .* given; allowed: bytes"):
            fabric.deliver(1, handshake)  # type: ignore[arg-type]
        with pytest.raises(errors.MetadataError):
            fabric.deliver(1, memoryview(b"no handshake"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("remote", "says"),
    [
        ((1 << 64, 8, 1), "remote.address: 18446744073709551616 given"),
        ((1, -1, 1), "remote.num_bytes: -1 given"),
        ((1, 8, "k"), "remote.key: 'k' of type str"),
        ((1, 8), "remote: .* given; allowed: the three numbers"),
        (5, "remote: 5 given; allowed: the three numbers"),
    ],
)
def test_remotes_are_three_numbers(remote: object, says: str) -> None:
    """A number that does not fit the C struct is refused, not truncated."""
    with one() as fabric, fabric.register(bytearray(8)) as region:
        with pytest.raises(errors.InvalidArgument, match=says):
            fabric.write(1, region, remote)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="region: a int given"):
            fabric.write(1, 5, Remote(1, 8, 1))  # type: ignore[arg-type]


def test_carriers() -> None:
    """Arguments that a carrier does not use are refused; a missing device is reported."""
    key = "1 " + "5a" * 31 + "5b"
    with pytest.raises(errors.InvalidArgument, match=r"carrier.*'udp'.*tcp, rdma"):
        Fabric(carrier="udp", keys=key)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match=r"rdma_near.*rdma"):
        Fabric(listen="127.0.0.1:0", keys=key, rdma_near="node:0")
    with pytest.raises(errors.InvalidArgument, match=r"listen.*tcp"):
        Fabric(carrier="rdma", listen="127.0.0.1:0", keys=key)
    with pytest.raises(errors.InvalidArgument, match=r"tcp_zero_copy.*tcp"):
        Fabric(carrier="rdma", keys=key, tcp_zero_copy="on")
    with pytest.raises(errors.InvalidArgument, match=r"tcp_zero_copy.*'yes'.*auto, on, off"):
        Fabric(listen="127.0.0.1:0", keys=key, tcp_zero_copy="yes")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match=r"eviction.*'lru'.*sieve, fifo"):
        Fabric(listen="127.0.0.1:0", keys=key, eviction="lru")  # type: ignore[arg-type]
    with Fabric(listen="127.0.0.1:0", keys=key, eviction="fifo") as fabric:
        assert fabric.report()["eviction"] == "fifo"
    with pytest.raises(errors.InvalidArgument, match=r'rdma_gid is "v9", allowed are an index'):
        Fabric(carrier="rdma", keys=key, rdma_gid="v9")
    with pytest.raises(
        errors.MoewireError, match=r"verbs: .*(library not found|none of: |no RDMA)"
    ):
        Fabric(carrier="rdma", keys=key, rdma_devices="there_is_none")


def test_every_error_is_the_packages() -> None:
    """Buffers raise some of these, too, for example for a carrier that does not work."""
    for kind in errors.BY_STATUS.values():
        assert getattr(moewire, kind.__name__) is kind and kind.__name__ in moewire.__all__
