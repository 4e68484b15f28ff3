"""What is particular to the transformers engine: batches, the shared model, and how tokens are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines import EOS, PAD, largest_difference, make_requests, run  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies import Request, SamplingParams, TransformersPolicy  # noqa: E402
from agent_gym.policies.transformers import draw_uniforms, sample_tokens  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = make_tiny_model(tmp_path_factory.mktemp("model"))
    return AutoModelForCausalLM.from_pretrained(path)


def test_the_token_budget_splits_batches_and_changes_nothing(model: Any) -> None:
    requests = make_requests(20, max_tokens=10)
    whole = run(TransformersPolicy(model, [EOS], PAD), requests)
    policy = TransformersPolicy(model, [EOS], PAD, max_batch_tokens=200)
    for request in requests:
        policy.submit(request)
    batches = []
    while policy.pending:
        batches.append(policy.poll())
    assert len(batches) > 3
    for batch in batches:
        longest = max(len(requests[generation.id].prompt_ids) for generation in batch)
        assert len(batch) * (longest + 10) <= 200
    assert [g.id for batch in batches for g in batch] == list(range(20)), "oldest requests first"
    split = {g.id: g.token_ids for batch in batches for g in batch}
    assert sum(split[i] == whole[i].token_ids for i in split) >= 19
    # A request above the budget is decoded alone.
    assert len(run(TransformersPolicy(model, [EOS], PAD, max_batch_tokens=1), requests[:3])) == 3


def test_modules_get_their_training_flags_back_and_train_on(model: Any) -> None:
    model.train()
    model.model.layers[1].eval()
    flags = [module.training for module in model.modules()]
    policy = TransformersPolicy(model, [EOS], PAD)
    run(policy, make_requests(2, max_tokens=3))
    assert [module.training for module in model.modules()] == flags
    # Also when the forward pass fails.
    policy.submit(Request(0, [10**6], SamplingParams(3)))
    with pytest.raises(IndexError):
        policy.poll()
    assert [module.training for module in model.modules()] == flags and policy.pending == 0
    # The model trains between two rollouts, also with gradient checkpointing.
    model.gradient_checkpointing_enable()
    model.train()
    for _ in range(2):
        requests = make_requests(2, max_tokens=5)
        generation = run(policy, requests)[0]
        ids = torch.tensor([requests[0].prompt_ids + generation.token_ids])
        model(ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    model.gradient_checkpointing_disable()
    model.zero_grad()
    model.eval()


def test_a_model_wrapped_by_peft_is_sampled_with_its_adapter(model: Any) -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(
        AutoModelForCausalLM.from_config(model.config),
        peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False),
    ).eval()
    requests = make_requests(4)
    finished = run(TransformersPolicy(wrapped, [EOS], PAD), requests)
    assert largest_difference(wrapped, requests, finished) <= 1e-5


def test_wrong_set_ups_are_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="eos_token_ids is empty"):
        TransformersPolicy(model, [], PAD)
    with pytest.raises(ConfigError, match="`decode`"):
        TransformersPolicy(model, [EOS], PAD).submit(Request(0, [3], SamplingParams(5, stop=("x",))))


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    count = 20_000
    tokens = sample_tokens(
        probs.expand(count, -1), draw_uniforms([torch.Generator().manual_seed(seed) for seed in range(count)])
    )
    observed = torch.bincount(tokens, minlength=6)
    assert observed[probs == 0].sum() == 0
    expected = probs[probs > 0] * count
    # 13.8 is the 0.1% point of chi-square with two degrees of freedom.
    assert ((observed[probs > 0] - expected) ** 2 / expected).sum() < 13.8
    ends = torch.tensor([0.0, 1 - 2**-52], dtype=torch.float64)
    assert sample_tokens(probs.expand(2, -1), ends).tolist() == [1, 4], "no impossible token at either end"


def test_a_long_tail_is_sampled_as_often_as_it_should_be() -> None:
    """Half of the mass on 150 000 tokens whose terms vanish in a float32 running sum."""
    probs = torch.full((1, 150_001), 0.5 / 150_000)
    probs[0, 0] = 0.5
    tokens = [sample_tokens(probs, torch.tensor([u], dtype=torch.float64)).item() for u in (0.25, 0.75, 0.999)]
    assert tokens[0] == 0
    assert abs(tokens[1] - 75_000) < 20 and abs(tokens[2] - 149_700) < 20
