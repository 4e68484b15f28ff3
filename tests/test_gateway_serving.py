"""`agent-gym gateway`, and agents in the commands that play and train: with a real tiny model."""

from __future__ import annotations

import os
import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from model_server import free_port
from openai_tools import Server, says, serving
from prepare_tools import write_lines
from process_tools import until
from tiny import make_tiny_model

torch = pytest.importorskip("torch")
openai = pytest.importorskip("openai")

from agent import NUMBERS, guess, score  # noqa: E402 - examples/agent.py, see conftest.py

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.evaluate import summarize  # noqa: E402
from agent_gym.gateway import agent_env  # noqa: E402
from agent_gym.rollout import from_record, read_trajectories  # noqa: E402


def gateway(talk: Callable[[str], None], *flags: str, ends: bool = False) -> int:
    """Serve a gateway, talk to its address in a thread, and end it by a signal unless it ends by itself."""
    port, over = free_port(), threading.Event()
    url = f"http://127.0.0.1:{port}"

    def lives() -> bool:
        with suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5):
            return True
        return False

    def talk_to_it() -> None:
        try:
            until(lives, 120)
            talk(url)
        finally:
            if not (ends and over.wait(30)):
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=talk_to_it)
    thread.start()
    code = main(["gateway", "--port", str(port), *flags])
    over.set()
    thread.join()
    return code


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow])])
def test_a_gateway_records_an_episode_for_each_key(engine: str, tiny_model: str, tmp_path: Path) -> None:
    record = tmp_path / "talks.jsonl"

    def talk_to_it(url: str) -> None:
        for key, turns in (("one", 2), ("two", 1)):
            talk: list[Any] = [{"role": "user", "content": f"I am {key}."}]
            with openai.OpenAI(base_url=f"{url}/v1", api_key=f"sk-{key}") as client:
                for _ in range(turns):
                    answer = client.chat.completions.create(model="any", messages=talk)
                    talk += [answer.choices[0].message.model_dump(), {"role": "user", "content": "go on"}]
        with openai.OpenAI(base_url=f"{url}/named/v1", api_key="sk-one") as client:
            client.responses.create(model="any", input="I have a name.")

    flags = ["--engine", engine, "--max_turn_tokens", "6", "--record", str(record)]
    assert gateway(talk_to_it, "--model", tiny_model, *flags) == 0
    records = list(read_trajectories(record))
    assert sorted(len(one["steps"]) for one in records) == [1, 1, 2]
    assert all(len(one["rows"]) == 1 and one["failure"] is None and one["terminated"] for one in records)
    assert "sk-" not in record.read_text() and "I have a name." in record.read_text()
    two = next(one for one in records if len(one["steps"]) == 2)
    (row,) = two["rows"]
    assert [span[2] for span in row["spans"]] == ["user", "agent", "env", "agent"]
    assert all(max(row["logprobs"][a:b]) < 0 for a, b, author, _ in row["spans"] if author == "agent")
    page = tmp_path / "page.html"
    assert main(["view", str(record), "--output", str(page)]) == 0 and "I am two." in page.read_text()


