"""The audit passes the release wheel, and finds each thing it looks for."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wheel_tools import ROOT, load


def problems(checks: list[object]) -> dict[str, str]:
    return {c.name: c.problem for c in checks if c.problem}  # type: ignore[attr-defined]


def test_release_wheel(audit: ModuleType, release_wheel: Path) -> None:
    checks = audit.audit(release_wheel, True)
    assert problems(checks) == {}
    assert len(checks) >= 14
    assert release_wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")


def test_package_data(release_wheel: Path) -> None:
    """Everything below python/moewire is in the wheel: the demo's model, too."""
    package = ROOT / "python" / "moewire"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", str(package)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    want = {str(Path(name).relative_to("python")) for name in listed if (ROOT / name).is_file()}
    assert len(want) > 10
    with zipfile.ZipFile(release_wheel) as archive:
        assert want - set(archive.namelist()) == set()


def test_folders_are_those_of_the_tree(audit: ModuleType) -> None:
    package = ROOT / "python" / "moewire"
    found = {path.parent.relative_to(package).as_posix() for path in package.rglob("*.py")}
    assert found - {"."} <= audit.FOLDERS
    assert all((package / folder).is_dir() for folder in audit.FOLDERS)


# ------------------------------------------------- wheels that must not pass --

Members = dict[str, bytes]


