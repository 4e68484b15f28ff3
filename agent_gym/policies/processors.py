"""The processor of a vision-language model, and what else differs between such a model and one for text.

Without torchvision transformers has image processors that work with Pillow, which is all that images need, but no video
processors, and a processor whose class names one is then refused as a whole. `let_videos_be_missing` mends that. Facts:
transformers 5.17.0, `processing_utils.py` (`ProcessorMixin.get_attributes`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_gym.errors import require

_VIDEO = "video_processor"


def reads_images(model: str | Path) -> bool:
    """Say whether the model in a folder, or of a hub id, reads images; a folder without a model does not."""
    try:
        config = require("transformers", "train").AutoConfig.from_pretrained(str(model))
    except (OSError, ValueError):
        return False
    return hasattr(config, "vision_config")


def model_class(model: str | Path) -> Any:
    """Return the class of transformers that loads a model."""
    transformers = require("transformers", "train")
    return transformers.AutoModelForImageTextToText if reads_images(model) else transformers.AutoModelForCausalLM


def load_encoder(model: str | Path) -> Any:
    """Load what encodes for a model: its processor if it reads images, else its tokenizer."""
    if reads_images(model):
        return load_processor(model)
    return require("transformers", "train").AutoTokenizer.from_pretrained(str(model))


def load_processor(model: str | Path) -> Any:
    """Load the processor of a model that reads images.

    Args:
        model: a folder or a hub id.
    """
    transformers = require("transformers", "train")
    let_videos_be_missing()
    return transformers.AutoProcessor.from_pretrained(str(model), padding_side="left")


def let_videos_be_missing() -> None:
    """Let processors be made, loaded and saved without a video processor where none can be had.

    With torchvision installed this changes nothing.
    """
    from transformers import ProcessorMixin
    from transformers.utils import is_torchvision_available

    if is_torchvision_available() or getattr(ProcessorMixin, _VIDEO, 0) is None:
        return
    every = ProcessorMixin.get_attributes.__func__  # type: ignore[attr-defined]
    # Whoever asks for the video processor finds that there is none.
    ProcessorMixin.video_processor = None
    ProcessorMixin.get_attributes = classmethod(  # type: ignore[method-assign,assignment]
        lambda cls: [name for name in every(cls) if name != _VIDEO]
    )
