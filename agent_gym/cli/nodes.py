"""`agent-gym launch`: one command for all machines of a run. The first ones serve the model, the others train it.

Each machine runs the same command and finds its part by its number, which SLURM and Kubernetes tell it. Here is no
scheduler: it is theirs to start the command, and to start it again on a machine that was lost. What is here keeps one
machine's processes alive: a model server that has ended is started again, and so is training, from its last checkpoint.
Trainers of several machines meet through torchrun's elastic agents, which end and restart all ranks together.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent_gym.cli.launch import end_with
from agent_gym.cli.parser import Parser, positive
from agent_gym.errors import ConfigError

_PORT, _MEETING_PORT = 8010, 29500  # of the first model server of a machine, and of the trainers' rendezvous
_MISTAKE, _INTERRUPTED = 2, 130  # exit codes, see main.py
_LOOK_S = 1.0
_MARK = "launch-ended"
_NUMBERS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX")  # environment variables with this machine's number


def launch(argv: Sequence[str]) -> int:
    """Run grpo or ppo on several machines, each of which gets this same command: agent-gym launch --nodes ... grpo ...

    The first --serving machines serve the model, the others train it. Servers that end are started again, and training
    goes on from its last checkpoint. Behind the name of the command stand its own arguments.
    """
    parser = Parser("launch", launch.__doc__)
    parser.flag(
        "--nodes", "names or addresses of all machines, with commas; their order is their number", required=True
    )
    parser.flag("--serving", "machines that serve the model, the first ones", type=positive, default=1)
    help_text = f"number of this machine, from 0; by default that in {' or '.join(_NUMBERS)}"
    parser.flag("--node_rank", help_text, type=int, default=None)
    parser.flag("--servers", "model servers of each serving machine, one on each of its GPUs", type=positive, default=1)
    parser.flag("--restarts", "how often training is begun again after a process has died", type=int, default=3)
    begin = next((i for i, word in enumerate(argv) if word in ("grpo", "ppo")), len(argv))
    arguments, command = parser.parse(argv[:begin]), list(argv[begin:])
    if not command and not {"-h", "--help"}.intersection(argv):
        raise ConfigError("launch: what? Name grpo or ppo, with its arguments, behind those of launch")
    nodes = [node.strip() for node in arguments.nodes.split(",") if node.strip()]
    number, serving = _number(arguments.node_rank, len(nodes)), arguments.serving
    if serving >= len(nodes):
        raise ConfigError(f"launch: --serving is {serving} of {len(nodes)} machines; at least one has to train")
    ports = range(_PORT, _PORT + arguments.servers)
    urls = ",".join(f"http://{node}:{port}" for node in nodes[:serving] for port in ports)
    command += ["--layout", "server", "--vllm_server_base_url", urls, "--resume_from_checkpoint", "auto"]
    if number < serving:
        return _serve(command, nodes[number], ports)
    return _train(command, nodes[serving:], number - serving, arguments.restarts)


def _number(given: int | None, count: int) -> int:
    words = [os.environ[name] for name in _NUMBERS if name in os.environ]
    if given is None and not words:
        raise ConfigError(f"launch: which machine is this? Give --node_rank, from 0 to {count - 1}")
    number = int(words[0]) if given is None else given
    if not 0 <= number < count:
        raise ConfigError(f"launch: the number of this machine is {number}; allowed: 0 to {count - 1}, as in --nodes")
    return number


def _settings(command: Sequence[str]) -> tuple[Any, Any]:
    """Read the command of the trainers: its settings, and its model."""
    from agent_gym.cli.train import TrainingParser

    (_, args, model), _ = TrainingParser(command[0]).read(command[1:])
    if model.model_name_or_path is None:
        raise ConfigError("which model? give --model_name_or_path with a folder or hub id")
    return args, model.model_name_or_path


def _serve(command: Sequence[str], host: str, ports: Sequence[int]) -> int:
    """Serve the model at these ports until the trainers have ended."""
    from agent_gym.policies.vllm import child
    from agent_gym.policies.vllm.launch import ENVIRONMENT, server_command, server_key

    args, model = _settings(command)
    server_key()  # a key that cannot be had is an error now
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")

    def start(place: int) -> subprocess.Popen[bytes]:
        context = args.vllm_max_model_length or args.max_episode_tokens
        sizes: dict[str, Any] = {"context": context, "max_num_seqs": args.max_num_seqs}
        python, _, *vllm = server_command(model, host=host, port=ports[place], **sizes)
        device = visible[place] if place < len(visible) and visible[place] else str(place)
        # As the server of one trainer, it ends with this process, however that ends.
        return subprocess.Popen(
            [python, "-m", child.__name__, str(os.getpid()), *vllm],
            env={**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": device},
            start_new_session=True,
        )

    mark = Path(args.output_dir, _MARK)
    before = _read(mark)  # of a run that has ended
    servers = [start(place) for place in range(len(ports))]
    try:
        while _read(mark) == before:
            for place, server in enumerate(servers):
                if server.poll() is not None:
                    what = f"the model server at {host}:{ports[place]} has ended with {server.returncode}"
                    print(f"agent-gym: {what}; it is started again", file=sys.stderr, flush=True)
                    servers[place] = start(place)
            time.sleep(_LOOK_S)
    finally:
        for server in servers:
            child.end_group(server)
    return 0


def _train(command: Sequence[str], nodes: Sequence[str], number: int, restarts: int) -> int:
    """Train as one of these machines, again and again if processes die, and let the servers end."""
    args, _ = _settings(command)
    start, code, here = [sys.executable, "-m", "agent_gym", *command], 1, os.getpid()
    if len(nodes) > 1:  # the elastic agents begin again
        start += ["--num_machines", str(len(nodes)), "--machine_rank", str(number), "--rdzv_backend", "c10d"]
        start += ["--main_process_ip", nodes[0], "--main_process_port", str(_MEETING_PORT)]
        start += ["--max_restarts", str(restarts)]
    try:
        for attempt in range(1 + (restarts if len(nodes) == 1 else 0)):
            if attempt:
                print(f"agent-gym: training has ended with {code}; it is begun again", file=sys.stderr, flush=True)
            code = subprocess.Popen(start, preexec_fn=partial(end_with, here)).wait()
            if code in (0, _MISTAKE, _INTERRUPTED):
                break
    finally:
        if number == 0:
            Path(args.output_dir, _MARK).write_text(secrets.token_hex(8), encoding="ascii")
    return abs(code)


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii")
    return ""
