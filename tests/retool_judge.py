"""Plays episodes in which the policy's programs are hostile, and looks at the process that trains. For the net only.

Its standard input is JSON: {"programs": {name: code}, "envs": {name: [id, kwargs]}, "limits": {...}, "watched": [...]}.
It prints one line of JSON per environment and program: what was observed, and what the program got away with.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy
from sandbox_judge import World, processes

GOLD = "1918273"
TASK = {"problem": "How many?", "answer": GOLD}
MAX_CHARS = 2000
FRAME = len("</code>\n<interpreter>\n</interpreter>\n\n") + len("\nAll names are lost; the next program starts anew.")


def trainer() -> dict[str, Any]:
    """What an episode must leave as it was in the process that runs it."""
    return {
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0] for fd in _open_files()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timers": [signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": os.sched_getaffinity(0),
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.excepthook),
        "search path": list(sys.path),
        "random numbers": (random.getstate(), numpy.random.get_state()[1].tobytes()),
    }


def _open_files() -> list[str]:
    """Without the one through which this very folder is read."""
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def play(env: Any, code: str) -> tuple[str, list[str]]:
    """Play one episode: a good program, the hostile one, a good one, the answer."""
    bad = []
    unwrapped = env.unwrapped

    def write(program: str) -> str:
        if unwrapped.inline:
            return f"I try.\n<code>\n{program}\n</code>"
        return unwrapped.parser.render("code_interpreter", {"code": program})

    env.reset(seed=0, options={"task": TASK})
    first = env.step(write("print(6 * 7)"))
    if "42" not in first[0] or first[4]["error"]:
        bad.append(f"an episode after another one does not begin well: {first[0]!r:.200}")
    observation, reward, terminated, truncated, info = env.step(write(code))
    if (reward, info["process_reward"], terminated, truncated) != (0.0, 0.0, False, False):
        bad.append(f"it was paid, or ended the episode: {reward}, {terminated}, {truncated}")
    if info["error"] is not None and info["error"] not in observation:
        bad.append("an error that the policy cannot read")
    if [record["error"] for record in info["tool_calls"]] != [info["error"] is not None]:
        bad.append("the record of the call differs from the observation")
    if len(observation) > MAX_CHARS + FRAME:
        bad.append(f"an observation of {len(observation)} characters")
    if any(character < " " and character not in "\n\t\r" for character in observation) or "\x7f" in observation:
        bad.append("control characters in the observation")
    observation.encode()
    # A traceback quotes the program, and with it what it would have printed.
    printed = observation.partition("Traceback (most recent call last)")[0]
    if "ESCAPED" in printed or "CANARY-" in printed:
        bad.append(printed[:200])
    again = env.step(write("print(6 * 7)"))
    # In a session the names are the program's own to spoil, until the episode ends.
    if again[1] != 0.0 or again[2] or (not unwrapped._interpreter._stateful and "42" not in again[0]):
        bad.append(f"the next program does not run well: {again[0]!r:.200}")
    last = env.step(f"<answer>\n\\boxed{{{GOLD}}}\n</answer>")
    if last[:3] != ("", 1.0, True) or not last[4]["is_success"]:
        bad.append(f"the answer was not paid: {last[1]}")
    return observation, bad


def judge(env: Any, world: World, others: dict[int, str], code: str) -> dict[str, Any]:
    """Play an episode and compare the process and the world with what they were."""
    before, files = trainer(), world.files()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    world.heard.clear()
    try:
        observation, bad = play(env, world.fill_in(code))
    except BaseException as error:
        return {"observation": "", "bad": [f"the trainer got {type(error).__name__}: {error}"]}
    after = trainer()
    bad += [f"{what}: {before[what]!r:.200} -> {after[what]!r:.200}" for what in before if before[what] != after[what]]
    if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) > 32 << 10:
        bad.append(f"the trainer grew by {grown} KiB")
    if world.victim.poll() is not None or world.heard:
        bad.append(f"it reached others: {world.heard or 'the bystander is dead'}")
    if (now := world.files()) != files:
        bad.append(f"files changed: {[path for path in {*now, *files} if now.get(path) != files.get(path)]}")
    # The process of a session ends soon after its episode.
    until = time.monotonic() + 5
    while (now_there := processes().keys()) != others.keys() and time.monotonic() < until:
        time.sleep(0.01)
    if now_there != others.keys():
        bad.append(f"processes came or went: {now_there ^ others.keys()}")
    return {"observation": observation, "bad": bad}


def main() -> None:
    from agent_gym.sandbox import Limits, LocalSandbox

    settings = json.load(sys.stdin)
    world = World(Path("/var/tmp/world"), settings["watched"])
    sandbox = LocalSandbox(Limits(**settings["limits"]), namespaces=False, servers=1)
    others = processes()
    for shown, (env_id, kwargs) in settings["envs"].items():
        env = gymnasium.make(env_id, sandbox=sandbox, max_output_chars=MAX_CHARS, **kwargs)
        play(env, "print(1)")  # what a first episode imports, stays
        for name, code in settings["programs"].items():
            if env.unwrapped._interpreter._stateful:
                # A session has its socket at 3. What a program can do with it is tested with the sessions.
                code = code.replace("range(3, 4096)", "range(4, 4096)")
            print(json.dumps({"env": shown, "program": name, **judge(env, world, others, code)}), flush=True)
        env.close()
    sandbox.close()
    world.victim.kill()


if __name__ == "__main__":
    main()
