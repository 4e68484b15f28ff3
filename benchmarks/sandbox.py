"""What it costs to run a program: our sandbox, a plain `subprocess.run`, and the Python tool of gem-llm.

    python benchmarks/sandbox.py                     # three minutes
    benchmarks/setup_peers.sh                        # gem-llm, in runs/peers; without it that side is left out

Three programs: `print` prints a number, `numpy` inverts a matrix, `sympy` solves an equation. Sides:

    sandbox         `LocalSandbox.run`: a confined process per program
    no namespaces   the same as in Docker's default profile, where no namespaces can be made
    session         `Session.run`: a program in a process that is there already
    subprocess      `subprocess.run([python, "-c", code])`, unconfined
    gem             what gem-llm 0.1.0's PythonCodeTool runs, `subprocess.run(["python", "-c", code])` with its checks,
                    unconfined, in a process of its environment

**One at a time**: milliseconds, median and 99th percentile, by turns. **64 in flight**: as many threads as that ask at
once, and programs per second; the sides take turns again. `times` is the throughput divided by that of `subprocess`,
and `times gem` by that of gem. Programs that run into the time limit of a side, 60 seconds for all, do not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

from agent_gym.sandbox import LocalSandbox

PROGRAMS = {
    "print": ("print(1 + 1)", "2"),
    "numpy": (
        "import numpy as np\na = np.array([[2.0, 1.0], [1.0, 3.0]])\nprint(round(np.linalg.inv(a)[0, 0], 3))",
        "0.6",
    ),
    "sympy": ("from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6, x))", "[2, 3]"),
}
GOALS = {"print": 1.0, "numpy": 5.0, "sympy": 15.0}
PEERS = Path(os.environ.get("AGENT_GYM_PEERS", Path(__file__).parents[1] / "runs" / "peers"))

Run = Callable[[str], str]


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each side runs in a round of 64 in flight")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40, help="programs one at a time")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.repeats = 0.3, 1, 3
    facts = _common.provenance(("agent-gym", "numpy", "sympy"))
    _common.print_provenance(facts)
    sandbox, bare = LocalSandbox(), LocalSandbox(namespaces=False)
    gem = gem_tool()
    if gem is None:
        print(f"gem is left out: no gem-llm in {PEERS} (benchmarks/setup_peers.sh installs it)\n")
    with sandbox.session() as session:
        serial: dict[str, Run] = {
            "sandbox": lambda code: sandbox.run(code).stdout,
            "no namespaces": lambda code: bare.run(code).stdout,
            "session": lambda code: session.run(code).stdout,
            "subprocess": plain,
        }
        if gem is not None:
            serial["gem"] = gem
        rows = [row for name in PROGRAMS for row in one_at_a_time(name, serial, options.repeats)]
    print("one at a time")
    _common.print_table(list(rows[0]), (row.values() for row in rows))
    parallel = {side: run for side, run in serial.items() if side != "session"}
    many = [row for name in PROGRAMS for row in in_flight(name, parallel, options.rounds, options.seconds)]
    print(f"64 in flight; load {_common.load()}")
    _common.print_table(list(many[0]), (row.values() for row in many))
    for row in many:
        if row["side"] == "sandbox":
            print(
                f"goal, {row['program']}: at least {GOALS[row['program']]:g} times subprocess; got {row['times']:.1f}"
            )
    _common.write_json(options.json, facts=facts, serial=rows, in_flight=many)
    sandbox.close()
    bare.close()


def plain(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout


def gem_tool() -> Run | None:
    """gem's tool, called in its own environment, whose interpreter `python` then is."""
    python = PEERS / "bin" / "python"
    probe = "import gem.tools.python_code_tool, numpy, sympy"
    if not python.exists() or subprocess.run([python, "-c", probe], capture_output=True).returncode:
        return None
    # One helper per thread would measure the helpers: one process answers all, a line of JSON each way.
    return _Helper(python).run


class _Helper:
    _CODE = """
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor
from gem.tools.python_code_tool import PythonCodeTool
tool, lock = PythonCodeTool(timeout=60), threading.Lock()
def answer(line):
    number, code = json.loads(line)
    _, _, observation, _ = tool.execute_action(f"<python>{code}</python>")
    with lock:
        print(json.dumps([number, observation]), flush=True)
with ThreadPoolExecutor(64) as pool:
    for line in sys.stdin:
        pool.submit(answer, line)
"""

    def __init__(self, python: Path) -> None:
        environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        self._process = subprocess.Popen(
            [python, "-c", self._CODE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()
        self._answers: dict[int, str] = {}
        self._events: dict[int, threading.Event] = {}
        self._count = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, observation = json.loads(line)
            self._answers[number] = observation
            self._events.pop(number).set()

    def run(self, code: str) -> str:
        done = threading.Event()
        with self._lock:
            self._count += 1
            number = self._count
            self._events[number] = done
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([number, code]) + "\n")
            self._process.stdin.flush()
        done.wait()
        return self._answers.pop(number)


def check(run: Run, name: str) -> None:
    """Stop if a side does not print what it should."""
    if not right(run, name):
        raise SystemExit(f"{name} prints something else than {PROGRAMS[name][1]!r}")


def right(run: Run, name: str) -> bool:
    code, expected = PROGRAMS[name]
    return expected in run(code)


def one_at_a_time(name: str, sides: dict[str, Run], repeats: int) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {side: [] for side in sides}
    for run in sides.values():
        check(run, name)
    for _ in range(repeats):
        for side, run in sides.items():
            started = time.perf_counter()
            run(PROGRAMS[name][0])
            times[side].append(1000 * (time.perf_counter() - started))
    return [
        {
            "program": name,
            "side": side,
            "p50 ms": _common.median(taken),
            "p99 ms": sorted(taken)[min(len(taken) - 1, int(0.99 * len(taken)))],
        }
        for side, taken in times.items()
    ]


def in_flight(name: str, sides: dict[str, Run], rounds: int, seconds: float) -> list[dict[str, Any]]:
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            rates[side].append(throughput(name, run, seconds))
    best = {side: _common.median(found) for side, found in rates.items()}
    return [
        {
            "program": name,
            "side": side,
            "programs / s": rate,
            "times": rate / best["subprocess"],
            "times gem": rate / best["gem"] if "gem" in best else None,
        }
        for side, rate in best.items()
    ]


def throughput(name: str, run: Run, seconds: float) -> float:
    """Programs per second, with 64 threads that each ask again as soon as they have an answer."""
    until = time.monotonic() + seconds

    def ask(_: int) -> int:
        count = 0
        while True:
            try:
                count += right(run, name)
            except subprocess.TimeoutExpired:
                pass  # not counted, like the answers of gem that say the same
            if time.monotonic() >= until:
                return count

    started = time.monotonic()
    with ThreadPoolExecutor(64) as pool:
        total = sum(pool.map(ask, range(64)))
    return total / (time.monotonic() - started)


if __name__ == "__main__":
    main()
