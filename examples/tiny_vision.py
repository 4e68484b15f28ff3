"""A vision-language model small enough to learn on two CPU cores, made on the spot, without the hub.

The architecture is Qwen2-VL's with its patches of 14 pixels and its merging of 2 x 2 patches into one token, so that
28 x 28 pixels of an image are a token; two layers each for the eye and the language, and the tokenizer of tiny.py.
Images are read with Pillow; torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from agent_gym.examples.tiny import demonstration_texts, make_tiny_tokenizer
from agent_gym.policies.processors import let_videos_be_missing

IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE = 14, 2

# ChatML with images, as Qwen2-VL speaks it.
CHAT_TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


def make_tiny_processor(texts: Iterable[str], vocab_size: int = 400) -> Any:
    """Train a tokenizer on texts and put an image processor beside it.

    Args:
        texts: what it will have to encode.
        vocab_size: number of tokens of the tokenizer, those for images not counted.
    """
    from transformers import Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    let_videos_be_missing()
    tokenizer = make_tiny_tokenizer(texts, vocab_size)
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        # No image is enlarged, and a large one is scaled down to 64 tokens.
        size={"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 64 * (PATCH * MERGE) ** 2},
    )
    return Qwen2VLProcessor(image_processor=images, tokenizer=tokenizer, chat_template=CHAT_TEMPLATE)


def make_tiny_vision_model(
    folder: str | Path,
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    vocab_size: int = 400,
    demonstrations: int = 300,
    context: int = 1024,
    seed: int = 0,
) -> Path:
    """Write a fresh model and its processor to a folder.

    Args:
        folder: where to; made if needed.
        env_id: the environment whose demonstrations the tokenizer is trained on.
        env_kwargs: its arguments.
        vocab_size: tokens of the tokenizer; the model's table is rounded up to a multiple of 64.
        demonstrations: how many the tokenizer is trained on, at most.
        context: longest sequence, image tokens counted.
        seed: of the random weights.

    Returns:
        The folder.
    """
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    processor = make_tiny_processor(demonstration_texts(env_id, env_kwargs, episodes=demonstrations), vocab_size)
    tokenizer = processor.tokenizer
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
    width = 96
    config = Qwen2VLConfig(
        text_config=cast(
            Any,
            {
                "vocab_size": -(-len(tokenizer) // 64) * 64,
                "hidden_size": width,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "max_position_embeddings": context,
                # Half of a head's 32 dimensions, divided among time, height and width; the width gets the slowest. With
                # the usual base of 10,000 these would not turn by a hundredth between neighbours.
                "rope_parameters": {"rope_type": "default", "rope_theta": 10.0, "mrope_section": [4, 6, 6]},
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
                "bos_token_id": None,
                "initializer_range": width**-0.5,
            },
        ),
        vision_config=cast(
            Any,
            {
                "depth": 2,
                "embed_dim": 128,
                "hidden_size": width,
                "mlp_ratio": 2,
                "num_heads": 4,
                "patch_size": PATCH,
                "spatial_merge_size": MERGE,
                "initializer_range": 0.05,
            },
        ),
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2VLForConditionalGeneration(config)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return Path(folder)
