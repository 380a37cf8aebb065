"""An impossible setting is an error that says what is missing, and never shows a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.team import Team
from hosts import jobs
from hosts.layout import KEY, OTHER_KEY, hosts, placed

# For ranks that meet, or are told of an error, however busy the machine is.
TIMEOUTS = {"connect_timeout_us": 60_000_000}

# Name -> (arguments by rank, the kind of error, words that its text must have).
WRONG: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "transport": ({"transport": "udp"}, "InvalidArgument", ("transport", "'udp'", "auto, shm")),
    "copies": ({"tcp_zero_copy": 1}, "InvalidArgument", ("tcp_zero_copy", "1", "auto, on, off")),
    "protection": ({"protection": "none"}, "InvalidArgument", ("protection", "'none'", "digest")),
    "any address": ({"listen": "0.0.0.0"}, "InvalidArgument", ("listen", "0.0.0.0", "told")),
    "no address": ({"listen": "nonsense"}, "InvalidArgument", ("listen", "nonsense", "interface")),
    "a rank's number": ({"listen": 7}, "InvalidArgument", ("listen", "7", "interface")),
    "ring_bytes": ({"ring_bytes": 12345}, "InvalidArgument", ("ring_bytes", "12345")),
    "devices": (
        {"rdma_devices": "mlx5_0:x"},
        "InvalidArgument",
        ("rdma_devices", '"mlx5_0:x"', "allowed are names"),
    ),
    "GID": ({"rdma_gid": "v3"}, "InvalidArgument", ("rdma_gid", '"v3"', "an index (3), or v1")),
    "GID's index": ({"rdma_gid": 256}, "InvalidArgument", ("rdma_gid", "256", "0 to 255")),
    "GID's type": ({"rdma_gid": 1.5}, "InvalidArgument", ("rdma_gid", "1.5", "an index")),
    "near": ({"rdma_near": "cuda:0"}, "InvalidArgument", ("rdma_near", '"cuda:0"', "PCI address")),
    "unresponsive": (
        {"unresponsive_after_us": 5},
        "InvalidArgument",
        ("unresponsive_after_us", "5", "20000"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(team: Team, name: str) -> None:
    options, kind, words = WRONG[name]
    texts = team.run(2, placed, hosts("0|1"), jobs.cannot_construct, [options] * 2)
    for text in texts:
        assert text.startswith(f"{kind}: ") and all(word in text for word in words), text


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MOEWIRE_RING_BYTES", "12345"),
        ("MOEWIRE_RING_BYTES", "17179869185"),
        ("MOEWIRE_UNRESPONSIVE_AFTER_US", "5"),
        ("MOEWIRE_UNRESPONSIVE_AFTER_US", "-1"),
        ("MOEWIRE_UNRESPONSIVE_AFTER_US", "1e6"),
    ],
)
def test_wrong_variables(team: Team, variable: str, text: str) -> None:
    places = hosts("0|1", **{variable: text})
    for found in team.run(2, placed, places, jobs.cannot_construct, [{}] * 2):
        assert found.startswith("InvalidArgument: ") and text in found, found
        assert variable.removeprefix("MOEWIRE_").lower() in found.lower(), found


def test_variables_stand_for_arguments(team: Team) -> None:
    """Ranks with different settings do not meet: rank 0 has its settings from variables alone."""
    places = hosts("0|1", MOEWIRE_RING_BYTES="65536", MOEWIRE_UNRESPONSIVE_AFTER_US="60000000")
    given = {"ring_bytes": 65536, "unresponsive_after_us": 60_000_000}
    options = [TIMEOUTS, TIMEOUTS | given]
    assert team.run(2, placed, places, jobs.cannot_construct, options) == ["", ""]
    for name, value in given.items():
        options[1] = TIMEOUTS | given | {name: 2 * value}
        for text in team.run(2, placed, places, jobs.cannot_construct, options):
            assert text.startswith("PeerMismatchError: "), text


@pytest.mark.parametrize("key", ["5a" * 32, KEY[:-1], KEY[:-1] + "g", "x " + KEY])
def test_bad_keys_are_not_shown(team: Team, tmp_path: Path, key: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{key if ' ' in key else '1 ' + key}\n")
    file.chmod(0o600)
    places = hosts("0|1", MOEWIRE_KEY="", MOEWIRE_KEY_FILE=str(file))
    for text in team.run(2, placed, places, jobs.cannot_construct, [{}] * 2):
        assert text.startswith("InvalidArgument: ") and "keys" in text and "line 2" in text, text
        assert key[:8] not in text and key[-8:] not in text, text


def test_a_missing_key_file(team: Team, tmp_path: Path) -> None:
    options = [{"key_file": str(tmp_path / "absent")}] * 2
    for text in team.run(2, placed, hosts("0|1"), jobs.cannot_construct, options):
        assert text.startswith("InvalidArgument: ") and "key_file" in text and "absent" in text


# Name -> (variables, words).
IMPOSSIBLE: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "no keys": ({"MOEWIRE_KEY": ""}, ("another host", "keys")),
    "shared memory alone": ({"MOEWIRE_TRANSPORT": "shm"}, ("another host", "transport is shm")),
    "RDMA without a device": ({"MOEWIRE_TRANSPORT": "rdma"}, ("rdma",)),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_no_way_between_hosts(team: Team, name: str) -> None:
    variables, words = IMPOSSIBLE[name]
    texts = team.run(2, placed, hosts("0|1", **variables), jobs.cannot_construct, [TIMEOUTS] * 2)
    for text in texts:
        kind = "InvalidArgument: " if name != "RDMA without a device" else ""
        assert text.startswith(kind) and all(word in text for word in words), text


def test_a_rank_without_keys_is_named(team: Team) -> None:
    """At once, also by the ranks that have keys, wherever the rank without keys may listen."""
    places = hosts("0|1")
    places[1]["MOEWIRE_KEY"] = ""
    texts = team.run(2, placed, places, jobs.cannot_construct, [TIMEOUTS] * 2)
    assert texts[0].startswith("InvalidArgument: ") and "rank 1" in texts[0], texts
    assert texts[1].startswith("InvalidArgument: ") and "no keys" in texts[1], texts


def test_keys_in_two_places(team: Team, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"1 {KEY}\n")
    file.chmod(0o600)
    places = hosts("0|1", MOEWIRE_KEY_FILE=str(file))
    for text in team.run(2, placed, places, jobs.cannot_construct, [{}] * 2):
        assert text.startswith("InvalidArgument: ") and "MOEWIRE_KEY and MOEWIRE_KEY_FILE" in text
    # An argument takes precedence over both variables.
    options = [TIMEOUTS | {"key_file": str(file)}] * 2
    assert team.run(2, placed, places, jobs.cannot_construct, options) == ["", ""]


def test_no_keys_are_needed_on_one_host(team: Team) -> None:
    places = hosts("01", MOEWIRE_KEY="", MOEWIRE_LISTEN="")
    assert team.run(2, placed, places, jobs.cannot_construct, [TIMEOUTS] * 2) == ["", ""]


def test_a_rank_without_an_address_is_named(team: Team) -> None:
    places = hosts("0|1")
    places[1]["MOEWIRE_LISTEN"] = ""
    options = [TIMEOUTS, TIMEOUTS | {"no_route": True}]
    texts = team.run(2, placed, places, jobs.cannot_construct, options)
    assert "rank 1" in texts[0] and "address" in texts[0], texts
    assert "address" in texts[1], texts


def test_different_keys(team: Team) -> None:
    """No rank connects. Both say so within the deadline: each rank has counted its refusals."""
    places = hosts("0|1")
    places[1]["MOEWIRE_KEY"] = OTHER_KEY
    for rank, text in enumerate(team.run(2, placed, places, jobs.cannot_construct, [{}] * 2)):
        assert f"rank {1 - rank}" in text and "key" in text, text


def test_ranks_that_disagree(team: Team) -> None:
    options = [TIMEOUTS | {"transport": transport} for transport in ("auto", "tcp")]
    for text in team.run(2, placed, hosts("0|1"), jobs.cannot_construct, options):
        assert text.startswith("PeerMismatchError") and "transport" in text, text


def test_protections_that_differ(team: Team) -> None:
    options = [TIMEOUTS | {"protection": protection} for protection in ("digest", "encrypt")]
    for text in team.run(2, placed, hosts("0|1"), jobs.cannot_construct, options):
        assert text.startswith("PeerMismatchError") and "protection is" in text, text
