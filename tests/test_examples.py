"""Each program of examples/ runs, and the loss of GRPO in one file is the trainer's."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
from agent_gym.rollout import from_record, read_trajectories  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "examples"
LINES = {"grpo_in_one_file": 145, "ppo_in_one_file": 140}  # the others have at most 80


def example(name: str) -> Any:
    return importlib.import_module(name)  # conftest.py puts the folder on the path


def test_examples_are_short_and_each_has_a_test() -> None:
    others = ("test_gateway_serving.py", "test_swe_agents.py")
    here = "".join((Path(__file__).parent / name).read_text() for name in (Path(__file__).name, *others))
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text().splitlines()) <= LINES.get(file.stem, 80), file.name
        assert f'example("{file.stem}")' in here or f"from {file.stem} import" in here, f"no test runs {file.name}"


def test_the_custom_environment_is_solved_and_its_tool_explains_a_mistake() -> None:
    prices = example("custom_env")
    text = prices.main()
    assert text.count("price_of") >= 2 and "<answer>" in text
    from agent_gym.testing import play

    with prices.PricesEnv() as env:
        call = env.parser.render("price_of", {"item": "figs"})
        _, (observation, reward, *_) = play(env, [call], seed=0)
        assert "no item is called 'figs'; there are apple" in observation and reward == 0
        train, test = ({env.tasks[split][k] for k in range(len(env.tasks[split]))} for split in ("train", "test"))
        assert len(train) == 100 and not train & test


def test_the_judge_scores_by_the_rubric(capsys: pytest.CaptureFixture[str]) -> None:
    from judge_tools import JudgeServer
    from openai_tools import serving

    server = JudgeServer(lambda asked: asked.answers(*[asked.most * ("is 43" in str(asked.parts))] * 2))
    with serving(server) as address:
        scores = example("judge").main(f"{address}/v1")
    assert scores == [1.0, 0.0]
    assert "1.00  17 + 20" in capsys.readouterr().out


def test_the_langgraph_agent_answers_through_a_gateway() -> None:
    pytest.importorskip("langgraph", reason="pip install langgraph langchain-openai")
    pytest.importorskip("langchain_openai", reason="pip install langgraph langchain-openai")
    import gymnasium

    from agent_gym.gateway import agent_env
    from agent_gym.testing import play

    graph = example("langgraph_agent")
    tasks = [{"question": "How many days has 2024?", "answer": "366"}]
    env_id, kwargs = agent_env(graph.agent, tasks, graph.reward)
    with gymnasium.make(env_id, **kwargs) as env:
        call = json.dumps({"name": "days_of", "arguments": {"year": 2024}})
        turns = [f"<tool_call>\n{call}\n</tool_call>", "It has 366."]
        log = play(env.unwrapped, turns, seed=0)
    assert "366" in log[1][0] and log[-1][1] == 1.0


def test_the_loss_in_one_file_is_that_of_the_trainer(tmp_path: Path) -> None:
    """One step of the trainer, recorded; the file's loss and gradient of the same episodes at the same weights."""
    from trainer_tools import make_trainer, model_folder
    from transformers import AutoModelForCausalLM

    trainer = make_trainer(
        tmp_path, policy=None, max_steps=1, trajectories_per_step=64, loss_normalization="token", max_grad_norm=1e9,
        per_device_train_batch_size=16, num_generations=8,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype="float32")  # the weights before the step
    trainer.train()
    (file,) = tmp_path.rglob("trajectories/*.jsonl")
    episodes = [from_record(record) for record in read_trajectories(file)]
    assert len(episodes) == 16 and len({episode.reward for episode in episodes}) > 4
    grpo = example("grpo_in_one_file")
    loss = grpo.grpo_loss(model, episodes, trainer.processing_class.pad_token_id)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    logged = next(line for line in trainer.state.log_history if "loss" in line)
    assert abs(loss.item() - logged["loss"]) < 1e-6 and abs(loss.item()) > 1e-4
    assert float(norm) == pytest.approx(logged["grad_norm"], rel=1e-5)


def test_the_loss_of_ppo_in_one_file_is_that_of_the_trainer(tmp_path: Path) -> None:
    """As for GRPO, with a critic that predicts something before the step."""
    from trainer_tools import make_trainer, model_folder
    from transformers import AutoModelForCausalLM

    trainer = make_trainer(
        tmp_path, policy=None, ppo=True, critic="head", max_steps=1, trajectories_per_step=64, max_grad_norm=1e9,
        loss_normalization="token", per_device_train_batch_size=16, num_generations=1, gamma=1.0, lam=1.0,
        cliprange_value=0.2, vf_coef=0.5,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(model_folder(), dtype="float32")  # the weights before the step
    torch.nn.init.normal_(trainer.model.critic.head.weight, std=0.5, generator=torch.Generator().manual_seed(0))
    critic = copy.deepcopy(trainer.model.critic.head)
    trainer.train()
    (file,) = tmp_path.rglob("trajectories/*.jsonl")
    episodes = [from_record(record) for record in read_trajectories(file)]
    assert len(episodes) == 16 and len({episode.reward for episode in episodes}) > 4
    ppo = example("ppo_in_one_file")
    batch = ppo.rollout_batch(model, critic, episodes, trainer.processing_class.pad_token_id)
    assert batch.values[batch.mask].std() > 0.1
    loss = ppo.ppo_loss(model, critic, batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    logged = next(line for line in trainer.state.log_history if "loss" in line)
    assert abs(loss.item() - logged["loss"]) < 1e-6 and abs(loss.item()) > 1e-4
    assert float(norm) == pytest.approx(logged["grad_norm"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "points"), [("grpo_in_one_file", 7), ("ppo_in_one_file", 5)])
def test_the_curve_in_one_file_rises(name: str, points: int, capsys: pytest.CaptureFixture[str]) -> None:
    curve = example(name).main()
    assert len(curve) == points and curve[-1] > curve[0] + 0.25, capsys.readouterr().out
