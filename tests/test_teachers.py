"""Teachers: advantages that a plain forward pass gives again, the world's tokens left alone, hints, sources."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from model_server import model_server  # noqa: E402
from openai_tools import Server, serving  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from trainer_tools import (  # noqa: E402
    SGD,
    LettersEnv,
    batches_of,
    distance,
    in_ranks,
    logged,
    lora,
    make_trainer,
    model_folder,
    played_by,
    train,
    trained,
    weights,
)
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym import TextEnv  # noqa: E402
from agent_gym.doctor.ranks import shard  # noqa: E402
from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.policies.scores import ServedScores  # noqa: E402
from agent_gym.rollout import Episode, EpisodeSpec, make_env  # noqa: E402
from agent_gym.rollout.contexts import NewContext  # noqa: E402
from agent_gym.trainers.batch import NOT_SAMPLED  # noqa: E402
from agent_gym.trainers.engine import named_weights  # noqa: E402


def teacher() -> str:
    return model_folder(seed=1)


@torch.no_grad()
def plain(model: Any, ids: list[int], temperature: float = 1.0) -> Any:
    """(T,) logprob of each token of one row after those before it, by a pass without any layout; 0 of the first."""
    logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    scores = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1), scores])


def gaps(batch: dict[str, Any], policy: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """(B, T) log p_teacher - log p_policy of the sampled tokens of a batch, by plain passes."""
    found = torch.zeros(batch["input_ids"].shape)
    for row, (ids, length) in enumerate(zip(batch["input_ids"].tolist(), batch["attention_mask"].sum(1), strict=True)):
        both = [plain(model, ids[:length], temperature) for model in (teacher, policy)]
        found[row, :length] = both[0] - both[1]
    return torch.where(batch["action_mask"], found, 0.0)


def discounted(batch: dict[str, Any], gap: Any, gamma: float) -> Any:
    """Sum up the gaps of the tokens of an episode that were sampled later, token by token."""
    found = torch.zeros_like(gap)
    owner, steps = batch["episode_of"].tolist(), batch["step_of"]
    for episode in set(owner) - {-1}:
        rows = [row for row, one in enumerate(owner) if one == episode]
        places = [(int(steps[r, t]), r, t) for r in rows for t in range(steps.size(1)) if steps[r, t] != NOT_SAMPLED]
        later = 0.0
        for _, row, token in sorted(places, reverse=True):
            later = found[row, token] = gap[row, token] + gamma * later
    return found


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        ("padded", {"model_init_kwargs": {"dtype": "float32", "attn_implementation": "eager"}}),
        ("shared", {"teacher_gamma": 0.9, "num_iterations": 2, "reward_coef": 0.25}),
        ("packed", {"packing": True, "micro_batch_tokens": 300, "temperature": 0.7}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_advantage_is_that_of_plain_forward_passes(tmp_path: Path, layout: str, settings: dict[str, Any]) -> None:
    options = {"max_steps": 1, "context": "window:1", "teacher_coef": 0.5, "reward_coef": 0.0, **settings}
    trainer, (batch,), _ = trained(tmp_path, teacher=teacher(), **options)
    assert trainer.shares_prefixes == (layout == "shared")
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (model_folder(), teacher())]
    gap = gaps(batch, *models, trainer.temperature)
    own = discounted(batch, gap, settings.get("teacher_gamma", 0.0))
    expected = 0.5 * own
    if trainer.args.reward_coef:
        _, (alone,), _ = trained(tmp_path, max_steps=1, context="window:1", num_iterations=2)
        assert torch.equal(alone["input_ids"], batch["input_ids"]), "the same episodes"
        expected = expected + 0.25 * alone["advantages"]
    assert (batch["advantages"] - expected).abs().max() < 1e-5 < own.abs().max()
    assert batch["episode_of"].tolist().count(0) > 1, "an episode of several rows"
    (kl,) = logged(trainer, "teacher/kl")[:1]
    assert kl == pytest.approx(-gap[batch["action_mask"]].mean().item(), abs=1e-5)


def teacher_of(trainer: Any) -> Any:
    from agent_gym.trainers.hooks.teacher import Teacher

    return next(hook for hook in trainer.hooks if isinstance(hook, Teacher))


def test_no_token_of_the_world_is_touched(tmp_path: Path) -> None:
    """What the teacher makes of the world's tokens changes no weight, and neither is there any weight in the loss."""
    options = {**SGD, "teacher": teacher(), "teacher_gamma": 0.5, "max_steps": 1, "context": "window:1"}
    ends = []
    for garbage in (None, float("nan"), 1e30):
        trainer = make_trainer(tmp_path, **options)
        batches, score = batches_of(trainer), teacher_of(trainer).score

        def spoil(batch: Any, episodes: Any, score: Any = score, garbage: Any = garbage) -> Any:
            found = score(batch, episodes)
            return found if garbage is None else found.masked_fill(~batch["action_mask"], garbage)

        teacher_of(trainer).score = spoil
        trainer.train()
        ends.append(weights(trainer.model))
        for batch in batches:
            world = batch["step_of"] == NOT_SAMPLED
            assert world.any() and not batch["weights"][world].any() and not batch["advantages"][world].any()
            assert torch.equal(batch["advantages"] != 0, ~world & (batch["episode_of"] >= 0)[:, None])
    assert distance(ends[0], ends[1]) == distance(ends[0], ends[2]) == 0
    assert distance(ends[0], weights(make_trainer(tmp_path).model)) > 1e-6


