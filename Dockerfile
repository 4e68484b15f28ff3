# A machine that trains, on a CPU:
#
#   docker build -t agent-gym .
#   docker run --rm -v "$PWD/runs:/agent_gym/runs" agent-gym ./speedrun.sh
#
# and on GPUs, with the NVIDIA container toolkit:
#
#   docker build -t agent-gym:gpu --build-arg BUILD=gpu .
#   docker run --rm -v "$PWD/runs:/agent_gym/runs" --gpus all --shm-size 16g agent-gym:gpu ./speedrun.sh --preset gpu
FROM python:3.12-slim-bookworm

ARG BUILD=cpu
# git for versions in cards; a C compiler, because Triton and vLLM compile small parts when they start.
# hadolint ignore=DL3008
RUN apt-get update \
  && apt-get install -y --no-install-recommends build-essential git \
  && rm -rf /var/lib/apt/lists/*

# What the container toolkit lets a container see.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility PIP_NO_CACHE_DIR=1 \
  PATH=/agent_gym/.venv/bin:$PATH

WORKDIR /agent_gym
COPY . .
RUN ./setup.sh "--$BUILD"

CMD ["agent-gym", "--help"]
