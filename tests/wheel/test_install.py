"""Wheels and source archives, installed as users do, each in a fresh environment."""

from __future__ import annotations

import hashlib
import os
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

import pytest

from wheel_tools import ROOT, load, run

DISPATCH = """
import threading
before = threading.active_count()
import sys
import moewire
from importlib.metadata import entry_points
(plugin,) = entry_points(group="sglang.srt.plugins")
assert plugin.name == "moewire"
plugin.load()()  # does nothing where there is no SGLang
assert "torch" not in sys.modules, "import moewire loaded torch"
assert not any("libmoewire" in line for line in open("/proc/self/maps")), "loaded at import"

import torch
from torch.distributed import HashStore

buffer = moewire.Buffer.from_store(HashStore(), 0, 1)
x = torch.randn(5, 64).to(torch.bfloat16)
topk_idx = torch.tensor([[0, 3], [1, -1], [2, 2], [3, 0], [-1, -1]])
weights = torch.rand(5, 2)
recv_x, recv_count, handle, event, hook = buffer.dispatch(
    x, topk_idx, None, 8, 4, 10_000_000, use_fp8=False
)
assert recv_count.tolist() == [2, 1, 1, 2], recv_count
out, event, hook = buffer.combine(recv_x.clone(), topk_idx, weights, None, 10_000_000, handle)
want = torch.zeros(5, 64)
for k in range(2):
    want = want + weights[:, k, None] * (topk_idx[:, k, None] >= 0) * x.float()
assert torch.equal(out, want.to(torch.bfloat16))
print("moewire at", moewire.__file__)
"""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def clean_environment(*folders: Path) -> dict[str, str]:
    """An environment with nothing on PATH but these folders."""
    return {"PATH": os.pathsep.join(map(str, folders)), "LC_ALL": "C.UTF-8"}


