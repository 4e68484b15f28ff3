"""What the tests of images share: a tiny vision-language model, its processor, and requests that show images."""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from engines import disturb

from agent_gym import Reply, TextEnv
from agent_gym.chat import ChatRenderer
from agent_gym.images import Image, parts
from agent_gym.policies import Request, SamplingParams
from agent_gym.policies.processors import image_inputs, load_processor
from agent_gym.speedrun.tiny import make_tiny_processor, make_tiny_vision_model

ENV = "AgentR1/VisualMaze-v0"
PICTURES = "Toy/Pictures-v0"
CONTEXT = 512
TEXTS = ["You are the blue square. Go to the green one. Say up, down, left or right."] * 3


@functools.cache
def tiny_processor() -> Any:
    """A processor without a model."""
    return make_tiny_processor(TEXTS)


@functools.cache
def vision_folder() -> str:
    """Make a tiny model once per test process and return its folder."""
    folder = tempfile.mkdtemp(prefix="agent-gym-vision-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(make_tiny_vision_model(folder, ENV, demonstrations=3, context=CONTEXT))


@functools.cache
def loaded_processor() -> Any:
    return load_processor(vision_folder())


def load_model(shaken: bool = True) -> Any:
    """Load the model, with weights so different that a wrong position or image changes what it samples."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(vision_folder(), dtype=torch.float32)
    for seed in range(9 if shaken else 0):
        disturb(model, seed)
    return model.eval()


def noise(height: int, width: int, seed: int = 0) -> Image:
    return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def image_requests(renderer: ChatRenderer, count: int, *, max_tokens: int = 12, seed: int = 0) -> list[Request]:
    """Prompts of different lengths with none to three images of different sizes, also side by side."""
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        pieces: list[Any] = ["go " * rng.randint(1, 9)]
        for k in range(i % 4):
            # Also of three lines, which look like three colours, and of sizes that no patch divides.
            height = 3 if k == 2 else 28 * rng.randint(1, 4) + i % 3
            pieces.append(noise(height, 28 * rng.randint(1, 4), seed=10 * i + k))
            pieces += ["then"] * rng.randint(0, 1)
        messages = [{"role": "user", "content": parts(*pieces)}]
        assert renderer.vision is not None
        ids = renderer.prompt(messages)
        params = SamplingParams(max_tokens, seed=100 * seed + i)
        requests.append(Request(i, ids, params, images=renderer.vision.place(ids, messages)))
    return requests


@torch.no_grad()
def plain_logprobs(model: Any, renderer: ChatRenderer, ids: Sequence[int], images: Sequence[Any]) -> torch.Tensor:
    """Log-probabilities (T, V) of what follows each token, in one pass without cache, padding or company."""
    assert renderer.vision is not None
    batch = torch.tensor([renderer.vision.readable(ids, images)])
    inputs = image_inputs(renderer.vision, batch, [shown.image for shown in images])
    return model(input_ids=batch, attention_mask=torch.ones_like(batch), **inputs).logits[0].float().log_softmax(-1)


def largest_gap(model: Any, renderer: ChatRenderer, requests: Sequence[Request], finished: Any) -> float:
    """Largest |logprob of the engine - logprob of a plain forward| over all sampled tokens."""
    gaps = []
    for request in requests:
        generation = finished[request.id]
        logprobs = plain_logprobs(model, renderer, request.prompt_ids + generation.token_ids, request.images)
        at = torch.arange(len(generation.token_ids)) + len(request.prompt_ids) - 1
        gaps.append((logprobs[at, torch.tensor(generation.token_ids)] - torch.tensor(generation.logprobs)).abs())
    return torch.cat(gaps).max().item()


class PicturesEnv(TextEnv):
    """Pays for letters of the first half of the alphabet, and shows none to two images of any size at each turn."""

    reward_weights: ClassVar[dict[str, float]] = {"letters": 1.0}
    shows_images = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"train": range(64)}, max_turns=3, **kwargs)

    def begin(self, task: Any) -> Any:
        self.task = int(task)
        return self.shown(f"task {self.task % 5} ")

    def respond(self, action: str) -> Reply:
        letters = sum(letter in "abcdefghijklm" for letter in action.lower()) / max(1, len(action))
        over = self.turn >= self.task % 3
        return Reply(self.shown("go "), terms={"letters": letters}, terminated=over, success=letters > 0.3)

    def shown(self, text: str) -> Any:
        rng = np.random.default_rng([self.task, self.turn])
        sizes = 28 * rng.integers(1, 4, (int(rng.integers(0, 3)), 2))
        return parts(text, *(noise(h, w, seed=self.task) for h, w in sizes.tolist()), "!")

    def expert_action(self) -> str:
        return "abc"


if PICTURES not in gymnasium.registry:
    gymnasium.register(PICTURES, entry_point=PicturesEnv)
