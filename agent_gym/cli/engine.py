"""The players of commands: from `--policy`, `--model`, `--engine` and `--endpoint` to a tokenizer and a policy."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent_gym.chat import ChatRenderer
from agent_gym.cli.parser import announce, nearest
from agent_gym.data import MODELS
from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError, require
from agent_gym.evaluate.panels import opened_env
from agent_gym.gateway import ENV_ID
from agent_gym.models import check_model, config_source, model_source
from agent_gym.policies import Policy, ScriptedPolicy
from agent_gym.policies.loading import load_model, loading
from agent_gym.policies.processors import load_encoder
from agent_gym.policies.vllm import set_environment
from agent_gym.registry import list_envs
from agent_gym.rollout import derive_seed
from agent_gym.rollout.env_threads import shows_images
from agent_gym.speedrun import text_of

_TOKENS = 4000  # of the tokenizer that is made where no other is given
# Only to keep a transcript: the template of the server renders the model's prompts. It prints no tools, so that
# environments describe theirs in the system prompt, where every server shows them.
_PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ message.role + ': ' + message.content + eos_token }}
{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""


def _random(episode: Any) -> str:
    # Attempts at one task differ, and the next run draws the same.
    rng = np.random.default_rng(derive_seed(episode.spec.sampling_seed or 0, len(episode.steps)))
    return str(episode.env.unwrapped.random_action(rng))


# Policies that need no model.
SCRIPTS: dict[str, Callable[[Any], str]] = {
    "expert": lambda episode: str(episode.env.unwrapped.expert_action()),
    "random": _random,
}


Length = Callable[[Any], int]
"""From a tokenizer to a number of tokens."""


class Player(NamedTuple):
    """One row of the report."""

    name: str  # in the report and in the records
    engine: str  # "model", or the name of a script
    asked: str  # the environment of the command line
    env_id: str  # the environment that is played, perhaps a variant


def find_players(arguments: argparse.Namespace, env_ids: Sequence[str]) -> list[Player]:
    """Resolve `--policy`, `--expert` and `--model`: each of them in each environment."""
    players = []
    _models_as_policies(arguments)
    for name in dict.fromkeys(arguments.policy or (["expert"] if arguments.expert else ["model"])):
        if name in SCRIPTS:
            for env_id in dict.fromkeys(env_ids):  # before others play for hours
                with opened_env(env_id, arguments.env_kwargs) as env:
                    act = getattr(env.unwrapped, f"{name}_action", None)
                if getattr(act, "__func__", act) in (None, TextEnv.expert_action):
                    raise ConfigError(f"{env_id} has no {name}_action, so that --policy {name} cannot play it")
                players.append(Player(name, name, env_id, env_id))
            continue
        bases = [f"{env_id.rpartition('-')[0]}-ReAct-" for env_id in env_ids]
        if react := arguments.policy == ["react"] and not any(one.startswith((*bases,)) for one in list_envs()):
            arguments.env_kwargs = {**arguments.env_kwargs, "parser": "react"}  # an argument, where there is no variant
        played = {env_id: env_id if react or name == "model" else variant(env_id, name) for env_id in env_ids}
        model = arguments.model or arguments.endpoint
        if not model:
            raise ConfigError(
                "who plays? give --model with a folder or hub id, --endpoint with the address of a server, or "
                "--policy expert"
            )
        shown = model if name == "model" else f"{model} ({name})"
        players += [Player(shown, "model", asked, env_id) for asked, env_id in played.items()]
    return players


def _models_as_policies(arguments: argparse.Namespace) -> None:
    """Take `--policy MODEL` for `--model MODEL`: a folder, a hub id or the name of a prepared model."""
    others = (name for name in arguments.policy if name not in (*SCRIPTS, "model"))
    named = [name for name in others if "/" in name or name in MODELS or Path(name).is_dir()]
    models = dict.fromkeys([*([arguments.model] if arguments.model else []), *named])
    if named and len(models) > 1:
        raise ConfigError(
            f"{', '.join(models)} are several models: play one at a time, with --output, and compare them"
        )
    arguments.model = next(iter(models), None) if named else arguments.model
    arguments.policy = ["model" if name in named else name for name in arguments.policy]


def variant(env_id: str, policy: str) -> str:
    """Return the id of an environment's variant: `AgentR1/HotpotQA-v0` and `naive-rag` give `...-NaiveRAG-v0`."""

    def plain(name: str) -> str:
        return re.sub("[-_]", "", name).lower()

    base, _, version = env_id.rpartition("-")
    found = [re.fullmatch(rf"{re.escape(base)}-(.+)-{version}", other) for other in list_envs()]
    variants = {plain(one[1]): one[0] for one in found if one}
    if plain(policy) not in variants:
        raise ConfigError(f"{env_id} has no policy {policy!r}; {nearest(policy, [*SCRIPTS, 'model', *variants])}")
    return variants[plain(policy)]


