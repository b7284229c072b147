#!/usr/bin/env bash
# Run every benchmark and print its table. They read the traces and the LoCoMo conversations in ../shared/data;
# give others with DATA="trace…" and LOCOMO="file…". BENCH="window clean" runs these alone.
set -uo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
python=.venv/bin/python
every="window tokens clean summary grounding probes reuse bound moments turns adapters records recall recall_folds recall_elsewhere recall_code recall_languages recall_tau recall_speed server engine audit proxy"
failed=0
for bench in ${BENCH:-$every}; do
  case $bench in
    recall | recall_folds | recall_elsewhere | recall_speed) data=${LOCOMO:-} ;;
    *) data=${DATA:-} ;;
  esac
  printf '\n== bench/%s.py\n' "$bench"
  $python "bench/$bench.py" ${data:+--data $data} || failed=1
done
exit $failed
