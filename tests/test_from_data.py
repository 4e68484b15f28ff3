"""Environments that data names: trajectories and rows may name registered ids and plain options, and nothing else."""

from __future__ import annotations

import json
import sys

import gymnasium
import pytest
from cli_tools import complaint
from datasets import Dataset

import agent_gym
from agent_gym.cli.main import main
from agent_gym.errors import ConfigError
from agent_gym.registry.from_data import env_from_data
from agent_gym.rollout import replay
from agent_gym.rollout.trajectories import write_trajectories
from agent_gym.trainers.tasks import as_tasks, task_dataset

PLAIN = [
    {},
    {"difficulty": 3, "max_turns": 4},
    {"reward_weights": {"answer": 1.0, "format": 0.1}, "protocol": "search-r1"},
    {"data": "embedded", "sandbox": "local", "retriever": "bm25", "opponent": "greedy", "reward": "f1"},
    {"kinds": ["sum", "mean"], "system_prompt": "Answer: in <answer> tags / or not."},
    {"sandbox": None, "data": None, "size": 128, "dataset": "spell_backward", "game": "Wordle-v0"},
    {"stateful": True, "trust": False, "skip_bad": True, "level": "-3", "rounds": "1.5", "task_types": ["pick up"]},
]
HOSTILE = [
    {"agent": ["sh", "-c", "id"]},
    {"agent": "os:system"},
    {"reward": "os:system"},
    {"sandbox": "http://10.0.0.1:1/"},
    {"retriever": "remote"},
    {"retriever": {"kind": "server", "url": "x"}},
    {"judge": {"kind": "rubric", "model": "m"}},
    {"tasks": "rows"},
    {"data": "rows.jsonl"},
    {"data": "folder"},
    {"data": "/etc/passwd"},
    {"data": "~"},
    {"data": {"train": ["a"]}},
    {"corpus": "x"},
    {"opponent": "http://host"},
    {"opponent": "host:80"},
    {"levels": ["a", ".."]},
    {"options": {"deep": {"model_name_or_path": "m"}}},
    {"customer": {"base_url": "h"}},
    {"anything": "a/b"},
    {"anything": "a\\b"},
    {"anything": "a.b"},
    {"anything": "$(id)"},
    {"anything": "a;b"},
    {"anything": "a\nb"},
    {"anything": "\x1b[2J"},
    {"score": json.loads("[" * 40 + "]" * 40)},
    {"api_key": "sk"},
    {"baseUrl": "localhost"},
    {"BaseURL": "localhost"},
    {"sandboxUrl": "x"},
    {"homeDir": "x"},
    {"urls": ["localhost"]},
    {"paths": ["x"]},
    {"filename": "secrets"},
    {"hostname": "evil"},
    {"workdir": "x"},
    {"args": ["-c", "id"]},
    {"executable": "sh"},
    {"shell": True},
    {"trust_remote_code": True},
    {"options": {"allow_network": "yes"}},
    {"waive": ["fs_read"]},
    {"port": 22},
    {"fd": 3},
    {"proxy": "evil"},
    {"plugins": ["evil"]},
    {"loader_cls": "os"},
    {"callback": "os"},
    {"adapter": "x"},
    {"\uff41gent": "x"},
    {"ag\u0435nt": "x"},
]


@pytest.mark.parametrize("env_kwargs", PLAIN)
def test_plain_options_pass(env_kwargs):
    assert env_from_data("AgentR1/GSM8K-v0", env_kwargs, "x", cure="c") == ("AgentR1/GSM8K-v0", env_kwargs)


@pytest.mark.parametrize("env_kwargs", HOSTILE)
def test_places_and_programs_come_from_the_caller_only(env_kwargs):
    with pytest.raises(ConfigError, match="x.jsonl gives AgentR1/GSM8K-v0 the argument .*: give it yourself, or cure"):
        env_from_data("AgentR1/GSM8K-v0", env_kwargs, "x.jsonl", cure="cure")
    assert env_from_data("AgentR1/GSM8K-v0", env_kwargs, "x", given=env_kwargs, cure="c")[1] == env_kwargs


@pytest.mark.parametrize("env_id", ["planted_module:X-v0", "agent_gym.gateway:AgentR1/Agent-v0", ":X-v0", "a.b:C"])
def test_a_module_in_data_is_not_imported(env_id, tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="registered ids only"):
        env_from_data(env_id, {}, "x", cure="c")
    assert "planted_module" not in sys.modules


def test_an_agents_environment_is_refused_though_it_is_registered():
    import agent_gym.gateway  # noqa: F401 - registers it

    with pytest.raises(ConfigError, match="agent"):
        env_from_data("AgentR1/Agent-v0", {"world": None}, "x", cure="c")


@pytest.mark.parametrize("env_id", [None, 3, ["AgentR1/GSM8K-v0"], "Nobody/Knows-v0"])
def test_ids_of_other_kinds_are_refused(env_id):
    with pytest.raises(ConfigError):
        env_from_data(env_id, {}, "x", cure="c")


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "base.jsonl"
    assert main(["rollout", "AgentR1/GSM8K-v0", "--expert", "--episodes", "1", "--output", str(path)]) == 0
    return json.loads(path.read_text())


def test_rescore_runs_nothing_that_the_file_names(record, tmp_path, capsys):
    proof = tmp_path / "ran"
    evil = {"agent": ["sh", "-c", f"touch {proof}"], "world": "AgentR1/GSM8K-v0"}
    path = tmp_path / "evil.jsonl"
    record["spec"] |= {"env_id": "agent_gym.gateway:AgentR1/Agent-v0", "env_kwargs": evil}
    write_trajectories(path, [record])
    assert "--trust_file" in complaint(capsys, "rescore", str(path)) and not proof.exists()
    with pytest.raises(ConfigError, match="trusted=True"):
        replay(record)
    assert not proof.exists()


def test_rescore_takes_places_from_the_command_line(tmp_path, capsys):
    rows, path = tmp_path / "rows.jsonl", str(tmp_path / "run.jsonl")
    rows.write_text('{"question": "1+1?", "answer": "2"}\n')
    kwargs = ["--env_kwargs", json.dumps({"data": str(rows)})]
    assert main(["rollout", "AgentR1/GSM8K-v0", "--expert", "--episodes", "1", *kwargs, "--output", path]) == 0
    assert "data=" in complaint(capsys, "rescore", path)
    assert main(["rescore", path, *kwargs]) == 0
    assert main(["rescore", path, "--trust_file"]) == 0


def test_rows_of_a_data_set_name_registered_environments_only(tmp_path):
    mine = task_dataset("AgentR1/GSM8K-v0", {"system_prompt": "a/b"}, split="test", tasks=2)
    assert len(as_tasks(mine, "train_dataset")) == 2
    for change in ({"env_id": "planted_module:X-v0"}, {"env_kwargs": '{"data": "/tmp/x"}'}, {"env_kwargs": "["}):
        rows = [{**row, **change} for row in mine]
        with pytest.raises(ConfigError, match="train_dataset"):
            as_tasks(Dataset.from_list(rows), "train_dataset")


def test_rows_that_the_code_of_this_process_made_may_name_anything(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "1+1?", "answer": "2"}\n')
    made = task_dataset("AgentR1/GSM8K-v0", {"data": str(file)})
    assert len(as_tasks(made, "train_dataset")) == 1
    assert gymnasium.spec("AgentR1/GSM8K-v0").id in agent_gym.list_envs()
