"""`agent-gym launch`: one command for all machines of a run. The first ones serve the model, the others train it.

Each machine runs the same command and finds its part by its number, which SLURM and Kubernetes tell it. This module is
not a scheduler: it is theirs to start the command, and to start it again on a machine that was lost. This module keeps
one machine's processes alive: a model server that has ended is started again, and so is training, from its last
checkpoint. Trainers of several machines meet through torchrun's elastic agents, which end and restart all ranks
together. An agent that dies is started again here. All machines see the folder of the run, and in it the mark of how
the run has ended. This process lives as long as the run, so it imports neither torch nor TRL.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from agent_gym.cli.early import check_numbers, read_command
from agent_gym.cli.launch import end_with
from agent_gym.cli.parser import CommandParser, positive, with_underscores
from agent_gym.cli.rendezvous import ADDRESS, listening_address
from agent_gym.errors import ConfigError
from agent_gym.trainers.settings import AgentSettings

_PORT, _MEETING_PORT = 8010, 29500  # of the first model server of a machine, and of the trainers' rendezvous
_FAILED, _MISTAKE, _INTERRUPTED = 1, 2, 130  # exit codes, see main.py
_LOOK_S = 1.0
_MEET_S = 600.0  # for the machine where the trainers meet; their agents wait as long for each other
_MARK = "launch-ended"
_NUMBERS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX")  # environment variables with this machine's number
_JOB = "AGENT_GYM_JOB"  # environment variable that is the same on all machines of a run, and another one in each run


def launch(argv: Sequence[str]) -> int:
    """Run grpo or ppo on several machines, each of which gets this same command: agent-gym launch --nodes ... grpo ...

    The first --serving machines serve the model, the others train it. Servers that end are started again, and training
    continues from its last checkpoint. The command's own arguments follow its name.
    """
    parser = CommandParser("launch", launch.__doc__)
    parser.flag(
        "--nodes", "names or addresses of all machines, with commas; their order is their number", required=True
    )
    parser.flag("--serving", "machines that serve the model, the first ones", type=positive, default=1)
    help_text = f"number of this machine, from 0; by default that in {' or '.join(_NUMBERS)}"
    parser.flag("--node_rank", help_text, type=int, default=None)
    parser.flag("--servers", "model servers of each serving machine, one on each of its GPUs", type=positive, default=1)
    parser.flag("--restarts", "how often training is begun again after a process has died", type=int, default=3)
    help_text = "let the trainers meet at a public address of theirs, which executes what its port receives"
    parser.flag("--allow_public_address", help_text, action="store_true")
    begin = next((i for i, word in enumerate(argv) if word in ("grpo", "ppo")), len(argv))
    arguments, command = parser.parse(argv[:begin]), list(argv[begin:])
    if not command and not {"-h", "--help"}.intersection(argv):
        raise ConfigError("launch: no command; name grpo or ppo, with its arguments, after the flags of launch")
    # It would end at once: servers wait for the mark of an end, and the mark would be that of the run.
    if shown := {"-h", "--help", "--help_all", "--dry_run", "--print_config"}.intersection(with_underscores(command)):
        raise ConfigError(f"launch: {min(shown)} trains nothing: give it to agent-gym {command[0]}, without launch")
    nodes = [node.strip(" []") for node in arguments.nodes.split(",") if node.strip()]
    number, serving = _number(arguments.node_rank, len(nodes)), arguments.serving
    if serving >= len(nodes):
        raise ConfigError(f"launch: --serving is {serving} of {len(nodes)} machines; at least one has to train")
    ports = range(_PORT, _PORT + arguments.servers)
    hosts = [f"[{node}]" if ":" in node else node for node in nodes[:serving]]  # as IPv6 addresses are written in a URL
    urls = ",".join(f"http://{host}:{port}" for host in hosts for port in ports)
    command += ["--layout", "server", "--vllm_server_base_url", urls, "--resume_from_checkpoint", "auto"]
    if number < serving:
        return _serve(command, nodes[number], ports)
    meeting = None
    if number == serving and len(nodes) - serving > 1:
        meeting = listening_address(nodes[serving:], _MEETING_PORT, public=arguments.allow_public_address)
    return _train(command, nodes[serving:], number - serving, arguments.restarts, meeting)


def _number(given: int | None, count: int) -> int:
    words = [os.environ[name] for name in _NUMBERS if name in os.environ]
    if given is None and not words:
        raise ConfigError(f"launch: which machine is this? Give --node_rank, from 0 to {count - 1}")
    number = int(words[0]) if given is None else given
    if not 0 <= number < count:
        raise ConfigError(f"launch: the number of this machine is {number}; allowed: 0 to {count - 1}, as in --nodes")
    return number


class _Run(NamedTuple):
    """The facts of the trainers' command that machines need."""

    model: str
    folder: Path
    context: int  # tokens
    max_num_seqs: int
    rdzv_conf: str  # of torchrun's agents


def _settings(command: Sequence[str]) -> _Run:
    """Read the command of the trainers without their parser, whose torch and TRL would stay in memory."""
    given = read_command(command[0], command[1:])
    check_numbers(given)
    if not given.get("model_name_or_path"):
        raise ConfigError("which model? give --model_name_or_path with a folder or hub id")
    if isinstance(given.get("env"), dict):  # of the yaml file: environment variables, for servers as well
        os.environ.update({str(name): str(value) for name, value in given["env"].items()})

    def whole(name: str, default: int) -> int:
        try:
            return default if given.get(name) is None else int(given[name])
        except (TypeError, ValueError):
            raise ConfigError(f"{name} is {given[name]!r}; it must be a whole number") from None

    context = whole("vllm_max_model_length", 0) or whole("max_episode_tokens", AgentSettings.max_episode_tokens)
    folder = str(given.get("output_dir") or "trainer_output")  # the default is that of transformers
    sizes = context, whole("max_num_seqs", AgentSettings.max_num_seqs)
    return _Run(str(given["model_name_or_path"]), Path(folder), *sizes, str(given.get("rdzv_conf") or ""))


