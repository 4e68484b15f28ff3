"""What the trainer learns from, step by step: rows, old and reference logprobs, failures, adapters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import (  # noqa: E402
    ENV,
    SGD,
    batches_of,
    distance,
    logged,
    lora,
    make_trainer,
    model_folder,
    trained,
    weights,
)
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.estimators.groups import grpo  # noqa: E402


def test_the_loss_of_the_first_step_is_the_formula(tmp_path: Path) -> None:
    trainer, (batch,), _ = trained(tmp_path, max_steps=1, micro_batch_size=3, **SGD)
    mask = batch["action_mask"]
    expected = -(batch["advantages"] * mask).sum() / mask.sum()
    assert logged(trainer, "loss")[0] == pytest.approx(expected.item(), abs=5e-5)  # logs are rounded
    assert torch.equal(batch["weights"], mask / mask.sum())
    # One row more than there are episodes: the last is a dummy, which stands in wherever a row is missing.
    assert batch["episode_of"].tolist() == [*range(8), -1]
    assert not mask[-1].any()


def test_old_logprobs_are_those_before_the_first_update(tmp_path: Path) -> None:
    options = {"steps_per_generation": 2, "num_iterations": 2}
    trainer, (batch,), _ = trained(tmp_path, max_steps=4, learning_rate=5e-3, **options)
    start = AutoModelForCausalLM.from_pretrained(model_folder())
    ids, mask = batch["input_ids"], batch["action_mask"]
    with torch.no_grad():
        logps = start(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1].log_softmax(-1)
    expected = logps.gather(-1, ids[:, 1:, None]).squeeze(-1) * mask[:, 1:]
    assert torch.allclose(batch["old_logps"][:, 1:], expected, atol=1e-5)
    assert (batch["old_logps"][:, 0] == 0.0).all()
    # The second update is taken at other weights than the rollout, which clips some ratios.
    clipped = logged(trainer, "clip_ratio/region_mean")
    assert clipped[0] == 0.0 and max(clipped) > 0.0


def test_the_engines_logprobs_take_no_pass_and_no_correction(tmp_path: Path) -> None:
    options = {"steps_per_generation": 2, "vllm_importance_sampling_mode": "in_ratio", "max_steps": 2}
    trainer, (batch,), _ = trained(tmp_path, **options, use_vllm=True, micro_batch_size=64, learning_rate=0.0)
    assert "old_logps" not in batch and "engine_ratio" not in batch
    # What the engine found is compared while the weights are those that it sampled with, and bounds nothing.
    assert logged(trainer, "sampling/kl") and not logged(trainer, "sampling/bounded")
    # The policy of the tests claims to write each token alike: without any update ratios are not 1.
    assert min(logged(trainer, "clip_ratio/region_mean")) > 0.1
    # Where an engine has no logprob, as for what was given to it, the token counts with a ratio of 1.
    batch["engine_logps"].fill_(math.nan)
    trainer._means.pop(trainer.accelerator)
    trainer._loss(trainer._forward(trainer.model, batch), batch)
    assert trainer._means.pop(trainer.accelerator)["clip_ratio/region_mean"] == 0.0


# The reference model.


def test_kl_to_the_reference_model(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, beta=0.1, max_steps=3, learning_rate=5e-3)
    before = weights(trainer.ref_model)
    batches = batches_of(trainer)
    trainer.train()
    kl = logged(trainer, "kl")
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[2] > 1e-3
    assert distance(weights(trainer.ref_model), before) == 0.0
    assert all((batch["ref_logps"][~batch["action_mask"]] == 0).all() for batch in batches)


def test_kl_with_an_adapter_is_taken_to_the_model_without_it(tmp_path: Path) -> None:
    trainer, batches, _ = trained(tmp_path, beta=0.1, max_steps=3, peft_config=lora(), learning_rate=2e-2)
    assert trainer.ref_model is None
    assert logged(trainer, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert logged(trainer, "kl")[2] > 1e-4
    base = make_trainer(tmp_path / "base")
    base.model.eval()
    expected = base._score(base.model, batches[2]).logps
    assert torch.allclose(batches[2]["ref_logps"], expected, atol=1e-5)


# What fails.


def test_a_failed_episode_touches_nobody_else(tmp_path: Path) -> None:
    trainer, (batch,), played = trained(tmp_path, max_steps=1, env_kwargs={"fail": 5}, **SGD)
    failed = [bool(episode.failure) for episode in played]
    assert 0 < sum(failed) < 8
    assert all(math.isnan(episode.reward) == bool(episode.failure) for episode in played)
    assert logged(trainer, "rollout/failed") == [sum(failed) / 8]
    done = [episode for episode in played if not episode.failure]
    # The others of its group are compared without it.
    groups = torch.tensor([episode.spec.group for episode in done])
    advantages = grpo(torch.tensor([episode.reward for episode in done]), groups).tolist()
    expected = {tuple(e.rows[0].token_ids[: e.steps[-1].stop]): a for e, a in zip(done, advantages, strict=True)}
    found = {}
    for i, n in enumerate(batch["attention_mask"].sum(1).tolist()):
        inside = batch["advantages"][i][batch["action_mask"][i]]
        if len(inside):  # no dummy
            assert torch.equal(inside, inside[:1].expand(len(inside)))
            found[tuple(batch["input_ids"][i, :n].tolist())] = inside[0].item()
    assert len(found) == 8 - sum(failed)
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("what", "spoil", "max_grad_norm"),
    [
        ("loss", lambda logps: logps.sum() * float("nan"), 1.0),
        # The loss of a square root at 0 is finite, and its gradient is not.
        ("gradient norm", lambda logps: (logps.sum() * 0).abs().sqrt(), 1.0),
        ("gradient norm", lambda logps: (logps.sum() * 0).abs().sqrt(), 0.0),
    ],
)
def test_what_is_no_number_stops_the_run_without_an_update(
    tmp_path: Path, what: str, spoil: Any, max_grad_norm: float
) -> None:
    trainer = make_trainer(tmp_path, max_grad_norm=max_grad_norm)
    before, whole = weights(trainer.model), trainer._loss
    trainer._loss = lambda scores, inputs: whole(scores, inputs) + spoil(scores.logps)
    with pytest.raises(RolloutError, match=f"the {what} is nan at step 0; nothing was updated"):
        trainer.train()
    assert distance(before, weights(trainer.model)) == 0.0


# The rest of the seams.


def test_the_engine_gets_the_weights_before_every_rollout(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, eval_dataset=task_dataset(ENV, split="test", tasks=3))
    policy = trainer.runner.policy
    trainer.evaluate()
    trainer.train()  # at the same step number as the evaluation
    assert policy.synced == 2
    trainer.train()  # a second run, which starts at step 0 with other weights than the first
    trainer.evaluate()
    assert policy.synced == 4


def test_arguments_of_the_chat_template_reach_the_prompt(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    tokenizer.chat_template = "{{ 'brief' if brief else 'long' }}" + tokenizer.chat_template
    prompts = []
    for kwargs in (None, {"brief": True}):
        trainer = make_trainer(tmp_path, processing_class=tokenizer, chat_template_kwargs=kwargs, max_steps=1)
        trainer.train()
        prompts.append(tokenizer.decode(trainer.runner.policy.seen[0].prompt_ids))
    assert prompts[0].startswith("long<|im_start|>") and prompts[1].startswith("brief<|im_start|>")
