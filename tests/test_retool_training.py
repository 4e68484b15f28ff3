"""Training on programs: a sandbox that dies in mid-episode costs only its episodes, and the speedrun has its frames."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("math_verify")

from test_retool_wire import kill_server  # noqa: E402
from trainer_tools import SGD, RandomPolicy, batches_of, distance, logged, make_trainer, weights  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.examples.presets import RETOOL  # noqa: E402
from agent_gym.examples.tiny import make_tiny_model  # noqa: E402
from agent_gym.sandbox import Limits, LocalSandbox  # noqa: E402
from agent_gym.trainers.estimators.groups import grpo  # noqa: E402
from agent_gym.trainers.sft import expert_episodes  # noqa: E402

ENV = "AgentR1/MathPython-v0"


class Programmer(RandomPolicy):
    """Sets a name, asks for it, and answers: half of a group rightly.

    Before the first program that asks for a name is sent, `strike` is called with its episode.
    """

    def __init__(self, renderer: ChatRenderer, strike: Any) -> None:
        super().__init__()
        self._renderer, self._strike = renderer, strike

    def _write(self, request: Any) -> Any:
        episode = request.episode
        env, turn = episode.env.unwrapped, len(episode.steps)
        if turn == 1 and self._strike:
            strike, self._strike = self._strike, None
            strike(env._interpreter._session)
        if turn < 2:
            text = env.parser.render("code_interpreter", {"code": ("x = 6 * 7", "print(x)")[turn]})
        else:
            text = env.expert_action("direct") if episode.spec.member < 2 else f"\\boxed{{{episode.spec.member}}}"
        ids = self._renderer.encode_action(text)
        return dataclasses.replace(super()._write(request), token_ids=ids, logprobs=[-1.0] * len(ids))


def test_lost_sessions_are_left_out_and_the_others_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = LocalSandbox(Limits(), servers=2)
    monkeypatch.setattr("agent_gym.sandbox.local._shared", sandbox)
    env_kwargs = {"system_prompt": "", "reward": "retool"}
    options = {"max_steps": 1, "max_episode_tokens": 1500, "env": ENV, "env_kwargs": env_kwargs, **SGD}
    trainer = make_trainer(tmp_path, **options)
    trainer.runner.policy = Programmer(trainer.runner.renderer, lambda session: kill_server(session._server.pid))
    played: list[Any] = []
    play = trainer.rollout
    trainer.rollout = lambda *args: played.extend(play(*args)) or played
    batches, before = batches_of(trainer), weights(trainer.model)
    try:
        trainer.train()
    finally:
        sandbox.close()

    lost = [episode for episode in played if episode.failure]
    kept = [episode for episode in played if not episode.failure]
    # The sessions of the other server live on, and one that begins after the kill has a new server.
    assert 0 < len(lost) < 8 == len(played)
    assert logged(trainer, "rollout/failed") == [len(lost) / 8]
    for episode in lost:
        assert str(episode.failure).startswith("Lost: ") and math.isnan(episode.reward), (
            "neither 0 nor the -1 of a failure"
        )
    for episode in kept:
        assert episode.steps[1].observation == "42"
        assert episode.reward == (1.0 if episode.spec.member < 2 else -1.0)

    groups = torch.tensor([episode.spec.group for episode in kept])
    advantages = grpo(torch.tensor([episode.reward for episode in kept]), groups).tolist()
    expected = {
        tuple(episode.rows[0].token_ids[: episode.steps[-1].stop]): advantage
        for episode, advantage in zip(kept, advantages, strict=True)
    }
    (batch,) = batches
    assert batch["advantages"].isfinite().all()
    found = {}
    for i, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        mine = batch["advantages"][i][batch["action_mask"][i]]
        if len(mine):  # no dummy
            found[tuple(batch["input_ids"][i, :length].tolist())] = mine[0].item()
    assert found == pytest.approx(expected, abs=1e-5), "a group is compared without those that it lost"
    assert (distance(before, weights(trainer.model)) > 1e-6) == any(expected.values())


def test_the_frames_of_the_speedrun_are_what_is_written(tmp_path: Path) -> None:
    """Each is one token and occurs once in an episode; with other words in the environment the run would learn less."""
    settings = {**RETOOL.tiny, "demonstrations": 20}
    folder = make_tiny_model(tmp_path, RETOOL.env_id, RETOOL.env_kwargs, **settings)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    episodes = expert_episodes(RETOOL.env_id, RETOOL.env_kwargs, tokenizer, split=RETOOL.test_split, episodes=6)
    assert len(episodes) == 6
    for episode in episodes:
        ids = episode.rows[0].token_ids
        for frame in RETOOL.tiny["frames"]:
            (token,) = tokenizer(frame)["input_ids"]
            assert ids.count(token) == 1, frame
        assert max(step.stop - step.start for step in episode.steps) < RETOOL.grpo["max_turn_tokens"]
