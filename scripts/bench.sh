#!/usr/bin/env bash
# Run every benchmark and print its table. Needs the traces in ../shared/data, or give others with DATA="file…".
set -uo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
python=.venv/bin/python
if [ ! -x .venv-litellm/bin/python ]; then
  # litellm pins an older openai, so it gets an environment of its own.
  python3 -m venv .venv-litellm && .venv-litellm/bin/python -m pip install --quiet litellm || rm -rf .venv-litellm
fi
failed=0
for bench in ${BENCH:-window tokens clean summary reuse turns records recall recall_tau recall_speed engine}; do
  [ -f "bench/$bench.py" ] || continue
  printf '\n== bench/%s.py\n' "$bench"
  $python "bench/$bench.py" ${DATA:+--data $DATA} || failed=1
done
exit $failed
