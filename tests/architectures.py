"""Small models with random weights of every architecture that transformers maps to a causal language model.

`small(name)` starts from the defaults of the architecture's configuration and makes it small: the fields that
architectures share are in `SMALL`, what one of them needs besides in `OWN`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

NAMES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 5_000_000  # weights of a model that counts as small
VOCABULARY = 512  # of the tokenizer of tests/tiny.py

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "eos_token_id": 2,
    "pad_token_id": 0, "bos_token_id": 1, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512, "n_inner": 64,
    "ffn_dim": 64, "d_model": 64, "n_layers": 2, "n_heads": 2, "max_seq_len": 512, "num_local_experts": 4,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1, "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1, "initializer_range": 0.2, "init_std": 0.2, "word_embed_proj_dim": 64, "decoder_layers": 2,
    "encoder_layers": 2, "decoder_attention_heads": 2, "encoder_attention_heads": 2, "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 64, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
    "v_head_dim": 32, "state_size": 8, "num_heads": 4, "n_groups": 1, "chunk_size": 16, "expand": 2, "expand_ratio": 2,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_chunk_size": 16, "sliding_window": 16, "rotary_dim": 16, "attention_hidden_size": 64, "embedding_dim": 64,
    "multi_query": True, "lru_width": 64, "attention_window_size": 16, "ffn_hidden_size": 64, "num_kv_heads": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
"""What is set where a configuration has it."""

_LATENT = ("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "youtu",
           "longcat_flash", "kimi_linear", "minicpm3")  # fmt: skip
_ENCODERS = ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
             "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl",
             "xmod")  # fmt: skip

_HYBRID = ["mamba", "hybrid", "mamba", "hybrid"]
_WINDOWED = ["sliding_attention", "full_attention"]
_GEMMA3N = {
    "layer_types": _WINDOWED * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 8, "activation_sparsity_pattern": [0.0] * 4,
}  # fmt: skip
_GEMMA4 = {
    "layer_types": _WINDOWED, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 16, "num_hidden_layers": 2,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    # Attention whose keys are projected from a latent state has a size of its rotary part, and calls it head_dim.
    **{name: {"head_dim": 16, "num_key_value_heads": 2} for name in _LATENT},
    # Encoders are causal, and have a cache, as decoders only.
    **{name: {"is_decoder": True} for name in _ENCODERS},
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"num_attention_heads": 4, "n_ctx": 512, "rotary_dim": 8},
    **{name: {"logit_scale": 1.0} for name in ("cohere", "cohere2", "cohere2_moe")},
    "cohere_compass_text": {
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"full_attention": {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [4, 6, 6]}},
    },
    "diffllama": {"num_key_value_heads": 2},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n": _GEMMA3N,
    "gemma3n_text": _GEMMA3N,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    # Logits that are divided by the width would be too even to show a wrong history.
    "inkling_text": {"logits_mup_width_multiplier": 1.0},
    "minicpm3": {"head_dim": 16, "num_key_value_heads": 2, "dim_model_base": 64},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 1, "expert_layer_period": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {
        "num_layers": 2, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "moe_topk": 2, "n_routed_experts": 4,
        "head_dim": 16, "num_key_value_heads": 2,
    },
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 8, "conv_kernel": 4},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "attention_head_size": 32,
        "num_buckets": 4,
    },
    "xlm": {"causal": True, "emb_dim": 64},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": _HYBRID, "n_mamba_heads": 2, "head_dim": 64,
              "attention_hidden_size": 128},
    "zamba2": {
        "num_hidden_layers": 4, "layers_block_type": _HYBRID, "num_mem_blocks": 1, "n_mamba_heads": 4, "head_dim": 64,
        "num_key_value_heads": 2, "mamba_ngroups": 1, "attention_hidden_size": 128,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""What one architecture needs besides."""

UNBUILT: dict[str, str] = {
    "blt": "reads patches of bytes by a second model; 4.6 billion weights with small fields",
    "dbrx": "its configuration of transformers 5.17 has no rope_theta, and its model reads one",
    "emu3": "its text configuration is mapped to no model for text alone",
    "gemma4_assistant": "a draft model for another",
    "gemma4_unified_assistant": "a draft model for another",
    "git": "a model for images; 86 million weights with small fields",
    "mllama": "its text configuration is mapped to no model for text alone",
    "musicgen": "a model for sounds, with an encoder of text",
    "musicgen_melody": "a model for sounds, with an encoder of text",
    "phi4_multimodal": "encoders of images and sounds; 870 million weights with small fields",
    "prophetnet": "an encoder and a decoder, whose configuration takes no num_hidden_layers",
    "qwen4_exp": "experimental: its index of tokens has no defaults",
    "qwen4_exp_text": "experimental: its index of tokens has no defaults",
    "roc_bert": "14 million weights with small fields, most of them for the shapes of characters",
    "xlnet": "predicts tokens in a permuted order, and sets no length limit",
    "xmod": "wants a language to be chosen",
}
"""What is not built small, and why."""

STOPPED: dict[str, str] = {
    "big_bird": "the logprob of a token depends on later ones",
    "cpmant": "the logprob of a token depends on later ones",
    "megatron-bert": "engine and loss differ by 0.09 nats per token",
    "moshi": "engine and loss differ by 0.9 nats per token",
    "rembert": "engine and loss differ by 1.4 nats per token",
    "roformer": "the logprob of a token depends on later ones",
}
"""Where training stops before its first step, because engine and loss disagree, and why."""

FAILS: dict[str, str] = {
    "llama4": "its base model is not named as transformers names it, and the loss cannot read it",
    "llama4_text": "its base model is not named as transformers names it, and the loss cannot read it",
    "reformer": "its hashing fails on rows of this length",
}
"""What cannot be trained: an error before anything is sampled."""


def small(name: str, **changes: Any) -> Any:
    """Build a small model; `changes` are fields of its (text) configuration."""
    defaults = CONFIG_MAPPING[name]()
    text = defaults.get_text_config(decoder=True)
    kind = type(text)

    def settable(field: str) -> bool:
        found = inspect.getattr_static(kind, kind.attribute_map.get(field, field), None)
        return not isinstance(found, property) or found.fset is not None

    def has(field: str) -> bool:
        try:
            return hasattr(text, field) and settable(field)
        except Exception:  # fields that differ between layers
            return False

    fields = {field: value for field, value in SMALL.items() if has(field)}
    fields |= OWN.get(name, {}) | changes
    kinds = getattr(text, "layer_types", None)
    if kinds is not None and has("layer_types") and not {"layer_types", "layers_block_type"} & fields.keys():
        unlike = list(dict.fromkeys(kinds))
        fields["layer_types"] = (unlike * 2)[:2] if len(unlike) < 3 else unlike
        fields["num_hidden_layers"] = len(fields["layer_types"])
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(kind(**fields)).parameters())
    if weights > LARGEST:
        raise ValueError(f"{weights / 1e6:.0f} million weights")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(kind(**fields)).to(torch.float32)
