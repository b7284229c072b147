#!/usr/bin/env bash
# Build the site of README and docs into build/site; a broken link is an error. mkdocs has an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -e .venv-docs/.ready ] || [ pyproject.toml -nt .venv-docs/.ready ]; then
  [ -x .venv-docs/bin/python ] || python3 -m venv .venv-docs
  .venv-docs/bin/python -m pip install --quiet --retries 5 'mkdocs>=1.6,<2' 'mkdocs-material>=9.7,<10' \
    'mkdocstrings[python]>=1.0' -e .
  touch .venv-docs/.ready
fi
rm -rf build/pages && mkdir -p build/pages/docs
cp -r docs/. build/pages/docs/
cp CONTRIBUTING.md CHANGELOG.md LICENSE build/pages/
cp README.md build/pages/index.md
# Pages refer to tests, benchmarks and sources; those files are there as they are.
find tests bench scripts src -name '*.py' -exec cp --parents {} build/pages/ \;
NO_COLOR=1 .venv-docs/bin/python scripts/shell_page.py >>build/pages/docs/reference/shell.md
# Pages refer to the README by its name; on the site it is the first page.
find build/pages -name '*.md' -exec sed -i 's#README\.md#index.md#g' {} +
NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict "$@"
echo "build/site/index.html"
