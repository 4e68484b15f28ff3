"""Turns that are interrupted: engines return what they have sampled, and other weights write the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from model_server import model_server  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.policies import Generation, Interruptible, Request, SamplingParams, VLLMPolicy  # noqa: E402
from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402

pytestmark = pytest.mark.vllm
CONTEXT, LENGTH = 512, 400
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=["process", pytest.param("server", marks=pytest.mark.slow)])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    folder: Path = tmp_path_factory.mktemp("model")
    path = make_tiny_model(folder, context=CONTEXT)
    model = AutoModelForCausalLM.from_pretrained(path)
    with ExitStack() as stack:
        if request.param == "process":
            policy: Any = VLLMPolicy(path, [EOS], context=CONTEXT, max_num_seqs=4, kv_cache_gib=0.1)
        else:
            url, _ = stack.enter_context(model_server(path, folder / "log.txt", context=CONTEXT))
            policy = VLLMServerPolicy([url], [EOS], context=CONTEXT)
        stack.callback(policy.close)
        yield policy, model


def begin(policy: Any, requests: list[Request]) -> tuple[list[Generation], list[Generation]]:
    """Interrupt the policy when the first turn is done; return what was finished, and what was begun."""
    for _ in range(10):  # on a machine that stalls all turns may be done before that
        for request in requests:
            policy.submit(request)
        finished: list[Generation] = []
        while not finished:
            finished += policy.poll()
        sampled = policy.interrupt()
        assert policy.pending == 0
        if begun := [generation for generation in sampled if generation.finish_reason == "abort"]:
            return finished + [generation for generation in sampled if generation.finish_reason != "abort"], begun
    raise AssertionError("ten times all turns were done before they could be interrupted")


def test_what_was_sampled_is_returned_and_newer_weights_go_on_from_there(subject: tuple[Any, Any]) -> None:
    policy, model = subject
    assert isinstance(policy, Interruptible)
    policy.sync(model.named_parameters())
    # Four are decoded at a time in the process, so that others have nothing yet.
    first, others = make_requests(1, max_tokens=8), make_requests(6, max_tokens=LENGTH)[1:]
    requests = {request.id: request for request in first + others}
    whole = run(policy, requests.values())
    finished, begun = begin(policy, list(requests.values()))
    assert policy.interrupt() == [], "nothing is pending"
    for generation in begun:
        assert 0 < len(generation.token_ids) < LENGTH
        assert generation.token_ids == whole[generation.id].token_ids[: len(generation.token_ids)]
    pieces = {generation.id: generation for generation in [*finished, *begun]}
    answered = [requests[number] for number in pieces]
    assert largest_difference(model, answered, pieces) < TOLERANCE
    disturb(model, seed=5)
    assert largest_difference(model, answered, pieces) > 100 * TOLERANCE, "the comparison can fail"
    policy.sync(model.named_parameters())
    rest = []
    for piece in begun:
        params = SamplingParams(LENGTH - len(piece.token_ids), seed=piece.id + 50)
        rest.append(Request(piece.id, requests[piece.id].prompt_ids + piece.token_ids, params))
    assert largest_difference(model, rest, run(policy, rest)) < TOLERANCE
