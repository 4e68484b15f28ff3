"""What runs in the processes of placement.py: a worker, and each side's program on a machine."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

HOSTS = ("127.0.0.1", "127.0.0.2")
_NAME = Path(__file__).stem
_STORE = 100 * 2**20  # bytes of Ray's object store, on each machine
_PATIENCE_S = 600.0
_LIMIT_S = 5.0  # without an answer of Monarch, for a worker to be lost


def play(side: str, number: int, folder: str, port: int, meeting: int) -> None:
    if side == "launch":
        launch(number, folder, port)
    elif number < 2 and side == "ray":
        from ray.scripts.scripts import main as ray_command

        sys.argv = ["ray", "start", "--block", "--num-cpus", "1", "--object-store-memory", str(_STORE)]
        where = ["--node-ip-address", HOSTS[0], "--disable-usage-stats", "--include-dashboard", "false"]
        head = ["--head", "--port", str(meeting), "--temp-dir", folder, *where]
        if number:
            until(lambda: listens(meeting), _PATIENCE_S)
        sys.argv += ["--address", f"{HOSTS[0]}:{meeting}"] if number else head
        ray_command()
    elif number < 2:
        from monarch.actor import run_worker_loop_forever

        run_worker_loop_forever(address=f"tcp://{HOSTS[number]}:{meeting}", ca="trust_all_connections")
    elif side == "ray":
        ray_program(port, meeting)
    else:
        monarch(port, meeting)


def launch(number: int, folder: str, port: int) -> None:
    """Run `agent-gym launch` for one of two machines that serve; the third one, which would train, is not started."""
    from agent_gym.cli import nodes
    from agent_gym.policies.vllm import launch as vllm_launch

    def command(model: str, *, host: str, port: int, **sizes: Any) -> list[str]:
        return [sys.executable, "-m", _NAME, "worker", host, str(port)]

    vllm_launch.server_command = command
    nodes._PORT = port
    given = ["--nodes", ",".join([*HOSTS, "127.0.0.3"]), "--node_rank", str(number), "--serving", str(len(HOSTS))]
    words = ["grpo", "AgentR1/GSM8K-v0", "--model_name_or_path", "none", "--output_dir", folder]
    raise SystemExit(nodes.launch([*given, *words]))


def ray_program(port: int, meeting: int) -> None:
    """Say what Ray shall run, as soon as both machines are there."""
    until(lambda: listens(meeting), _PATIENCE_S)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=f"{HOSTS[0]}:{meeting}", log_to_driver=False)
    until(lambda: ray.cluster_resources().get("CPU", 0) == 2, _PATIENCE_S)

    class Server:
        def __init__(self, host: str) -> None:
            threading.Thread(target=worker, args=(host, port), daemon=True).start()

    servers = []
    nodes = sorted(ray.nodes(), key=lambda node: "node:__internal_head__" not in node["Resources"])
    for node, host in zip(nodes, HOSTS, strict=True):
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)  # there, and elsewhere if it is lost
        actor = ray.remote(Server).options(max_restarts=-1, num_cpus=0.5, scheduling_strategy=place)
        servers.append(actor.remote(host))
    while servers:
        time.sleep(1)


def monarch(port: int, meeting: int) -> None:
    """Keep a worker for each machine: on that machine, or on the first one if that is lost."""
    import monarch.actor as library

    class Server(library.Actor):
        @library.endpoint
        def serve(self, host: str) -> None:
            threading.Thread(target=worker, args=(host, port), daemon=True).start()

        @library.endpoint
        def lives(self) -> None:
            pass

    library.unhandled_fault_hook = lambda failure: None  # the default ends this process
    addresses = [f"tcp://{host}:{meeting}" for host in HOSTS]
    until(lambda: all(listens(meeting, host) for host in HOSTS), _PATIENCE_S)
    machines = library.attach_to_workers(ca="trust_all_connections", workers=addresses)

    def begin(host: str, place: int) -> Any:
        made = machines.slice(hosts=place).spawn_procs().spawn("server", Server)
        made.serve.call_one(host).get(timeout=_PATIENCE_S)
        return made

    servers = [begin(host, place) for place, host in enumerate(HOSTS)]
    while True:
        time.sleep(0.2)
        for place, host in enumerate(HOSTS):
            try:
                servers[place].lives.call_one().get(timeout=_LIMIT_S)
            except Exception:  # a TimeoutError, or its SupervisionError, which has no public name
                servers[place] = begin(host, place if listens(meeting, host) else 0)


def worker(host: str, port: int) -> None:
    """Import torch, and answer with the ids of this process and of its parent."""
    import torch  # noqa: F401

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([os.getpid(), os.getppid()]).encode())

        def log_message(self, *words: Any) -> None:
            pass

    while True:
        try:
            HTTPServer((host, port), Answer).serve_forever()
        except OSError:  # the one before may hold the port for a moment
            time.sleep(0.05)


def until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def listens(port: int, host: str = HOSTS[0]) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex((host, port)) == 0


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "play":
        play(given[0], int(given[1]), given[2], int(given[3]), int(given[4]))
    else:
        worker(given[0], int(given[1]))
