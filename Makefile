# Every target sets up what it needs; a second run starts in seconds.
PY := .venv/bin/python
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
# Tests start many processes; with bytecode each starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test matrix nightly clients lint format bench serve docs clean
help:            ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/'

.venv/.ready: pyproject.toml constraints.txt scripts/setup.sh
	@bash scripts/setup.sh
setup: .venv/.ready  ## make .venv with everything (uv when present)

demo: .venv/.ready   ## the main job end to end on the embedded defaults
	@$(PY) scripts/demo.py

# Three processes on two cores: tests wait for servers, browsers and programs.
test: .venv/.ready   ## the whole suite
	@$(PY) -m pytest -n 3 $(ARGS)

matrix:              ## the suite on every Python from 3.11 up that is here
	@bash scripts/matrix.sh $(ARGS)

nightly: .venv/.ready ## the suite with 10,000 random cases for each property
	@HYPOTHESIS_PROFILE=nightly $(PY) -m pytest -n 3 $(ARGS)

clients: .venv/.ready ## agents of others, installed on demand, against the emulator
	@$(PY) scripts/clients $(ARGS)

lint: .venv/.ready   ## ruff and strict mypy
	@.venv/bin/ruff check src tests bench scripts
	@.venv/bin/ruff format --check src tests bench scripts
	@.venv/bin/mypy

format: .venv/.ready ## ruff, repairing what it can
	@.venv/bin/ruff check --fix -q src tests bench scripts; .venv/bin/ruff format -q src tests bench scripts

bench: .venv/.ready  ## every table in docs/benchmarks.md
	@bash scripts/bench.sh

serve: .venv/.ready  ## the service, the inspector and the proxy on http://127.0.0.1:8765, with the local model
	@.venv/bin/quire serve --local --demo $(ARGS)

docs:            ## the site of README and docs, in build/site; broken links are errors
	@bash scripts/docs.sh

clean:           ## remove the environment and caches
	rm -rf .venv .venv-* .clients build dist .mypy_cache .ruff_cache .hypothesis