def rewrite(wheel: Path, to: Path, change: Callable[[Members], None], record: bool = True) -> Path:
    """A changed copy of a wheel, with a RECORD that fits if `record`."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    (record_name,) = (name for name in members if name.endswith("/RECORD"))
    if record:
        lines = []
        for name, data in members.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
        lines = [line for line in lines if not line.startswith(record_name)] + [f"{record_name},,"]
        members[record_name] = "\n".join(lines).encode()
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return to


@pytest.fixture
def copy_as(release_wheel: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(change: Callable[[Members], None], name: str = "", record: bool = True) -> Path:
        return rewrite(release_wheel, tmp_path / (name or release_wheel.name), change, record)

    return make


def test_unchanged_copy(audit: ModuleType, copy_as: Callable[..., Path]) -> None:
    """The rewriting itself is no problem."""
    assert problems(audit.audit(copy_as(lambda members: None), True)) == {}


@pytest.mark.parametrize(
    "name",
    [
        "moewire-0.1.0-py3-none-any.whl",
        "moewire-0.1.0-py3-none-linux_x86_64.whl",
        "moewire-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ],
)
def test_wrong_tag(audit: ModuleType, copy_as: Callable[..., Path], name: str) -> None:
    assert set(problems(audit.audit_archive(copy_as(lambda members: None, name), True))) == {"tag"}


def test_altered_file(audit: ModuleType, copy_as: Callable[..., Path]) -> None:
    def change(members: Members) -> None:
        members["moewire/__init__.py"] += b"\n"

    found = problems(audit.audit_archive(copy_as(change, record=False), True))
    assert found == {"RECORD": "differs from the content: moewire/__init__.py"}


@pytest.mark.parametrize("name", ["moewire/py.typed", "moewire/libmoewire.so"])
def test_missing_file(audit: ModuleType, copy_as: Callable[..., Path], name: str) -> None:
    def change(members: Members) -> None:
        del members[name]

    found = problems(audit.audit_archive(copy_as(change), True))
    assert found == {"files": f"should be otherwise: no {name}"}


@pytest.mark.parametrize(
    "name", ["tests/x.py", "moewire/__pycache__/x.pyc", "moewire/x.go", "moewire/bench/hosts/x.py"]
)
def test_foreign_file(audit: ModuleType, copy_as: Callable[..., Path], name: str) -> None:
    def change(members: Members) -> None:
        members[name] = b""

    assert list(problems(audit.audit_archive(copy_as(change), True))) == ["files"]


def test_too_large(audit: ModuleType, release_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_BYTES", 1000)
    assert list(problems(audit.audit_archive(release_wheel, True))) == ["size"]


def sbom_of(members: Members) -> tuple[str, dict[str, Any]]:
    (name,) = (name for name in members if "/sboms/" in name)
    return name, json.loads(members[name])


def without(name: str) -> Callable[[dict[str, Any]], None]:
    def change(listed: dict[str, Any]) -> None:
        listed["components"] = [c for c in listed["components"] if c["name"] != name]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("golang.org/x/sys"), r"golang.org/x/sys v\S+ is not listed"),
        (without("std"), "no std"),
        (without("hatchling"), "no hatchling"),
        (without("nvidia-cuda-nvrtc-cu12"), "no nvidia-cuda-nvrtc-cu12"),
        (without("ziglang"), "no C compiler"),
        (without("moewire/libmoewire.so"), "KeyError"),
        (lambda s: s["metadata"]["component"].update(version="9"), "of moewire 9"),
        (lambda s: s["components"][0]["hashes"][0].update(content="0"), "another moewire/lib"),
        (lambda s: s["components"][2].update(version="v9"), "is listed, not linked"),
        (lambda s: s.update(specVersion="0"), "not CycloneDX"),
        (lambda s: s.pop("components"), "KeyError"),
    ],
)
def test_wrong_sbom(
    audit: ModuleType,
    copy_as: Callable[..., Path],
    change: Callable[[dict[str, Any]], None],
    says: str,
) -> None:
    def spoil(members: Members) -> None:
        name, listed = sbom_of(members)
        change(listed)
        members[name] = json.dumps(listed).encode()

    (problem,) = problems(audit.audit_archive(copy_as(spoil), True)).items()
    assert problem[0] == "SBOM" and re.search(says, problem[1]), problem


def test_no_sbom(audit: ModuleType, copy_as: Callable[..., Path]) -> None:
    def change(members: Members) -> None:
        del members[sbom_of(members)[0]]

    assert list(problems(audit.audit_archive(copy_as(change), True))) == ["SBOM"]


def test_sbom_has_the_hashes_of_what_was_fetched(release_wheel: Path) -> None:
    """The modules as go.sum has them, the compilers as they are pinned."""
    with zipfile.ZipFile(release_wheel) as archive:
        _, listed = sbom_of({n: archive.read(n) for n in archive.namelist() if "/sboms/" in n})
    sums = (ROOT / "go.sum").read_text()
    found = {}
    for part in listed["components"]:
        found[part["name"], part["version"]] = {
            entry["name"].partition(":")[2]: entry["value"] for entry in part.get("properties", ())
        }
        nvrtc = part["name"].startswith("nvidia")
        pins = "".join(f.read_text() for f in (ROOT / "wheels" / "nvrtc").glob("*.txt"))
        assert all((entry["content"] in pins) is nvrtc for entry in part.get("hashes", ()))
    modules = {key: text["go_sum"] for key, text in found.items() if "go_sum" in text}
    assert len(modules) >= 3
    assert all(f"{name} {version} {text}\n" in sums for (name, version), text in modules.items())
    toolchain = load("build_library").toolchain
    zig = found["ziglang", toolchain.ZIG.version]
    assert zig["content_sha256"] in toolchain.ZIG.digests.values()
    assert sum(name.startswith("nvidia") for name, _ in found) == 2


# ---------------------------------------------- libraries that must not pass --

GOOD = """
typedef float wide __attribute__((vector_size(64)));
typedef float half __attribute__((vector_size(32)));
#define TIMES16(x) x x x x x x x x x x x x x x x x
__attribute__((target("avx512f"))) void mw_wide(volatile wide *a) { TIMES16(*a = *a + *a;) }
__attribute__((target("avx2"))) void mw_half(volatile half *a) { TIMES16(*a = *a + *a;) }
"""
SONAME = "-Wl,-soname,libmoewire.so.0"
HARD = ["-fstack-protector-all", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]


def compile_library(tmp_path: Path, text: str, *flags: str) -> str:
    source, library = tmp_path / "x.c", tmp_path / "lib.so"
    source.write_text(text)
    command = ["gcc", "-shared", "-fPIC", "-O2", *HARD, *flags, str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return str(library)


@pytest.mark.parametrize(
    ("text", "flags", "want"),
    [
        pytest.param(GOOD, ["-s", SONAME], [], id="good"),
        pytest.param(GOOD + "int other;", ["-s", SONAME], ["exports"], id="exports"),
        pytest.param("static int x;", ["-s", SONAME],
                     ["exports", "AVX-512 code", "AVX2 code", "stack protector"], id="empty"),
        pytest.param(GOOD, ["-s", SONAME, "-Wl,-z,lazy"], ["read-only after loading"], id="lazy"),
        pytest.param(GOOD, ["-s", SONAME, "-Wl,-z,norelro"], ["read-only after loading"],
                     id="no-relro"),
        pytest.param(GOOD, ["-s", SONAME, "-Wl,-z,execstack"], ["stack not executable"],
                     id="execstack"),
        pytest.param(GOOD, ["-s", SONAME, "-fno-stack-protector"], ["stack protector"],
                     id="no-stack-protector"),
        pytest.param(GOOD, ["-s", SONAME, "-fno-pic", "-mcmodel=large", "-Wl,-z,notext"],
                     ["no code that can be written"], id="writable-code"),
        pytest.param(GOOD, ["-s"], ["soname"], id="no-soname"),
        pytest.param(GOOD + "static _Thread_local char t[512]; char *mw_t(int i) { return t + i; }",
                     ["-s", SONAME], ["thread-local storage"], id="tls"),
        pytest.param(GOOD, ["-s", SONAME, "-Wl,-rpath,/usr/lib/x"], ["no rpath"], id="rpath"),
        pytest.param(GOOD, [SONAME, "-g"], ["no build paths", "stripped"], id="debug"),
        pytest.param(GOOD, [SONAME], ["stripped"], id="symbols"),
        pytest.param(GOOD + 'const char *mw_path(void) { return "/tmp/build-1/x.c"; }',
                     ["-s", SONAME], ["no build paths"], id="path"),
        pytest.param(GOOD + "float mw_f(float a, float b, float c) { return a * b + c; }",
                     ["-s", SONAME, "-mfma", "-ffp-contract=fast"], ["no fused multiply-add"],
                     id="fused"),
        pytest.param(GOOD.replace("avx512f", "avx2"), ["-s", SONAME], ["AVX-512 code"],
                     id="no-zmm"),
    ],
)  # fmt: skip
def test_library(
    audit: ModuleType, tmp_path: Path, text: str, flags: list[str], want: list[str]
) -> None:
    library = compile_library(tmp_path, text, *flags)
    assert sorted(problems(audit.audit_library(library, True))) == sorted(want)


def archive_of(*targets: str) -> bytes:
    """The beginning of an archive of kernels."""
    header = json.dumps({"source": "", "images": [{"target": t} for t in targets]}).encode()
    return b"MOEWKRN1" + len(header).to_bytes(4, "little") + header


@pytest.mark.parametrize(
    ("holds", "release", "problem"),
    [
        pytest.param(b"", True, "", id="no-CUDA"),
        pytest.param(b"core/device/cuda/images.For MOEWKRN1 MOEWKRN1....{", True, "none",
                     id="none"),
        pytest.param(b"core/device/cuda/images.For", False, "", id="for-this-machine"),
        pytest.param(b"core/device/cuda/images.For" + archive_of("sm_90"), True, "sm_90",
                     id="too-few"),
        pytest.param(b"core/device/cuda/images.For", True, "", id="all"),
    ],
)  # fmt: skip
def test_kernels(
    audit: ModuleType, tmp_path: Path, holds: bytes, release: bool, problem: str
) -> None:
    library = tmp_path / "lib.so"
    rest = archive_of(*audit.KERNELS) if problem == "" and release and holds else b""
    library.write_bytes(b"code " + holds + b"MOEWKRN1 again" + rest + b"frame")
    found = audit.check_kernels(str(library), release)
    assert found.problem == (f"not those of a release: {problem}" if problem else "")


def test_kernels_are_those_of_the_sources(audit: ModuleType) -> None:
    text = (ROOT / "core" / "device" / "cuda" / "kernels" / "source.go").read_text()
    assert set(audit.KERNELS) == set(re.findall(r'"((?:sm|compute)_\d+)"', text))


def test_foreign_dependency(audit: ModuleType, tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", other, "-Wl,-soname,libother.so"],
        check=True,
    )
    flags = ["-s", SONAME, f"-L{tmp_path}", "-Wl,--no-as-needed", "-lother"]
    found = problems(audit.audit_library(compile_library(tmp_path, GOOD, *flags), True))
    assert found == {"linked": "not allowed: libother.so"}


def test_new_glibc(audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD + "void *malloc(unsigned long); void *mw_m(void) { return malloc(1); }"
    library = compile_library(tmp_path, text, "-s", SONAME)
    monkeypatch.setattr(audit, "RELEASE_GLIBC", (2, 1))
    assert list(problems(audit.audit_library(library, True))) == ["glibc"]
    assert problems(audit.audit_library(library, False)) == {}
