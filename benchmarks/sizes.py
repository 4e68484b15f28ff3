"""Cost of large things: CPU time and memory as the number of episodes, turns, runs, cards or passages grows.

    python benchmarks/sizes.py                            # some minutes on one core; a million passages take 3 more
    python benchmarks/sizes.py --only page runs --quick

Each command runs in a process of its own, and the CPU seconds and the peak of resident memory are those of the process.
The import of the package, which does not grow, is measured with the smallest size and subtracted. `exponent` is the
power of the size with which the rest grows from the second size to the third: 1 is linear.

page         `agent-gym view` of a file of N episodes; `opens s` is the time until headless Chromium has laid it out
episode      one episode of N turns of about 320 tokens, with its tokens and spans
runs         `agent-gym runs` over N runs of 200 logged steps
leaderboard  `agent-gym leaderboard` over N cards
index        a BM25 index of N passages of 60 words, drawn by Zipf's law from 200,000 words, built and saved
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common

SIZES = {
    "page": (100, 2_500, 10_000), "episode": (10, 200, 800), "runs": (5, 1_000, 4_000), "leaderboard": (5, 500, 2_000),
    "index": (1_000, 250_000, 1_000_000),
}  # fmt: skip
COMMAND = (sys.executable, "-m", "agent_gym")
EPISODE = """
import sys
import gymnasium
from agent_gym.cli.engine import scripted
from agent_gym.rollout import Budget, EpisodeSpec, Runner
from agent_gym import Reply, TextEnv

class Long(TextEnv):
    def begin(self, task): return "Begin."
    def respond(self, action): return Reply("observed word " * 80, terminated=self.turn + 1 == turns)

turns = int(sys.argv[1])
ENV = "Sizes/Long-v0"
gymnasium.register(ENV, lambda: Long({"train": [0]}, max_turns=turns), disable_env_checker=True, order_enforce=False)
tokenizer, policy = scripted(None, ENV, {}, lambda episode: "an action of some words " * 8)
(episode,) = Runner(policy, tokenizer, Budget(max_turn_tokens=4096, max_tokens=10**7)).run([EpisodeSpec(ENV)])
assert episode.turns == turns and not episode.failure, episode.failure
print(len(episode.rows[0].token_ids))
"""
INDEX = """
import random, sys
from itertools import accumulate
from agent_gym.search import Corpus, Document
from agent_gym.search.bm25 import BM25Retriever
n, folder = int(sys.argv[1]), sys.argv[2]
rng, words = random.Random(0), [f"w{i}" for i in range(200_000)]
weights = [*accumulate(1 / (i + 1) for i in range(len(words)))]
passages = (Document(str(i), f"title {i}", " ".join(rng.choices(words, cum_weights=weights, k=60))) for i in range(n))
corpus = Corpus.build(folder + "/corpus", passages)
BM25Retriever(corpus).save(folder + "/index")
"""


def measured(*command: object) -> dict[str, float]:
    """Run a command; return its CPU seconds, its peak of resident memory in MB, and what it printed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if b"left out" in (told := errors.read()) or process.returncode:
            raise SystemExit(f"{command} ended with {process.returncode}: {told.decode()[-2000:]}")
    return {"cpu": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1e3}


def page(size: int, folder: Path) -> dict[str, float]:
    lines = played(folder).read_text(encoding="utf-8").splitlines()
    file = folder / f"episodes{size}.jsonl"
    with file.open("w", encoding="utf-8") as opened:
        for number in range(size):
            record = json.loads(lines[number % len(lines)])
            record["spec"]["group"] = number
            opened.write(json.dumps(record) + "\n")
    found = measured(*COMMAND, "view", file, "--output", folder / f"page{size}.html")
    return found | {"opens": opening(folder / f"page{size}.html")}


def opening(file: Path) -> float | None:
    """Return the seconds until Chromium has loaded a page and drawn its first frame; None without playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        tab = browser.new_page()
        start = time.perf_counter()
        tab.goto(file.as_uri())
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seconds = time.perf_counter() - start
        browser.close()
    return seconds


def played(folder: Path) -> Path:
    """Return a file of 64 episodes of GSM8K's expert, which are played once."""
    file = folder / "played.jsonl"
    if not file.is_file():
        measured(*COMMAND, "eval", "AgentR1/GSM8K-v0", "--policy", "expert", "--episodes", 64, "--output", file)
    return file


def episode(size: int, folder: Path) -> dict[str, float]:
    return measured(sys.executable, "-c", EPISODE, size)


def runs(size: int, folder: Path) -> dict[str, float]:
    place = folder / f"runs{size}"
    log = {f"measure/{i}": i / 7 for i in range(60)}
    for number in range(size):
        one = place / f"run{number}"
        one.mkdir(parents=True)
        about = {"command": "grpo", "argv": [], "cwd": str(place), "host": "h", "pid": 1, "status": "done", "step": 200}
        about |= {"run": f"{number:016x}", "env": "AgentR1/GSM8K-v0", "model": "m", "trainer": "AgentGRPOTrainer"}
        (one / "run.json").write_text(json.dumps(about | {"started": 1.8e9, "ended": 1.8e9 + 9e3, "max_steps": 200}))
        (one / "log.jsonl").write_text("".join(json.dumps({"step": i, **log}) + "\n" for i in range(1, 201)))
    return measured(*COMMAND, "runs", place)


def leaderboard(size: int, folder: Path) -> dict[str, float]:
    card = json.loads(played(folder).with_suffix(".card.json").read_text())
    place = folder / f"cards{size}"
    place.mkdir()
    for number in range(size):
        (place / f"run{number}.card.json").write_text(json.dumps(card | {"policy": f"policy {number}"}))
    return measured(*COMMAND, "leaderboard", place)


def index(size: int, folder: Path) -> dict[str, float]:
    found = measured(sys.executable, "-c", INDEX, size, folder / f"index{size}")
    shutil.rmtree(folder / f"index{size}")
    return found


KINDS: dict[str, Callable[[int, Path], dict[str, Any]]] = {
    "page": page, "episode": episode, "runs": runs, "leaderboard": leaderboard, "index": index,
}  # fmt: skip


def main() -> None:
    options = _common.parser(__doc__)
    options.add_argument("--only", nargs="+", choices=KINDS, default=[*KINDS])
    chosen = options.parse_args()
    facts = _common.provenance(["agentic-gym", "bm25s", "playwright"])
    _common.print_provenance(facts)
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for kind in chosen.only:
            sizes = [2 + size // 20 for size in SIZES[kind]] if chosen.quick else SIZES[kind]
            results[kind] = [{"size": size, **KINDS[kind](size, Path(place))} for size in sizes]
            print(f"{kind} measured", file=sys.stderr, flush=True)
    rows = []
    for kind, (first, second, third) in results.items():
        rest = [max(one["cpu"] - first["cpu"], 1e-3) for one in (second, third)]
        grown = (third["size"] - first["size"]) / (second["size"] - first["size"])
        exponent = math.log(rest[1] / rest[0]) / math.log(grown)
        for one in (first, second, third):
            power = exponent if one is third else None
            rows.append([kind, str(one["size"]), one["cpu"], one["mb"], one.get("opens"), power])
    _common.print_table("kind|size|CPU s|MB|opens s|exponent".split("|"), rows)
    _common.write_json(chosen.json, facts=facts, results=results)


if __name__ == "__main__":
    main()
