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
MAX_CHARS = 2000
FRAME = len("</code>\n<interpreter>\n</interpreter>\n\n") + len("\nAll names are lost; the next program starts anew.")


def trainer() -> dict[str, Any]:
    """What an episode must leave as it was in the process that runs it."""
    descriptors = os.listdir("/proc/self/fd")  # also the one through which this folder is read, which is closed by now
    targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors if os.path.exists(f"/proc/self/fd/{fd}")]
    return {
        "descriptors": sorted(target.partition(":[")[0] for target in targets),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "folder and environment": (os.getcwd(), dict(os.environ)),
        "signals": [signal.pthread_sigmask(signal.SIG_BLOCK, ()), *map(signal.getsignal, signal.valid_signals())],
        "timers": [signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        "priority and cores": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)),
        "interpreter": (sys.stdin, sys.stdout, sys.stderr, sys.excepthook, *sys.path),
        "random numbers": (random.getstate(), numpy.random.get_state()[1].tobytes()),
    }


def play(env: Any, code: str) -> tuple[str, list[str]]:
    """Play one episode: a good program, the hostile one, a good one, the answer."""

    def run(program: str) -> Any:
        return env.step(env.parser.render("code_interpreter", {"code": program}))

    env.reset(seed=0, options={"task": {"problem": "How many?", "answer": GOLD}})
    first, hostile, again = run("print(6 * 7)"), run(code), run("print(6 * 7)")
    last = env.step(f"<answer>\n\\boxed{{{GOLD}}}\n</answer>")
    text, *paid, info = hostile
    text.encode()
    # A traceback quotes the program, and with it what it would have printed.
    printed = text.partition("Traceback (most recent call last)")[0]
    # In a session the names are the program's own to spoil, until the episode ends.
    spoiled = "42" not in again[0] and not env._interpreter._stateful
    found = {
        f"an episode after another one does not begin well: {first[0]!r:.200}": "42" not in first[0],
        f"it was paid, or ended the episode: {paid}": [*paid, info["process_reward"]] != [0.0, False, False, 0.0],
        "an error that the policy cannot read": info["error"] is not None and info["error"] not in text,
        "the record of the call differs from the observation": [record["error"] for record in info["tool_calls"]]
        != [info["error"] is not None],
        f"an observation of {len(text)} characters": len(text) > MAX_CHARS + FRAME,
        "control characters": any(sign < " " and sign not in "\n\t\r" for sign in text) or "\x7f" in text,
        printed[:200]: "ESCAPED" in printed or "CANARY-" in printed,
        f"the next program does not run well: {again[0]!r:.200}": again[1] != 0.0 or again[2] or spoiled,
        f"the answer was not paid: {last[1]}": last[:3] != ("", 1.0, True) or not last[4]["is_success"],
    }
    return text, [fault for fault, there in found.items() if there]


def judge(env: Any, world: World, others: dict[int, str], code: str) -> dict[str, Any]:
    """Play an episode and compare the process and the world with what they were."""
    before, files = trainer(), world.files()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    world.heard.clear()
    try:
        observation, bad = play(env, world.fill_in(code))
    except BaseException as error:
        return {"observation": "", "bad": [f"the trainer got {type(error).__name__}: {error}"]}
    after, now = trainer(), world.files()
    bad += [f"{what}: {before[what]!r:.200} -> {after[what]!r:.200}" for what in before if before[what] != after[what]]
    if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) > 32 << 10:
        bad.append(f"the trainer grew by {grown} KiB")
    if world.victim.poll() is not None or world.heard:
        bad.append(f"it reached others: {world.heard or 'the bystander is dead'}")
    bad += [f"file changed: {path}" for path in {*now, *files} if now.get(path) != files.get(path)]
    # The process of a session ends soon after its episode.
    until = time.monotonic() + 5
    while (changed := processes().keys() ^ others.keys()) and time.monotonic() < until:
        time.sleep(0.01)
    return {"observation": observation, "bad": bad + [f"processes came or went: {changed}"] * bool(changed)}


def main() -> None:
    from agent_gym.sandbox import Limits, LocalSandbox

    settings = json.load(sys.stdin)
    world = World(Path("/var/tmp/world"), settings["watched"])
    sandbox = LocalSandbox(Limits(**settings["limits"]), namespaces=False, servers=1)
    others = processes()
    for shown, (env_id, kwargs) in settings["envs"].items():
        env: Any = gymnasium.make(env_id, sandbox=sandbox, max_output_chars=MAX_CHARS, **kwargs).unwrapped
        play(env, "print(1)")  # what a first episode imports, stays
        for name, code in settings["programs"].items():
            if env._interpreter._stateful:
                # A session has its socket at 3. What a program can do with it is tested with the sessions.
                code = code.replace("range(3, 4096)", "range(4, 4096)")
            print(json.dumps({"env": shown, "program": name, **judge(env, world, others, code)}), flush=True)
        env.close()
    sandbox.close()
    world.victim.kill()


if __name__ == "__main__":
    main()
