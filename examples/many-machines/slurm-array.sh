#!/usr/bin/env bash
# A run on a Slurm cluster without a scheduler of its own: each job of the array computes a share of the twins.
#     sbatch --array=1-20 slurm-array.sh study.yaml
#SBATCH --job-name=gausslens
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail
# The same number of threads in every job: with equal threads results are equal bit for bit.
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# `exec`: SIGTERM at the end of the time reaches gausslens, which ends with 143; what was finished is kept.
exec gausslens run "$1" --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
