"""An environment of ours in a run of verifiers, against the real package: its command, its harness, a scripted model.

verifiers has an environment of its own, which `tests/setup_interop.sh` makes: its pins are others than the trainers'.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import pytest

from agent_gym.contrib.lending import task_rows
from agent_gym.testing import expert_episode, policy_texts

pytest.importorskip("verifiers.v1")
GSM8K, TASKS = "AgentR1/GSM8K-v0", 3
WRONG = "<answer>-1</answer>"  # of the last task


class Played(NamedTuple):
    """What a policy writes in a task, what it reads after it, and what it is paid, by gymnasium."""

    texts: list[str]
    answers: list[str]
    reward: float


def played() -> dict[str, Played]:
    """The tasks by their questions, each with the expert's turns; the last one ends with a wrong answer."""
    found: dict[str, Played] = {}
    for row in task_rows(GSM8K, tasks=TASKS):
        reset: dict[str, Any] = {"seed": row["seed"], "options": {"split": row["split"], "index": row["index"]}}
        env = gymnasium.make(GSM8K)
        texts = policy_texts(expert_episode(env, **reset))
        texts = [*texts[:-1], WRONG] if len(found) == TASKS - 1 else texts
        question = env.reset(**reset)[1]["messages"][-1]["content"]
        steps = [env.step(text) for text in texts]
        found[question] = Played(texts, [one[0] for one in steps[:-1]], sum(float(one[1]) for one in steps))
    return found


class Model(BaseHTTPRequestHandler):
    """Speaks OpenAI's protocol as a stream; it writes the turn that the conversation has come to."""

    tasks: dict[str, Played]
    talks: dict[str, list[Any]]

    def do_POST(self) -> None:  # noqa: N802
        talk = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        question = next(one["content"] for one in talk if one["role"] == "user")
        self.talks[question] = talk
        text = self.tasks[question].texts[sum(one["role"] == "assistant" for one in talk)]
        ends = [({"role": "assistant", "content": text}, None), ({}, "stop")]
        said = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        pieces = [said | {"choices": [{"index": 0, "delta": one, "finish_reason": end}]} for one, end in ends]
        lines = [*(json.dumps(one) for one in pieces), json.dumps(said | {"choices": []} | usage), "[DONE]"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {line}\n\n" for line in lines).encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_a_run_of_verifiers_plays_as_gymnasium_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "AgentGymEnv, AgentGymTaskset"
    module = f"from agent_gym.contrib.verifiers import {names}\n__all__ = {names.split(', ')}\n"
    (tmp_path / "my_gsm8k.py").write_text(module)
    monkeypatch.setattr(Model, "tasks", played(), raising=False)
    monkeypatch.setattr(Model, "talks", {}, raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).resolve().parents[1]}")
    monkeypatch.setenv("NOBODY", "key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "env.taskset.id": "my_gsm8k", "env.taskset.env-id": GSM8K, "env.taskset.tasks": TASKS, "model": "m",
        "env.player.harness.id": "null", "env.player.runtime.type": "subprocess", "client.api-key-var": "NOBODY",
        "client.base-url": f"http://127.0.0.1:{server.server_port}/v1", "output-dir": tmp_path / "out",
        "run.dir": "run",
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [Path(sys.executable).with_name("vf-eval"), *words, "--no-push", "--no-rich"]
    done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    episodes = (tmp_path / "out" / "run" / "traces.jsonl").read_text().splitlines()
    traces = [trace for line in episodes for trace in json.loads(line)["traces"]]
    found = {trace["task"]["data"]["prompt"]: trace for trace in traces}
    assert found.keys() == Model.tasks.keys() == Model.talks.keys()
    for question, ours in Model.tasks.items():
        trace, (system, *talk) = found[question], Model.talks[question]
        assert trace["ok"] and not trace["errors"]
        assert trace["rewards"]["agent_gym"]["score"] == pytest.approx(ours.reward)
        assert "calculator" in system["content"] and [one["content"] for one in talk[2::2]] == ours.answers
        assert trace["metrics"]["is_success"] == (ours.texts[-1] != WRONG), trace["metrics"]
