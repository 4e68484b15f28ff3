"""The shape of a decoder-only transformer, how many parameters that makes, and where shapes come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, require, whole_number
from agent_gym.models import config_source
from agent_gym.untrusted import read_json

# Model type to whether its attention has biases at query, key and value, and norms of query and key.
_FAMILIES = {"llama": (False, False), "mistral": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with grouped-query attention, a gated MLP and RMS norms: Llama, Mistral, Qwen2, Qwen2.5, Qwen3."""

    hidden: int  # width of the residual stream
    mlp: int  # width inside of the MLP
    layers: int
    heads: int  # of queries
    kv_heads: int
    head_dim: int
    vocab: int  # rows of the embedding
    tied: bool  # whether the head is the embedding
    qkv_bias: bool = False  # whether the projections to query, key and value have biases
    qk_norm: bool = False  # whether queries and keys are normalised

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read a `config.json`.

        Raises:
            ConfigError: for a model of another family, whose parameters would be counted wrong, or a size that is none.
        """
        family = config.get("model_type")
        if not isinstance(family, str) or family not in _FAMILIES:
            raise ConfigError(f"plan counts the parameters of {', '.join(_FAMILIES)}; this model is {family!r}")
        qkv_bias, qk_norm = _FAMILIES[family]

        def size(name: str, usual: int | None = None) -> int:
            return whole_number(name, config[name] if usual is None else config.get(name) or usual, 1)

        try:
            hidden, heads = size("hidden_size"), size("num_attention_heads")
            return cls(
                hidden=hidden,
                mlp=size("intermediate_size"),
                layers=size("num_hidden_layers"),
                heads=heads,
                kv_heads=size("num_key_value_heads", heads),
                head_dim=size("head_dim", hidden // heads),
                vocab=size("vocab_size"),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
            )
        except KeyError as error:
            raise ConfigError(f"the model's config.json has no {error.args[0]!r}") from error

    @property
    def query_width(self) -> int:
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
        """Parameters of LoRA on all linear layers except the head (arXiv:2106.09685): two thin matrices each."""
        attention = 2 * (self.hidden + self.query_width) + 2 * (self.hidden + self.kv_width)
        return self.layers * rank * (attention + 3 * (self.hidden + self.mlp))


def _qwen25(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int) -> ModelShape:
    tied = hidden < 3000  # up to 3B
    vocab = 151936 if tied else 152064
    return ModelShape(hidden, mlp, layers, heads, kv_heads, hidden // heads, vocab, tied, qkv_bias=True)


def _qwen3(hidden: int, mlp: int, layers: int, heads: int) -> ModelShape:
    return ModelShape(hidden, mlp, layers, heads, 8, 128, 151936, tied=hidden < 3000, qk_norm=True)


def _llama3(hidden: int, mlp: int, layers: int, heads: int) -> ModelShape:
    return ModelShape(hidden, mlp, layers, heads, 8, hidden // heads, 128256, tied=hidden < 4000)


# From the models' public config.json files. Tuned variants have the shapes of their base models.
KNOWN = {
    "Qwen/Qwen2.5-0.5B": _qwen25(896, 4864, 24, 14, 2),
    "Qwen/Qwen2.5-1.5B": _qwen25(1536, 8960, 28, 12, 2),
    "Qwen/Qwen2.5-3B": _qwen25(2048, 11008, 36, 16, 2),
    "Qwen/Qwen2.5-7B": _qwen25(3584, 18944, 28, 28, 4),
    "Qwen/Qwen2.5-14B": _qwen25(5120, 13824, 48, 40, 8),
    "Qwen/Qwen2.5-32B": _qwen25(5120, 27648, 64, 40, 8),
    "Qwen/Qwen2.5-72B": _qwen25(8192, 29568, 80, 64, 8),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32),
    "Qwen/Qwen3-8B": _qwen3(4096, 12288, 36, 32),
    "Qwen/Qwen3-14B": _qwen3(5120, 17408, 40, 40),
    "Qwen/Qwen3-32B": _qwen3(5120, 25600, 64, 64),
    "meta-llama/Llama-3.2-1B": _llama3(2048, 8192, 16, 32),
    "meta-llama/Llama-3.2-3B": _llama3(3072, 8192, 28, 24),
    "meta-llama/Llama-3.1-8B": _llama3(4096, 14336, 32, 32),
    "meta-llama/Llama-3.1-70B": _llama3(8192, 28672, 80, 64),
    "meta-llama/Llama-3.3-70B": _llama3(8192, 28672, 80, 64),
}


def find_shape(model: str) -> ModelShape:
    """Return the shape of a model by folder, name or hub id, without loading it.

    Raises:
        ConfigError: if the folder does not exist, the hub cannot be asked, or the model is of another family.
    """
    known = ", ".join(KNOWN)
    path = Path(config_source(model)) / "config.json"
    if not path.is_file():
        if model.startswith((".", "/")):
            raise ConfigError(f"there is no {model}/config.json: give a model's folder, a hub id, or one of {known}")
        base = model.removesuffix("-Instruct").removesuffix("-Base")
        if base in KNOWN:
            return KNOWN[base]
        hub = require("huggingface_hub", "train")
        try:
            path = Path(hub.hf_hub_download(model, "config.json"))
        except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
            raise ConfigError(
                f"cannot get config.json of {model!r} from the hub ({type(error).__name__}); give a local folder, or "
                f"one of those known offline: {known}"
            ) from error
    try:
        config = read_json(path, dict)
    except ValueError as error:
        raise ConfigError(f"{path} is no valid JSON object, as a model's config.json is: {error}") from error
    return ModelShape.from_config(config)
