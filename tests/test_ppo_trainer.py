"""The trainer with a critic: what it scores, learns, saves, and keeps from everybody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import load_file  # noqa: E402
from trainer_tools import (  # noqa: E402
    ENV,
    batches_of,
    distance,
    logged,
    lora,
    make_trainer,
    model_folder,
    played_by,
    settings,
    trained,
    weights,
)
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.trainers import AgentPPOTrainer  # noqa: E402
from agent_gym.trainers.critic import load_critic, make_critic  # noqa: E402
from agent_gym.trainers.engine import named_weights  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {"model": {}, "head": {"critic": "head"}}
PATIENT = {"env_kwargs": {"patient": True}, "max_turns": 2}


def split(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide weights into those of the policy and those of the critic."""
    policy = {name: value for name, value in found.items() if not name.startswith("critic.")}
    return policy, {name: value for name, value in found.items() if name.startswith("critic.")}


@pytest.mark.parametrize("kind", KINDS)
def test_policy_and_critic_both_learn(tmp_path: Path, kind: str) -> None:
    trainer = make_trainer(tmp_path, ppo=True, max_steps=2, **KINDS[kind])
    before, episodes = weights(trainer.model), played_by(trainer)
    trainer.train()
    # Groups of one have no spread: it is that of the batch.
    assert len({episode.spec.index for episode in episodes[:8]}) == 8
    spread = torch.tensor([episode.reward for episode in episodes[:8]]).std().item()
    assert logged(trainer, "reward_std")[0] == pytest.approx(spread, rel=1e-5)
    for one, other in zip(split(before), split(weights(trainer.model)), strict=True):
        assert distance(one, other) > 1e-4
    for name in ("critic/explained_variance", "critic/loss", "critic/value_mean", "critic/return_mean"):
        assert len(logged(trainer, name)) == 2
    # Neither kind of critic sends a gradient into the policy.
    trainer.model.zero_grad()
    trainer.model(input_ids=torch.arange(3, 40)[None], critic=True)[1].sum().backward()
    reached = {name for name, p in trainer.model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached and all(name.startswith("critic.") for name in reached)
    assert logged(trainer, "critic/value_mean")[0] == 0.0  # an untrained critic has no opinion
    assert logged(trainer, "critic/value_mean")[1] != 0.0


def test_values_belong_to_the_state_before_each_token(tmp_path: Path) -> None:
    options: dict[str, Any] = {"critic_learning_rate": 1e-2, "micro_batch_size": 3, **PATIENT}
    trainer, (*_, batch), _ = trained(tmp_path, ppo=True, max_steps=3, **options)
    again = trainer._score(trainer.model, batch)
    # The last update has moved the critic; score with the present one and compare its own two ways.
    critic = trainer.model.critic
    with torch.no_grad():
        for i in range(len(batch["input_ids"]) - 1):
            for t in batch["action_mask"][i].nonzero().view(-1).tolist()[:3]:
                seen = batch["input_ids"][i : i + 1, :t]  # everything before token t and nothing else
                hidden = critic.backbone(input_ids=seen, use_cache=False).last_hidden_state
                assert critic(hidden)[0, -1].item() == pytest.approx(again.values[i, t - 1].item(), abs=1e-5)
    assert (batch["old_values"][batch["action_mask"]] != 0).all()


def test_an_episode_that_was_stopped_is_worth_what_it_earned(tmp_path: Path) -> None:
    options: dict[str, Any] = {"critic_learning_rate": 1e-1, "gamma": 0.9, "lam": 0.0, **PATIENT}
    trainer = make_trainer(tmp_path, ppo=True, max_steps=2, **options)
    played, batches = played_by(trainer), batches_of(trainer)
    trainer.train()
    episodes, batch = played[8:], batches[1]
    assert len(episodes) == 8 and all(episode.truncated for episode in episodes)
    by_tokens = {tuple(episode.rows[0].token_ids[: episode.steps[-1].stop]): episode for episode in episodes}
    for i in range(len(batch["input_ids"]) - 1):
        actions = batch["action_mask"][i].nonzero().view(-1).tolist()
        ids = batch["input_ids"][i, batch["attention_mask"][i].bool()].tolist()
        assert len(ids) == actions[-1] + 1, "nothing is asked about the world's last word"
        # With lambda 0 the target of a token is its reward and the discounted value of the next, behind the last none.
        earned = by_tokens[tuple(ids)].steps[-1].reward
        assert batch["returns"][i, actions[-1]].item() == pytest.approx(earned, abs=1e-5)
        first, following = actions[0], actions[1]
        assert batch["old_values"][i, following].abs() > 1e-4
        if batch["step_of"][i, first] == batch["step_of"][i, following]:
            expected = 0.9 * batch["old_values"][i, following]
            assert batch["returns"][i, first].item() == pytest.approx(expected.item(), abs=1e-5)


def test_old_values_and_logprobs_are_made_once_per_rollout(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ppo=True, max_steps=4, num_iterations=2, steps_per_generation=2)
    batches, seen = batches_of(trainer), []
    prepare = trainer._prepare_inputs
    trainer._prepare_inputs = lambda inputs: seen.append(prepare(inputs)) or seen[-1]
    calls = []
    score = trainer._score
    trainer._score = lambda *args: calls.append(1) or score(*args)
    trainer.train()
    assert len(batches) == 1 and len(seen) == 4 and len(calls) == 1

    def rows(minibatches: list[Any]) -> list[tuple[Any, ...]]:
        return [
            (int(m["episode_of"][i]), m["old_values"][i].sum().item(), m["old_logps"][i].sum().item())
            for m in minibatches
            for i in range(len(m["episode_of"]))
            if m["episode_of"][i] >= 0
        ]

    first, second = rows(seen[:2]), rows(seen[2:])
    assert sorted(first) == sorted(second) and first != second  # the same in both epochs, in another order
    assert {row[0] for row in first} == set(range(16))


def test_the_critic_warms_up_alone(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ppo": True, "weight_decay": 0.1, "lr_scheduler_type": "constant"}
    trainer = make_trainer(tmp_path, max_steps=2, critic_warmup_steps=2, **options)
    before = weights(trainer.model)
    trainer.train()
    (policy, critic), (policy_now, critic_now) = split(before), split(weights(trainer.model))
    assert distance(policy, policy_now) == 0.0
    assert distance(critic, critic_now) > 1e-4
    # AdamW has not even begun to count steps for the policy, so its first real step is a first step.
    of = {name: trainer.optimizer.state.get(p) for name, p in trainer.model.named_parameters()}
    assert all(bool(state) == name.startswith("critic.") for name, state in of.items())
    assert logged(trainer, "grad_norm") == [0.0, 0.0]


def test_the_critic_has_its_own_rate_on_the_same_schedule(tmp_path: Path) -> None:
    rates: dict[str, Any] = {"learning_rate": 2e-4, "critic_learning_rate": 5e-3, "lr_scheduler_type": "linear"}
    trainer = make_trainer(tmp_path, ppo=True, max_steps=4, **rates)
    trainer.create_optimizer_and_scheduler(4)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    for step in range(3):
        for group in trainer.optimizer.param_groups:
            owners = {names[id(p)].startswith("critic.") for p in group["params"]}
            assert len(owners) == 1
            assert group["lr"] == pytest.approx((5e-3 if owners.pop() else 2e-4) * (1 - step / 4))
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == len(names)


def test_a_wild_critic_does_not_shrink_the_policys_step(tmp_path: Path) -> None:
    def moved(vf_coef: float) -> dict[str, Any]:
        options = {"optim": "sgd", "max_grad_norm": 0.5, "max_steps": 1, "learning_rate": 1e-2}
        trainer = make_trainer(tmp_path, ppo=True, vf_coef=vf_coef, **options)
        trainer.train()
        return split(weights(trainer.model))[0]

    assert distance(moved(0.5), moved(1e4)) == 0.0


# Folders and engines.


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_policy_is_a_plain_model_with_the_critic_beside_it(tmp_path: Path, kind: str) -> None:
    trainer = make_trainer(tmp_path / "run", ppo=True, max_steps=1, **KINDS[kind])
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    policy, critic = split(weights(trainer.model))
    assert distance(policy, weights(again)) == 0.0
    loaded = make_critic(again, kind)
    load_critic(loaded, tmp_path / "saved")
    assert distance(critic, {f"critic.{name}": value for name, value in weights(loaded).items()}) == 0.0
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template
    with pytest.raises(ConfigError, match="holds another kind of critic"):
        load_critic(make_critic(again, "head" if kind == "model" else "model"), tmp_path / "saved")
    with pytest.raises(ConfigError, match="there is no critic at .*: was this folder saved by AgentPPOTrainer"):
        load_critic(loaded, tmp_path)


def test_with_an_adapter_only_adapter_and_critic_learn_and_each_is_saved_apart(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ppo=True, max_steps=3, learning_rate=1e-2, peft_config=lora(), beta=0.05)
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert all("lora_" in name or name.startswith("critic.") for name in moved)
    assert any("lora_" in name for name in moved) and any(name.startswith("critic.backbone") for name in moved)
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6) and logged(trainer, "kl")[-1] > 0.0
    trainer.save_model(str(tmp_path / "saved"))
    assert not any("critic" in name for name in load_file(tmp_path / "saved" / "adapter_model.safetensors"))
    assert (tmp_path / "saved" / "critic").is_dir()
    # No weight of the critic reaches an engine.
    names = [name for name, _ in named_weights(trainer.accelerator.unwrap_model(trainer.model))]
    plain = AutoModelForCausalLM.from_pretrained(model_folder())
    assert names == [name for name, _ in plain.named_parameters()]


@pytest.mark.vllm
def test_vllm_plays_with_the_policy_alone(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    model.config._name_or_path = ""  # made in memory: the engine's folder is written with the critic attached
    trainer = make_trainer(
        tmp_path, ppo=True, model=model, policy=None, use_vllm=True, max_steps=2, max_num_seqs=8, learning_rate=1e-2
    )
    trainer.train()
    trainer.runner.policy.close()
    assert max(logged(trainer, "sampling/logp_difference_max")) < 1e-5


def test_only_its_own_settings_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="args is of class AgentGRPOConfig; AgentPPOTrainer takes AgentPPOConfig"):
        AgentPPOTrainer(model_folder(), ENV, settings(tmp_path))
    mine = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    with pytest.raises(ConfigError, match="made before the critic .*set learning_rate, critic_learning_rate"):
        AgentPPOTrainer(model_folder(), ENV, optimizers=(mine, None))


def test_the_reference_follows_the_policy_and_not_the_critic(tmp_path: Path) -> None:
    options = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}
    trainer = make_trainer(tmp_path, ppo=True, **options)
    trainer.train()
    end = weights(trainer.model)
    assert distance(weights(trainer.ref_model), {n: end[n] for n in end if not n.startswith("critic.")}) == 0.0


