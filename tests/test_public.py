"""The border for secrets: what is masked, and what is not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent_gym.public import MASK, is_secret, public, public_text

SECRETS = ["hub_token", "--hub-token", "HF_TOKEN", "api_key", "apiKey", "OPENAI_API_KEY", "password", "secret",
           "client_secret", "AWS_SECRET_ACCESS_KEY", "wandb-api-key", "push_to_hub_token", "X-Api-Key", "Authorization",
           "token", "key", "db.password", "+trainer.hub_token"]  # fmt: skip
OPEN = ["max_turn_tokens", "tokenizer", "eos_token", "pad_token", "prompts_sha256", "keys", "monkey", "max_tokens",
        "tokens", "keyboard", "sort", "passwords_file", "author"]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name):
    assert is_secret(name)
    assert public({name: "CANARY"}) == {name: MASK}
    assert public([f"{name}=CANARY"]) == [f"{name}={MASK}"]


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "Aa1" * 12,
        "sk-" + "aB3" * 10,
        "ghp_" + "a1" * 18,
        "AKIA" + "A1" * 8,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
)
def test_tokens_of_known_forms_are_masked_under_any_name(token):
    assert public({"note": f"use {token}."}) == {"note": f"use {MASK}."}
    assert public_text(f"401 for {token}") == f"401 for {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "unknown key 'data'; keys: a, b",
        "sorted(rows, key=len)",
        "pad_token='<pad>' is not in the vocabulary",
        "max_tokens=512, top_k=3: 12:30@noon is fine, a:b",
        "the token: see mailto and me@host",
        "Traceback: File x, line 3, in f\n    token_ids = [1, 2]",
        "https://host/a:b/c@d",
        "secret garden; password reset; --tokenizer x",
    ],
)
def test_texts_without_secrets_stay_as_they_are(text):
    assert public_text(text) == text


@pytest.mark.parametrize("name", OPEN)
def test_other_names_keep_their_values(name):
    assert not is_secret(name)
    assert public({name: "CANARY", "more": [f"--{name}", "CANARY"]}) == {
        name: "CANARY",
        "more": [f"--{name}", "CANARY"],
    }


@pytest.mark.parametrize(
    "value",
    [
        ["--hub_token", "CANARY"],
        ["--hub-token=CANARY"],
        ["--env_kwargs", '{"sandbox": "http://user:CANARY@host:1/"}'],
        ["--env_kwargs", '{"judge": {"api_key": "CANARY"}}'],
        ["--env_kwargs={'judge': {'api_key': 'CANARY'}}"],
        ["sh", "-c", "curl -H 'Authorization: Bearer CANARY12345' x"],
        ["HF_TOKEN=CANARY", "python"],
        ["--header", "X-Api-Key: CANARY"],
        {"retriever": "https://me:CANARY@host/search"},
        {"retriever": "https://CANARY@host/search"},
        {"url": "http://me:p@CANARY@host"},
        {"url": "https://host/x?api_key=CANARY&top=3"},
        {"url": "https://host/x?top=3&access_token=CANARY"},
        {"deep": [{"deeper": ({"password": "CANARY"},)}]},
        {"deep": [{"password": ["CANARY", "CANARY"]}]},
        "postgres://u:CANARY@db/x failed",
        'OpenAI(api_key=\'x\', {"secret": "CANARY"})',
        {"headers": [["X-Api-Key", "CANARY"], ("Authorization", "token CANARY")]},
        {"headers": {"Cookie": "session=CANARY"}},
        {"dsn": "host=h user=u password=CANARY"},
        {"dsn": "Server=h;Uid=u;Pwd=CANARY;"},
        {"hf_pat": "CANARY", "jwt": "CANARY", "api_keys": ["CANARY"], "private_key_pem": "CANARY"},
        {"passwords": {"db": "CANARY"}, "secrets": ["CANARY"], "secret_id": "CANARY", "token_value": "CANARY"},
        {b"token": "CANARY"},
        {"pairs": frozenset([("X-Api-Key", "CANARY")])},
        {"url": "user:CANARY@host:80"},
        {"url": "https://host/#access_token=CANARY"},
        "curl -H 'Authorization: token CANARY' -u me:CANARY http://host",
        "agent-gym sft --hub_token CANARY --hub-token=CANARY failed",
        "token=CANARY password = 'CANARY' api_key: CANARY",
        'OpenAI(api_key="CANARY", base_url=x)',
    ],
)
def test_a_canary_does_not_pass(value):
    assert "CANARY" not in str(public(value))
    assert MASK in str(public(value)) or "CANARY@" in str(value) or ":CANARY@" in str(value)


def test_settings_without_secrets_are_equal():
    plain = {
        "argv": [
            "AgentR1/GSM8K-v0",
            "--output_dir",
            "runs/a",
            "--learning_rate",
            "1e-4",
            "--env_kwargs",
            '{"difficulty":3}',
        ],
        "system_prompt": "The key: think. Use tokens=3; see https://host/a@b and mail me@host.",
        "numbers": [1, 2.5, None, True, (1, "a")],
        "token_count": 3,
        "bos_token": "<s>",
    }
    assert public(plain) == plain


def test_values_of_secret_environment_variables_are_masked_wherever_they_are(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "CANARY-0123456")
    monkeypatch.setenv("MY_SERVICE_NAME", "harmless-value")
    assert public_text("401 for CANARY-0123456 at harmless-value") == f"401 for {MASK} at harmless-value"
    assert public({"note": "x CANARY-0123456"}) == {"note": f"x {MASK}"}


@pytest.mark.parametrize(
    "part",
    [
        "a-",
        "a:",
        "x@",
        "-u ",
        "token ",
        "--token-",
        'token="',
        "eyJ",
        "Authorization:",
        "user:",
        "secret_",
        "://",
        "?a=",
        "a.",
    ],
)
def test_the_search_takes_time_in_proportion_to_the_text(part):
    text = part * (300_000 // len(part))
    begun = time.process_time()
    public_text(text)
    public({"note": text[:30_000]})
    assert time.process_time() - begun < 4


def test_hostile_nesting_and_sizes_end():
    value: object = "CANARY"
    for _ in range(5000):
        value = [value]
    assert "CANARY" not in str(public(value))[:10000]
    assert public_text("://" * 200_000 + "@" * 200_000)
    assert public("[" * 100_000)


def test_the_working_directory_of_the_shell_is_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("OLDPWD", str(tmp_path.parent))
    monkeypatch.setenv("DB_PWD", "correct-horse")
    assert public({"cwd": str(tmp_path), "argv": [str(tmp_path / "a"), "x=correct-horse"]}) == {
        "cwd": str(tmp_path),
        "argv": [str(tmp_path / "a"), "x=***"],
    }
