"""Secrets in what a process tells: tracebacks of errors that nobody foresaw, warnings, dry runs, trackers' files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_canaries import CANARY, QUICK, found, served

pytest.importorskip("trl")

from agent_gym.cli.main import main
from agent_gym.cli.parser import read_settings
from agent_gym.errors import ConfigError
from agent_gym.public import _hidden, hide, public_text

SETTINGS = f"""
hub_token: {CANARY}
model_init_kwargs: {{token: {CANARY}}}
run_name: "http://u:{CANARY}@host/x?api_key={CANARY}"
"""
OWN = ["--use_vllm", "false", "--num_generations", "2", "--max_turn_tokens", "4", "--max_episode_tokens", "900"]


@pytest.fixture(autouse=True)
def fresh() -> None:
    _hidden.clear()


__all__ = ["served"]  # a fixture


def words(command: str, model: str) -> list[str]:
    given = [
        command,
        "Toy/Served-v0",
        "--model_name_or_path",
        model,
        "--output_dir",
        "run",
        *QUICK,
        "--save_steps",
        "1",
    ]
    return [*given, "--report_to", "tensorboard", *([*OWN, "--train_tasks", "2"] if command == "grpo" else [])]


@pytest.mark.parametrize("command", ["sft", "grpo"])
def test_trackers_and_dry_runs_get_no_secrets(
    command: str,
    served: str,
    tiny_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "settings.yaml"
    for flags in (["--dry_run"], ["--print_config"], []):
        settings.write_text(SETTINGS)
        assert main([*words(command, tiny_model), "--config", "settings.yaml", *flags]) == 0
        settings.unlink()
        told = capfd.readouterr()
        assert CANARY not in told.out + told.err
        if flags == ["--print_config"]:
            assert "token: '***'" in told.out and "put it in" in told.out
            printed = told.out
    assert list(tmp_path.rglob("events.out.tfevents*"))
    assert found(tmp_path) == []
    settings.write_text(printed)
    with pytest.raises(ConfigError, match=r"settings.yaml: \w+ holds \*\*\*, the mark of a secret"):
        read_settings("settings.yaml")


FAILING = """
import sys, threading, warnings
import agent_gym.cli.main as command

def breaks(argv):
    secret = argv[argv.index("--hub_token") + 1] if "--hub_token" in argv else "x"
    warnings.warn(f"refused: {secret}")
    thread = threading.Thread(target=lambda: 1 / len("") if not secret else int(secret))
    thread.start(); thread.join()
    try:
        raise KeyError(f"no project of {secret}")
    except KeyError as error:
        raise RuntimeError(f"401 for {secret} at https://me:pw@host \\x1b[2J") from error

command._run = breaks
raise SystemExit(command.main())
"""


@pytest.mark.parametrize(
    "given",
    [
        ["--hub_token", CANARY],
        [f"--hub_token={CANARY}", "--hub_token", CANARY],
        ["--env_kwargs", f'{{"client": {{"password": "{CANARY}"}}}}', "--hub_token", CANARY],
    ],
)
def test_a_traceback_of_an_unforeseen_error_shows_no_secret(given: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", FAILING, *given], capture_output=True, text=True)
    assert done.returncode == 1 and CANARY not in done.stderr + done.stdout
    assert "RuntimeError: 401 for *** at https://host" in done.stderr and "KeyError: 'no project of ***'" in done.stderr
    assert "UserWarning: refused: ***" in done.stderr
    assert "ValueError: invalid literal for int() with base 10: '***'" in done.stderr
    assert "\x1b" not in done.stderr and "line" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        ["--hub_token", CANARY],
        ["--hub_token", CANARY, f"--api-key={CANARY}x"],
        {"server": f"https://me:{CANARY}@host:80/v1"},
        {"a": [{"b": {"client_secret": CANARY}}]},
        ["--judge", f'{{"endpoint": "http://h/?token={CANARY}"}}'],
        {"headers": {"Authorization": CANARY}},
        {"dsn": f"postgresql://me:{CANARY}@db/x"},
    ],
)
def test_a_secret_of_the_user_is_masked_wherever_it_turns_up(settings: object) -> None:
    hide(settings)
    assert public_text(f"the answer was {CANARY}.") == "the answer was ***."


def test_a_password_of_a_proxy_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", f"http://me:{CANARY}@proxy:3128")
    assert public_text(f"ProxyError: ('me', '{CANARY}')") == "ProxyError: ('me', '***')"


def test_words_of_settings_that_are_no_secrets_stay() -> None:
    hide(
        [
            "grpo",
            "--eos_token",
            "<|endoftext|>",
            "--output_dir",
            "tokenizer",
            "--seed",
            "12345678",
        ]
    )
    hide({"tokens": "accuracy", "max_token": 12345678, "url": "http://localhost:8000/v1", "use_auth_token": True})
    assert public_text("accuracy of tokenizer at 12345678 <|endoftext|> http://localhost:8000/v1") == (
        "accuracy of tokenizer at 12345678 <|endoftext|> http://localhost:8000/v1"
    )