def scripted(
    model: str | None, env_id: str, env_kwargs: Mapping[str, Any], act: Callable[[Any], str]
) -> tuple[Any, Policy]:
    """Let `act`, which returns the text of the next turn, play with a model's tokenizer, or a small one made here."""
    tokenizer = load_tokenizer(model) if model else _small_tokenizer(shows_images(env_id, env_kwargs))

    def write(episode: Any) -> str:
        # A script knows how to act. As a summary it gives the history.
        return act(episode) if episode.asked == "act" else episode.env.unwrapped.history()

    return tokenizer, ScriptedPolicy(write, ChatRenderer.of(tokenizer).encode_action)


def _small_tokenizer(images: bool) -> Any:
    """Train a tokenizer, or a processor where there are images, on the sources of this package's environments.

    They hold the words of their worlds. It has two to three characters a token there, and fewer in other texts.
    """
    require("tokenizers", "train")
    (folder,) = import_module("agent_gym.envs").__path__
    texts = [file.read_text(encoding="utf-8") for file in sorted(Path(folder).rglob("*.py"))]
    if images:
        require("transformers", "train")
        from agent_gym.speedrun.tiny import make_tiny_processor

        return make_tiny_processor(texts, _TOKENS)
    from agent_gym.policies.small_tokenizer import SmallTokenizer, train_bpe

    return SmallTokenizer(train_bpe(texts, _TOKENS), text_of("chat.jinja"))


def load_tokenizer(model: str) -> Any:
    """Load the tokenizer of a model folder or hub id, or the processor of a model that reads images."""
    check_model(model)
    require("transformers", "train")
    with loading(model):
        return load_encoder(model)


def spoken(tokenizer: Any) -> str:
    """Return the line that says in which form a model writes calls: its template's, its family's, or the prompt's.

    Who asks prints it, so that environments need not warn of it.
    """
    told = ChatRenderer.of(tokenizer).call_format.told
    warnings.filterwarnings("ignore", re.escape(told), RuntimeWarning)
    return told


def spoken_by(model: str) -> str:
    """Return the line of a model on this machine; "" for one that would have to be fetched, or has no chat template."""
    with suppress(ConfigError):
        if Path(model_source(model)).is_dir():
            return spoken(load_tokenizer(model))
    return ""