def _serve(command: Sequence[str], host: str, ports: Sequence[int]) -> int:
    """Serve the model at these ports until training has ended for good, and return how that ended.

    A scheduler that restarts failed jobs so starts servers together with the trainers.
    """
    from agent_gym.policies.vllm.launch import ENVIRONMENT, end_group, server_command, server_key, start_server

    run = _settings(command)
    server_key()  # a key that cannot be had is an error now
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")

    def start(place: int) -> subprocess.Popen[bytes]:
        sizes: dict[str, Any] = {"context": run.context, "max_num_seqs": run.max_num_seqs}
        device = visible[place] if place < len(visible) and visible[place] else str(place)
        environment = {**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": device}
        return start_server(server_command(run.model, host=host, port=ports[place], **sizes), environment)

    mark = _Mark(run.folder)
    servers = [start(place) for place in range(len(ports))]
    try:
        while (code := mark.code()) is None:
            for place, server in enumerate(servers):
                if server.poll() is not None:
                    what = f"the model server at {host}:{ports[place]} has ended with {server.returncode}"
                    print(f"agent-gym: {what}; it is started again", file=sys.stderr, flush=True)
                    servers[place] = start(place)
            time.sleep(_LOOK_S)
    finally:
        for server in servers:
            end_group(server)
    return code


def _train(command: Sequence[str], nodes: Sequence[str], number: int, restarts: int, meeting: str | None = None) -> int:
    """Train as one of these machines, again and again if processes die; leave a mark when that is over.

    `meeting` is the address at which the first machine's rendezvous listens.
    """
    run, code, here = _settings(command), _FAILED, os.getpid()
    mark = _Mark(run.folder)
    start, variables = [sys.executable, "-m", "agent_gym", *command], dict(os.environ)
    if len(nodes) > 1:  # the elastic agents restart ranks, and this process agents
        start += ["--num_machines", str(len(nodes)), "--machine_rank", str(number), "--rdzv_backend", "c10d"]
        start += ["--main_process_ip", nodes[0], "--main_process_port", str(_MEETING_PORT)]
        # Which agent holds the store is not left to torchrun: of two on one machine it would take the first that comes.
        meeting = ",".join(filter(None, [run.rdzv_conf, f"is_host={int(number == 0)}"]))
        start += ["--rdzv_conf", meeting, "--max_restarts", str(restarts)]
        # An agent of torch 2.13 that shares its store with the ranks tells the others where it is in its first round
        # only, so that a new one waits for that in vain (`DynamicRendezvousHandler.next_rendezvous`). The address is
        # the name that the user gave: others may not know the machine's own name for itself.
        variables |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PET_LOCAL_ADDR": nodes[number]}
    variables |= {ADDRESS: meeting} if meeting else {}
    try:
        for attempt in range(1 + restarts):
            if attempt:
                print(f"agent-gym: training has ended with {code}; it is begun again", file=sys.stderr, flush=True)
            if number:
                _meet(nodes[0], mark)
            if (ended := mark.code()) is not None:
                return ended
            code = _watched(subprocess.Popen(start, env=variables, preexec_fn=partial(end_with, here)), mark)
            # Agents fail when ranks have failed as often as they may.
            if code in (0, _MISTAKE, _INTERRUPTED) or (len(nodes) > 1 and code == _FAILED):
                break
    except KeyboardInterrupt:
        code = _INTERRUPTED
        raise
    finally:
        # A machine that cannot continue ends the run: each is needed. One that was interrupted may come back.
        if mark.code() is None and (number == 0 or code not in (0, _INTERRUPTED)):
            mark.leave(abs(code))
    return abs(code)


def _meet(host: str, mark: _Mark) -> None:
    """Wait until the first machine's agent is there: a new one may be on its way, for which torchrun waits a minute."""
    until = time.monotonic() + _MEET_S
    while time.monotonic() < until and mark.code() is None:
        with suppress(OSError), socket.create_connection((host, _MEETING_PORT), timeout=_LOOK_S):
            return
        time.sleep(_LOOK_S)


def _watched(process: subprocess.Popen[bytes], mark: _Mark) -> int:
    """Wait for a process and return its exit code; end it when another machine has failed for good."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
        if mark.code():
            process.terminate()


class _Mark:
    """A file in the folder of a run that says how it has ended; one of an earlier run is there from the beginning.

    A machine that comes when the training of its own job is over must end, too, and not wait for the next mark. It
    knows its job where AGENT_GYM_JOB names it. A training that failed is not over: the scheduler may begin it again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _MARK
        self._job = quote(os.environ.get(_JOB, ""), safe="") or "-"
        self._before = self._read()
        if self._job != "-" and self._before.split(" ")[1:] == [self._job, "0"]:
            self._before = ""

    def code(self) -> int | None:
        """Return the final exit code of training, None while it may continue."""
        text = self._read()
        return None if text in ("", self._before) else int(text.rpartition(" ")[2])

    def leave(self, code: int) -> None:
        """Say that training has ended for good."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_name(f"{_MARK}.{secrets.token_hex(8)}")  # a reader never sees half of it
        aside.write_text(f"{secrets.token_hex(8)} {self._job} {code}", encoding="ascii")
        aside.replace(self._path)

    def _read(self) -> str:
        with suppress(OSError):
            return self._path.read_text(encoding="ascii")
        return ""
