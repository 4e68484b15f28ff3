#!/usr/bin/env bash
#
# Install GEM, OpenEnv and verifiers next to agent_gym's environments, and test the bridges to them:
#
#   tests/setup_interop.sh        two gigabytes, in runs/interop (or where AGENT_GYM_INTEROP points)
#
# Its pins meet those of the trainers, so that this is an environment without the trainers; verifiers' meet OpenEnv's,
# and have another. Running it again installs nothing. A run of verifiers installs its harness by uv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Under runs/, since whatever lies there is ignored by git, by the linters and by the tests.
interop=${AGENT_GYM_INTEROP:-runs/interop}
python=${AGENT_GYM_VENV:-.venv}/bin/python
if [[ ! -x $python ]]; then
  echo "setup_interop.sh: $python does not exist: run ./setup.sh first" >&2
  exit 1
fi

install() {  # a folder, then packages
  [[ -e $1/ready ]] && return
  [[ -x $1/bin/python ]] || "$python" -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${@:2}" pytest hypothesis --editable .
  touch "$1/ready"
}
install "$interop" gem-llm==0.1.0 openenv==0.10.0 uvicorn
install "$interop/verifiers" verifiers==0.4.0 uv
PATH=$(realpath "$interop/verifiers/bin"):$PATH "$interop/verifiers/bin/python" -m pytest -q -p no:cacheprovider \
  tests/test_verifiers.py "$@"
exec "$interop/bin/python" -m pytest -q -p no:cacheprovider tests/test_contrib_peers.py tests/test_openenv.py "$@"