class Venv:
    """A fresh, empty environment. The pip of the test environment fills it."""

    def __init__(self, path: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", path)
        self.bin = path / "bin"
        self.python = self.bin / "python"
        (self.site,) = path.glob("lib/python*/site-packages")

    def pip(self, *words: str | Path, env: dict[str, str] | None = None) -> str:
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        return run(*pip, *words, env=env, cwd=self.site)

    def add_torch(self) -> None:
        """Makes the packages of the test environment importable, below our own."""
        (self.site / "tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "env")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.mkdir()
    return path


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    """The source archive, unpacked: no git, no tests, nothing built."""
    source = tmp_path / "source"
    source.mkdir()
    run("tar", "-xzf", sdist, "-C", source)  # tarfile's filters are younger than our oldest Python
    (path,) = source.iterdir()
    assert not list(path.rglob("*.so"))
    return path


def check_works(venv: Venv, elsewhere: Path, environment: dict[str, str], where: Path) -> None:
    """Imports from another directory, reports, and dispatches on the CPU."""
    text = run(venv.python, "-c", "import moewire; print(moewire.__file__)",
               env=environment, cwd=elsewhere)  # fmt: skip
    assert Path(text.strip()).is_relative_to(where)
    version = run(venv.bin / "moewire", "--version", env=environment, cwd=elsewhere)
    assert version.startswith("moewire ")
    report = run(venv.bin / "moewire", "doctor", env=environment, cwd=elsewhere)
    assert str(where / "moewire" / "libmoewire.so") in report
    venv.add_torch()
    text = run(venv.python, "-W", "error", "-c", DISPATCH, env=environment, cwd=elsewhere)
    assert Path(text.split("moewire at ")[1].strip()).is_relative_to(where)


def test_release_wheel_without_toolchain(release_wheel: Path, venv: Venv, elsewhere: Path) -> None:
    """No Go, no compiler, no source tree: what a user's machine has."""
    environment = clean_environment(venv.bin)
    for tool in ("go", "gcc", "cc", "clang"):
        assert shutil.which(tool, path=environment["PATH"]) is None
    venv.pip("install", "--no-index", "--no-deps", release_wheel, env=environment)
    check_works(venv, elsewhere, environment, venv.site)


BLOCKS = """
import sys
from moewire.store import Client
with Client(namespace="wheel", timeout_us=10_000_000) as client:
    if "put" in sys.argv:
        assert client.put("key", b"a block") and client.flush()
    assert client.get("key") == b"a block"
    with client.lookup(["key"])[0] as view:
        assert view == b"a block"
assert not {"torch", "numpy"} & set(sys.modules)
"""


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line that a process prints, within a minute."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, f"{process.args} has printed nothing"
    return process.stdout.readline()


def test_release_wheel_serves_blocks(release_wheel: Path, venv: Venv, elsewhere: Path) -> None:
    """`moewire store serve`, its client and its commands, without torch and numpy; twice."""
    environment = clean_environment(venv.bin)
    venv.pip("install", "--no-index", "--no-deps", release_wheel, env=environment)
    command = [venv.bin / "moewire", "store", "serve", "--listen", "127.0.0.1:0",
               "--storage", "file", "--path", "blocks", "--capacity", "16MiB"]  # fmt: skip
    for words, keys in (("put",), "--new-key"), (("again",), "--key-file"):
        served = subprocess.Popen(
            [*command, keys, "keys"], stdout=subprocess.PIPE, text=True, env=environment,
            cwd=elsewhere,
        )  # fmt: skip
        try:
            address = first_line(served).split(" at ")[1].strip()
            client = {**environment, "MOEWIRE_STORE_SERVERS": address, "MOEWIRE_KEY_FILE": "keys"}
            run(venv.python, "-W", "error", "-c", BLOCKS, *words, env=client, cwd=elsewhere)
            check = run(venv.bin / "moewire", "store", "check", env=client, cwd=elsewhere)
            assert f"{address}: ok" in check
            served.terminate()
            assert "ended" in served.communicate(timeout=60)[0]
            assert served.returncode == 0
        finally:
            served.kill()
            served.wait()


def test_wheel_is_reproducible(release_wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    """From the tree and from the source archive, in two places: the same bytes."""
    out = tmp_path / "out"
    kernels = str(load("build_library").KERNELS)
    env = {**os.environ, "MOEWIRE_RELEASE": "1", "MOEWIRE_KERNELS": kernels}
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out,
        cwd=unpacked, env=env)  # fmt: skip
    (again,) = out.glob("*.whl")
    assert again.name == release_wheel.name
    assert digest(again) == digest(release_wheel)


def test_sdist_is_reproducible(sdist: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path)
    assert digest(tmp_path / sdist.name) == digest(sdist)


def test_sdist_content(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    for name in ("go.mod", "go.sum", "capi/include/moewire.h", "capi/exports.map", "LICENSE",
                 "wheels/hatch_build.py", "wheels/build_library.py", "wheels/toolchain.py",
                 "wheels/sbom.py", "wheels/build-constraints.txt", "SECURITY.md",
                 "PKG-INFO"):  # fmt: skip
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", ".ci/"))]
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_pip_wheel(unpacked: Path, venv: Venv, elsewhere: Path, tmp_path: Path) -> None:
    """A wheel for this machine, which claims no more; `pip install .` makes and installs it.

    With pip's own build isolation and this machine's compiler.
    """
    out = tmp_path / "out"
    begin = time.monotonic()
    venv.pip("wheel", "--no-deps", "--wheel-dir", out, unpacked)
    print(f"pip wheel: {time.monotonic() - begin:.1f} s")
    (wheel,) = out.glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    run(sys.executable, ROOT / "wheels" / "audit.py", wheel)
    assert not list(unpacked.rglob("*.so")), "the source tree was changed"
    venv.pip("install", "--no-index", "--no-deps", wheel)
    check_works(venv, elsewhere, clean_environment(venv.bin), venv.site)


def test_pip_install_editable(unpacked: Path, venv: Venv, elsewhere: Path) -> None:
    """`pip install -e .`: the package stays in the tree, and the library goes there."""
    venv.pip("install", "--no-deps", "-e", unpacked)
    library = unpacked / "python" / "moewire" / "libmoewire.so"
    inode = library.stat().st_ino
    check_works(venv, elsewhere, clean_environment(venv.bin), unpacked / "python")
    # Built again, the file is another one: a process that has it mapped keeps the old one.
    venv.pip("install", "--no-deps", "-e", unpacked)
    assert library.stat().st_ino != inode


def test_a_build_backend_with_another_hash_is_not_run(unpacked: Path, tmp_path: Path) -> None:
    """With the source archive's constraints, for builds that need hashes of everything."""
    pins = unpacked / "wheels" / "build-constraints.txt"
    other = tmp_path / "constraints.txt"
    text = pins.read_text()
    other.write_text(re.sub(r"sha256:(\w{2})\w{8}", r"sha256:\g<1>00000000", text))
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "build", "--wheel", "--require-hashes",
         "--build-constraints", other, "--out-dir", tmp_path / "out", unpacked],
        env={"UV_SYSTEM_CERTS": "1", **os.environ}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Hash mismatch for `" in done.stderr, done.stderr
    assert not list((tmp_path / "out").glob("*.whl"))


@pytest.mark.slow
def test_install_without_toolchain(sdist: Path, venv: Venv, elsewhere: Path) -> None:
    """From the source archive where there is Python and nothing else."""
    environment = {**clean_environment(venv.bin), "HOME": os.environ["HOME"]}
    begin = time.monotonic()
    venv.pip("install", "--no-deps", sdist, env=environment)
    print(f"pip install without Go and gcc: {time.monotonic() - begin:.1f} s")
    check_works(venv, elsewhere, clean_environment(venv.bin), venv.site)
