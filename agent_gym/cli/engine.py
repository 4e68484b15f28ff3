"""From `--model` and `--engine` to a tokenizer and a policy, for the commands that play episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_gym.chat import ChatRenderer
from agent_gym.cli.notes import note
from agent_gym.cli.parser import one_line
from agent_gym.errors import ConfigError, require
from agent_gym.policies import Policy, ScriptedPolicy
from agent_gym.policies.processors import load_encoder, model_class
from agent_gym.policies.vllm import set_environment
from agent_gym.rollout.images import shows_images

ENGINES = ("auto", "vllm", "transformers")
_TOKENS = 4000  # of the tokenizer that is made where there is no other


def load_tokenizer(model: str) -> Any:
    """Load the tokenizer of a model folder or hub id, or the processor of a model that reads images.

    Raises:
        ConfigError: if there is no such model, in one line instead of the hub client's paragraph.
    """
    check_folder(model)
    transformers = require("transformers", "train")
    try:
        # An adapter has the tokenizer of its model, and no configuration of a model.
        return transformers.AutoTokenizer.from_pretrained(model) if _is_adapter(model) else load_encoder(model)
    except (OSError, ValueError) as error:
        raise ConfigError(_cannot_load(model, error)) from error


def check_folder(model: str) -> None:
    """Refuse a model that is written like a path and is not a model folder; hub ids are left to the hub client."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file() and not _is_adapter(model):
            raise ConfigError(f"{model} is a folder without config.json, so it holds no model")
    elif path.is_file():
        raise ConfigError(f"{model} is a file; a model is a folder or a hub id")
    elif model.startswith((".", "/", "~")) or model.count("/") != 1 and "/" in model:
        raise ConfigError(f"no model folder at {model}")


def choose_engine(engine: str, model: str) -> str:
    """Resolve "auto": vLLM where it is installed and can serve the model, else transformers.

    Raises:
        ConfigError: for a LoRA adapter with vLLM, which serves whole models only.
    """
    if _is_adapter(model):
        if engine == "vllm":
            raise ConfigError(f"{model} is a LoRA adapter: use --engine transformers, or merge it into its base model")
        return "transformers"
    if engine != "auto":
        return engine
    return "vllm" if find_spec("vllm") else "transformers"


def build(model: str, engine: str, *, context: int, seed: int = 0) -> tuple[Any, Policy]:
    """Load a model into an engine.

    Args:
        model: a folder or a hub id.
        engine: one of `ENGINES`.
        context: longest context in tokens.
        seed: of the engine's own sampling stream.

    Returns:
        The tokenizer and the policy.

    Raises:
        ConfigError: if the model or the engine is not there.
    """
    engine = choose_engine(engine, model)
    note(f"loading {model} into {'vLLM' if engine == 'vllm' else 'transformers'}")
    if engine == "vllm":
        set_environment()
    tokenizer = load_tokenizer(model)
    renderer = ChatRenderer.of(tokenizer)
    renderer.also_ends_at(_end_tokens(model))
    if engine == "vllm":
        from agent_gym.policies.vllm.engine import VLLMPolicy

        context = min(context, _longest_context(model) or context)
        return tokenizer, VLLMPolicy(model, renderer.eos_token_ids, context=context, vision=renderer.vision, seed=seed)
    from agent_gym.policies.transformers import TransformersPolicy

    pad = renderer.tokenizer.pad_token_id
    return tokenizer, TransformersPolicy(
        _load_model(model),
        renderer.eos_token_ids,
        min(renderer.eos_token_ids) if pad is None else pad,
        renderer.decode_action,
        vision=renderer.vision,
        seed=seed,
    )


def _end_tokens(model: str) -> int | list[int] | None:
    """Return what the model's generation config ends a turn with; many folders have none."""
    try:
        return require("transformers", "train").GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        return None


def scripted(
    model: str | None, env_id: str, env_kwargs: Mapping[str, Any], act: Callable[[Any], str]
) -> tuple[Any, Policy]:
    """Let a function play.

    Args:
        model: whose tokenizer and chat template write the episodes; None makes a small tokenizer on the spot.
        env_id: the environment.
        env_kwargs: its arguments.
        act: returns the text of the next turn of a live episode.
    """
    tokenizer = load_tokenizer(model) if model else stand_in(shows_images(env_id, env_kwargs))

    def write(episode: Any) -> str:
        # A script knows how to act. Asked for a summary, it tells what happened.
        return act(episode) if episode.asked == "act" else episode.env.unwrapped.history()

    return tokenizer, ScriptedPolicy(write, ChatRenderer.of(tokenizer).encode_action)


def stand_in(images: bool) -> Any:
    """Make a small tokenizer where there is no other; no episode is played for it.

    It is trained on the sources of this package's environments, which hold the words that worlds speak in: two to three
    characters a token. Any other text is written, too, in shorter pieces.

    Args:
        images: whether it is for an environment that shows some; then it is a processor.
    """
    require("transformers", "train")
    from agent_gym.examples.tiny import make_tiny_processor, make_tiny_tokenizer

    (folder,) = import_module("agent_gym.envs").__path__
    texts = [file.read_text(encoding="utf-8") for file in sorted(Path(folder).rglob("*.py"))]
    return make_tiny_processor(texts, _TOKENS) if images else make_tiny_tokenizer(texts, _TOKENS)


def _load_model(model: str) -> Any:
    torch, transformers = require("torch", "train"), require("transformers", "train")
    gpu = torch.cuda.is_available()
    try:
        kind = transformers.AutoModelForCausalLM if _is_adapter(model) else model_class(model)
        loaded = kind.from_pretrained(model, dtype="auto" if gpu else torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(_cannot_load(model, error)) from error
    return loaded.to("cuda" if gpu else "cpu")


def _longest_context(model: str) -> int | None:
    config = require("transformers", "train").AutoConfig.from_pretrained(model)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _is_adapter(model: str) -> bool:
    return (Path(model).expanduser() / "adapter_config.json").is_file()


def _cannot_load(model: str, error: Exception) -> str:
    reason = one_line(error).partition(". ")[0][:200]
    if Path(model).expanduser().is_dir():
        return f"cannot load the model in {model}: {reason}"
    return f"cannot load the model {model!r}: there is no such folder, and the hub client says: {reason}"
