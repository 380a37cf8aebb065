"""A virtual machine with RDMA devices (soft-RoCE): boots, runs a command, ends.

    python3 tests/rdma/machine.py prepare
    python3 tests/rdma/machine.py run -- ./verbs.test -test.v

The command runs as root in the present folder, on this machine's files: it can
read all of them, and what it writes vanishes with it. Its output and its exit
status come back. The machine is emulated, so it needs no right and no help of
the processor; it is slow, and good for what happens, not for how long it takes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import packages

MACHINE_FAILED = 125  # as an exit status: the machine, not the command
MEMORY_MIB = 2048
CONSOLE = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr net.ifnames=0"
QUIRKS = "random.trust_cpu=on tsc=reliable no_timer_check cryptomgr.notests"


def run(command: str, timeout_s: float) -> int:
    """Runs a shell command in the machine; its exit status, or MACHINE_FAILED."""
    folder = packages.prepare()
    with tempfile.TemporaryDirectory(prefix="moewire-rdma-") as name:
        shared = Path(name)
        here = shlex.quote(os.getcwd())
        (shared / "command").write_text(f"ulimit -l unlimited\ncd {here} || exit\n{command}\n")
        try:
            subprocess.run(
                emulator(folder, shared),
                env=environment(folder),
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            print(f"the machine did not end within {timeout_s:.0f} s", flush=True)
        status = shared / "status"
        if status.is_file() and status.read_text().strip():
            return int(status.read_text())
        print_tail(shared / "console")
        return MACHINE_FAILED


def environment(folder: Path) -> dict[str, str]:
    """Where the emulator finds its libraries."""
    libraries = folder / "qemu/usr/lib/x86_64-linux-gnu"
    modules = {"LD_LIBRARY_PATH": str(libraries), "QEMU_MODULE_DIR": str(libraries / "qemu")}
    return {**os.environ, **modules}


def emulator(folder: Path, shared: Path) -> list[str]:
    """The emulator's command line. Two processors: one makes two busy pollers crawl."""
    share = folder / "qemu/usr/share"
    words = [str(folder / "qemu/usr/bin/qemu-system-x86_64")]
    words += ["-L", str(share / "qemu"), "-L", str(share / "seabios")]
    words += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]
    words += ["-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot"]
    words += ["-display", "none", "-nic", "none", "-device", "virtio-rng-pci"]
    words += ["-kernel", str(folder / "kernel/vmlinux"), "-initrd", str(folder / "initrd.gz")]
    words += ["-append", f"{CONSOLE} {QUIRKS}"]
    words += ["-chardev", f"file,id=serial,path={shared}/console", "-serial", "chardev:serial"]
    words += ["-chardev", "stdio,id=out,signal=off", "-device", "virtio-serial-pci"]
    words += ["-device", "virtconsole,chardev=out"]
    words += files("host", Path("/"), ",readonly=on,multidevs=remap")
    words += files("userland", folder / "userland", ",readonly=on")
    words += files("shared", shared, "")
    return words


def files(tag: str, path: Path, more: str) -> list[str]:
    """A folder of this machine that the guest can mount under a tag."""
    device = f"local,id={tag},path={path},security_model=none{more}"
    return ["-fsdev", device, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def print_tail(console: Path) -> None:
    if console.is_file():
        print(*console.read_text(errors="replace").splitlines()[-20:], sep="\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--timeout", type=float, default=300, help="seconds, for all of it")
    parser.add_argument("action", choices=["prepare", "run"])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    args = parser.parse_args()
    try:
        if args.action == "prepare":
            print(packages.prepare())
            return 0
        words = args.command[1:] if args.command[:1] == ["--"] else args.command
        return run(shlex.join(words) if len(words) > 1 else " ".join(words), args.timeout)
    except packages.UnavailableError as err:
        print(err, file=sys.stderr)
        return MACHINE_FAILED


if __name__ == "__main__":
    sys.exit(main())
