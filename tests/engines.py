"""Helpers for the tests of the engines: run requests to their ends, and score the result with a plain full forward."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from agent_gym.policies import Generation, Policy, Request, SamplingParams

VOCABULARY = 512
EOS = 2  # <|im_end|> of the tiny tokenizer
PAD = 0


def make_requests(
    count: int, *, max_tokens: int = 24, temperature: float = 1.0, seed: int | None = 0, stop: tuple[str, ...] = ()
) -> list[Request]:
    """Random prompts of 1 to 40 tokens; request i has the seed `seed + i`."""
    rng = random.Random(1)
    return [
        Request(
            index,
            [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 40))],
            SamplingParams(max_tokens, temperature, stop, None if seed is None else seed + index),
        )
        for index in range(count)
    ]


def run(policy: Policy, requests: Iterable[Request]) -> dict[int, Generation]:
    """Submit everything, poll until nothing is pending."""
    for request in requests:
        policy.submit(request)
    finished: dict[int, Generation] = {}
    while policy.pending:
        finished.update({generation.id: generation for generation in policy.poll()})
    return finished


@torch.no_grad()
def full_forward(model: Any, request: Request, token_ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities (len(token_ids), V) of one sequence scored in one pass without cache, padding or company."""
    ids = torch.tensor([request.prompt_ids + list(token_ids)])
    logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1].float()
    return (logits / (request.params.temperature or 1.0)).log_softmax(-1)


def largest_difference(model: Any, requests: Iterable[Request], finished: dict[int, Generation]) -> float:
    """Largest |logprob of the engine - logprob of a full forward| over all sampled tokens."""
    differences = []
    for request in requests:
        generation = finished[request.id]
        assert len(generation.logprobs) == len(generation.token_ids) > 0
        logprobs = full_forward(model, request, generation.token_ids)
        expected = logprobs.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
        differences.append((torch.tensor(generation.logprobs) - expected).abs())
    # Not Python's max, which keeps the 0 it started with when it meets a NaN.
    return torch.cat(differences).max().item()


@torch.no_grad()
def disturb(model: Any, seed: int) -> None:
    """Change every weight by a random amount large enough to change what is sampled."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * 0.02)
