"""Engines that are shown images: the logprobs of what they sample are those of a plain forward pass of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engines import disturb, run  # noqa: E402
from vision_tools import (  # noqa: E402
    CONTEXT,
    image_requests,
    largest_gap,
    load_model,
    loaded_processor,
    noise,
    vision_folder,
)

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.images import parts  # noqa: E402
from agent_gym.policies import Request, SamplingParams, TransformersPolicy, VLLMPolicy  # noqa: E402

TOLERANCE = 1e-4


class Subject(NamedTuple):
    policy: Any
    model: Any
    renderer: ChatRenderer


@pytest.fixture(scope="module", params=["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    model, renderer = load_model(), ChatRenderer.of(loaded_processor())
    ends, policy = renderer.eos_token_ids, None
    if request.param == "vllm":
        policy = VLLMPolicy(
            vision_folder(), ends, context=CONTEXT, max_num_seqs=16, kv_cache_gib=0.1, vision=renderer.vision
        )
        policy.sync(model.named_parameters())
    else:
        policy = TransformersPolicy(model, ends, 0, renderer.decode_action, vision=renderer.vision)
    yield Subject(policy, model, renderer)
    policy.close()


def test_logprobs_are_those_of_a_plain_forward_whatever_shares_the_batch(subject: Subject) -> None:
    requests = image_requests(subject.renderer, 12)
    finished = run(subject.policy, requests)
    assert largest_gap(subject.model, subject.renderer, requests, finished) <= TOLERANCE
    alone = run(subject.policy, [requests[3]])
    assert alone[3].token_ids == finished[3].token_ids
    # The pixels matter: with the images of another request the same tokens have other logprobs.
    other = noise(*requests[1].images[0].image.size, seed=99)
    swapped = dataclasses.replace(requests[1], images=[requests[1].images[0]._replace(image=other)])
    assert largest_gap(subject.model, subject.renderer, [swapped], finished) > 100 * TOLERANCE


def test_weights_of_the_eye_are_synced_too(subject: Subject) -> None:
    requests = image_requests(subject.renderer, 8, seed=1)
    before = run(subject.policy, requests)
    disturb(subject.model.model.visual, seed=3)
    assert largest_gap(subject.model, subject.renderer, requests, before) > 100 * TOLERANCE
    subject.policy.sync(subject.model.named_parameters())
    after = run(subject.policy, requests)
    assert largest_gap(subject.model, subject.renderer, requests, after) <= TOLERANCE


def test_an_image_token_that_is_sampled_ends_the_turn(subject: Subject) -> None:
    """The last token of its turn, scored as any other; from then on the model is shown an end of turn in its place."""
    renderer, vision = subject.renderer, subject.renderer.vision
    assert vision is not None
    requests = [dataclasses.replace(r, params=SamplingParams(200, seed=r.id)) for r in image_requests(renderer, 60)]
    finished = run(subject.policy, requests)
    mine = [r for r in requests if finished[r.id].token_ids[-1] == vision.token_id]
    assert mine, "no request sampled an image token; make the test longer"
    assert all(vision.token_id not in generation.token_ids[:-1] for generation in finished.values())
    assert {finished[r.id].finish_reason for r in mine} == {"stop"}
    assert largest_gap(subject.model, renderer, mine, finished) <= TOLERANCE
    request, generation = mine[0], finished[mine[0].id]
    answer = [{"role": renderer.observation_role, "content": parts("see", noise(56, 56))}]
    reply = renderer.reply(generation.token_ids, answer)
    ids = [*request.prompt_ids, *generation.token_ids, *reply]
    offset = len(ids) - len(reply)
    shown = [*request.images, *(one.moved(offset) for one in vision.place(reply, answer))]
    following = Request(1000, vision.readable(ids, shown), SamplingParams(8, seed=0), images=shown)
    assert following.prompt_ids[offset - 1] == vision.stand_in != ids[offset - 1]
    assert largest_gap(subject.model, renderer, [following], run(subject.policy, [following])) <= TOLERANCE
