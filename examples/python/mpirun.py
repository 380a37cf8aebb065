#!/usr/bin/env python3
"""Starting ranks with MPI: runs ../moe_layer.py, or the program that is named.

    mpirun -n 2 python examples/python/mpirun.py
    mpirun -n 4 python examples/python/mpirun.py examples/generate.py

MPI launchers do not set the variables that torch.distributed reads; this maps them. On
several machines, set MASTER_ADDR to the first one's address.
"""

import os
import runpy
import sys
from pathlib import Path

# torch's variable: what Open MPI, MPICH and Intel MPI, and Slurm's srun call it
NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}


def map_environment(environ):
    for name, others in NAMES.items():
        found = [environ[other] for other in others if other in environ]
        if name not in environ and found:
            environ[name] = found[0]
        if name not in environ:
            raise SystemExit(f"{name}: none of {', '.join(others)} is set; start with mpirun")
    environ.setdefault("MASTER_ADDR", "127.0.0.1")
    environ.setdefault("MASTER_PORT", "29513")


if __name__ == "__main__":
    map_environment(os.environ)
    program = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "moe_layer.py"
    sys.argv = [str(program), *sys.argv[2:]]
    runpy.run_path(str(program), run_name="__main__")
