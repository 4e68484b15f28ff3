"""Who keeps the processes of a run alive: `agent-gym launch`, Ray, Monarch, on two "machines" that are one.

    python benchmarks/placement.py                  # 15 minutes; the other two only where they are installed:
    python -m pip install --target runs/placement ray torchmonarch     # never beside agent_gym itself

Each machine holds one worker in the place of a model server, the same for all: a process that imports torch and answers
HTTP with its id. Ranks, which would meet over gloo, are not compared. Sides:

    launch    `agent-gym launch`, with the worker where vLLM would be. To start the command again on a machine where
              it has ended is the scheduler's part: this script plays it, without any delay
    ray       `ray start` on each machine; actors with `max_restarts`, which may move to the other
    monarch   a worker loop on each machine; what is started again, and where, is written in `_placement_sides.py`

Columns, medians over the rounds (a dash: not within the patience), times in seconds:

    start       from the first command until both workers answer
    CPU         seconds that all processes have computed by then: a busy machine changes them less
    worker      from kill -9 of the second machine's worker until both answer, another process in its place
    machine     the same for the process that holds the second machine: launcher, raylet or worker loop
    first lost  from kill -9 of all processes of the first machine until the worker of the other one is gone; with a
                dash it lives on
    MiB         memory of all processes but the workers, while nothing happens: PSS, shared pages by their share
    processes   how many they are
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _common
from _placement_sides import HOSTS, listens, until

HERE = Path(__file__).resolve().parent
PACKAGES = ("agent-gym", "torch", "trl")
SIDES = ("launch", "ray", "monarch")
MARK = "AGENT_GYM_PLACEMENT"  # an environment variable by which the processes of a trial are found
LOST_S = 100.0  # for the first machine's loss to reach the other; Ray's machines wait 60 s for it to come back
MEASURES = ("start", "CPU", "worker", "machine", "first lost", "MiB", "processes")
PEERS = "ray torchmonarch"


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="trials of each side")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES, help="these sides only")
    parser.add_argument("--peers", type=Path, default=Path("runs/placement"), help="the folder with Ray and Monarch")
    parser.add_argument("--patience", type=float, default=300.0, metavar="S", help="how long anything is waited for")
    parser.add_argument("--log", type=Path, help="keep what the processes print in this file")
    options = parser.parse_args()
    facts = _common.provenance(PACKAGES)
    peers = [path.stem for name in ("ray", "torchmonarch") for path in options.peers.glob(f"{name}-*.dist-info")]
    facts["versions"] += "".join(f", {peer}" for peer in peers)
    _common.print_provenance(facts)
    sides = [side for side in options.only if _installed(options.peers, side)]
    trials = []
    for number in range(1 if options.quick else options.rounds):
        for side in sides:
            trials.append({"side": side, **Trial(side, options).play()})
            print(f"{number}: {trials[-1]}", flush=True)
    rows = []
    for side in sides:
        found = [[trial.get(name) for trial in trials if trial["side"] == side] for name in MEASURES]
        rows.append([side, *(None if None in values else float(_common.median(values)) for values in found)])
    _common.print_table(["side", *MEASURES], rows)
    _common.write_json(options.json, facts=facts, head=["side", *MEASURES], rows=rows, trials=trials)


def _installed(peers: Path, package: str) -> bool:
    there = package == "launch" or (peers / package).is_dir()
    if not there:
        print(f"{package} is left out: it is not in {peers}. python -m pip install --target {peers} {PEERS}")
    return there


class Trial:
    """The machines of one side, twice from their start to their end."""

    def __init__(self, side: str, options: argparse.Namespace) -> None:
        self.side, self.options, self.mark = side, options, secrets.token_hex(8)
        self.ours = side == "launch"
        path = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        path += [] if self.ours else [str(options.peers.resolve())]  # last: what agent_gym has is not replaced
        self.environment = {
            **os.environ, MARK: self.mark, "PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1",
            "AGENT_GYM_SERVER_KEY": "key", "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        self.started: dict[int, subprocess.Popen[bytes]] = {}

    def play(self) -> dict[str, float | None]:
        """Measure everything once; what has not come about within the patience is missing."""
        found: dict[str, float | None] = {}
        with self.running() as began:
            if not (workers := self.workers()):
                return found
            found["start"] = time.monotonic() - began
            found["CPU"] = sum(map(_cpu_s, self.processes()))
            time.sleep(5.0)
            others = set(self.processes()) - {pid for pid, _ in workers}
            found |= {"MiB": sum(map(_pss_mib, others)), "processes": float(len(others))}
            for which, name in enumerate(("worker", "machine")):
                victims = self.second(workers)
                os.kill(victims[which], signal.SIGKILL)
                killed = time.monotonic()
                if not (workers := self.workers(gone=victims[0])):
                    return found
                found[name] = time.monotonic() - killed
                time.sleep(3.0)
        if self.options.quick:
            return found
        with self.running():
            if not (workers := self.workers()):
                return found
            worker, _ = self.second(workers)
            for pid in self.processes():  # the program that says what runs belongs to the first machine
                if {self.started[0].pid, self.started.get(2, self.started[0]).pid} & {pid, *_ancestors(pid)}:
                    os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            if until(lambda: worker not in self.processes(), LOST_S):
                found["first lost"] = time.monotonic() - killed
        return found

    @contextlib.contextmanager
    def running(self) -> Iterator[float]:
        """Start the machines at the moment that is given, and kill whatever is left of them in the end."""
        with tempfile.TemporaryDirectory(prefix="p") as self.folder:
            self.ports, over = [_free_port(), _free_port()], threading.Event()  # of workers; where machines meet
            began = time.monotonic()
            for number in range(2 if self.ours else 3):
                self.start(number)
            scheduler = threading.Thread(target=self.schedule, args=(over,))
            scheduler.start()
            try:
                yield began
            finally:
                over.set()
                scheduler.join()
                while left := self.processes():
                    for pid in left:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    for process in self.started.values():
                        process.wait()
                    time.sleep(0.2)

    def start(self, number: int) -> None:
        """Start a machine, or (number 2) the program that says what runs on the machines."""
        words = ["play", self.side, str(number), self.folder, *map(str, self.ports)]
        with (self.options.log or Path(os.devnull)).open("ab") as log:
            self.started[number] = subprocess.Popen(
                [sys.executable, "-m", "_placement_sides", *words],
                env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def schedule(self, over: threading.Event) -> None:
        """Do the scheduler's part for `agent-gym launch`: start the command again on a machine where it has ended."""
        while self.ours and not over.wait(0.1):
            for number in range(2):
                if self.started[number].poll() is not None:
                    self.start(number)

    def workers(self, gone: int = 0) -> list[tuple[int, int]]:
        """Wait until both workers answer, and `gone` does not: ids of their processes and their parents, or nothing."""
        found: list[tuple[int, int]] = []

        def all_there() -> bool:
            found[:] = [answer for host in HOSTS if (answer := _ask(host, self.ports[0]))]
            return len(found) == len(HOSTS) and gone not in {pid for pid, _ in found}

        return found if until(all_there, self.options.patience) else []

    def second(self, workers: list[tuple[int, int]]) -> tuple[int, int]:
        """The worker that is not on the first machine, or the other one if both are there."""
        return next((worker for worker in workers if self.started[0].pid not in _ancestors(worker[0])), workers[1])

    def processes(self) -> list[int]:
        mark, found = f"{MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):  # empty once a process has ended
                    found.append(int(path.name))
        return found


def _ask(host: str, port: int) -> tuple[int, int] | None:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=5) as answer:
            pid, parent = json.load(answer)
            return pid, parent
    except (OSError, ValueError):
        return None


def _free_port() -> int:
    """A port that no other process draws by chance: Ray's workers have 10,002 to 19,999, Linux those above 32,767."""
    while True:
        port = secrets.choice(range(20_000, 30_000))
        if not any(listens(port, host) for host in HOSTS):
            return port


def _fields(pid: int) -> list[str]:
    """What the kernel's file says of a process behind its name: state, parent, ..."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["X"] + ["0"] * 20


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while (pid := int(_fields(pid)[1])) > 1:
        found.append(pid)
    return found


def _cpu_s(pid: int) -> float:
    """Of the process, and of the children that it has outlived."""
    return sum(map(int, _fields(pid)[11:15])) / os.sysconf("SC_CLK_TCK")


def _pss_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return 0.0


if __name__ == "__main__":
    main()
