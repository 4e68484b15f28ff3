"""Any server that speaks OpenAI's protocol, as a policy: vLLM, SGLang, llama.cpp, a provider.

Where the server takes and gives token ids (vLLM's `/v1/completions` with `return_token_ids`), the policy sees exactly
the context that the rollout keeps, and the tokens are those that were sampled. Everywhere else it gets the messages by
`/v1/chat/completions` and gives a text, which is encoded here: token counts are then those of the tokenizer at hand,
log probabilities are 0, and the server's own template writes the context. Such episodes can be scored and looked at; to
train on their tokens would be wrong.

A request that somebody watches (`Request.on_token`) is streamed (openai_stream.py); all others come as a whole.
"""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import urllib3

from agent_gym.chat import ChatRenderer, Message
from agent_gym.client import RETRIES
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.base import FinishReason, Generation, Request, check_request
from agent_gym.policies.openai_server import ANSWER_S, NO_ANSWER, advice, client
from agent_gym.policies.openai_stream import StreamedChoice, is_stream, read_events, text_of_answer
from agent_gym.workers import Workers

_POLL_S = 0.005  # how long `poll` waits: an environment that has answered meanwhile waits as long


class OpenAIPolicy:
    """Samples from one model of a server.

    Args:
        url: the address up to the version, such as "http://127.0.0.1:8000/v1".
        model: the model's name there.
        renderer: encodes the server's texts, or knows the tokens that end a turn.
        token_ids: whether to talk in token ids; `gives_token_ids` finds out.
        context: longest sequence in tokens, None if the server says.
        concurrency: most requests at the same time.
        retries: how often a request is sent again when the connection breaks or the server is busy.

    Raises:
        ConfigError: for an address that is none.
    """

    continuous = True

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
        self.model, self.context = model, context
        self._renderer, self._token_ids = renderer, token_ids
        self._client = client(url, "/completions" if token_ids else "/chat/completions", concurrency, retries)
        self._workers = Workers(concurrency)
        self._pending: dict[int, Request] = {}
        # With the request and not its id: ids come again, and the answer to an aborted request may still come.
        self._news: queue.SimpleQueue[tuple[Request, list[int] | Generation | Exception]] = queue.SimpleQueue()

    @property
    def pending(self) -> int:
        """Requests submitted and neither returned nor aborted."""
        return len(self._pending)

    def submit(self, request: Request) -> None:
        """Send a request, or queue it behind those that are under way.

        Raises:
            ConfigError: when the id is taken, the prompt is empty or fills the context, or, for texts, the context is
                not the whole conversation.
        """
        check_request(request, self._pending, self.context)
        content = self._ids_content(request) if self._token_ids else self._text_content(request)
        self._pending[request.id] = request

        def work() -> None:
            if not self._waits_for(request):  # aborted while it was queued
                return
            try:
                choice = self._ask(content) if request.on_token is None else self._listen(content, request)
                self._news.put((request, self._read(request, choice)))
            except Exception as error:  # it is raised where somebody hears it, in `poll`
                self._news.put((request, error))

        self._workers.submit(work)

    def poll(self) -> list[Generation]:
        """Return what has finished, after at most 5 ms.

        Raises:
            RolloutError: when the server cannot be reached any more, or refuses a request.
        """
        found: list[Generation] = []
        while self._pending:
            try:
                request, news = self._news.get(timeout=None if found else _POLL_S, block=not found)
            except queue.Empty:
                break
            if not self._waits_for(request):
                continue  # aborted when its answer was on the way
            if isinstance(news, list):
                for token in news:
                    assert request.on_token is not None
                    request.on_token(token)
                continue
            del self._pending[request.id]
            if isinstance(news, Exception):
                raise news
            found.append(news)
        return found

    def abort(self, request_id: int) -> None:
        """Drop a pending request; what the server still says to it is not heard, and a stream is broken off."""
        self._pending.pop(request_id, None)

    def close(self) -> None:
        """Drop what is pending and close the connections; the server goes on."""
        self._pending.clear()
        self._workers.close()
        self._client.close()

    # One request.

    def _waits_for(self, request: Request) -> bool:
        return self._pending.get(request.id) is request

    def _ids_content(self, request: Request) -> dict[str, Any]:
        params = request.params
        return {
            **self._common(request),
            "prompt": request.prompt_ids,
            "return_token_ids": True,
            "logprobs": 0,  # of the sampled token alone
            "ignore_eos": True,
            "stop_token_ids": sorted(self._renderer.eos_token_ids),
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            # Otherwise the model's generation_config.json slips its own values into requests.
            "top_p": 1.0,
            "top_k": 0,
            "repetition_penalty": 1.0,
        }

    def _text_content(self, request: Request) -> dict[str, Any]:
        episode: Any = request.episode
        if episode is None or len(episode.rows) > 1 or episode.asked != "act":
            raise ConfigError("a server of texts gets the whole conversation: give --context append")
        # No stop strings: they would be missing in the answer, which then would not say which of them it was.
        return {**self._common(request), "messages": chat_messages(episode.messages)}

    def _common(self, request: Request) -> dict[str, Any]:
        params = request.params
        content = {"model": self.model, "max_tokens": params.max_tokens, "temperature": params.temperature}
        return content if params.seed is None else {**content, "seed": params.seed}

    def _ask(self, content: Mapping[str, Any]) -> dict[str, Any]:
        return self._whole(self._client.send(content, ANSWER_S))

    def _listen(self, content: Mapping[str, Any], request: Request) -> dict[str, Any]:
        """Ask for a stream and pass its tokens on as they come."""
        answer = self._client.send({**content, "stream": True}, ANSWER_S, whole=False)
        try:
            if answer.status != 200 or not is_stream(answer):
                return self._whole(answer)
            streamed = StreamedChoice(self._renderer, token_ids=self._token_ids, stop=request.params.stop)
            for event in read_events(answer):
                if tokens := streamed.add(event):
                    self._news.put((request, tokens))
                if streamed.whole or not self._waits_for(request):
                    return streamed.choice
        except urllib3.exceptions.HTTPError as error:
            raise RolloutError(f"{self._client.url} broke off in the middle of an answer: {error}") from error
        except NO_ANSWER as error:
            raise RolloutError(f"{self._client.url} answered strangely: {error!r}") from error
        finally:
            # Not given back: behind a stream that was left lie events which the next answer would begin with. And a
            # server whose client is gone stops sampling.
            answer.close()
        raise RolloutError(f"{self._client.url} ended a stream without saying why")

    def _whole(self, answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        if answer.status != 200:
            raise RolloutError(f"the model server {self._client.url} answered {answer.status} {advice(answer)}")
        try:
            return dict(json.loads(answer.data)["choices"][0])
        except NO_ANSWER as error:
            raise RolloutError(f"{self._client.url} answered strangely: {answer.data[:300]!r}") from error

    def _read(self, request: Request, choice: Mapping[str, Any]) -> Generation:
        try:
            return self._read_ids(request, choice) if self._token_ids else self._read_text(request, choice)
        except NO_ANSWER as error:
            text = repr(choice)[:300]
            raise RolloutError(f"{self._client.url} answered strangely ({error!r}): {text}") from error

    def _read_ids(self, request: Request, choice: Mapping[str, Any]) -> Generation:
        ids, logprobs = choice["token_ids"], [float(value) for value in choice["logprobs"]["token_logprobs"]]
        if not all(type(i) is int and i >= 0 for i in ids) or not all(map(math.isfinite, logprobs)):
            raise ValueError("token ids and logprobs must be numbers")
        if not ids or len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} token ids and {len(logprobs)} logprobs")
        stopped = "stop_string" if request.params.stop and choice["finish_reason"] == "stop" else "length"
        reason: FinishReason = "stop" if ids[-1] in self._renderer.eos_token_ids else stopped  # type: ignore[assignment]
        return Generation(request.id, ids, logprobs, reason)

    def _read_text(self, request: Request, choice: Mapping[str, Any]) -> Generation:
        text = text_of_answer(choice["message"].get("content"))
        ends = [text.find(stop) + len(stop) for stop in request.params.stop if stop in text]
        closed, reason = True, "stop"
        if ends:
            text, closed, reason = text[: min(ends)], False, "stop_string"
        elif choice.get("finish_reason") == "length" and text:
            closed, reason = False, "length"
        ids = self._renderer.encode_action(text, closed=closed)
        return Generation(request.id, ids, [0.0] * len(ids), reason)  # type: ignore[arg-type]


def chat_messages(messages: Sequence[Message]) -> list[Message]:
    """Write an episode's messages as any chat server takes them: answers of the world are the user's.

    A message of the role "tool" would have to name the call that it answers, by an id that only servers give that parse
    calls themselves. Several answers to one turn become one message.
    """
    talk: list[Message] = []
    for role, run in groupby(messages, key=lambda m: "user" if m["role"] == "tool" else m["role"]):
        talk += [{"role": role, "content": "\n".join(str(message["content"]) for message in run)}]
    return talk
