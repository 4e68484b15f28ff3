#!/usr/bin/env bash
#
# Install GEM and OpenEnv next to agent_gym's environments, and test the bridges to them:
#
#   tests/setup_interop.sh        about a gigabyte, in runs/interop (or where AGENT_GYM_INTEROP points)
#
# Its pins meet those of the trainers, so that this is an environment without the trainers. Running it again installs
# nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Under runs/, since whatever lies there is ignored by git, by the linters and by the tests.
interop=${AGENT_GYM_INTEROP:-runs/interop}
python=${AGENT_GYM_VENV:-.venv}/bin/python
if [[ ! -x $python ]]; then
  echo "setup_interop.sh: $python does not exist: run ./setup.sh first" >&2
  exit 1
fi

if [[ ! -e $interop/ready ]]; then
  [[ -x $interop/bin/python ]] || "$python" -m venv "$interop"
  "$interop/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    gem-llm==0.1.0 openenv==0.10.0 uvicorn pytest hypothesis --editable .
  touch "$interop/ready"
fi
exec "$interop/bin/python" -m pytest -q -p no:cacheprovider tests/test_contrib_peers.py tests/test_openenv.py "$@"
