#!/usr/bin/env bash
#
# From a bare machine to a policy that has learned to search better than its teacher: set up the environment where that is still
# to be done, then `agent-gym speedrun`. Everything given here goes to that command: ./speedrun.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

./setup.sh
exec "${AGENT_GYM_VENV:-.venv}/bin/agent-gym" speedrun "$@"
