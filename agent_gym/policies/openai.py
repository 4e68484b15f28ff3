"""Any server that speaks OpenAI's protocol, as a policy: vLLM, SGLang, llama.cpp, a provider.

Where the server takes and returns token ids (vLLM's `/v1/completions` with `return_token_ids`), the policy sees exactly
the context that the rollout keeps, and the tokens are the sampled ones. Every other server gets the messages by
`/v1/chat/completions` and returns a text, which is encoded here: token counts are then counts of the tokenizer at hand,
logprobs are 0, and the server's own template writes the context. Do not train on such episodes. A request with
`Request.on_token` is streamed. The API key is the environment's `OPENAI_API_KEY`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from agent_gym.chat import ChatRenderer, Message
from agent_gym.errors import ConfigError, RolloutError, quoted, require
from agent_gym.policies.base import FinishReason, Generation, Request, check_request, truncate_at_stop
from agent_gym.policies.served import ServedPolicy
from agent_gym.public import public_text
from agent_gym.serve.client import RETRIES, split_address

KEY_VARIABLE = "OPENAI_API_KEY"
ANSWER_S = 600.0  # a long turn on a busy server is not a failure
_LOOK_S = 30.0
_LOOK_RETRIES = 2
_STRANGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)  # of an answer


class OpenAIPolicy(ServedPolicy):
    """Samples from one model of a server.

    Args:
        url: the address up to the version, such as "http://127.0.0.1:8000/v1".
        renderer: encodes the server's texts, or knows the tokens that end a turn.
        token_ids: whether to talk in token ids; `gives_token_ids` finds out.
        context: longest sequence in tokens, None if the server decides.
        concurrency: most requests at the same time.
        retries: how often a request is sent again when the connection breaks or the server is busy or fails.
    """

    def __init__(
        self,
        url: str,
        model: str,
        renderer: ChatRenderer,
        *,
        token_ids: bool,
        context: int | None = None,
        concurrency: int = 64,
        retries: int = RETRIES,
    ) -> None:
        super().__init__("openai")
        self.model, self.context = model, context
        self._url, self._retries = url.rstrip("/"), retries
        self._renderer, self._token_ids = renderer, token_ids
        self._client = connect(url, retries, ANSWER_S, asynchronous=True)
        self._turns = asyncio.Semaphore(concurrency)

    def submit(self, request: Request) -> None:
        check_request(request, self._pending, self.context)
        try:
            content = self._content(request)
        except ConfigError as error:
            if not self.fails_alone:
                raise
            return self._refuse(request, error)
        self._begin(request, self._answer(request, content))

    async def _disconnect(self) -> None:
        await self._client.close()

    def _content(self, request: Request) -> dict[str, Any]:
        params = request.params
        content = {"model": self.model, "max_tokens": params.max_tokens, "temperature": params.temperature}
        content |= {} if params.seed is None else {"seed": params.seed}
        if not self._token_ids:
            episode: Any = request.episode
            if episode is None or len(episode.rows) > 1 or episode.asked != "act":
                raise ConfigError(
                    "a server of texts gets the whole conversation: give --context append; where the policy plays "
                    "several roles, or each prompt is written anew, take a server of token ids, such as vLLM"
                )
            # No stop strings: they would be missing in the answer, which then would not show which of them it was.
            return {**content, "messages": chat_messages(episode.messages)}
        further = {
            "return_token_ids": True,
            "ignore_eos": True,
            "stop_token_ids": sorted(self._renderer.eos_token_ids),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            # Otherwise the model's generation_config.json puts its own values into requests.
            "top_k": 0,
            "repetition_penalty": 1.0,
        }
        return {
            **content,
            "prompt": request.prompt_ids,
            "logprobs": 0,
            "stop": list(params.stop),
            "top_p": 1.0,
            "extra_body": further,
        }

    async def _answer(self, request: Request, content: dict[str, Any]) -> Generation:
        endpoint = self._client.completions if self._token_ids else self._client.chat.completions
        stream = {} if request.on_token is None else {"stream": True}
        create = endpoint.with_streaming_response.create
        async with self._turns:
            with failures(self._url, self._retries):
                async with create(**content, **stream) as answer:
                    # Some servers ignore the request for a stream, and answer as a whole.
                    if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                        choice = await self._read_stream(request, await answer.parse())
                    else:
                        choice = _whole(self._url, await answer.text())
                return self._read_ids(request, choice) if self._token_ids else self._read_text(request, choice)

    async def _read_stream(self, request: Request, events: AsyncIterable[Any]) -> dict[str, Any]:
        """Return the choice in the form of an answer that came as a whole; its tokens are passed on as they come.

        Where the server gives no tokens each piece of text is encoded by itself.
        """
        ids: list[int] = []
        logprobs: list[float] = []
        text = ""
        async for event in events:
            for piece in event.to_dict()["choices"]:  # none in an event that counts tokens
                reason, before = piece.get("finish_reason"), len(text)
                if not self._token_ids:
                    text, stopped = truncate_at_stop(text + _text(piece["delta"].get("content")), request.params.stop)
                    tokens = self._renderer.encode_action(text[before:], closed=False) if text[before:] else []
                    reason = "stop" if stopped else reason
                elif tokens := list(piece.get("token_ids") or ()):
                    logprobs += piece["logprobs"]["token_logprobs"]
                ids += tokens
                if tokens:
                    self._news.put((request, tokens))
                if reason is not None:
                    scores, message = {"token_logprobs": logprobs}, {"content": text}
                    return {"token_ids": ids, "logprobs": scores, "message": message, "finish_reason": reason}
        raise RolloutError(public_text(f"{self._url} ended a stream without saying why"))

    def _read_ids(self, request: Request, choice: Mapping[str, Any]) -> Generation:
        ids, logprobs = choice["token_ids"], [float(value) for value in choice["logprobs"]["token_logprobs"]]
        if not ids or not all(type(i) is int and i >= 0 for i in ids) or not all(map(math.isfinite, logprobs)):
            raise ValueError(f"token ids and logprobs must be numbers, in {quoted(choice, 300)}")
        reason: FinishReason = "length"
        if ids[-1] in self._renderer.eos_token_ids:
            reason = "stop"
        elif request.params.stop and choice["finish_reason"] == "stop":
            reason = "stop_string"
        return Generation(request.id, ids, logprobs, reason)

    def _read_text(self, request: Request, choice: Mapping[str, Any]) -> Generation:
        text, stopped = truncate_at_stop(_text(choice["message"].get("content")), request.params.stop)
        cut = choice.get("finish_reason") == "length" and text
        reason: FinishReason = "stop_string" if stopped else "length" if cut else "stop"
        ids = self._renderer.encode_action(text, closed=reason == "stop")
        return Generation(request.id, ids, [0.0] * len(ids), reason)


def _whole(url: str, text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text)["choices"][0])
    except _STRANGE as error:
        raise RolloutError(public_text(f"{url} answered strangely: {quoted(text, 300)}")) from error


def _text(content: Any) -> str:
    """The text of an answer; none at all is the empty text, and half of a surrogate pair a question mark."""
    if content is not None and not isinstance(content, str):
        raise TypeError(f"the content is {quoted(content, 100)}, not a text")
    # No tokenizer takes one, and JSON holds it.
    return (content or "").encode("utf-8", "replace").decode()


def chat_messages(messages: Sequence[Message]) -> list[Message]:
    """Write an episode's messages as any chat server takes them: answers of the world are one message of the user.

    A message of the role "tool" would have to name its call, by an id that only servers that parse calls give.
    """
    talk: list[Message] = []
    for role, run in groupby(messages, key=lambda m: "user" if m["role"] == "tool" else m["role"]):
        talk += [{"role": role, "content": "\n".join(str(message["content"]) for message in run)}]
    return talk


def find_model(url: str, model: str | None, key_variable: str = KEY_VARIABLE) -> dict[str, Any]:
    """Return the server's card of a model, or of its only one: `id`; vLLM adds `root` and `max_model_len`."""
    address, openai = url.rstrip("/"), require("openai", "serve")
    text = ""
    with connect(url, _LOOK_RETRIES, _LOOK_S, key_variable) as client:
        try:
            text = client.models.with_raw_response.list().text
            cards = [dict(card) for card in json.loads(text)["data"]]
        except openai.APIConnectionError as error:
            raise ConfigError(
                f"no model server at {address} ({type(error.__cause__).__name__}); start one, for example with `vllm "
                "serve MODEL`, or correct the address"
            ) from error
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                raise ConfigError(f"{address} {_advice(error)}") from error
            cards = []  # not every server has a list
        except _STRANGE as error:
            raise ConfigError(f"{address} is not an OpenAI-compatible server: it answered {text[:200]!r}") from error
    names = [str(card.get("id")) for card in cards]
    if model is None:
        if len(names) != 1:
            raise ConfigError(
                f"{address} serves {', '.join(names) or 'what it does not tell'}: choose with --model, or of a teacher "
                "with its name behind the address (URL#NAME)"
            )
        model = names[0]
    if names and model not in names:
        raise ConfigError(f"{address} has no model {model!r}; it has: {', '.join(names[:20])}")
    return cards[names.index(model)] if names else {"id": model}


