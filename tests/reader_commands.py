"""Plays each command that reads files of others against files that break it; run in a process of its own.

    python tests/reader_commands.py READER SEED ROUNDS FOLDER     # lines of JSON: the cases that fell, and their number

A case falls if the command raises, takes more than a minute, or sends signs to the terminal that steer it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from json_mutations import ESCAPES, mutated

STILL_S = 60  # a file of holes is 256 MiB of zeros to read, and a machine may be loaded
PLACES = ("MODEL", "JUDGE.yaml")  # of good files, wherever the command runs
GSM8K = "AgentR1/GSM8K-v0"
ROW = {"question": "Ann has 2 apples and 3 pears. How many?", "answer": "2+3=5\n#### 5"}
RUN = {"command": "grpo", "argv": [GSM8K], "cwd": "/", "host": "h", "pid": 1, "status": "done", "started": 1.7e9,
       "ended": 1.8e9, "step": 4, "max_steps": 4, "numbers": {"reward": 0.5, "eval_success": 0.25}}  # fmt: skip
LOG = {"step": 1, "eval_success": 0.2, "eval_success_low": 0.1, "eval_success_high": 0.3, "loss": 0.1}
STATE = {"epoch": 1.0, "global_step": 1, "max_steps": 2, "log_history": [{"step": 1, "loss": 1.0}],
         "train_batch_size": 2, "num_train_epochs": 1, "stateful_callbacks": {}, "best_metric": None}  # fmt: skip
LABEL = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "label": 1}
HOTPOT = {"_id": "q", "question": "Who?", "answer": "A", "type": "bridge", "level": "hard",
          "supporting_facts": [["F", 0]], "context": [["F", ["F is by A.", " It is long."]]]}  # fmt: skip
RESULTS = {"preset": "bisect", "seed": 1, "start": {"demonstrator": {"success": {"value": 0.5}}},
           "dev": {"split": "validation", "tasks": 10, "decoding": "greedy", "start": "imitation",
                   "controls": [{"policy": "p", "success": 0.1}],
                   "evaluations": [{"step": 0, "success": 0.1, "turns": 1.0, "tokens": 2}]}}  # fmt: skip
TOML = "[agent]\ntimeout_sec = 10.0\n[verifier]\ntimeout_sec = 5.0\n[environment]\ncpus = 1\n"
SETTINGS = {"episodes": 1, "split": "test", "temperature": 0.5, "metrics": ["reward"], "env_kwargs": {"max_turns": 3}}
DOCUMENT = {"id": "1", "contents": "Title\nText", "title": "Title", "text": "Text"}
TASK = {"question": "q", "answer": "a", "id": 3}

# By name: the file that is broken, its good value (None: a list of lines of it), and the commands that read it.
Reader = tuple[str, str, tuple[list[str], ...]]
READERS: dict[str, Reader] = {
    "trajectories": ("a.jsonl", "records", (
        ["view", "a.jsonl", "--output", "o.html"], ["view", "a.jsonl", "--terminal", "--episode", "1"],
        ["compare", "a.jsonl", "GOOD.jsonl"], ["compare", "GOOD.jsonl", "a.jsonl", "--anyway"],
        ["rescore", "a.jsonl"], ["rescore", "a.jsonl", "--trust_file", "--output", "r.jsonl"],
        ["export", "trajectories", "a.jsonl", "out"], ["export", "trajectories", "a.jsonl", "out", "--format", "sft"],
        ["export", "trajectories", "a.jsonl", "out", "--format", "messages"],
        ["export", "model", "MODEL", "out", "--eval", "a.jsonl"], ["calibrate", "JUDGE.yaml", "a.jsonl"],
        ["eval", GSM8K, "--expert", "--episodes", "1", "--output", "a.jsonl", "--resume"],
        ["rollout", GSM8K, "--expert", "--episodes", "1", "--output", "a.jsonl", "--resume"],
    )),
    "card": ("GOOD.card.json", "card", (
        ["leaderboard", ".", "--output", "o.html"], ["compare", "GOOD.jsonl", "GOOD.jsonl"],
        ["eval", GSM8K, "--expert", "--episodes", "3", "--output", "GOOD.jsonl", "--resume"],
    )),
    "card of a run": ("run/card.json", "card", (
        ["leaderboard", ".", "--output", "o.html"], ["view", "run", "--output", "page"], ["compare", "run", "run"],
    )),
    "run.json": ("run/run.json", "RUN", (
        ["runs", "."], ["runs", ".", "--json"], ["view", "run", "--output", "page"], ["resume", "run"],
        ["compare", "run", "run"], ["leaderboard", "."],
    )),
    "log": ("run/log.jsonl", "LOG", (["runs", "."], ["view", "run", "--output", "page"])),
    "trajectories of a run": ("run/trajectories/eval_000001_0.jsonl", "records", (
        ["view", "run", "--output", "page"], ["compare", "run", "GOOD.jsonl"], ["runs", "."],
    )),
    "trajectories of a folder": ("runs/a.jsonl", "records", (
        ["view", "runs", "--output", "o.html"], ["compare", "runs/a.jsonl", "GOOD.jsonl"],
        ["view", "GOOD.jsonl", "runs", "--terminal"],
    )),
    "state of a checkpoint": ("run/checkpoint-1/trainer_state.json", "STATE", (
        ["runs", "."], ["view", "run", "--output", "page"], ["export", "model", "run", "out"],
    )),
    "panel": ("p.json", "panel", (["eval", GSM8K, "--expert", "--panel", "p.json"],)),
    "settings": ("s.yaml", "SETTINGS", (
        ["eval", GSM8K, "--expert", "--config", "s.yaml"], ["rescore", "GOOD.jsonl", "--config", "s.yaml"],
        ["rescore", "GOOD.jsonl", "--judge", "s.yaml"], ["calibrate", "s.yaml", "GOOD.jsonl"],
        ["view", "GOOD.jsonl", "--config", "s.yaml", "--output", "o.html"],
    )),
    "labels": ("l.jsonl", "LABEL", (["calibrate", "JUDGE.yaml", "l.jsonl"],)),
    "results": ("seed_0/results.json", "RESULTS", (["figure", ".", "--output", "f.png"],)),
    "configuration": ("model/config.json", "config", (
        ["plan", "--model", "model", "--gpus", "1x80"], ["export", "model", "model", "out"],
    )),
    "rows": ("d.jsonl", "ROW", (
        ["eval", GSM8K, "--expert", "--split", "train", "--episodes", "1", "--env_kwargs", '{"data": "d.jsonl"}'],
        ["export", "tasks", GSM8K, "t.jsonl", "--split", "train", "--env_kwargs", '{"data": "d.jsonl"}'],
        ["new", "env", "fresh", "--from", "d.jsonl"], ["prepare", "gsm8k", "--from", "d.jsonl", "--output", "g"],
        ["eval", "AgentR1/ReTool-v0", "--expert", "--episodes", "1", "--env_kwargs", '{"data": "d.jsonl"}'],
    )),
    "rows as JSON": ("d.json", "ROWS", (
        ["eval", GSM8K, "--expert", "--split", "train", "--episodes", "1", "--env_kwargs", '{"data": "d.json"}'],
        ["new", "env", "fresh", "--from", "d.json"], ["prepare", "retool", "--from", "d.json", "--output", "g"],
    )),
    "rows as CSV": ("d.csv", "CSV", (
        ["new", "env", "fresh", "--from", "d.csv"],
        ["eval", GSM8K, "--expert", "--split", "train", "--episodes", "1", "--env_kwargs", '{"data": "d.csv"}'],
    )),
    "rows as parquet": ("d.parquet", "PARQUET", (["new", "env", "fresh", "--from", "d.parquet"],)),
    "HotpotQA": ("h.json", "HOTPOT", (
        ["prepare", "hotpotqa", "--from", "h.json", "--output", "h", "--index", "none"],
    )),
    "documents": ("c.jsonl", "DOCUMENT", (["serve", "search", "--corpus", "c.jsonl", "--port", "0"],)),
    "goals": ("w.json", "ROWS", (
        ["eval", "AgentR1/WebShop-v0", "--expert", "--episodes", "1", "--env_kwargs", '{"data": "w.json"}'],
    )),
    "tasks of an agent": ("t.jsonl", "TASK", (
        ["eval", "--agent", "true", "--tasks", "t.jsonl", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m"],
    )),
    "saved data set": ("saved/state.json", "state", (["new", "env", "fresh", "--from", "saved"],)),
    "splits of a data set": ("splits/dataset_dict.json", "SPLITS", (["new", "env", "fresh", "--from", "splits"],)),
    "rows of a data set": ("saved/data-00000-of-00001.arrow", "PARQUET", (["new", "env", "fresh", "--from", "saved"],)),
    **{
        f"{name} of a task": (f"tasks/one/{name}", kind, (
            ["export", "tasks", "AgentR1/Terminal-v0", "t.jsonl", "--env_kwargs", '{"data": "tasks"}'],
        )) for name, kind in (("instruction.md", "TEXT"), ("task.toml", "TOML"), ("environment/Dockerfile", "TEXT"),
                              ("tests/test.sh", "TEXT"), ("solution/solve.sh", "TEXT"))
    },
    "journal": ("g.jsonl.unfinished/1.jsonl", "records", (["gateway", "--record", "g.jsonl", "--model", "m",
         "--endpoint", "http://127.0.0.1:9/v1", "--tokenizer", "MODEL", "--port", "99999"],)),
}  # fmt: skip
SHAPES = (
    "empty", "zeros", "bytes", "list", "object", "null", "number", "text", "digits", "nan", "utf16", "half", "lines",
    "steering", "pipe", "zero", "full", "loop", "dangling", "folder", "holes", "socket", "memory",
)  # fmt: skip


def broken(path: Path, shape: str, good: Any) -> None:
    """Put something into the place of a file."""
    text = good if isinstance(good, str) else json.dumps(good)
    texts = {
        "empty": "", "zeros": "\0" * 4096, "list": "[" * 100_000, "object": '{"a":' * 5000, "null": "null",
        "number": "3",
        "text": '"x"', "digits": "[1" + "0" * 5000 + "]", "nan": '{"a": NaN, "b": -Infinity, "c": 1e999}',
        "half": text[: len(text) // 2], "lines": f"\r\n\r\n{text}\r\n{{}}\r\n[]\r\n{text}",
        "steering": text.replace('": "', '": ' + json.dumps(ESCAPES)[:-1]),
    }  # fmt: skip
    devices = {
        "zero": "/dev/zero",
        "full": "/dev/full",
        "loop": path,
        "dangling": "/nowhere/x",
        "memory": "/proc/self/mem",
    }
    if shape in texts:
        path.write_text(texts[shape], "utf-8", "surrogatepass")
    elif shape in devices:
        path.symlink_to(devices[shape])
    elif shape == "pipe":
        os.mkfifo(path)
    elif shape == "folder":
        path.mkdir()
    elif shape == "holes":
        with path.open("wb") as file:
            os.truncate(file.fileno(), 1 << 40)
    elif shape == "socket":
        with contextlib.chdir(path.parent):
            socket.socket(socket.AF_UNIX).bind(path.name)
    else:
        path.write_bytes(b"\xff\xfe\x00{" + os.urandom(64) if shape == "bytes" else text.encode("utf-16"))


class Hangs(BaseException):
    pass


def played(words: list[str]) -> str:
    """Run a command in this process; return why it falls, or nothing."""
    from agent_gym.cli.main import main

    def late(*_: Any) -> None:
        raise Hangs

    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    before, begun = signal.signal(signal.SIGALRM, late), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, STILL_S, 1)
    why = ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code: Any = main(words)
        if not isinstance(code, int):
            why = f"code {code!r}"
    except Hangs:
        why = "hangs"
    except SystemExit:
        pass
    except BaseException:
        why = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if time.monotonic() - begun > STILL_S:
        why = why or "slow"
    out.flush()
    told = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if any(sign in told for sign in "\x1b\x07\x9b\u202e"):
        why = why or f"steers the terminal: {told[-300:]!r}"
    return why


def contents(good: dict[str, Any], kind: str) -> Any:
    values = {"RUN": RUN, "LOG": LOG, "STATE": STATE, "LABEL": LABEL, "SETTINGS": SETTINGS, "RESULTS": RESULTS,
              "ROW": ROW, "ROWS": [ROW, ROW], "HOTPOT": [HOTPOT] * 3, "DOCUMENT": DOCUMENT, "TASK": TASK,
              "CSV": "question,answer\nWhat?,5\nWho?,Ann\n", "PARQUET": "PAR1", "SPLITS": {"splits": ["train"]},
              "TEXT": "FROM ubuntu\necho 1", "TOML": TOML}  # fmt: skip
    return values.get(kind, good.get(kind))


def make_base(base: Path, model: Path) -> None:
    """Write a folder of good files: episodes, their card, a panel, a model, a judge, a run, data sets and a task."""
    from datasets import Dataset

    from agent_gym.cli.main import main

    for name in ("run/trajectories", "run/checkpoint-1", "splits", "tasks/one/environment"):
        (base / name).mkdir(parents=True)
    shutil.copytree(model, base / "model")
    judge = "kind: rubric\ncriteria: {right: 1}\nendpoint: http://127.0.0.1:9/v1\nmodel: m\n"
    good = base / "GOOD.jsonl"
    assert main(["eval", GSM8K, "--expert", "--episodes", "3", "--output", str(good)]) == 0
    assert main(["export", "tasks", GSM8K, str(base / "t.jsonl"), "--tasks", "3"]) == 0
    (base / "t.json").rename(base / "GOOD.panel.json")
    Dataset.from_list([ROW] * 3).save_to_disk(base / "saved")
    shutil.copytree(base / "saved", base / "splits" / "train")
    texts = {"JUDGE.yaml": judge, "run/trajectories/eval_000001_0.jsonl": good.read_text(), "tasks/one/task.toml": TOML,
             "tasks/one/instruction.md": "Do.", "tasks/one/environment/Dockerfile": "FROM ubuntu\n",
             "tasks/one/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n"}  # fmt: skip
    for name, text in texts.items():
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(text)


def laid(folder: Path, base: Path) -> None:
    """Make a folder with good files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder, symlinks=True)
    os.chdir(folder)


