"""A command imports only the packages that it uses, measured by the modules that are there afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CODE = """
import contextlib, io, json, sys
from agent_gym.cli.main import COMMANDS, main

HEAVY = "torch transformers trl datasets vllm pandas accelerate peft scipy sklearn matplotlib faiss openai uvicorn"
HEAVY = {*HEAVY.split(), "textual", "huggingface_hub", "pyarrow"}
found = {}

def call(*words):
    before, output = {*sys.modules}, io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(words)
    found[" ".join(words)] = code, sorted(({*sys.modules} - before) & HEAVY), output.getvalue()

for words in json.loads(sys.argv[1]):
    call(*words)
for command in COMMANDS:
    call(command, "--nosuch_flag")
from agent_gym import list_envs, make
for env_id in list_envs():
    before = {*sys.modules}
    with contextlib.suppress(Exception):  # some cannot be made without their data
        make(env_id).close()
    found[env_id] = 0, sorted(({*sys.modules} - before) & HEAVY), ""
print(json.dumps(found))
"""


def test_commands_without_a_model_import_no_training_stack(tmp_path: Path) -> None:
    played, other = str(tmp_path / "played.jsonl"), str(tmp_path / "other.jsonl")
    calls = [
        ["--help"],
        ["list"],
        ["info", "sums"],
        ["runs", str(tmp_path)],
        ["rollout", "sums", "--expert", "--episodes", "2", "--output", played],
        ["eval", "sums", "--policy", "expert", "random", "--episodes", "2", "--output", other],
        ["view", played],
        ["rescore", played],
        ["compare", other, other],
        ["certify", "sums", "--quick"],
    ]
    words = [sys.executable, "-c", CODE, json.dumps(calls)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: heavy for name, (_, heavy, _) in found.items() if heavy} == {}
    assert {name: shown for name, (code, _, shown) in found.items() if code not in (0, 2)} == {}
    assert {name: found[name][2] for name in map(" ".join, calls) if found[name][0]} == {}
    assert sum(code == 2 and "nosuch_flag" in name for name, (code, _, _) in found.items()) > 20


def test_the_help_imports_no_environment_and_the_package_has_all_its_names() -> None:
    code = (
        "import sys, agent_gym; from agent_gym.cli.main import main; main(['--help']); "
        "assert not {'agent_gym.env', 'agent_gym.chat', 'agent_gym.row_reader', 'jinja2'} & {*sys.modules}; "
        "assert all(getattr(agent_gym, name).__name__ == name for name in agent_gym.__all__); "
        "from agent_gym import *; assert issubclass(QuestionEnv, TextEnv) and not hasattr(agent_gym, 'Nothing')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_each_module_of_the_core_can_be_the_first_that_is_imported() -> None:
    """In forks of a process that has imported the package alone, which imports its names late."""
    code = """if True:
        import agent_gym, importlib, os, pathlib, sys
        root = pathlib.Path(agent_gym.__file__).parent
        for path in sorted([*root.glob("[!_]*.py"), *root.glob("formats/*.py"), *root.glob("rollout/*.py")]):
            name = ".".join(["agent_gym", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
            if not os.fork():
                try:
                    importlib.import_module(name)
                except Exception as error:
                    print(name, error, flush=True)
                os._exit(0)
            os.wait()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr


def test_a_script_plays_with_the_tokens_of_the_tokenizer_that_models_get() -> None:
    from agent_gym.policies.small_tokenizer import SmallTokenizer, train_bpe
    from agent_gym.speedrun import text_of
    from agent_gym.speedrun.tiny import make_tiny_tokenizer

    texts, tools = [Path(__file__).read_text(encoding="utf-8"), "Ünïcode 🙂 <|im_end|>"], [{"function": {"name": "f"}}]
    small, real = SmallTokenizer(train_bpe(texts, 500), text_of("chat.jinja")), make_tiny_tokenizer(texts, 500)
    for text in (*texts, "", " a\n\n<|im_start|>user\nb<|endoftext|>"):
        ids = real.encode(text, add_special_tokens=False)
        assert small.encode(text) == ids
        for skip in (False, True):
            assert small.decode(ids, skip_special_tokens=skip) == real.decode(ids, skip_special_tokens=skip)
    talk = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    talk += [{"role": "tool", "content": "d"}, {"role": "tool", "content": "e"}]
    spaced = "  {% for m in messages %}\n  {% if m.role %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n\n"
    for template in (small.chat_template, spaced):
        small.chat_template = real.chat_template = template
        for messages in (talk, talk[1:2]):
            for more in ({}, {"tools": tools}, {"add_generation_prompt": True}):
                rendered = small.apply_chat_template(messages, tokenize=False, **more)
                assert rendered == real.apply_chat_template(messages, tokenize=False, **more)
    for name in ("eos_token", "eos_token_id", "pad_token_id", "bos_token_id", "chat_template"):
        assert getattr(small, name) == getattr(real, name)
    assert len(small) == len(real)
    assert sorted(small.all_special_ids) == sorted(real.all_special_ids)
    assert {i: str(one) for i, one in small.added_tokens_decoder.items()} == {
        i: str(one) for i, one in real.added_tokens_decoder.items()
    }
