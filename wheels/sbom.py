"""The list of what is in a wheel and what it was built with: CycloneDX 1.6, as PEP 770 has it.

It follows from the sources and the tools alone, with no time and no serial number: the same build
gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

NAME = "moewire.cdx.json"
ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "wheels" / "nvrtc"
NVRTC = {"cubins": "the CUDA kernels' machine code", "ptx": "the CUDA kernels' PTX"}

Component = dict[str, Any]


def document(
    version: str,
    library: Path,
    go: str,
    built_with: list[Component],
    kernels: dict[str, Any] | None,
) -> str:
    """The whole list as JSON text.

    ``built_with``: the C compiler and the build backend. ``kernels``: the header of the archive of
    kernels that is in the library; None: there is none.
    """
    toolchain, modules = modules_of(go, library)
    own = component("library", "moewire", version, purl=f"pkg:pypi/moewire@{version}")
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    shared = component("file", "moewire/libmoewire.so", version)
    shared["hashes"] = [{"alg": "SHA-256", "content": digest}]
    linked = [shared, _standard_library(toolchain), *modules]
    tools = [_tool("go", toolchain, "the Go compiler and linker"), *built_with]
    tools += _kernels_tools(kernels) if kernels is not None else []
    found = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": own},
        "components": [*linked, *tools],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [c["bom-ref"] for c in linked]}],
    }
    return json.dumps(found, indent=1) + "\n"


def component(kind: str, name: str, version: str, purl: str = "", **properties: str) -> Component:
    """One entry; ``properties`` get the prefix ``moewire:``."""
    found: Component = {"type": kind, "bom-ref": purl or f"{name}@{version}", "name": name}
    found["version"] = version
    if purl:
        found["purl"] = purl
    if properties:
        pairs = [{"name": f"moewire:{key}", "value": text} for key, text in properties.items()]
        found["properties"] = pairs
    return found


def _tool(name: str, version: str, role: str, purl: str = "", **properties: str) -> Component:
    """What the build used and the wheel does not hold."""
    found = component("application", name, version, purl, role=role, **properties)
    return {**found, "scope": "excluded"}


def modules_of(go: str, library: Path) -> tuple[str, list[Component]]:
    """Of a library: the version of Go, and the modules that are linked in, with go.sum's hashes."""
    command = [go, "version", "-m", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    sums = (ROOT / "go.sum").read_text().splitlines()
    modules = []
    for path, version, digest in re.findall(r"^\tdep\t(\S+)\t(\S+)\t(h1:\S+)$", text, re.MULTILINE):
        if f"{path} {version} {digest}" not in sums:
            raise ValueError(f"{path} {version} {digest} was linked, and go.sum has another hash")
        purl = f"pkg:golang/{path}@{version}"
        modules.append(component("library", path, version, purl, go_sum=digest))
    return text.splitlines()[0].rpartition(": ")[2].strip(), modules


def _standard_library(toolchain: str) -> Component:
    version = toolchain.split()[0].removeprefix("go")
    return component("library", "std", version, f"pkg:golang/std@{version}")


def package_tool(requirement: str, role: str, **properties: str) -> Component:
    """A tool that is a Python package; ``requirement`` is NAME==VERSION."""
    name, _, version = requirement.partition("==")
    return _tool(name, version, role, f"pkg:pypi/{name}@{version}", **properties)


def c_compiler(command: str) -> Component:
    """A compiler of the machine, by what it says of itself."""
    words = [*shlex.split(command), "--version"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return _tool(Path(words[0]).name, (text.splitlines() or ["?"])[0], "the C compiler")


def _kernels_tools(kernels: dict[str, Any]) -> list[Component]:
    """NVIDIA's compilers that made the archive of kernels, with the hashes of their packages."""
    used = {image["compiler"] for image in kernels["images"]}
    found = []
    for name, role in NVRTC.items():
        text = (PINS / f"{name}.txt").read_text()
        (pin,) = re.findall(r"^(\S+==[\d.]+)", text, re.MULTILINE)
        hashes = re.findall(r"--hash=sha256:(\w+)", text)
        release = "NVRTC " + ".".join(pin.partition("==")[2].split(".")[:2])
        if release in used:
            used.remove(release)
            tool = package_tool(pin, role, kernels_source=kernels["source"])
            tool["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in hashes]
            found.append(tool)
    return found + [_tool("NVRTC", name, "the CUDA kernels' code") for name in sorted(used)]
