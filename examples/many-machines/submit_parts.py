"""A run as jobs of submitit: on Slurm, or as processes of this machine where there is no Slurm.

python submit_parts.py study.yaml 20
"""

from __future__ import annotations

import sys

from gausslens.__main__ import main as gausslens


def part(file: str, number: int, of: int) -> int:
    """Compute a share of the twins; what is finished is in the store, whatever comes of the job."""
    return gausslens(["run", file, "--part", f"{number}/{of}"])


def main(file: str, of: int) -> int:
    """Submit all parts, wait for them, and compute what waits for them."""
    import submitit

    executor = submitit.AutoExecutor(folder="logs")
    executor.update_parameters(timeout_min=240, mem_gb=16, cpus_per_task=4, slurm_setup=["export OMP_NUM_THREADS=4"])
    jobs = [executor.submit(part, file, number, of) for number in range(1, of + 1)]
    for job in jobs:
        job.wait()
    return gausslens(["run", file])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
