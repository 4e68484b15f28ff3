"""A server that fails and repeats what it got: keys of addresses, settings and headers are in no file or output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

CANARY = "cAnArY77deadbeef55"
GSM8K, NO_TOOL = "AgentR1/GSM8K-v0", "AgentR1/GSM8K-NoTool-v0"
TRAINS = "--use_cpu true --max_steps 1 --per_device_train_batch_size 2 --report_to none --save_steps 1".split()
SAMPLES = "--use_vllm false --num_generations 2 --max_turn_tokens 4 --max_episode_tokens 900 --train_tasks 2".split()
HIDDEN = {"headers": {"X-Api-Key": CANARY, "Cookie": f"s={CANARY}"}, "dsn": f"host=h user=u password={CANARY}"}


class Echo(BaseHTTPRequestHandler):
    status = 401

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("content-length", 0))).decode(errors="replace")
        words = f"Incorrect API key provided: {self.headers.get('Authorization')} at {self.path}; "
        words += f"headers {dict(self.headers)}; you sent {sent[:200]}"
        body = json.dumps({"error": {"message": words, "type": "x"}}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=[401, 500])
def host(request: pytest.FixtureRequest) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Now", (Echo,), {"status": request.param})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def command_lines(but: int) -> list[bytes]:
    """Return the command lines of this machine with the canary, but for one process, whose own user wrote it there."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != but:
            try:
                found.append((place / "cmdline").read_bytes())
            except OSError:
                continue
    return [line for line in found if CANARY.encode() in line]


@pytest.mark.slow
def test_a_server_that_repeats_keys_gets_them_into_no_file(host: str, tiny_model: str, tmp_path: Path) -> None:
    address, sampled = f"http://u:{CANARY}@{host}/v1?api_key={CANARY}", ["--model", "m", "--tokenizer", tiny_model]
    settings = tmp_path / "settings"
    settings.mkdir()
    judge, run = settings / "judge.yaml", settings / "run.yaml"
    judge.write_text(f"kind: rubric\ncriteria: {{right: 1}}\nendpoint: 'http://u:{CANARY}@{host}/v1'\nmodel: m\n")
    run.write_text(
        f"hub_token: {CANARY}\nrun_name: 'http://u:{CANARY}@host/x'\nmodel_init_kwargs: {{token: {CANARY}}}\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    trained = ["--model_name_or_path", tiny_model, *TRAINS]
    commands = [
        ["eval", NO_TOOL, "--episodes", "2", "--endpoint", address, *sampled, "--output", "e.jsonl"],
        ["eval", "AgentR1/ReTool-v0", "--expert", "--episodes", "1", "--output", "s.jsonl", "--env_kwargs",
         json.dumps({"sandbox": f"http://u:{CANARY}@{host}/x?token={CANARY}"})],
        ["eval", "AgentR1/HotpotQA-v0", "--expert", "--episodes", "1", "--output", "h.jsonl", "--env_kwargs",
         json.dumps({"retriever": f"http://u:{CANARY}@{host}/retrieve?apikey={CANARY}"})],
        ["eval", GSM8K, "--expert", "--env_kwargs", json.dumps({"nosuch": HIDDEN})],
        ["eval", GSM8K, "--expert", "--episodes", "2", "--output", "j.jsonl"],
        ["calibrate", str(judge), "j.jsonl", "--output", "c.json"],
        ["rescore", "j.jsonl", "--judge", str(judge), "--output", "r.jsonl"],
        ["sft", GSM8K, *trained, "--output_dir", "sft", "--config", str(run)],
        ["grpo", GSM8K, *trained, *SAMPLES, "--output_dir", "grpo", "--config", str(run)],
        ["grpo", GSM8K, *trained, *SAMPLES, "--output_dir", "judged", "--judge", str(judge)],
        ["resume", "grpo", "--max_steps", "2"], ["view", "grpo", "--output", "page"], ["view", "s.jsonl"],
        ["runs", "."], ["leaderboard", "."], ["serve", "search", "--corpus", address, "--port", "0"],
        ["prepare", "gsm8k", "--from", f"https://u:{CANARY}@{host}/x.jsonl?token={CANARY}", "--output", "g"],
    ]  # fmt: skip
    keys = dict.fromkeys(("OPENAI_API_KEY", "HF_TOKEN", "AGENT_GYM_SERVER_KEY", "MY_DB_PASSWORD"), CANARY)
    for words in commands:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_gym", *words], cwd=work, env={**os.environ, **keys}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            assert not command_lines(process.pid)
            said, _ = process.communicate(timeout=300)
        assert CANARY not in said and "Traceback" not in said, said
    files = [path for path in work.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [str(path) for path in files if CANARY.encode() in path.read_bytes()]