def gives_token_ids(url: str, model: str, token_id: int) -> bool:
    """Find out whether a server completes token ids by token ids, by asking for one token."""
    openai = require("openai", "serve")
    content = {"model": model, "prompt": [token_id], "max_tokens": 1, "extra_body": {"return_token_ids": True}}
    with connect(url, _LOOK_RETRIES, ANSWER_S) as client, failures(url, _LOOK_RETRIES):
        try:
            text = client.completions.with_raw_response.create(**content).text
            return bool(json.loads(text)["choices"][0]["token_ids"])
        except (openai.APIStatusError, *_STRANGE):
            return False


def connect(
    url: str, retries: int, timeout_s: float, key_variable: str = KEY_VARIABLE, *, asynchronous: bool = False
) -> Any:
    """Make OpenAI's client for a server, with the key of an environment variable; `ConfigError` for no address."""
    split_address(url, "/v1")
    openai = require("openai", "serve")
    # Through no proxy.
    http = (openai.DefaultAsyncHttpxClient if asynchronous else openai.DefaultHttpxClient)(trust_env=False)
    return (openai.AsyncOpenAI if asynchronous else openai.OpenAI)(
        base_url=url.rstrip("/"),
        api_key=os.environ.get(key_variable) or "none",  # the client refuses to send none at all
        max_retries=retries,
        timeout=timeout_s,
        http_client=http,
    )


