#!/usr/bin/env bash
#
# Run the tests, after setting up the environment where that is still to be done.
#
#   ./test.sh               the default suite, three files at a time: no GPU, no network, nothing slow
#   ./test.sh --slow        the slow tests, and the property tests with all their examples
#   ./test.sh --lint        ruff, mypy, the import contract, shellcheck
#   ./test.sh -k spans -x   whatever else is given goes to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  exec sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' test.sh
fi

./setup.sh --dev
bin=${AGENT_GYM_VENV:-.venv}/bin

# One thread a process: the tests start several, and on a small machine they would otherwise wait for each other.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} TOKENIZERS_PARALLELISM=false
# Compiled once, not in each process that a test starts.
unset PYTHONDONTWRITEBYTECODE
# A test that would quietly download something must fail instead.
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}

case ${1:-} in
  --lint)
    failed=0
    "$bin/ruff" check . || failed=1
    "$bin/mypy" || failed=1
    "$bin/lint-imports" --no-logo || failed=1
    "$bin/shellcheck" ./*.sh benchmarks/*.sh tests/*.sh examples/cluster/*.sh .ci/run .ci/commit-msg || failed=1
    "$bin/python" tests/test_rings.py
    exit "$failed"
    ;;
  --slow)
    shift
    export AGENT_GYM_EXAMPLES=full
    exec "$bin/python" -m pytest -m "(slow or property) and not gpu and not network" "$@"
    ;;
  # Tests of one file share what they have started (an engine, a server), so that they stay together. The files come in
  # the order of tests/conftest.py. Three at a time keep two cores busy: many tests wait for a process or a limit. A test
  # that hangs fails, with the stacks of its threads, and the others run on.
  '') exec "$bin/python" -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 900 --durations=25 ;;
  *) exec "$bin/python" -m pytest "$@" ;;
esac