def test_a_hint_is_read_by_the_teacher_alone(tmp_path: Path) -> None:
    hint = "Do as the expert:\n{plan}"
    options = {"max_steps": 1, "context": "window:1", "teacher": "self", "teacher_hint": hint, "reward_coef": 0.0}
    trainer = make_trainer(tmp_path, **options)
    batches, episodes, laid_out, lay_out = batches_of(trainer), played_by(trainer), [], trainer._lay_out
    trainer._lay_out = lambda found: laid_out.extend(found) or lay_out(found)
    trainer.train()
    (batch,) = batches
    model, renderer = AutoModelForCausalLM.from_pretrained(model_folder()), trainer.renderer
    played = {trainer.number_of(episode): episode for episode in episodes}
    moved = 0.0
    for row, owner in enumerate(batch["episode_of"].tolist()):
        if owner < 0:
            continue
        episode = played[laid_out[owner].number]
        system, task = episode.initial_messages
        plan = "\n".join(["abc"] * (int(task["content"].split()[1][:-1]) % 3 + 1))
        told = {**task, "content": f"{task['content']}\n\nDo as the expert:\n{plan}"}
        prompt, hinted = (renderer.prompt([system, one], episode.tools) for one in (task, told))
        ids = batch["input_ids"][row, : batch["attention_mask"][row].sum()].tolist()
        assert ids[: len(prompt)] == prompt
        behind = ids[len(prompt) :]
        mine = batch["action_mask"][row, len(prompt) : len(ids)]
        hinted_logps = plain(model, hinted + behind)[len(hinted) :][mine]
        found = batch["advantages"][row, len(prompt) : len(ids)][mine]
        assert (found - (hinted_logps - plain(model, ids)[len(prompt) :][mine])).abs().max() < 1e-5
        moved = max(moved, found.abs().max().item())
    assert moved > 1e-3


def test_what_a_hint_is_made_of() -> None:
    from agent_gym.trainers.hooks.teacher import TaskHint

    episode = Episode(EpisodeSpec("AgentR1/GSM8K-v0", {}, seed=3, split="train", index=5))
    text = TaskHint("answer {gold}, by\n{plan}")(episode)
    env = make_env("AgentR1/GSM8K-v0", {}).unwrapped
    gold = env.gold(env.tasks["train"][5])
    assert text.startswith(f"answer {json.dumps(gold)}, by\n<tool_call>") and text.rstrip().endswith("</answer>")


def test_the_plan_of_a_role_of_self_play_is_its_own() -> None:
    from agent_gym.trainers.hooks.teacher import TaskHint

    spec = EpisodeSpec("AgentR1/Bargain-v0", {"opponent": "self"}, seed=3, split="train", index=5)
    plans = [TaskHint("{plan}")(Episode(dataclasses.replace(spec, role=role))) for role in ("first", "second")]
    assert plans[0].startswith("offer: ") and plans[1] == "accept"


