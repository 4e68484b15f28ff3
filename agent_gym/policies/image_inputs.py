"""Images as the models of transformers take them, for whoever calls such a model: the engine here and the trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agent_gym.images import Image
from agent_gym.vision import Vision


def image_inputs(vision: Vision, ids: torch.Tensor, images: Sequence[Image]) -> dict[str, torch.Tensor]:
    """Return the arguments of a forward pass that shows images.

    Args:
        vision: of the model's processor.
        ids: (B, T) tokens, among them no image token that is not of an image.
        images: of all rows, row by row.

    Returns:
        Tensors on the device of the ids; nothing without images.
    """
    inputs = {name: value.to(ids.device) for name, value in vision.inputs(images).items()}
    if inputs and "mm_token_type_ids" in vision.processor.model_input_names:
        inputs["mm_token_type_ids"] = (ids == vision.token_id).long()
    return inputs


def rotary_positions(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, inputs: Any) -> torch.Tensor | None:
    """Return the positions (3, B, T) in time, height and width, for models whose images have such.

    Args:
        model: of transformers, with or without adapters around it.
        ids: (B, T) tokens.
        mask: (B, T) which of them are attended.
        inputs: from `image_inputs`.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "get_rope_index"):
            given = {name: inputs[name] for name in ("mm_token_type_ids", "image_grid_thw") if name in inputs}
            return module.get_rope_index(ids, attention_mask=mask, **given)[0]
    return None
