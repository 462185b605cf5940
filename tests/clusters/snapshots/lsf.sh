#!/usr/bin/env bash

#BSUB -J dask-worker
#BSUB -q normal
#BSUB -P "myproject"
#BSUB -n 4
#BSUB -R "span[hosts=1]"
#BSUB -M 17180
#BSUB -W 02:00
export MALLOC_TRIM_THRESHOLD_=67108864
export MALLOC_MMAP_THRESHOLD_=33554432
export MALLOC_TOP_PAD_=16777216
export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1
export MKL_NUM_THREADS=1
export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=0.6
export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=0.7
export DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=0.8
export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=0.95
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True
export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES='["distributed.http.health"]'
mkdir -p -- "${TMPDIR:-/tmp}"
gmkcf_spill=`umask 077 && mktemp -d "${TMPDIR:-/tmp}/gmkcf-spill-XXXXXXXX"` || exit 1
trap 'rm -rf -- "$gmkcf_spill"' EXIT
trap 'exit 143' INT TERM
PYTHON -m distributed.cli.dask_worker tls://HOST:8786 --name gmkcf-worker --nthreads 1 --memory-limit 4.00GiB --nworkers 4 --nanny --death-timeout 60 --local-directory "$gmkcf_spill" --no-dashboard --dashboard-address 127.0.0.1:0 --interface ib0 --protocol tls:// --tls-ca-file CONFIGS/jobqueue/certificates/ca.pem --tls-cert CONFIGS/jobqueue/certificates/member.pem --tls-key CONFIGS/jobqueue/certificates/member.key