def cases(what: str, rounds: int, rng: random.Random, good: Any) -> Iterator[tuple[str, Callable[[Path], None]]]:
    for shape in SHAPES:
        yield shape, lambda path, shape=shape: broken(path, shape, good)
    for number in range(rounds):
        text = mutated(good if not isinstance(good, str) else [good], rng)
        if isinstance(good, str):
            data = bytearray(good.encode())
            for _ in range(3):
                data[rng.randrange(len(data))] = rng.randrange(256)
            yield f"mutation {number}", lambda path, data=bytes(data): path.write_bytes(data)
        else:
            yield f"mutation {number}", lambda path, text=text: path.write_text(text, "utf-8", "surrogatepass")


def main() -> None:
    what, seed, rounds, place = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    sys.stdin = open(os.devnull)  # noqa: SIM115
    import matplotlib.figure  # noqa: F401  imports are no part of a command's seconds
    import trl  # noqa: F401

    import agent_gym.trainers.export_model  # noqa: F401

    base, work = place / "base", place / f"work-{os.getpid()}"
    file, kind, commands = READERS[what]
    record = json.loads((base / "GOOD.jsonl").read_text().splitlines()[0])
    good = {"records": record, "card": json.loads((base / "GOOD.card.json").read_text()),
            "panel": json.loads((base / "GOOD.panel.json").read_text()),
            "config": json.loads((base / "model" / "config.json").read_text()),
            "state": json.loads((base / "saved" / "state.json").read_text())}  # fmt: skip
    value, tried, fell = contents(good, kind), 0, 0
    for name, put in cases(what, rounds, random.Random(f"{what}{seed}"), value):
        for words in commands:
            laid(work, base)
            path = work / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            put(path)
            words = [
                {"MODEL": str(base / "model"), "JUDGE.yaml": str(base / "JUDGE.yaml")}.get(one, one) for one in words
            ]
            tried += 1
            if why := played(words):
                fell += 1
                print(json.dumps({"what": what, "case": name, "words": words, "why": why[-3000:]}), flush=True)
    os.chdir("/")
    shutil.rmtree(work)
    print(json.dumps({"what": what, "tried": tried, "fell": fell}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
