#!/usr/bin/env bash
# gmkcf inside an MPI job: one process schedules, one runs the command, the others work.
#   mpi.sh PROCESSES gmkcf arguments...      mpi.sh 10 run INPUT -k 5 --out RUN
# Change: CONFIG (your copy of mpi.yaml), and MPIRUN where your site has another launcher ("srun -n").
# Interface, TLS, dashboard, local directory, spill limits and the environment of workers are in CONFIG.
set -euo pipefail
config=${CONFIG:-$(dirname "$0")/mpi.yaml}
read -ra launcher <<< "${MPIRUN:-mpirun -n}"
processes=${1:?usage: mpi.sh PROCESSES gmkcf arguments...}
shift
exec "${launcher[@]}" "$processes" gmkcf "$@" --cluster "$config"
