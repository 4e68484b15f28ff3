"""What every vLLM engine is asked for, in this process or behind a server, and how its answer is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agent_gym.errors import require
from agent_gym.policies.base import FinishReason, Request, SamplingParams
from agent_gym.vision import Vision

SERVED_LIKE_THIS = {
    # The trainer compares these logprobs with its own, which are taken after the temperature.
    "logprobs_mode": "processed_logprobs",
    # Otherwise the model's generation_config.json would slip its own top-p and temperature into requests.
    "generation_config": "vllm",
    "enable_prefix_caching": True,
}
"""Engine arguments without which the tokens and logprobs would not be those that the trainer scores."""


def sampling_arguments(params: SamplingParams, seed: int, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    """Make the arguments of `vllm.SamplingParams`.

    Args:
        params: what the caller wants.
        seed: of the tokens.
        eos_token_ids: tokens that end a turn; those of the model's own configuration are not looked at.
    """
    return {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": seed,
        "logprobs": 0,  # of the sampled token alone
        "ignore_eos": True,
        "stop_token_ids": list(eos_token_ids),
        "stop": list(params.stop),
        "detokenize": bool(params.stop),
        # A stop string may be spelled with a special token, which would otherwise be no text at all.
        "skip_special_tokens": False,
        # The token that completes the stop string stays, as the contract says.
        "include_stop_str_in_output": True,
    }


def image_arguments(context: int) -> dict[str, Any]:
    """Make the engine arguments of a model that reads images.

    Args:
        context: longest sequence in tokens; no image is less than one.
    """
    # vLLM makes room for the largest input of each kind when it starts. There are no videos here.
    return {"limit_mm_per_prompt": {"image": context, "video": 0}}


def prompt(request: Request, vision: Vision | None) -> dict[str, Any]:
    """Make the prompt of a request: its ids, and its images as those of Pillow, whose axes nobody has to guess."""
    if vision is None or not request.images:
        return {"prompt_token_ids": request.prompt_ids}
    pillow = require("PIL.Image", "train")
    return {
        # vLLM writes out the tokens of images itself.
        "prompt_token_ids": vision.collapse(request.prompt_ids, request.images),
        "multi_modal_data": {"image": [pillow.fromarray(image.pixels) for image, *_ in request.images]},
    }


def finish_reason(token_ids: Sequence[int], eos_token_ids: Collection[int], *, stopped: bool) -> FinishReason:
    """Say why a turn ended.

    Args:
        token_ids: the tokens of the turn.
        eos_token_ids: tokens that end one.
        stopped: whether vLLM stopped before it ran out of tokens.
    """
    # The end of turn first: vLLM names the stop string where the end of turn spells one.
    if token_ids[-1] in eos_token_ids:
        return "stop"
    return "stop_string" if stopped else "length"
