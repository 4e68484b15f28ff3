"""From `--endpoint` to a tokenizer and a policy: which model, and whether the server talks in token ids."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.cli.engine import load_tokenizer, stand_in
from agent_gym.errors import ConfigError
from agent_gym.policies import Policy
from agent_gym.policies.openai import OpenAIPolicy
from agent_gym.policies.openai_server import find_model, gives_token_ids
from agent_gym.rollout.images import shows_images

# Only to keep a transcript: what the model sees is written by the template of the server. It prints no tools, so that
# environments describe theirs in the system prompt, where every server shows them.
PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ message.role + ': ' + message.content + eos_token }}
{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""


def build_endpoint(
    url: str,
    model: str | None,
    tokenizer: str | None,
    *,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    context: int,
    concurrency: int,
) -> tuple[Any, Policy]:
    """Make a policy of a model server.

    Args:
        url: the address up to the version.
        model: the model's name there; None for the only one.
        tokenizer: folder or hub id; None takes what a vLLM server says that the model is from.
        env_id: the environment.
        env_kwargs: its arguments.
        context: longest context in tokens.
        concurrency: most requests at the same time.

    Returns:
        The tokenizer and the policy.

    Raises:
        ConfigError: if the server, the model or the tokenizer is not there.
    """
    card = find_model(url, model)
    name, source = str(card["id"]), tokenizer
    if source is None and card.get("owned_by") == "vllm":
        source = str(card.get("root") or name)
    loaded = None
    if source is not None:
        try:
            loaded = load_tokenizer(source)
        except ConfigError:
            if tokenizer is not None:
                raise
    if loaded is not None and gives_token_ids(url, name, ChatRenderer.of(loaded).encode("a")[0]):
        renderer = ChatRenderer.of(loaded)
        limit = min(context, card.get("max_model_len") or context)
        _say(f"{name} takes and gives token ids, with the tokenizer of {source}")
        return loaded, OpenAIPolicy(url, name, renderer, token_ids=True, context=limit, concurrency=concurrency)
    if loaded is None:
        loaded = stand_in(shows_images(env_id, env_kwargs))
        source = "a small tokenizer made here; give --tokenizer for real counts"
    loaded.chat_template = PLAIN_TEMPLATE
    _say(f"{name} takes messages and gives texts; tokens are counted with {source}")
    renderer = ChatRenderer.of(loaded)
    return loaded, OpenAIPolicy(url, name, renderer, token_ids=False, concurrency=concurrency)


def _say(text: str) -> None:
    print(f"agent-gym: {text}", file=sys.stderr)
