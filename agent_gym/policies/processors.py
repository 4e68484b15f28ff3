"""The parts that a vision-language model needs beyond one for text: its processor, and the inputs of its forward pass.

Without torchvision transformers has image processors that work with Pillow, which is all that images need, but no video
processors, and a processor whose class names one is then refused as a whole. `let_videos_be_missing` mends that. Facts:
transformers 5.17.0, `processing_utils.py` (`ProcessorMixin.get_attributes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_gym.errors import require
from agent_gym.images import Image
from agent_gym.models import config_source, encoder_source

if TYPE_CHECKING:
    import torch

    from agent_gym.images import Vision


def reads_images(model: str | Path) -> bool:
    """Whether the model in a folder, or of a hub id, reads images; a folder without a model does not."""
    try:
        config = require("transformers", "train").AutoConfig.from_pretrained(config_source(str(model)))
    except Exception:  # a broken file ends in any error; who loads the model tells of it
        return False
    return hasattr(config, "vision_config")


def model_class(model: str | Path) -> Any:
    """Return the class of transformers that loads a model."""
    transformers = require("transformers", "train")
    return transformers.AutoModelForImageTextToText if reads_images(model) else transformers.AutoModelForCausalLM


def load_encoder(model: str | Path) -> Any:
    """Load the processor of a model that reads images, else its tokenizer."""
    if reads_images(model):
        return load_processor(model)
    return require("transformers", "train").AutoTokenizer.from_pretrained(encoder_source(str(model)))


def load_processor(model: str | Path) -> Any:
    """Load the processor of a model that reads images, from a folder or by a hub id."""
    transformers = require("transformers", "train")
    let_videos_be_missing()
    return transformers.AutoProcessor.from_pretrained(encoder_source(str(model)), padding_side="left")


def let_videos_be_missing() -> None:
    """Let processors be made, loaded and saved without a video processor. With torchvision this changes nothing."""
    from transformers import ProcessorMixin
    from transformers.utils import is_torchvision_available

    if is_torchvision_available() or getattr(ProcessorMixin, "video_processor", 0) is None:
        return
    every = ProcessorMixin.get_attributes.__func__  # type: ignore[attr-defined]
    # Code that asks for the video processor finds that there is none.
    ProcessorMixin.video_processor = None
    ProcessorMixin.get_attributes = classmethod(  # type: ignore[method-assign,assignment]
        lambda cls: [name for name in every(cls) if name != "video_processor"]
    )


def image_inputs(vision: Vision, ids: torch.Tensor, images: Sequence[Image]) -> dict[str, torch.Tensor]:
    """Return the arguments of a forward pass that shows images, on the device of the ids; nothing without images.

    `ids` are (B, T), among them no image token that is not of an image; `images` are the images of all rows, row by
    row.
    """
    inputs = {name: value.to(ids.device) for name, value in vision.inputs(images).items()}
    if inputs and "mm_token_type_ids" in vision.processor.model_input_names:
        inputs["mm_token_type_ids"] = (ids == vision.token_id).long()
    return inputs


def rotary_positions(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, inputs: Any) -> torch.Tensor | None:
    """Return the positions (3, B, T) in time, height and width, for models whose images have such.

    `ids` and `mask` are (B, T); `inputs` are from `image_inputs`.
    """
    module: Any
    for module in model.modules():
        if hasattr(module, "get_rope_index"):
            given = {name: inputs[name] for name in ("mm_token_type_ids", "image_grid_thw") if name in inputs}
            return module.get_rope_index(ids, attention_mask=mask, **given)[0]
    return None
