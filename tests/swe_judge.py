"""Plays attacks on a task of software. A script, for the net that the tests build (sandbox_net.py).

Its standard input is JSON: {"files": {path: base64}, "attacks": {name: command}, "level": of the instruction, "bare":
whether variants are left out}. It prints a line of JSON for each attack, with its reward.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from pathlib import Path

import agent_gym
from agent_gym import EnvFailure
from agent_gym.sandbox.terminal import shared_terminals


def main() -> None:
    settings = json.load(sys.stdin)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    for name, text in settings["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(base64.b64decode(text))
    if settings["bare"]:
        path = folder / "tests" / "swe.json"
        facts = json.loads(path.read_text())
        facts["hidden"]["variants"] = []
        path.write_text(json.dumps(facts))
    env = agent_gym.make("AgentR1/SWE-v0", data=folder, level=settings["level"], max_turns=9)
    for name, command in settings["attacks"].items():
        env.reset(seed=0)
        try:
            said = env.step(env.parser.render("bash", {"command": command}))[0]
            _, reward, _, _, info = env.step("Done.")
            line = {"reward": reward, "said": said[-300:], "metrics": info["metrics"]}
        except EnvFailure as error:
            line = {"reward": "nothing", "said": str(error)[-300:], "metrics": {}}
        print(json.dumps({"name": name, **line}), flush=True)
    env.close()
    shared_terminals().close()  # and with it the control groups, which outlive this namespace


if __name__ == "__main__":
    main()