@contextmanager
def failures(url: str, retries: int) -> Iterator[None]:
    """Turn an error of a request into a `RolloutError` that names the cure, and no secret of the address or answer."""
    openai = require("openai", "serve")
    try:
        yield
    except openai.APIStatusError as error:
        raise RolloutError(public_text(f"the model server {url} {_advice(error)}")) from error
    except openai.APIConnectionError as error:
        reason = error.__cause__ or error
        told = f"cannot be reached ({type(reason).__name__}: {reason}), tried {retries + 1} times"
        cure = "start one with `vllm serve MODEL`, or correct the address"
        raise RolloutError(public_text(f"the model server {url} {told}; {cure}")) from error
    except (openai.APIError, *_STRANGE) as error:
        raise RolloutError(public_text(f"{url} answered strangely: {quoted(error, 300)}")) from error


def _advice(error: Any) -> str:
    cures = {
        401: f"; set {KEY_VARIABLE}",
        403: f"; check {KEY_VARIABLE}",
        404: "; check --endpoint (it ends with the version, /v1) and --model",
        400: "; if the context is too long, lower --max_tokens or --max_turn_tokens",
    }
    reason = f"{error.status_code} {error.response.reason_phrase}: {error.response.text[:300]}"
    return f"answered {reason}{cures.get(error.status_code, '')}"