@pytest.mark.slow
def test_the_initial_policy_as_a_teacher(tmp_path: Path) -> None:
    """A copy, and LoRA without an adapter that is still zero, are what training began with: the KL begins at 0."""
    from peft import get_peft_model

    new, trained_before = (lora(init_lora_weights=zero, lora_dropout=0.0) for zero in (True, False))
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder()), trained_before)
    for more in ({}, {"peft_config": new}, {"model": adapted}):
        options = {"teacher": "initial", "learning_rate": 1e-2, "max_steps": 2, **more}
        trainer, _, _ = trained(tmp_path, **options)
        first, second = logged(trainer, "teacher/kl")
        assert abs(first) < 1e-6 < 1e-4 < abs(second)
    calls = []

    def hint(episode: Any) -> str:
        calls.append(episode)
        return f"You got {episode.reward}."

    trainer = make_trainer(tmp_path, teacher="self", hint=hint, ppo=True, max_steps=1)
    trainer.train()
    assert len(calls) == 8 and all(episode.steps for episode in calls)
    assert max(logged(trainer, "teacher/kl")) != 0


@pytest.mark.slow
def test_a_teacher_teaches(tmp_path: Path) -> None:
    """The reverse KL falls on what the policy samples itself, with rewards left out, and groups of one."""
    options = {"teacher": teacher(), "reward_coef": 0.0, "num_generations": 1, "max_steps": 24, "learning_rate": 1e-2}
    trainer = make_trainer(tmp_path, policy=None, per_device_train_batch_size=32, num_iterations=4, **options)
    trainer.train()
    kl = logged(trainer, "teacher/kl")
    assert len(kl) == 6 and kl[-1] < 0.7 * kl[0], kl
    assert not any(weight.requires_grad or weight.grad is not None for weight in teacher_of(trainer).model.parameters())


def test_what_cannot_teach_is_refused_with_the_cure(tmp_path: Path) -> None:
    other = tmp_path / "other"
    AutoModelForCausalLM.from_pretrained(model_folder()).save_pretrained(other)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(other)
    for message, options in (
        ("another vocabulary than the policy .hashes .* Take a teacher with the same tokenizer", {"teacher": other}),
        ("cannot be loaded: .*; allowed: a model's folder", {"teacher": "/no/model"}),
        ("give teacher_hint", {"teacher": "self"}),
        ("teacher_coef is 2.0 without a teacher", {"teacher_coef": 2.0}),
        ("allowed: {gold}, {plan}", {"teacher": "self", "teacher_hint": "it is {answer}"}),
        ("teacher_gamma is 2.0; it must be from 0 to 1", {"teacher": "self", "teacher_gamma": 2.0}),
        ("no model server at http://127.0.0.1:9.* or correct the address", {"teacher": "http://127.0.0.1:9/v1"}),
        ("a server gives logprobs at 1", {"teacher": "http://127.0.0.1:9/v1", "temperature": 0.5}),
        ("sft_share is 0.0", {"sft_coef": 1.0, "sft_share": 0.0}),
    ):
        options = {name: str(value) if name == "teacher" else value for name, value in options.items()}
        with pytest.raises(ConfigError, match=message):
            make_trainer(tmp_path, **options)
    trainer = make_trainer(tmp_path, teacher="self", hint=lambda episode: "a", context="rebuild")
    trainer.runner.context = Begins()
    with pytest.raises(ConfigError, match="rows that begin otherwise"):
        trainer.train()


def test_a_plan_without_an_expert_is_refused_as_a_demonstration_is(tmp_path: Path) -> None:
    for options in ({"teacher": "self", "teacher_hint": "{plan}"}, {"sft_coef": 1.0}):
        with pytest.raises(ConfigError, match="NoExpert has no expert"):
            make_trainer(tmp_path, env=NoExpert, **options).train()


class NoExpert(LettersEnv):
    expert_action = TextEnv.expert_action


class Begins:
    """A context whose later rows begin otherwise than the opening."""

    tokens = None

    def is_due(self, episode: Any, budget: Any) -> bool:
        return True

    def rewrite(self, episode: Any, renderer: Any, budget: Any) -> Any:
        return NewContext(renderer.prompt([{"role": "user", "content": "Go on."}]))


