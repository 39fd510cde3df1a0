"""What launchers put into the environment of the processes that they start."""

import os
from collections.abc import Mapping

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where launchers say a process's rank: torchrun, srun, mpirun (Open MPI), mpirun (MPICH)."""

_LAUNCH_VARIABLES = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMIX_NAMESPACE",),
    ("PMI_JOBID",),
    ("MASTER_ADDR", "MASTER_PORT"),
)


def launcher_rank(variables: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher has put into the environment, or None."""
    for name in RANK_VARIABLES:
        if variables.get(name, "").isdigit():
            return int(variables[name])
    return None


def restarts(variables: Mapping[str, str]) -> int:
    """Return how often an elastic launcher has started this job's processes anew."""
    count = variables.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def launch_id(variables: Mapping[str, str]) -> str:
    """Return what the ranks of one launch have in common and no other launch has.

    Where the launcher says nothing, the ranks of one machine have their parent in common.
    """
    for names in _LAUNCH_VARIABLES:
        if all(name in variables for name in names):
            return ":".join(variables[name] for name in names)
    return f"parent {os.getppid()}"
