"""A tiny Qwen3-style model and its tokenizer, made on the spot: no hub, no download, about half a second.

The weights are random, so the model can do nothing; what it offers is a real `config.json`, real weights
and a real byte-level tokenizer, for tests that need the true code paths of transformers and vLLM. Three heads
of 32 and one key/value head, because vLLM on a CPU crashes with the more obvious heads of 24.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

EOS, PAD, IM_START = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
SPECIAL_TOKENS = (PAD, IM_START, EOS)
VOCABULARY = 512  # a multiple of 64 is padded by no engine

# ChatML as Qwen speaks it: tools in the system turn, tool results as <tool_response> inside a user turn.
CHATML = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- (messages[0].content or '') + '\\n' }}{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + (messages[0].content or '') + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + (message.content or '') + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def _corpus() -> list[str]:
    """Text in the style of the tasks, enough of it that the merges reach the wanted vocabulary."""
    names = ("Ann", "Ben", "Carla", "Dev", "Emma", "Farid")
    things = ("apples", "pencils", "marbles", "cookies", "tickets", "stickers")
    lines = []
    for i, (name, thing) in enumerate((n, t) for n in names for t in things):
        more = i * 7 % 50
        lines.append(
            f"{name} has {i} {thing} and buys {more} more. How many {thing} does {name} have now? "
            f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{i}+{more}"}}}}\n</tool_call> '
            f"<tool_response>\n{i + more}\n</tool_response> <answer>{i + more}</answer>"
        )
    prose = "The system reads the question, calls a tool, sees the result and gives the user a final answer."
    return lines + [prose] * 4


def make_tiny_tokenizer(*, chat_template: str = CHATML, special_tokens: Sequence[str] = ()) -> Any:
    """Train a byte-level BPE tokenizer with end of turn `<|im_end|>` and pad `<|endoftext|>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL_TOKENS, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY, "the corpus yields fewer tokens"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, pad_token=PAD, chat_template=chat_template
    )


def make_tiny_model(path: str | Path, *, tied: bool = True, seed: int = 0, context: int = 2048, **changes: Any) -> Path:
    """Write a model folder (config, float32 weights, tokenizer, chat template) and return its path.

    `changes` are fields of `Qwen3Config`.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tiny_tokenizer()
    fields: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 32,  # vLLM on a CPU wants 32 or 64
        # Qwen's 0.02 makes every next-token distribution nearly uniform at this width; with wider weights the
        # logprobs differ enough between contexts for a test to notice a wrong position or a stale weight.
        "initializer_range": 0.1,
        "bos_token_id": None,
    }
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **fields | changes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(torch.float32)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return Path(path)
