"""Logprobs of tokens that are there already, from a vLLM server: how a teacher elsewhere reads the policy's rows.

vLLM's `/v1/completions` takes token ids and gives the logprob of each but the first (`prompt_logprobs`), the logprobs
of the full distribution at temperature 1. No text is written: one token is sampled, since the server wants one, and
dropped. Ids mean something in one vocabulary only. A server does not show its vocabulary, but it spells out the tokens
that it scores, so that all of them are scored once, and their spelling is compared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agent_gym.errors import ConfigError, RolloutError
from agent_gym.policies.openai import ANSWER_S, connect, failures, find_model
from agent_gym.serve.client import RETRIES

_AT_ONCE = 64  # requests; the server queues requests that it cannot compute yet
_SPELLED = 512  # ids of one request: the server holds as many distributions over the whole vocabulary at once
_PART = "\ufffd"  # replaces a part of a character


def vocabulary_hash(tokens: Sequence[str]) -> str:
    """Hash the spelling of each token id, from 0 on; ids without a token are ""."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:16]


def other_vocabulary(name: str, theirs: str, mine: str) -> ConfigError:
    """Make the error of a teacher that has another vocabulary than the policy, with the hashes of both."""
    return ConfigError(
        f"teacher {name!r} has another vocabulary than the policy (hashes {theirs} and {mine}): its logprobs would be "
        "those of other tokens. Take a teacher with the same tokenizer, as of the same family"
    )


class ServedScores:
    """Asks one model of a server; the address may end in # and its name, where there are several.

    Raises:
        ConfigError: if no server answers, it has another vocabulary than the tokenizer, or its context is shorter than
            `tokens` and one more.
    """

    def __init__(self, address: str, tokenizer: Any, tokens: int) -> None:
        self.url, _, name = address.partition("#")
        card = find_model(self.url, name or None)
        self.model = str(card["id"])
        self._longest = longest = card.get("max_model_len")
        if longest is not None and longest <= tokens:
            raise ConfigError(
                f"{self.url} reads {longest} tokens, and a row may have {tokens}: start it with --max-model-len "
                f"{tokens + 1}, or lower max_episode_tokens"
            )
        self._client = connect(self.url, RETRIES, ANSWER_S)
        self._check_vocabulary(tokenizer, min(_SPELLED, (longest or _SPELLED) - 2))

    def _check_vocabulary(self, tokenizer: Any, size: int) -> None:
        ids = list(range(len(tokenizer)))
        mine = [tokenizer.decode([i]) for i in ids]
        # The first token of a request has no logprob, and nothing is written of it.
        parts = [[*ids[start : start + 1], *ids[start : start + size]] for start in range(0, len(ids), size)]
        try:
            theirs = [one["decoded_token"] for part in self._ask(parts) for one in part]
        except RolloutError as error:
            raise ConfigError(f"the teacher cannot read the policy's vocabulary: {error}") from error
        # A part of a character is spelled in several ways.
        whole = [i for i in ids if _PART not in mine[i]]
        hashes = [vocabulary_hash([spelled[i] for i in whole]) for spelled in (theirs, mine)]
        if hashes[0] != hashes[1]:
            raise other_vocabulary(f"{self.url} ({self.model})", *hashes)

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log p(token | the tokens before it) of each token of each row, 0.0 of the first.

        Raises `RolloutError` if the server cannot be reached, reads less than a row, or gives no such logprobs.
        """
        longest = max(map(len, rows), default=0)
        if self._longest is not None and longest >= self._longest:
            raise RolloutError(
                f"{self.url} reads {self._longest} tokens, and a row has {longest}, its hint included: start it with a "
                "larger --max-model-len"
            )
        return [[0.0, *(float(one["logprob"]) for one in row)] for row in self._ask(rows)]

    def _ask(self, rows: Sequence[Sequence[int]]) -> list[list[dict[str, Any]]]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._of_row, rows))

    def _of_row(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The server's entry for each token but the first: `logprob` and `decoded_token`."""
        content: dict[str, Any] = {"model": self.model, "prompt": list(ids), "max_tokens": 1}
        with failures(self.url, RETRIES):
            create = self._client.completions.with_raw_response.create
            given = json.loads(create(**content, extra_body={"prompt_logprobs": 0}).text)["choices"][0]
            _, *others = given["prompt_logprobs"]
            found = [one[str(i)] for one, i in zip(others, ids[1:], strict=True)]
            if not all(math.isfinite(one["logprob"]) for one in found):
                raise ValueError("a logprob is not a number")
            return found
