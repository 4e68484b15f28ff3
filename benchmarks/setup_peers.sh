#!/usr/bin/env bash
#
# Install the libraries that env_steps.py compares with, into an environment of their own:
#
#   benchmarks/setup_peers.sh        about half a gigabyte, in runs/peers (or where AGENT_GYM_PEERS points)
#
# They are not installed beside agent_gym because their pins would meet its own. Running it again changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Under runs/, since whatever lies there is ignored by git, by the linters and by the tests.
peers=${AGENT_GYM_PEERS:-runs/peers}
python=${AGENT_GYM_VENV:-.venv}/bin/python
if [[ ! -x $python ]]; then
  echo "setup_peers.sh: $python does not exist: run ./setup.sh first" >&2
  exit 1
fi

[[ -x $peers/bin/python ]] || "$python" -m venv "$peers"
"$peers/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
  gem-llm==0.1.0 skyrl-gym==0.4.0 textarena==0.7.4 gymnasium pydantic  # the last two for our calculator
"$peers/bin/python" -m pip list --disable-pip-version-check 2>/dev/null | grep -i -E '^(gem-llm|skyrl-gym|textarena) '
