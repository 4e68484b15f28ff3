"""Models small enough to learn on two CPU cores, made on the spot, without the hub: one for text, one for images.

The text model is Qwen3 with two layers, of width 96 unless asked for less (0.28M parameters), and a byte-level BPE
tokenizer trained on the environment's own demonstrations. Three choices make it learn in minutes: digits are single
tokens, so that numbers can be copied digit by digit; the fixed frame of a tool call is one token, so that an episode
has about 80 tokens instead of 150; heads have 32 dimensions, of which vLLM's CPU kernels take multiples only.

The vision model is Qwen2-VL with patches of 14 pixels, of which 2 x 2 are merged: 28 x 28 pixels are a token.

Both know the sentences of their environment and no others. Their chat templates, chat.jinja and vision.jinja, are
ChatML, the latter with images as in Qwen2-VL. Tools are named in them, not described: a schema would cost more tokens
than the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agent_gym.errors import ConfigError
from agent_gym.evaluate import make_specs
from agent_gym.evaluate.panels import opened_env
from agent_gym.policies.small_tokenizer import END, PAD, train_bpe
from agent_gym.speedrun import text_of
from agent_gym.testing import play

HEAD = 32  # dimensions of a head
WIDTH = 96
IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE = 14, 2


def demonstration_texts(env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, episodes: int = 3000) -> list[str]:
    """Let the environment's expert play without a tokenizer and return the texts of the episodes.

    They are of the training split, or of the first there is, and fewer where that has fewer tasks.
    """
    with opened_env(env_id, env_kwargs or {}) as env:
        tasks = env.get_wrapper_attr("tasks")
        split = "train" if "train" in tasks else next(iter(tasks))
        plain, texts = env.unwrapped, []
        for spec in make_specs(env_id, env_kwargs, split=split, episodes=min(episodes, len(tasks[split]))):
            play(env, iter(plain.expert_action, None), seed=spec.seed, options=spec.options)
            pieces = [", ".join(schema["function"]["name"] for schema in plain.tool_schemas)]
            for segment in plain.transcript.segments:
                framed = f"<tool_response>\n{segment.text}\n</tool_response>"
                pieces.append(framed if segment.source == "env" else segment.text)
            texts.append("\n".join(pieces))
    return texts


def make_tiny_tokenizer(
    texts: Iterable[str], vocab_size: int = 800, *, names_apart: bool = False, frames: Sequence[str] = ()
) -> Any:
    """Train the tokenizer on texts; arguments as of `agent_gym.policies.small_tokenizer.train_bpe`."""
    core = train_bpe(texts, vocab_size, names_apart=names_apart, frames=frames)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, chat_template=text_of("chat.jinja"), padding_side="left"
    )


def make_tiny_processor(texts: Iterable[str], vocab_size: int = 400) -> Any:
    """Train a tokenizer of `vocab_size` tokens on texts and add an image processor that needs no torchvision."""
    from transformers import Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from agent_gym.policies.processors import let_videos_be_missing

    let_videos_be_missing()
    tokenizer = make_tiny_tokenizer(texts, vocab_size)
    tokenizer.add_special_tokens({"additional_special_tokens": list(IMAGE_TOKENS)})
    tokenizer.chat_template = text_of("vision.jinja")
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        # No image is enlarged, and a large one is scaled down to 64 tokens.
        size={"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 64 * (PATCH * MERGE) ** 2},
    )
    return Qwen2VLProcessor(image_processor=images, tokenizer=tokenizer, chat_template=tokenizer.chat_template)


def make_tiny_model(
    folder: str | Path,
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    vocab_size: int = 800,
    names_apart: bool = False,
    frames: Sequence[str] = (),
    demonstrations: int = 3000,
    width: int = WIDTH,
    context: int = 1024,
    seed: int = 0,
) -> Path:
    """Write a fresh model and its tokenizer to a folder, which is made if needed, and return the folder.

    Args:
        folder: where to.
        env_id: the environment whose demonstrations the tokenizer is trained on.
        env_kwargs: its arguments.
        vocab_size: as of `make_tiny_tokenizer`, as the next two; the model's table is rounded up to a multiple of 64.
        names_apart: see there.
        frames: see there.
        demonstrations: how many the tokenizer is trained on, at most; where episodes are slow, fewer may do.
        width: of the hidden states, a multiple of 32; each 32 are a head.
        context: longest sequence, in tokens.
        seed: of the random weights.

    Raises:
        ConfigError: for a width that cannot be divided into heads of 32 dimensions.
    """
    if width < HEAD or width % HEAD:
        raise ConfigError(f"width is {width}; a multiple of {HEAD} is needed, as 64 or 96")

    texts = demonstration_texts(env_id, env_kwargs, episodes=demonstrations)
    tokenizer = make_tiny_tokenizer(texts, vocab_size, names_apart=names_apart, frames=frames)
    # Qwen3's own base of a million is for contexts of 32,000 tokens.
    language = _language(tokenizer, width, context, {"rope_type": "default", "rope_theta": 10_000.0})
    config = Qwen3Config(head_dim=HEAD, tie_word_embeddings=True, dtype="float32", **language)
    return _write(folder, tokenizer, Qwen3ForCausalLM, config, seed)


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
    """Write a fresh vision-language model and its processor to a folder; arguments as of `make_tiny_model`."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    processor = make_tiny_processor(demonstration_texts(env_id, env_kwargs, episodes=demonstrations), vocab_size)
    start, end, image, video = processor.tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
    # Half of a head's 32 dimensions, divided among time, height and width; the width gets the slowest. With the usual
    # base of 10,000 these would not turn by a hundredth between neighbours.
    rope = {"rope_type": "default", "rope_theta": 10.0, "mrope_section": [4, 6, 6]}
    eye = {"depth": 2, "embed_dim": 128, "hidden_size": WIDTH, "mlp_ratio": 2, "num_heads": 4, "patch_size": PATCH}
    language = _language(processor.tokenizer, WIDTH, context, rope)
    config = Qwen2VLConfig(
        text_config=cast(Any, {**language, "initializer_range": WIDTH**-0.5}),
        vision_config=cast(Any, {**eye, "spatial_merge_size": MERGE, "initializer_range": 0.05}),
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        dtype="float32",
    )
    return _write(folder, processor, Qwen2VLForConditionalGeneration, config, seed)


def _language(tokenizer: Any, width: int, context: int, rope: dict[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": width // HEAD,
        "intermediate_size": width * 8 // 3 // 64 * 64,
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "num_key_value_heads": 1,
        "max_position_embeddings": context,
        "rope_parameters": rope,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }


def _write(folder: str | Path, encoder: Any, model_class: Any, config: Any, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    model.save_pretrained(folder)
    encoder.save_pretrained(folder)
    return Path(folder)