class Scores(Server):
    """A server that scores prompts as vLLM does, with a tiny model."""

    def __init__(self, folder: str, **faults: Any) -> None:
        super().__init__((200, None), models=(200, {"data": [{"id": "m", "max_model_len": 300}]}))
        self.model, self.faults = AutoModelForCausalLM.from_pretrained(folder), faults
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def answer(self, path: str, content: Any, key: str | None) -> tuple[int, Any]:
        if not path.endswith("/completions"):
            return super().answer(path, content, key)
        ids = content["prompt"]
        assert (content["max_tokens"], content["prompt_logprobs"]) == (1, 0)
        scores = [
            {str(i): {"logprob": logp, "decoded_token": self.faults.get("spelled") or self.tokenizer.decode([i])}}
            for i, logp in zip(ids, plain(self.model, ids).tolist(), strict=True)
        ]
        found = self.faults.get("scores", [None, *scores[1:]])
        return 200, {"choices": [{"text": "a", "prompt_logprobs": found}]}


def test_a_server_teaches_as_the_model_here_does(tmp_path: Path) -> None:
    options = {"max_steps": 1, "context": "window:1", "reward_coef": 0.0}
    _, (here,), _ = trained(tmp_path, teacher=teacher(), **options)
    with serving(Scores(teacher())) as url:
        _, (there,), _ = trained(tmp_path, teacher=url, **options)
        with pytest.raises(
            ConfigError, match="reads 300 tokens, and a row may have 300: start it with --max-model-len"
        ):
            make_trainer(tmp_path, teacher=url, max_episode_tokens=300)
        with pytest.raises(RolloutError, match="reads 300 tokens, and a row has 300, its hint included"):
            ServedScores(url, AutoTokenizer.from_pretrained(teacher()), 200).logprobs([[5] * 2, [5] * 300])
    assert (here["advantages"] - there["advantages"]).abs().max() < 1e-5 < here["advantages"].abs().max()
    with serving(Scores(teacher(), spelled="x")) as url, pytest.raises(ConfigError, match="another vocabulary"):
        make_trainer(tmp_path, teacher=url)
    with serving(Scores(teacher(), scores=None)) as url, pytest.raises(ConfigError, match="answered strangely"):
        make_trainer(tmp_path, teacher=url)


@pytest.mark.vllm
@pytest.mark.slow
def test_a_real_server_scores_rows(tmp_path: Path) -> None:
    """vLLM's own server gives the logprobs of a plain forward pass, and is refused to another vocabulary."""
    folder = Path(make_tiny_model(tmp_path / "model", context=512))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with model_server(folder, tmp_path / "log.txt", context=512) as (address, _):
        scores = ServedScores(f"{address}/v1", tokenizer, 400)
        rows = [list(range(3, 3 + n)) for n in (2, 40, 300)]
        for row, found in zip(rows, scores.logprobs(rows), strict=True):
            assert (torch.tensor(found) - plain(model, row)).abs().max() < 1e-4
        with pytest.raises(RolloutError, match="reads 512 tokens, and a row has 600, its hint included"):
            scores.logprobs([[5] * 600])
        tokenizer.add_tokens(["<new>"])
        with pytest.raises(ConfigError, match="cannot read the policy's vocabulary"):
            ServedScores(f"{address}/v1", tokenizer, 400)


def run_rank(folder: str, kind: str | None, runs: list[dict[str, Any]]) -> list[Any]:
    """Train with each teacher in one process, since to start it takes longer; return the whole weights."""
    options = {**SGD, "per_device_train_batch_size": 16 if kind is None else 8}
    options |= {} if kind is None else shard(kind, Path(folder), on_cpu=True)
    ends = []
    for run in runs:
        trainer = make_trainer(folder, **options, **run)
        trainer.train()
        named = named_weights(trainer.accelerator.unwrap_model(trainer.model))
        ends.append({name: weight.detach().float().numpy().copy() for name, weight in named})
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_end_with_the_weights_of_one(tmp_path: Path, kind: str) -> None:
    common = {"max_steps": 2, "sft_coef": 0.5, "sft_share": 1.0}
    runs = [{"teacher": teacher(), **common}, {"teacher": "self", "teacher_hint": "{plan}", "teacher_gamma": 0.5}]
    runs += [{"teacher": "initial", "ppo": True, "critic_learning_rate": 1e-2}]
    alone = run_rank(str(tmp_path / "one"), None, runs)
    for ends in in_ranks(run_rank, 2, str(tmp_path / "two"), kind, runs):
        assert max(distance(*pair) for pair in zip(alone, ends, strict=True)) <= 1e-6
    start = dict(named_weights(AutoModelForCausalLM.from_pretrained(model_folder())))
    for end in alone:
        assert distance(end, {name: weight.detach().numpy() for name, weight in start.items()}) > 1e-4


