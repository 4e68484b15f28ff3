"""Training on rows with images: the right pixels at each token, whatever rows share a pass with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from rollout_tools import play  # noqa: E402
from test_sft import sft_config  # noqa: E402
from trainer_tools import logged, make_trainer, weights  # noqa: E402
from vision_tools import CONTEXT, ENV, PICTURES, load_model, loaded_processor, noise, vision_folder  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies import ScriptedPolicy  # noqa: E402
from agent_gym.rollout import Budget, EpisodeSpec  # noqa: E402
from agent_gym.trainers.batch import RowImages, select_rows, training_episode  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"ppo": True},
    "ppo, head": {"ppo": True, "critic": "head"},
}


def make(folder: Path, **changes: Any) -> Any:
    given = {"model": load_model(), "processing_class": loaded_processor(), "env": PICTURES, "policy": None}
    return make_trainer(folder, **{**given, "max_episode_tokens": 400, "model_init_kwargs": None, **changes})


def moved(model: Any, before: dict[str, Any]) -> str:
    """The names of the parameters that training has changed."""
    return " ".join(name for name, now in weights(model).items() if (now != before[name]).any())


def specs(count: int, env: str = PICTURES) -> list[EpisodeSpec]:
    return [EpisodeSpec(env, seed=i, group=i // 2, member=i % 2, sampling_seed=i) for i in range(count)]


@pytest.fixture(scope="module", params=KINDS)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = make(tmp_path_factory.mktemp("run"), num_iterations=2, **KINDS[request.param])
    made.current_gradient_accumulation_steps = 1
    if hasattr(made.model, "critic"):
        torch.nn.init.normal_(made.model.critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    return made


def lay_out(trainer: Any, episodes: list[Any]) -> dict[str, Any]:
    batch = trainer._lay_out(episodes)
    trainer._score_rows(batch)
    trainer._assign_credit(batch, episodes)
    return batch


def gradients(trainer: Any, pieces: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    trainer.model.zero_grad()
    for piece in pieces:
        piece = select_rows(piece, torch.arange(len(piece["input_ids"])), torch.device("cpu"))  # as a pass reads it
        trainer._loss(trainer._forward(trainer.model, piece), piece).backward()
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def test_what_the_engine_sampled_is_what_the_trainer_scores(trainer: Any) -> None:
    episodes = trainer.rollout(specs(8), 1.0)
    assert sum(len(row.images) for episode in episodes for row in episode.rows) > 8
    assert any(not row.images for episode in episodes for row in episode.rows), "rows without images are there, too"
    batch = trainer._lay_out([training_episode(episode, i) for i, episode in enumerate(episodes)])
    image_token = trainer.vision.token_id
    assert not (batch["action_mask"] & (batch["read_ids"] == image_token)).any()
    scores = trainer._score(trainer.model, batch).logps
    mask = batch["action_mask"]
    assert (scores - batch["engine_logps"])[mask].abs().max() < 1e-4


def test_layout_changes_no_gradient(trainer: Any) -> None:
    """Rows in another order, in passes of one, two and all, with more padding: the same gradient everywhere."""
    episodes = [training_episode(e, i) for i, e in enumerate(trainer.rollout(specs(6), 1.0))]
    usual = lay_out(trainer, episodes)
    expected = gradients(trainer, [usual])
    assert expected["model.visual.blocks.0.attn.qkv.weight"].abs().max() > 1e-6, "the eye learns"

    def same(pieces: list[dict[str, Any]]) -> None:
        found = gradients(trainer, pieces)
        # A pass without images leaves the eye without a gradient; the sum over passes has it.
        assert set(found) == set(expected)
        assert max((found[name] - expected[name]).abs().max().item() for name in expected) < 2e-5

    order = torch.randperm(len(usual["input_ids"]), generator=torch.Generator().manual_seed(0))
    for size in (1, len(order)):
        same([select_rows(usual, piece) for piece in order.split(size)])
    same([select_rows(usual, piece) for piece in trainer._pieces(usual)])
    same([lay_out(trainer, episodes[::-1])])
    # With the images of other rows the gradient is another.
    swapped = [[noise(*image.size, seed=77) for image in row] for row in usual["images"].rows]
    found = gradients(trainer, [{**usual, "images": RowImages(swapped)}])
    assert max((found[name] - expected[name]).abs().max().item() for name in expected) > 1e-4


def test_what_does_not_go_with_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="packing does not know the images"):
        make(tmp_path, packing=True)
    with pytest.raises(ConfigError, match="'append'"):
        make(tmp_path, context="window:2").rollout(specs(1, ENV), 1.0)
    with pytest.raises(ConfigError, match="hand over the processor of"):
        make(tmp_path, processing_class=loaded_processor().tokenizer).rollout(specs(1, ENV), 1.0)


def test_states_that_look_different_are_different() -> None:
    """Credit that compares steps in the same state (GiGPO) must not take two mazes with the same words for one."""
    renderer = ChatRenderer.of(loaded_processor())
    policy = ScriptedPolicy(lambda episode: ("Go up.", "Go down.")[episode.turns % 2], renderer.encode_action)
    specs = [EpisodeSpec(ENV, seed=seed) for seed in (3, 3, 4)]
    first, again, other = play(policy, loaded_processor(), specs, Budget(max_tokens=1000), workers=2)
    anchors = [training_episode(episode, i).anchors for i, episode in enumerate((first, again, other))]
    assert anchors[0] == anchors[1] and not set(anchors[0]) & set(anchors[2])
    assert len({step.observation for step in first.steps}) <= 2 < len(set(anchors[0]))


def test_the_expert_is_imitated_with_its_images(tmp_path: Path) -> None:
    """No token of an image has a label, and the loss moves the eye."""
    from agent_gym.trainers.sft import expert_episodes, sft_dataset, train_sft

    processor, model = loaded_processor(), load_model(shaken=False)
    episodes = expert_episodes(ENV, None, processor, episodes=6)
    rows = [row for episode in episodes for row in episode.rows]
    assert len(rows) == 6 and all(row.images for row in rows)
    for example, row in zip(sft_dataset(rows, "all"), rows, strict=True):
        assert example["labels"].count(-100) == sum(stop - start for _, start, stop in row.images)
    before = weights(model)
    args = sft_config(tmp_path, max_steps=4, per_device_train_batch_size=3, learning_rate=3e-3, max_length=None)
    trainer = train_sft(model, processor, rows, args)
    losses = logged(trainer, "loss")
    assert losses[-1] < losses[0] and "visual" in moved(model, before)


def test_an_adapter_learns_and_is_merged_with_its_processor(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from agent_gym.policies.processors import load_processor, model_class
    from agent_gym.trainers.engine import merged_weights
    from agent_gym.trainers.export_model import export_model, find_checkpoint

    config = peft.LoraConfig(target_modules=["q_proj", "v_proj", "qkv"], r=2)
    options = {"max_steps": 2, "model_init_kwargs": {"dtype": "float32"}, "peft_config": config}
    trainer = make(tmp_path / "run", model=vision_folder(), processing_class=None, **options)
    trainer.train()
    trainer.save_model()
    merged = export_model(find_checkpoint(tmp_path / "run"), tmp_path / "out", merge_adapter=True)
    model = model_class(merged).from_pretrained(merged, dtype=torch.float32)
    expected, base = dict(merged_weights(trainer.model)), dict(load_model(shaken=False).named_parameters())
    for name, weight in model.named_parameters():
        assert torch.equal(weight, expected[name])
    assert not torch.equal(model.model.visual.blocks[0].attn.qkv.weight, base["model.visual.blocks.0.attn.qkv.weight"])
    assert load_processor(merged).image_token_id == trainer.vision.token_id


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_samples_what_the_trainer_scores_through_updates(tmp_path: Path) -> None:
    trainer = make(tmp_path, use_vllm=True, max_steps=3, vllm_max_model_length=CONTEXT, max_num_seqs=8)
    before = weights(trainer.model)
    trainer.train()
    trainer.scheduler.policy.close()
    gaps = [log["sampling/logp_difference_max"] for log in trainer.state.log_history if "loss" in log]
    assert len(gaps) == 3 and max(gaps) < 1e-4 and "visual" in moved(trainer.model, before)
