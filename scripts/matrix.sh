#!/usr/bin/env bash
# The suite on every Python from 3.11 up that this machine has, each in its own .venv-3.X. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # tests start many processes; with bytecode each starts in half the time

find_python() {  # the interpreter of one version: from PATH, from uv, or from pyenv
  local found
  for found in "python$1" "$(uv python find "$1" 2>/dev/null)" "$(pyenv prefix "$1" 2>/dev/null)/bin/python"; do
    "$found" -c "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$1'.split('.'))))" 2>/dev/null &&
      { echo "$found"; return; }
  done
  return 1
}

results=() failed=0
for version in 3.11 3.12 3.13 3.14 3.15; do
  if ! python=$(find_python "$version"); then
    results+=("Python $version: skipped, not on this machine")
    continue
  fi
  venv=.venv-$version
  if [ ! "$venv/.ready" -nt pyproject.toml ] || [ ! "$venv/.ready" -nt constraints.txt ]; then
    VENV=$venv PYTHON=$python bash scripts/setup.sh ||
      { results+=("Python $version: FAILED to install"); failed=1; continue; }
  fi
  if "$venv/bin/python" -m pytest -n 3 "$@"; then
    results+=("Python $version: passed")
  else
    results+=("Python $version: FAILED"); failed=1
  fi
done
printf '%s\n' "${results[@]}"
exit $failed
