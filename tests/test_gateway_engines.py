"""Agents behind the gateway with vLLM behind that: in the trainer's process, in one of its own, behind a server; and
in two training processes, each of which has a gateway of its own."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("openai")

from gateway_tools import Recorded, WildAgent, check_log  # noqa: E402
from model_server import model_server  # noqa: E402
from trainer_tools import RandomPolicy, distance, in_ranks, logged, model_folder, played_by, settings, weights  # noqa: E402

from agent_gym.policies.vllm.child import VLLMChildPolicy  # noqa: E402
from agent_gym.policies.vllm.engine import VLLMPolicy  # noqa: E402
from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402
from agent_gym.trainers import AgentGRPOTrainer  # noqa: E402

WILD = WildAgent()
CONTEXT = 1024
ENGINES = {"here": VLLMPolicy, "own process": VLLMChildPolicy, "server": VLLMServerPolicy}


async def wild(client: Any, task: Any) -> str:
    return await WILD(client, task)


async def twice(client: Any, task: Any) -> list[str]:
    """Ask and ask again, then the whole anew: always the same requests in the same order."""
    talk: list[Any] = [{"role": "user", "content": task["question"]}]
    said = []
    for more in ("Why?", None, "Really?"):
        answer = await client.chat.completions.create(model="m", messages=talk)
        said.append(answer.choices[0].message.content or "")
        if more:
            talk += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": more}]
        else:
            talk = talk[:1]
    return said


def letters(task: Any, result: Any, transcript: Any) -> float:
    """Some reward that differs: the share of vowels in all that was said."""
    said = "".join(str(one["content"]) for one in transcript if one["role"] == "assistant")
    return sum(letter in "aeiou" for letter in said) / max(1, len(said))


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("where", ENGINES)
def test_the_masks_hold_with_a_real_engine(where: str, tmp_path: Path) -> None:
    """Each token that vLLM sampled is trained once, with vLLM's logprob, which is the trainer's for that row."""
    WILD.logs.clear()
    options: dict[str, Any] = {"use_vllm": True, "max_steps": 3, "per_device_train_batch_size": 16}
    options |= {"num_generations": 1, "advantage_estimator": "reinforce_pp", "max_turn_tokens": 16}
    options |= {"max_episode_tokens": CONTEXT, "micro_batch_size": 16, "engine_process": where == "own process"}
    with ExitStack() as stack:
        if where == "server":
            server = model_server(Path(model_folder()), tmp_path / "log.txt", context=CONTEXT)
            options |= {"layout": "server", "vllm_server_base_url": stack.enter_context(server)[0]}
            del options["engine_process"]
        trainer = AgentGRPOTrainer(
            model_folder(),
            args=settings(tmp_path, **options),
            agent=wild,
            tasks=[{"seed": seed} for seed in range(48)],
            reward=letters,
        )
        policy = stack.enter_context(closing(trainer.runner.policy))
        assert isinstance(policy, ENGINES[where])
        engine, played, before = Recorded(policy), played_by(trainer), weights(trainer.model)
        trainer.train()
    assert distance(before, weights(trainer.model)) > 1e-4
    deeds = Counter[str]()
    for episode in played:
        log = WILD.logs[episode.spec.index]
        if episode.failure is not None:
            assert "before its first request" in episode.failure.message, episode.failure.traceback
            continue
        check_log(episode, log, engine)
        deeds += log.deeds
    print(where, f"{len(engine.log)} turns", dict(deeds), logged(trainer, "sampling/logp_difference_max"))
    assert set(deeds) >= {"fork", "compact", "side_by_side", "again", "cut", "timeout", "timeouts", "stream"}
    assert len(logged(trainer, "reward")) == 3
    assert max(logged(trainer, "sampling/logp_difference_max")) < 1e-4, "a wrong prompt or old weights would differ"


def trained(folder: str, batch: int, scripted: bool, options: dict[str, Any]) -> Any:
    """Train an agent for two steps; return the weights and what was logged of the rewards."""
    trainer = AgentGRPOTrainer(
        model_folder(),
        args=settings(folder, max_steps=2, per_device_train_batch_size=batch, max_episode_tokens=512, **options),
        agent=twice,
        tasks=[{"question": f"What is {n}?"} for n in range(8)],
        reward=letters,
        policy=RandomPolicy() if scripted else None,
    )
    trainer.train()
    trainer.runner.policy.close()
    return weights(trainer.model), [logged(trainer, name) for name in ("reward", "rollout/failed")]


def check_ranks(tmp_path: Path, scripted: bool, **options: Any) -> None:
    here, rewards = trained(str(tmp_path / "here"), 8, scripted, options)
    (one, *of_one), (other, *of_other) = in_ranks(
        trained, 2, str(tmp_path / "two"), 4, scripted, options, timeout_s=600
    )
    assert distance(here, one) < 1e-5 and distance(one, other) == 0.0
    assert [rewards] == of_one == of_other and len(rewards[0]) == 2 and rewards[1] == [0.0, 0.0]


def test_two_processes_train_an_agent_as_one_does(tmp_path: Path) -> None:
    check_ranks(tmp_path, True)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("own", [False, True], ids=["here", "own process"])
def test_two_processes_with_an_engine_each_train_an_agent_as_one_does(own: bool, tmp_path: Path) -> None:
    check_ranks(tmp_path, False, use_vllm=True, engine_process=own)
