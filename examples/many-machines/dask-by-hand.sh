#!/usr/bin/env bash
# A Dask cluster by hand: a scheduler, workers on any machine that has the directories mounted, and the run.
#     dask-by-hand.sh study.yaml
set -euo pipefail
dask scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file scheduler.json &
scheduler=$!
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# With GPUs: `dask cuda worker --scheduler-file scheduler.json` (dask-cuda) starts a worker for each, which sees only its own.
dask worker --scheduler-file scheduler.json --nworkers 2 --nthreads 1 --no-dashboard &
workers=$!
trap 'kill $workers $scheduler 2>/dev/null; wait' EXIT
until [ -s scheduler.json ]; do sleep 0.2; done
gausslens run "$1" --scheduler scheduler.json
