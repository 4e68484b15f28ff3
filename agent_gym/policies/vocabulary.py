"""Whether a tokenizer and a model go together: each id needs a row of the embedding, and a turn needs an end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_gym.errors import ConfigError

_OF_MEDIA = ("image", "audio", "video", "boi", "eoi", "boa", "eoa")
"""Parts of the names of special tokens of pictures and sounds, which a model for text never reads."""


def check_vocabulary(tokenizer: Any, model: Any) -> None:
    """Raise `ConfigError` for a tokenizer with an id beyond the embedding of a model of transformers.

    Gemma 3's tokenizer has an id for images that its models for text have no row for; such names are let be.
    """
    size, vocabulary = embedding_rows(model), tokenizer.get_vocab()
    named = (name for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES if any(part in name for part in _OF_MEDIA))
    media = {str(getattr(tokenizer, name, None)) for name in named}
    beyond = sorted((number, token) for token, number in vocabulary.items() if number >= size and token not in media)
    if beyond:
        number, token = beyond[0]
        raise ConfigError(
            f"the tokenizer has {len(vocabulary)} tokens, and the embedding of {model.config.model_type!r} has {size} "
            f"rows: {len(beyond)} tokens have none, from {token!r} ({number}) on. Call "
            f"model.resize_token_embeddings({beyond[-1][0] + 1}) and save the model, or take its own tokenizer"
        )


def embedding_rows(model: Any) -> int:
    """Return how many tokens a model can read."""
    weight = model.get_input_embeddings().weight
    return int(getattr(weight, "ds_shape", weight.shape)[0])  # ZeRO-3 leaves an empty tensor where a parameter was


def end_tokens(ids: Iterable[int | None]) -> frozenset[int]:
    """Return the tokens that end a turn, without the None of a tokenizer that names none.

    Raises:
        ConfigError: if none is left.
    """
    ends = frozenset(number for number in ids if number is not None)
    if not ends:
        raise ConfigError(
            "eos_token_ids is empty; without an end of turn every turn runs to max_tokens: set tokenizer.eos_token to "
            "the token that ends a turn in its chat template"
        )
    return ends