# Demonstrations beside rollouts.


def test_demonstrations_are_shown_in_the_context_of_the_rollouts(tmp_path: Path) -> None:
    rows = {}
    for context in ("append", "window:1"):
        _, (batch,), _ = trained(tmp_path, max_steps=1, context=context, sft_coef=0.5, sft_share=1.0)
        rows[context] = int(batch["sft_weights"].any(1).sum())
    assert rows["window:1"] > rows["append"] > 0, "a row for each turn, and not for each episode"


def test_what_pads_a_batch_to_its_demonstrations_is_no_token_of_a_step(tmp_path: Path) -> None:
    """A ratio that is a mean over the tokens of a row does not depend on the width of the batch."""
    options = {**SGD, "num_iterations": 2, "importance_sampling_level": "sequence", "sft_coef": 0.5, "max_steps": 4}
    trainer, batches, _ = trained(tmp_path, **options)
    assert all(torch.equal(batch["step_of"] != NOT_SAMPLED, batch["action_mask"]) for batch in batches)
    assert distance(weights(trainer.model), train(tmp_path, **options, micro_batch_size=1)) < 1e-6


def test_an_expert_that_solves_nothing_is_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="sft_coef has nothing to imitate: the expert solved none of its 1 tasks"):
        train(tmp_path, env="Toy/Wordy-v0", max_turns=2, max_steps=1, sft_coef=0.5, sft_share=0.5)


def test_a_minibatch_without_a_demonstration_does_not_lower_the_mean_loss(tmp_path: Path) -> None:
    halves = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 2}
    options = {**SGD, "max_steps": 1, "sft_coef": 0.5, "sft_share": 0.5}
    whole, cut = (trained(tmp_path, **options, **more)[0] for more in ({}, halves))
    assert logged(cut, "sft/loss") == pytest.approx(logged(whole, "sft/loss"))


@pytest.mark.parametrize("ppo", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["grpo", "ppo"])
def test_demonstrations_add_their_gradient_and_nothing_else(tmp_path: Path, ppo: bool) -> None:
    """The step of a mixed run is that of the rollout plus `sft_coef` times that of the mean over expert's tokens."""
    options = {**SGD, "max_steps": 1, "ppo": ppo, "critic_learning_rate": 0.0} if ppo else {**SGD, "max_steps": 1}
    start = weights(make_trainer(tmp_path, **options).model)
    plain_run = train(tmp_path, **options)
    trainer, (batch,), _ = trained(tmp_path, **options, sft_coef=0.5, sft_share=0.5)
    shown = batch["sft_weights"] > 0
    assert batch["sft_weights"].sum().item() == pytest.approx(1.0) and not (batch["weights"] * shown).any()
    assert torch.equal(shown.any(1), (batch["action_mask"] & ~(batch["weights"] > 0)).any(1))
    rows = zip(batch["input_ids"], shown, strict=True)
    written = {trainer.renderer.decode_action(row[mine].tolist()) for row, mine in rows if mine.any()}
    assert {one.replace("<|im_end|>", "") for one in written} <= {"abc" * n for n in (1, 2, 3)}
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    loss = 0.0
    for ids, length, weigh in zip(
        batch["input_ids"], batch["attention_mask"].sum(1), batch["sft_weights"], strict=True
    ):
        logits = model(ids[None, :length]).logits[0, :-1].float().log_softmax(-1)
        loss = loss - (logits.gather(1, ids[1:length, None])[:, 0] * weigh[1:length]).sum()
    loss.backward()
    mixed = weights(trainer.model)
    for name, parameter in model.named_parameters():
        step = plain_run[name] - 1e-2 * 0.5 * parameter.grad.numpy()
        assert abs(mixed[name] - step).max() < 1e-6
    assert logged(trainer, "sft/loss")[0] == pytest.approx(loss.item(), abs=1e-5)
    assert distance(start, mixed) > 1e-5
