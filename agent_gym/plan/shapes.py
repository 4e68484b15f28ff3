"""The shape of a decoder-only transformer, and how many parameters that makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_gym.errors import ConfigError

# Model type to whether its attention has biases at query, key and value, and norms of query and key.
_FAMILIES = {"llama": (False, False), "mistral": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with grouped-query attention, a gated MLP and RMS norms: Llama, Mistral, Qwen2, Qwen2.5, Qwen3.

    Attributes:
        hidden: width of the residual stream.
        mlp: width inside of the MLP.
        layers: number of decoder layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        vocab: rows of the embedding.
        tied: whether the head is the embedding.
        qkv_bias: whether the projections to query, key and value have biases.
        qk_norm: whether queries and keys are normalised.
    """

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read a `config.json`.

        Raises:
            ConfigError: for a model of another family, whose parameters would be counted wrong.
        """
        family = config.get("model_type")
        if family not in _FAMILIES:
            raise ConfigError(f"plan counts the parameters of {', '.join(_FAMILIES)}; this model is {family!r}")
        qkv_bias, qk_norm = _FAMILIES[family]
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                hidden=hidden,
                mlp=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                vocab=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
            )
        except KeyError as error:
            raise ConfigError(f"the model's config.json has no {error.args[0]!r}") from error

    @property
    def query_width(self) -> int:
        """Width of the queries of all heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys of all heads; values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; the head has as many."""
        return self.vocab * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one decoder layer."""
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        biases = (self.query_width + 2 * self.kv_width) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        return attention + biases + 3 * self.hidden * self.mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the model; a tied head counts once."""
        return self.layers * self.layer + self.hidden + self.embedding * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Parameters of LoRA adapters on all linear layers except the head (arXiv:2106.09685): two thin matrices each.

        Args:
            rank: their inner width.
        """
        attention = 2 * (self.hidden + self.query_width) + 2 * (self.hidden + self.kv_width)
        return self.layers * rank * (attention + 3 * (self.hidden + self.mlp))