def build(model: str, engine: str, *, context: int | Length, seed: int = 0) -> tuple[Any, Policy]:
    """Load a model into an engine, and return its tokenizer and the policy.

    `engine` is vllm, transformers or auto: vLLM where it is installed and can serve the model. `context` is the longest
    context in tokens, or gives it for the tokenizer, and `seed` that of the engine's own sampling.
    """
    check_model(model)
    if engine == "auto":
        engine = "vllm" if find_spec("vllm") else "transformers"
    announce(f"loading {model} into {'vLLM' if engine == 'vllm' else 'transformers'}")
    set_environment()
    tokenizer = load_tokenizer(model)
    context = _length(context, tokenizer)
    renderer = ChatRenderer.of(tokenizer)
    transformers = require("transformers", "train")
    try:
        renderer.also_ends_at(transformers.GenerationConfig.from_pretrained(config_source(model)).eos_token_id)
    except OSError:  # many folders have none
        renderer.also_ends_at(None)
    if engine == "vllm":
        from agent_gym.policies.vllm.engine import VLLMPolicy

        with loading(model):
            config = transformers.AutoConfig.from_pretrained(config_source(model)).get_text_config()
        context = min(context, getattr(config, "max_position_embeddings", None) or context)
        return tokenizer, VLLMPolicy(model, renderer.eos_token_ids, context=context, vision=renderer.vision, seed=seed)
    from agent_gym.policies.transformers import TransformersPolicy

    torch = require("torch", "train")
    gpu = torch.cuda.is_available()
    loaded = load_model(model, dtype="auto" if gpu else torch.float32).to("cuda" if gpu else "cpu")
    ends, pad = renderer.eos_token_ids, renderer.tokenizer.pad_token_id
    pad = min(ends) if pad is None else pad
    policy = TransformersPolicy(loaded, ends, pad, renderer.decode_action, vision=renderer.vision, seed=seed)
    return tokenizer, policy


def _length(context: int | Length, tokenizer: Any) -> int:
    return context(tokenizer) if callable(context) else context


def open_model(arguments: argparse.Namespace, env_id: str, context: int | Length) -> tuple[Any, Policy]:
    """Return tokenizer and policy for `--endpoint` or `--model`; `context` in tokens is its longest one (`build`)."""
    if not (arguments.model or arguments.endpoint):
        raise ConfigError("who answers? give --model with a folder or hub id, or --endpoint with a server's address")
    if arguments.endpoint:
        return _build_endpoint(arguments, env_id, context)
    return build(arguments.model, arguments.engine, context=context, seed=arguments.seed)


def _build_endpoint(arguments: argparse.Namespace, env_id: str, context: int | Length) -> tuple[Any, Policy]:
    """Make a policy of the model server at `--endpoint`, and return its tokenizer and the policy.

    `--model` is its name there, None for the only one; without `--tokenizer` a vLLM server names the model's source.
    """
    from agent_gym.policies.openai import OpenAIPolicy, find_model, gives_token_ids

    url, source, concurrency = arguments.endpoint, arguments.tokenizer, arguments.concurrency
    card = find_model(url, arguments.model)
    name = str(card["id"])
    if source is None and card.get("owned_by") == "vllm":
        source = str(card.get("root") or name)
    tokenizer = None
    if source is not None:
        with suppress(ConfigError) if arguments.tokenizer is None else nullcontext():
            tokenizer = load_tokenizer(source)
    if tokenizer is not None:
        renderer = ChatRenderer.of(tokenizer)
        if gives_token_ids(url, name, renderer.encode("a")[0]):
            longest = _length(context, tokenizer)
            limit = min(longest, card.get("max_model_len") or longest)
            print(f"agent-gym: {name} takes and gives token ids, with the tokenizer of {source}", file=sys.stderr)
            return tokenizer, OpenAIPolicy(url, name, renderer, token_ids=True, context=limit, concurrency=concurrency)
    else:
        # The environment of the gateway has none, and cannot be made without an agent to ask.
        tokenizer = _small_tokenizer(env_id != ENV_ID and shows_images(env_id, arguments.env_kwargs))
        source = "a small tokenizer made here; give --tokenizer for real counts"
    tokenizer.chat_template = _PLAIN_TEMPLATE
    print(f"agent-gym: {name} takes messages and gives texts; tokens are counted with {source}", file=sys.stderr)
    renderer = ChatRenderer.of(tokenizer)
    _length(context, tokenizer)  # the server has its own; the caller's limits may depend on the tokenizer
    return tokenizer, OpenAIPolicy(url, name, renderer, token_ids=False, concurrency=concurrency)
