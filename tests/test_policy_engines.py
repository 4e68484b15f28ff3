"""The contract of an engine, held against every engine there is, with tied and untied output heads.

The reference is always a plain full forward pass of the trainer's model: no cache, no padding, no neighbours.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines import EOS, PAD, disturb, full_forward, largest_difference, make_requests, run  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies import Engine, Request, SamplingParams, TransformersPolicy, VLLMPolicy  # noqa: E402
from agent_gym.policies.transformers import draw_uniforms, sample_tokens  # noqa: E402

CONTEXT = 512
TOLERANCE = 1e-5  # natural log, float32 on both sides


class Subject(NamedTuple):
    policy: Engine
    model: Any
    tokenizer: Any


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("transformers", True), id="transformers-tied"),
        # Untied layers stay on policy in test_grpo_parity.py, too, with both engines.
        pytest.param(("transformers", False), id="transformers-untied", marks=pytest.mark.slow),
        pytest.param(("vllm", True), id="vllm-tied", marks=pytest.mark.vllm),
        pytest.param(("vllm", False), id="vllm-untied", marks=[pytest.mark.vllm, pytest.mark.slow]),
    ],
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    kind, tied = request.param
    path: Path = make_tiny_model(tmp_path_factory.mktemp("model"), tied=tied, context=CONTEXT)
    model = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    policy: Engine
    if kind == "vllm":
        policy = VLLMPolicy(path, [EOS], context=CONTEXT, max_num_seqs=16, kv_cache_gib=0.1)
    else:
        policy = TransformersPolicy(model, [EOS], PAD, decode=tokenizer.decode)
    yield Subject(policy, model, tokenizer)
    policy.close()
    policy.close()


@pytest.mark.parametrize("temperature", [0.6, 0.0])
def test_logprobs_are_those_of_a_full_forward(subject: Subject, temperature: float) -> None:
    requests = make_requests(24, temperature=temperature)
    finished = run(subject.policy, requests)
    assert finished.keys() == {request.id for request in requests}
    assert largest_difference(subject.model, requests, finished) <= TOLERANCE


def test_logprobs_stay_on_policy_through_weight_updates(subject: Subject) -> None:
    requests = make_requests(16)
    before = run(subject.policy, requests)
    for update in range(3):
        disturb(subject.model, seed=update)
        # A stale engine would be off by far more than the tolerance, so this test can fail.
        assert largest_difference(subject.model, requests, before) > 100 * TOLERANCE
        # Both ways in which trainers name weights: the second repeats a tied head.
        weights = subject.model.named_parameters() if update % 2 else subject.model.state_dict().items()
        subject.policy.sync(weights)
        after = run(subject.policy, requests)
        assert largest_difference(subject.model, requests, after) <= TOLERANCE
        before = after


def test_turns_that_extend_their_own_prompts_stay_on_policy(subject: Subject) -> None:
    """Three turns of eight conversations: from the second on, vLLM answers from its prefix cache."""
    rng = random.Random(0)
    prompts = {index: [rng.randrange(3, 512) for _ in range(300)] for index in range(8)}
    for turn in range(3):
        requests = [
            Request(index, list(ids), SamplingParams(20, seed=100 * turn + index)) for index, ids in prompts.items()
        ]
        finished = run(subject.policy, requests)
        assert largest_difference(subject.model, requests, finished) <= TOLERANCE
        for index, generation in finished.items():
            prompts[index] += generation.token_ids + [rng.randrange(3, 512) for _ in range(5)]
        if turn == 1:
            # What the cache holds was computed with weights that are gone now.
            disturb(subject.model, seed=7)
            subject.policy.sleep()
            subject.policy.wake()
            subject.policy.sync(subject.model.named_parameters())


def test_greedy_takes_the_most_likely_token(subject: Subject) -> None:
    """Beside requests that are sampled, which stay as they are."""
    requests, sampled = make_requests(12, temperature=0.0), make_requests(20, temperature=0.8)[12:]
    finished = run(subject.policy, [*requests, *sampled])
    assert largest_difference(subject.model, sampled, finished) <= TOLERANCE
    for request in requests:
        token_ids = finished[request.id].token_ids
        logprobs = full_forward(subject.model, request, token_ids)
        chosen = logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0]
        assert (chosen >= logprobs.max(-1).values - TOLERANCE).all()


def test_a_seed_decides_the_tokens_whatever_the_order_and_the_company(subject: Subject) -> None:
    requests = make_requests(12)
    together = run(subject.policy, requests)
    again = run(subject.policy, list(reversed(requests)))
    alone = {request.id: run(subject.policy, [request])[request.id] for request in requests}
    for other in (again, alone):
        # Rounding differs with the batch by about 1e-6, and about as often a draw falls between two tokens there.
        equal = sum(together[i].token_ids == other[i].token_ids for i in together)
        assert equal >= len(requests) - 1


def test_requests_without_a_seed_differ_and_leave_the_global_generators_alone(subject: Subject) -> None:
    requests = [Request(i, [5, 6, 7], SamplingParams(16)) for i in range(16)]
    before = torch.get_rng_state(), random.getstate()
    prompts = [list(request.prompt_ids) for request in requests]
    finished = run(subject.policy, requests)
    assert isinstance(subject.policy, Engine) and [request.prompt_ids for request in requests] == prompts
    assert len({tuple(generation.token_ids) for generation in finished.values()}) == 16
    for generation in finished.values():
        assert {*map(type, generation.token_ids)} == {int} and {*map(type, generation.logprobs)} == {float}
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_impossible_requests_are_refused_and_the_context_ends_a_turn(subject: Subject) -> None:
    with pytest.raises(ConfigError, match=f"context of {CONTEXT}"):
        subject.policy.submit(Request(0, [3] * CONTEXT, SamplingParams(5)))
    with pytest.raises(ConfigError, match="empty prompt"):
        subject.policy.submit(Request(0, [], SamplingParams(5)))
    subject.policy.submit(Request(0, [3], SamplingParams(5)))
    with pytest.raises(ConfigError, match="already pending"):
        subject.policy.submit(Request(0, [4], SamplingParams(5)))
    assert subject.policy.pending == 1
    assert len(run(subject.policy, [])) == 1
    # Prompts that leave room for 6 more tokens are served, and the context ends their turns.
    long = [Request(i, [3 + i] * (CONTEXT - 6), SamplingParams(50, seed=i)) for i in range(8)]
    finished = run(subject.policy, long).values()
    assert {len(generation.token_ids) for generation in finished if generation.finish_reason == "length"} == {6}


def test_a_stop_string_ends_the_turn_with_the_token_that_completes_it(subject: Subject) -> None:
    base = make_requests(12, max_tokens=30)
    free = run(subject.policy, base)
    tried = 0
    for request in base:
        ids = free[request.id].token_ids
        # Three characters of the sampled text, mostly over the border of two tokens. Random tokens also spell bytes
        # that are no character; where those show is the business of each decoder.
        stop = subject.tokenizer.decode(ids[:10])[-3:]
        if len(ids) < 12 or "\ufffd" in stop:
            continue
        tried += 1
        expected = next(k for k in range(1, 11) if stop in subject.tokenizer.decode(ids[:k]))
        params = dataclasses.replace(request.params, stop=("never", stop))
        generation = run(subject.policy, [Request(request.id, request.prompt_ids, params)])[request.id]
        assert generation.token_ids == ids[:expected]
        assert len(generation.logprobs) == expected
        assert generation.finish_reason == "stop_string"
    assert tried >= 5


def test_a_stop_string_may_be_a_special_token_and_the_end_of_turn_wins(subject: Subject) -> None:
    requests = make_requests(100, max_tokens=40, stop=("<|im_start|>", "<|im_end|>"))
    finished = list(run(subject.policy, requests).values())
    assert not any(EOS in generation.token_ids[:-1] for generation in finished)
    im_start = subject.tokenizer.convert_tokens_to_ids("<|im_start|>")
    by_last = {
        reason: {g.token_ids[-1] for g in finished if g.finish_reason == reason} for reason in ("stop", "stop_string")
    }
    assert by_last == {"stop": {EOS}, "stop_string": {im_start}}


def test_aborted_requests_are_gone_and_the_others_unharmed(subject: Subject) -> None:
    requests = make_requests(10)
    undisturbed = run(subject.policy, requests)
    for request in requests:
        subject.policy.submit(request)
    subject.policy.abort(3)
    subject.policy.abort(12345)
    finished = {generation.id: generation for generation in subject.policy.poll()}
    if subject.policy.pending:  # vLLM has decoded one token of each by now; abort one in mid-flight
        still = next(i for i in range(10) if i != 3 and i not in finished)
        subject.policy.abort(still)
    finished |= run(subject.policy, [])
    assert 3 not in finished and len(finished) >= 8
    assert sum(finished[i].token_ids == undisturbed[i].token_ids for i in finished) >= len(finished) - 1
    assert subject.policy.poll() == []


def test_a_watcher_hears_each_token_and_can_end_the_turn(subject: Subject) -> None:
    watched: dict[int, list[int]] = {i: [] for i in range(3)}
    requests = [dataclasses.replace(r, on_token=watched[r.id].append) for r in make_requests(3, max_tokens=6)]
    others = make_requests(5, max_tokens=6)[3:]
    finished = run(subject.policy, [*requests, *others])
    assert watched == {i: finished[i].token_ids for i in range(3)}
    unwatched = run(subject.policy, make_requests(5, max_tokens=6))
    assert [finished[i].token_ids for i in range(5)] == [unwatched[i].token_ids for i in range(5)]

    class Enough(Exception):
        pass

    def stop(token: int) -> None:
        watched[0].append(token)
        if len(watched[0]) == 2:
            raise Enough

    watched[0] = []
    subject.policy.submit(dataclasses.replace(requests[0], on_token=stop))
    with pytest.raises(Enough):
        while True:
            subject.policy.poll()
    subject.policy.abort(0)
    assert subject.policy.pending == 0 and watched[0] == finished[0].token_ids[:2]
    assert run(subject.policy, make_requests(1, max_tokens=6))[0].token_ids == finished[0].token_ids


# What is particular to the transformers engine: batches, the shared model, and how tokens are drawn.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model")))


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
    policy.submit(Request(0, [-1], SamplingParams(3)))
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


def test_wrong_set_ups_are_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="eos_token_ids is empty"):
        TransformersPolicy(model, [], PAD)
    with pytest.raises(ConfigError, match="`decode`"):
        TransformersPolicy(model, [EOS], PAD).submit(Request(0, [3], SamplingParams(5, stop=("x",))))
    with pytest.raises(ConfigError, match="the token 512, and the embedding of 'qwen3' has 512 rows.*resize_token_emb"):
        TransformersPolicy(model, [EOS], PAD).submit(Request(0, [3, 512], SamplingParams(5)))


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
