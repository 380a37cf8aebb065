"""examples/kubernetes: the manifest fits Kubernetes, and what its containers run does as it says.

No cluster: the test starts the containers' commands with their variables, and starts again what
has ended, as a node does.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_venvs
import pytest
import yaml
from watched import ROOT, Program

from harness import required

HERE = Path(__file__).resolve().parent
EXAMPLE = ROOT / "examples" / "kubernetes"
MANIFEST = EXAMPLE / "group.yaml"
VERSIONS = ("1.29", "1.33", "1.37")
# What containers of one pod do not share.
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts")
EVERY, TWO = r"\[1, 1, 1\]", r"\[1, 1, 0\]"


def _documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def _check(manifest: Path) -> subprocess.CompletedProcess[str]:
    python = engine_venvs.python_of("kubernetes", own_torch=True)
    command = [python, HERE / "kubernetes_schemas.py", manifest, *VERSIONS]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_manifest_fits_the_schemas() -> None:
    done = _check(MANIFEST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:-1] == [
        f"{v} {kind}" for v in VERSIONS for kind in _documents()
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("replicas: 1", "replicas: one", "'one' is not of type 'integer'"),
        ("startupProbe:", "startUpProbe:", "'startUpProbe' was unexpected"),
    ],
)
def test_a_wrong_manifest_does_not(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MANIFEST.read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFEST.read_text().replace(old, new))
    done = _check(wrong)
    assert done.returncode == 1 and said in done.stderr


def test_the_manifest_is_one_group() -> None:
    """What no schema knows: names, numbers and ports fit one another."""
    found = _documents()
    group, service, pods = found["ConfigMap"], found["Service"], found["StatefulSet"]
    variables, spec = group["data"], pods["spec"]["template"]["spec"]
    (store,), ranks = spec["initContainers"], spec["containers"]
    numbers = [int(one["env"][0]["value"]) for one in ranks]
    assert numbers == list(range(int(variables["WORLD_SIZE"])))
    assert all(one["env"][0]["name"] == "RANK" for one in ranks)
    assert [one["name"] for one in ranks] == [f"rank-{number}" for number in numbers]
    for one in (store, *ranks):
        assert one["envFrom"] == [{"configMapRef": {"name": group["metadata"]["name"]}}]
        assert one["command"][:2] == ["python", "/program/rank.py"]
    assert store["command"][2:] == ["--store"] and store["restartPolicy"] == "Always"
    port = int(variables["MASTER_PORT"])
    assert store["startupProbe"]["tcpSocket"]["port"] == service["spec"]["ports"][0]["port"] == port
    pod = f"{pods['metadata']['name']}-0.{service['metadata']['name']}"
    assert variables["MASTER_ADDR"] == pod and pods["spec"]["replicas"] == 1
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"]
    assert labels == found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    source = spec["volumes"][0]["configMap"]["name"]
    assert f"create configmap {source} --from-file=examples/kubernetes/rank.py" in (
        MANIFEST.read_text()
    )


class Pod:
    """The manifest's containers as processes of this machine."""

    def __init__(self, folder: Path, inside: tuple[str, ...] = ()) -> None:
        found = _documents()
        spec = found["StatefulSet"]["spec"]["template"]["spec"]
        self._containers = {one["name"]: one for one in spec["initContainers"] + spec["containers"]}
        self._variables = {**found["ConfigMap"]["data"], "MASTER_ADDR": "127.0.0.1"}
        self._folder, self._inside = folder, inside
        self.running: dict[str, Program] = {}
        self.start_store()
        self.ranks = [name for name in self._containers if name != "store"]
        for name in self.ranks:
            self.start(name)

    def start_store(self) -> None:
        """The first time it finds a free port; from then on that is the manifest's."""
        if not self.running:
            self._variables["MASTER_PORT"] = "0"
        self.start("store")
        self._variables["MASTER_PORT"] = self.running["store"].until(r"^store: port (\d+)$")

    def start(self, name: str) -> None:
        """Starts a container, or starts it again."""
        one = self._containers[name]
        own = {item["name"]: item["value"] for item in one.get("env", [])}
        command = [sys.executable, str(EXAMPLE / "rank.py"), *one["command"][2:]]
        self.running[name] = Program(
            command, self._folder / name, {**self._variables, **own}, self._inside
        )

    def until(self, names: list[str], epoch: int, active: str) -> list[int]:
        """Waits until each has made a step in this epoch with these ranks; the step's number."""
        pattern = rf"^rank \d, step (\d+): epoch {epoch}, active_ranks {active}$"
        return [int(self.running[name].until(pattern)) for name in names]

    def end(self) -> None:
        """Ends what runs."""
        for one in self.running.values():
            one.end()


@pytest.fixture
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pod]:
    inside: tuple[str, ...] = getattr(request, "param", ())
    if inside and not _namespaces_can_be_made():
        required.lacking("root", "namespaces of its own need root and unshare")
    one = Pod(tmp_path, inside)
    yield one
    one.end()


def _namespaces_can_be_made() -> bool:
    if not shutil.which(NAMESPACES[0]):
        return False
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, timeout=30).returncode == 0


@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.parametrize("pod", [(), NAMESPACES], ids=["processes", "namespaces"], indirect=True)
def test_a_killed_rank_is_taken_back(pod: Pod) -> None:
    """Also where every rank is process 1 of its own."""
    *others, last = pod.ranks
    pod.until(pod.ranks, 1, EVERY)
    pod.running[last].send(signal.SIGKILL)
    pod.running[last].ended()
    pod.until(others, 1, TWO)
    pod.start(last)
    steps = pod.until(pod.ranks, 2, EVERY)
    assert len(set(steps)) == 1, "the ranks count differently"
    for name in pod.ranks:
        pod.running[name].send(signal.SIGTERM)
    assert [pod.running[name].ended() for name in pod.ranks] == [0] * len(pod.ranks)
    for name in others:
        found = re.findall(r"^rank \d, step (\d+):", pod.running[name].said(), re.MULTILINE)
        assert list(map(int, found)) == list(range(len(found))), "a step was left out"


@pytest.mark.slow
@pytest.mark.multirank
def test_without_their_store_the_ranks_begin_anew(pod: Pod) -> None:
    pod.until(pod.ranks, 1, EVERY)
    pod.running["store"].send(signal.SIGKILL)
    pod.running["store"].ended()
    assert all(pod.running[name].ended() == 1 for name in pod.ranks)
    pod.start_store()
    for name in pod.ranks:
        pod.start(name)
    assert pod.until(pod.ranks, 1, EVERY) == [0] * len(pod.ranks)
