"""Manifests, labels, figures' numbers, adapters, configurations, replies and caches that others made or broke.

As in test_mutated_files.py: each mutation ends in a result, or in an error that agent_gym raises on purpose.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from json_mutations import ODD, mutated
from test_mutated_files import on_purpose

pytest.importorskip("trl")

from agent_gym import models
from agent_gym.cli.parser import read_settings
from agent_gym.envs.terminal.data import open_data
from agent_gym.errors import AgentGymError
from agent_gym.judges.calibrate import read_labels
from agent_gym.judges.ledger import Cache
from agent_gym.plan.models import find_shape
from agent_gym.policies.loading import load_model
from agent_gym.search import Corpus, Document
from agent_gym.search.engines import read_response
from agent_gym.search.files import describe, open_folder
from agent_gym.speedrun.figure import over_runs, read_runs
from agent_gym.trainers.export_model import find_checkpoint
from agent_gym.trainers.run_lock import _owner, _refusal

Reader = Callable[[Path, random.Random], object]
WEIGHTS = struct.pack("<Q", 2) + b"{}"
SHAPE = {"model_type": "qwen3", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8,
         "num_hidden_layers": 2, "vocab_size": 9, "head_dim": 4, "num_key_value_heads": 1}  # fmt: skip
RUN = {"preset": "bisect", "seed": 1, "start": {"demonstrator": {"success": {"value": 0.5}}},
       "dev": {"split": "validation", "tasks": 10, "decoding": "greedy", "start": "imitation",
               "controls": [{"policy": "p", "success": 0.1}],
               "evaluations": [{"step": 0, "success": 0.1, "turns": 1.0, "tokens": 2, "tool_calls": 0}]}}  # fmt: skip
LABEL = {
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    "label": 1,
    "group": "g",
}
HITS = {"result": [[{"document": {"id": "1", "contents": "t\nx"}, "score": 0.5}]]}
TOML = "[agent]\ntimeout_sec = 10.0\n[verifier]\ntimeout_sec = 5.0\n[environment]\ncpus = 1\n"
BREAKS = (
    *("[", '"', "\n", "=", "a.b = 1", "1e999", "inf", "nan", " = [[[", "{a=1}", "\x00", "&a ", "*a ", "<<: *a", "? "),
    *("!!python/object:os.system x", "!!binary x", "!!int zz", "- ", "|\n", ">", "%", "\t", "!!set {a}", "~"),
)


def written(path: Path, text: str, rng: random.Random) -> None:
    if rng.random() < 0.03:
        text = rng.choice(["", "[" * 100_000, '{"a":' * 5000, "null", "[]", "\ufeff" + text])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass") + (b"\xff" if rng.random() < 0.02 else b""))


def broken(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(BREAKS) + text[at + rng.randrange(4) :]
    return text


def adapter(folder: Path, rng: random.Random) -> None:
    written(folder / "adapter_config.json", mutated({"base_model_name_or_path": "x/y", "r": 8}, rng), rng)
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    on_purpose(lambda: models.adapter_base(folder))
    find_checkpoint(folder)


def weights(folder: Path, rng: random.Random) -> None:
    written(folder / "config.json", mutated(SHAPE, rng) if rng.random() < 0.3 else json.dumps(SHAPE), rng)
    head = mutated({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, rng).encode("utf-8", "surrogatepass")
    size = rng.choice([len(head)] * 4 + [0, 1 << 40, 1 << 63])
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + head + b"\0" * 8)
    models.check_model(str(folder))


def configuration(folder: Path, rng: random.Random) -> None:
    written(folder / "config.json", mutated(SHAPE, rng), rng)
    find_shape(str(folder))


def manifest(folder: Path, rng: random.Random) -> None:
    written(folder / "t", "x", random.Random(0))
    good = {"kind": "k", "version": 1, "files": {"t": describe(folder / "t")}}
    written(folder / "m.json", mutated(good, rng), rng)
    open_folder(folder, "m.json", {"kind": "k", "version": 1})


def corpus(folder: Path, rng: random.Random) -> None:
    place = folder / "corpus"
    if not place.exists():
        Corpus.build(place, [Document("1", "t", "x"), Document("2", "t", "y")])
    file = rng.choice(sorted(place.iterdir()))
    kept = file.read_bytes()
    changed = bytearray(kept)
    for _ in range(3):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    try:
        file.write_bytes(mutated(json.loads(kept), rng).encode("utf-8", "surrogatepass"))
    except ValueError:
        file.write_bytes(changed[: rng.choice([None, rng.randrange(len(changed))])])
    try:
        list(Corpus(place, verify=rng.random() < 0.5))
    finally:
        file.write_bytes(kept)


def labels(folder: Path, rng: random.Random) -> None:
    read_labels([mutated(LABEL, rng)], "labels.jsonl")


def figure(folder: Path, rng: random.Random) -> None:
    written(folder / "results.json", mutated(RUN, rng), rng)
    over_runs(read_runs(folder))


def hits(folder: Path, rng: random.Random) -> None:
    try:
        read_response(mutated(HITS, rng).encode("utf-8", "surrogatepass"), 1)
    except ValueError as error:  # which the caller turns into an EnvFailure
        raise AgentGymError(str(error)) from error


def lock(folder: Path, rng: random.Random) -> None:
    written(folder / "lock", mutated({"pid": 1, "host": "h", "started": 1.7e9}, rng), rng)
    descriptor = os.open(folder / "lock", os.O_RDONLY)
    try:
        assert str(_refusal(folder, _owner(descriptor)))
    finally:
        os.close(descriptor)


def verdicts(folder: Path, rng: random.Random) -> None:
    path = folder / "cache.db"
    for old in folder.glob("cache.db*"):
        old.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE verdicts (key TEXT PRIMARY KEY, numbers TEXT, answer TEXT)")
        database.execute("INSERT INTO verdicts VALUES ('k', ?, 'a')", (rng.choice([*ODD, "[1, 2]", b"\xff"]),))
    database.close()
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([0, 0, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)
    cache = Cache(str(path))
    try:
        assert all(type(one) is int for one in cache.get("k") or ())
    finally:
        cache.close()


def tasks(folder: Path, rng: random.Random) -> None:
    one = folder / "tasks" / "one"
    files = {"instruction.md": "do", "Dockerfile": "FROM ubuntu\n", "run-tests.sh": "pytest $TEST_DIR/test_a.py",
             "tests/test_a.py": "def test(): pass", "tests/test.sh": "true",
             "environment/Dockerfile": "FROM ubuntu\n"}  # fmt: skip
    shutil.rmtree(one, ignore_errors=True)
    for name, text in files.items():
        (one / name).parent.mkdir(parents=True, exist_ok=True)
        (one / name).write_text(text)
    if rng.random() < 0.5:
        written(one / "task.toml", broken(TOML, rng), rng)
    else:
        about = {"instruction": "do", "max_agent_timeout_sec": 10, "max_test_timeout_sec": 10, "parser_name": "pytest"}
        written(one / "task.yaml", mutated(about, rng), rng)
    open_data(str(folder / "tasks"), None, False)


def settings(folder: Path, rng: random.Random) -> None:
    path = folder / rng.choice(["a.yaml", "a.toml"])
    written(path, broken("env_id: gsm8k\nlearning_rate: 1e-4\nlist: [1, two]\nd: {x: 2001-01-01}\n", rng), rng)
    read_settings(str(path))


READERS = (adapter, weights, configuration, manifest, corpus, labels, figure, hits, lock, verdicts, tasks, settings)


@pytest.mark.parametrize("rounds", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_no_mutation_is_a_raw_error(
    reader: Reader, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_gym.trainers.run_lock.time.sleep", lambda seconds: None)
    refused = 0
    for number in range(rounds):
        rng = random.Random(f"{reader.__name__}{number}")
        try:
            reader(tmp_path, rng)
        except AgentGymError as error:
            refused += 1
            assert str(error)
        except Exception as error:
            raise AssertionError(f"seed {reader.__name__}{number}") from error
    assert refused or reader is lock


@pytest.mark.parametrize("rounds", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_broken_files_of_a_model_are_named(rounds: int, tiny_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    for number in range(rounds):
        rng = random.Random(f"model{number}")
        file = folder / ("config.json", "tokenizer.json", "tokenizer_config.json")[number % 3]
        kept = file.read_bytes()
        written(file, mutated(json.loads(kept), rng), rng)
        try:
            if file.name == "config.json":
                load_model(str(folder))
            else:
                models.named_tokenizer(str(folder))
        except AgentGymError as error:
            assert str(folder) in str(error)
        finally:
            file.write_bytes(kept)