def test_gradients_of_fp16_are_unscaled_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ppo=True, max_steps=1)
    optimizer = trainer.accelerator.prepare(trainer.create_optimizer())
    accelerator, scaler = trainer.accelerator, torch.amp.GradScaler("cpu", init_scale=8.0)
    accelerator.native_amp, accelerator.state._mixed_precision, accelerator.scaler = True, "fp16", scaler
    try:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        scaler.scale(sum(p.sum() for p in parameters)).backward()
        trainer.args.max_grad_norm = 1e9
        trainer._clip_grad_norm(trainer.model)
        assert all((p.grad == 1).all() for p in parameters)
    finally:
        accelerator.state._mixed_precision = "no"  # it is one for the process


def test_the_critic_is_in_float32_whatever_the_policy_is_stored_in(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(model_folder(), dtype=torch.bfloat16).save_pretrained(tmp_path / "bf16")
    adapted = {"peft_config": lora(), "model_init_kwargs": {"dtype": "bfloat16"}}
    for options in ({"model_init_kwargs": None}, adapted):
        trainer = make_trainer(tmp_path, ppo=True, model=str(tmp_path / "bf16"), bf16=True, max_steps=1, **options)
        trainer.train()
        assert {weight.dtype for weight in trainer.model.critic.parameters()} == {torch.float32}
