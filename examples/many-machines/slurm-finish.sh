#!/usr/bin/env bash
# What waits for all parts: comparisons, analyses of results, the report; and twins that a job did not come to.
#     sbatch --dependency=afterany:JOB slurm-finish.sh study.yaml
#SBATCH --job-name=gausslens-finish
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
set -euo pipefail
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
exec gausslens run "$1"