def test_a_server_of_texts_is_behind_a_gateway(tmp_path: Path) -> None:
    record = tmp_path / "talk.jsonl"

    def talk_to_it(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/one/v1", api_key="sk-one") as client:
            talk: list[Any] = [{"role": "user", "content": "Hello?"}]
            client.chat.completions.create(model="any", messages=talk, temperature=0.5)

    with serving(Server(says("Good day."))) as endpoint:
        assert gateway(talk_to_it, "--endpoint", endpoint, "--record", str(record)) == 0
    (talk,) = read_trajectories(record)
    assert talk["steps"][0]["action"] == "Good day." and talk["steps"][0]["metrics"] == {"asked_temperature": 0.5}


@pytest.mark.parametrize("refused", ["a request", "the record"])
def test_a_fault_ends_one_conversation_or_all_and_never_hangs(
    refused: str, tiny_model: str, tmp_path: Path, capsys: Any
) -> None:
    lone = refused == "a request"
    server = Server(says("one"), (400, {"error": "too long"}) if lone else says("two"), says("three"))
    answers: list[str] = []

    def talk_to_it(url: str) -> None:
        for key, text in (("one", "a"), ("two", "b"), ("one", "c"))[: 3 if lone else 2]:
            client = openai.OpenAI(base_url=f"{url}/{key}/v1", api_key="none", max_retries=0)
            with client, suppress(openai.APIError):
                asked: list[Any] = [{"role": "user", "content": "a"}]
                if text == "c":
                    asked += [{"role": "assistant", "content": "one"}, {"role": "user", "content": "c"}]
                answers.append(client.chat.completions.create(model="m", messages=asked).choices[0].message.content)

    record = tmp_path / "talks.jsonl" if lone else Path("/dev/full")
    with serving(server) as endpoint:
        flags = ["--endpoint", endpoint, "--tokenizer", tiny_model, "--record", str(record), "--max_turn_tokens", "20"]
        # What cannot be recorded is told, and the gateway answers on.
        code = gateway(talk_to_it, *flags, "--idle", "60" if lone else "1")
    errors = capsys.readouterr().err
    if lone:
        assert (code, answers) == (0, ["one", "three"]) and "answered 400" in errors
        failed, whole = sorted(read_trajectories(record), key=lambda one: len(one["steps"]))
        assert "too long" in failed["failure"] and whole["failure"] is None and len(whole["steps"]) == 2
    else:
        assert (code, answers) == (1, ["one", "two"]) and "warning: cannot write /dev/full" in errors


def test_eval_plays_an_agent(tiny_model: str, tmp_path: Path, capsys: Any) -> None:
    tasks, output = write_lines(tmp_path / "test.jsonl", NUMBERS[:4]), tmp_path / "games.jsonl"
    agent = ["--agent", "agent:guess", "--reward", "agent:score"]
    playing = ["--model", tiny_model, "--engine", "transformers", "--max_turn_tokens", "4", "--output", str(output)]
    assert main(["eval", *agent, "--tasks", str(tasks), *playing]) == 0
    assert "Agent" in capsys.readouterr().out
    result = summarize([from_record(record) for record in read_trajectories(output)])
    assert (result.episodes, result.failed) == (4, 0)
    assert main(["eval", *agent[:2], "--agent_command", "x", *playing]) == 2
    assert main(["eval", "--tasks", str(tasks), *playing]) == 2
    assert main(["eval", *playing]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["grpo", "ppo"])
def test_an_agent_is_trained_from_the_command_line(tiny_model: str, tmp_path: Path, command: str) -> None:
    tasks = write_lines(tmp_path / "train.jsonl", NUMBERS)
    arguments = f"{command} --model_name_or_path {tiny_model} --agent agent:guess --tasks {tasks}"
    arguments += f" --reward agent:score --output_dir {tmp_path / 'run'} --max_steps 2"
    arguments += " --per_device_train_batch_size 8 --max_turn_tokens 2 --use_vllm false --report_to none --use_cpu true"
    arguments += "" if command == "ppo" else " --num_generations 4"
    assert main(arguments.split()) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_an_agent_learns(engine: str, tmp_path: Path) -> None:
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset

    folder = make_tiny_model(tmp_path / "model")
    tasks = {"train": NUMBERS * 9, "validation": NUMBERS * 8}
    settings: dict[str, Any] = {"per_device_train_batch_size": 72, "num_generations": 8, "micro_batch_size": 72}
    settings |= {"learning_rate": 3e-3, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3}
    settings |= {"max_turn_tokens": 2, "max_episode_tokens": 400, "num_iterations": 2, "epsilon_high": 0.28}
    settings |= {"max_steps": 50, "adam_beta2": 0.98, "save_strategy": "no", "report_to": "none", "entropy_coef": 0.003}
    settings |= {"bf16": False, "use_cpu": True, "gradient_checkpointing": False, "use_vllm": engine == "vllm"}
    validation = task_dataset(*agent_env(guess, tasks, score), split="validation")
    trainer = AgentGRPOTrainer(
        str(folder),
        args=AgentGRPOConfig(str(tmp_path / "run"), **settings),
        agent=guess,
        tasks=tasks,
        reward=score,
        eval_dataset=validation,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    print(f"reward {before['eval_reward']:.3f} -> {after['eval_reward']:.3f}")
    assert before["eval_reward"] < 0.1 and after["eval_reward"] > 0.2
