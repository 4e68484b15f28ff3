"""The servers behind `OpenAIPolicy`: what they serve, what they can do, and what their refusals mean.

The API key comes from the environment variable `OPENAI_API_KEY`.
"""

from __future__ import annotations

import json
import os
from typing import Any

import urllib3

from agent_gym.client import RETRIES, JsonClient, said
from agent_gym.errors import ConfigError, RolloutError

KEY_VARIABLE = "OPENAI_API_KEY"
ANSWER_S = 600.0
"""Seconds to wait for an answer: a long turn on a busy server is no failure."""
NO_ANSWER = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""What reading an answer raises that is none."""


def find_model(url: str, model: str | None) -> dict[str, Any]:
    """Return what the server says of a model: at least `id`; vLLM adds `root` (where it is from) and `max_model_len`.

    Args:
        url: the address up to the version.
        model: the model's name, None for the only one.

    Raises:
        ConfigError: if there is no server, it refuses the key, or does not have the model.
    """
    address = url.rstrip("/")
    client(address, "/models", 1, 0)  # which checks the address
    try:
        answer = urllib3.request("GET", f"{address}/models", headers=_headers(), retries=2, timeout=30.0)
    except urllib3.exceptions.HTTPError as error:
        reason = error.__cause__ or getattr(error, "reason", None) or error
        raise ConfigError(
            f"no model server at {address} ({type(reason).__name__}); start one, for example with `vllm serve "
            "MODEL`, or correct --endpoint"
        ) from error
    if answer.status in (401, 403):
        raise ConfigError(f"{address} answered {answer.status} {advice(answer)}")
    try:
        cards = [dict(card) for card in json.loads(answer.data)["data"]] if answer.status == 200 else []
    except NO_ANSWER as error:
        raise ConfigError(f"{address} is no OpenAI-compatible server: it answered {answer.data[:200]!r}") from error
    names = [str(card.get("id")) for card in cards]
    if model is None:
        if len(names) != 1:
            raise ConfigError(f"{address} serves {', '.join(names) or 'what it does not tell'}: choose with --model")
        model = names[0]
    if names and model not in names:
        raise ConfigError(f"{address} has no model {model!r}; it has: {', '.join(names[:20])}")
    return cards[names.index(model)] if names else {"id": model}


def gives_token_ids(url: str, model: str, token_id: int) -> bool:
    """Find out whether a server completes token ids by token ids, by asking for one token."""
    content = {"model": model, "prompt": [token_id], "max_tokens": 1, "return_token_ids": True}
    answer = client(url, "/completions", 1, RETRIES).send(content, ANSWER_S)
    try:
        return answer.status == 200 and bool(json.loads(answer.data)["choices"][0]["token_ids"])
    except NO_ANSWER:
        return False


def client(url: str, path: str, connections: int, retries: int) -> JsonClient:
    """Return what posts to one path of a server."""
    return JsonClient(
        url.rstrip("/") + path,
        path,
        server="model server",
        command="vllm serve MODEL",
        retries=retries,
        repeats=retries,
        connections=connections,
        headers=_headers(),
        failure=RolloutError,
    )


def _headers() -> dict[str, str]:
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


def advice(answer: urllib3.BaseHTTPResponse) -> str:
    """Return what a server that refused has said, and what may help."""
    cures = {
        401: f"; set {KEY_VARIABLE}",
        403: f"; check {KEY_VARIABLE}",
        404: "; check --endpoint (it ends with the version, /v1) and --model",
        400: "; if the context is too long, lower --max_tokens or --max_turn_tokens",
    }
    return said(answer) + cures.get(answer.status, "")
