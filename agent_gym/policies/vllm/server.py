"""vLLM over HTTP: engines on other GPUs or machines, asked with token ids and answered with token ids.

Each rank asks for its own episodes. Weights go from rank 0 to the servers between rollouts. The servers are the ones
that `agent-gym serve model` starts. Of several one may die: its turns are sampled anew by the others, with the same
seeds, and it is asked again when it has been started again and given weights. aiohttp and not httpx, whose pool grows
slow with a thousand connections; JSON from pydantic and not from Python, which takes several times as long for the ids
of a long context.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import warnings
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json, to_json

from agent_gym.distributed import barrier_on_error, gather
from agent_gym.errors import ConfigError, RolloutError, require
from agent_gym.policies.base import Generation, Request, check_request
from agent_gym.policies.served import ServedPolicy
from agent_gym.policies.transformers import seed_of
from agent_gym.policies.vllm import finish_reason, sampling_arguments
from agent_gym.policies.vllm.buckets import Weights
from agent_gym.policies.vllm.launch import VARIABLE, WEIGHTS, server_key
from agent_gym.policies.vllm.load import CacheLoad
from agent_gym.policies.vllm.weights import WeightSender
from agent_gym.policies.vocabulary import end_tokens

_RETRIES = 3  # how often a request is sent again, with the same seed, when its connection breaks
_PAUSE_S = 0.5  # before that, doubled each time
_AGAIN_S = 0.25  # before an abort is repeated: its request may have arrived after it
_SILENCE_S = 30.0  # of a server, after which it is asked whether it lives
_HEALTH_S = 10.0
_LOOK_S = 1.0  # between two looks at a server


class _Lost(RolloutError):
    """A server is dead, or another one than before: its requests may go to others."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. The last checkpoint is whole: start the server again and resume with --resume_from_checkpoint"
        )
        self.what = what


class VLLMServerPolicy(ServedPolicy):
    """Samples from vLLM servers.

    Args:
        urls: one server or several ("http://10.0.0.2:8010"). Ranks are spread over them.
        context: longest sequence in tokens; the servers must allow it.
        seed: of the stream that serves requests without their own seed, with the rank.
        transfer, folder: how weights get to the servers, see `WeightSender`.
        start_timeout_s: seconds to wait for servers that are still loading.
        key: the key of the servers; by default the user's, see launch.py.
        socket: path of a socket of this machine, at which the only server listens instead of at its address.

    In a distributed run every rank must construct the policy, and call `sync`, at the same point.
    `ConfigError` for addresses that are none, or servers that do not answer or allow shorter sequences only.
    """

    def __init__(
        self,
        urls: Sequence[str],
        eos_token_ids: Collection[int | None],
        *,
        context: int,
        seed: int = 0,
        transfer: str = "auto",
        folder: str | Path | None = None,
        start_timeout_s: float = 240.0,
        key: str | None = None,
        socket: str | None = None,
    ) -> None:
        self._aiohttp = require("aiohttp", "train")
        self.urls = [url.rstrip("/") for url in urls]
        for url in self.urls or [""]:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"{url!r} is not an address of a server; it must be like 'http://127.0.0.1:8010'")
        self._key, self._socket = key or server_key(), socket
        self._distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._rank = torch.distributed.get_rank() if self._distributed else 0
        ranks = torch.distributed.get_world_size() if self._distributed else 1
        # With more ranks than servers each rank keeps to one, which then finds the beginnings of its episodes again.
        self._mine = self.urls[self._rank :: ranks] or [self.urls[self._rank % len(self.urls)]]
        self._load = dict.fromkeys(self._mine, 0)
        self._down: set[str] = set()  # servers that died, until a sync finds them again
        self._synced = False
        # Which server has the beginning of an episode, by `id`: where one comes again, at most a prefix is missed.
        self._homes: dict[int, str] = {}
        self._sends = self._rank == 0  # whether this process hands weights over
        self._eos_token_ids = sorted(end_tokens(eos_token_ids))
        self._seeds = torch.Generator().manual_seed(seed * 1_000_003 + self._rank)
        self._sender = WeightSender(self, transfer, folder)
        self.context = context
        self._heard = dict.fromkeys(self.urls, 0.0)  # when each server answered last
        super().__init__("vllm-server")
        self._session: Any = self._call(self._open_session())
        self._cache = CacheLoad()
        self._watch = asyncio.run_coroutine_threadsafe(self._look(), self._loop)
        try:
            with barrier_on_error():
                for url in self.urls if self._rank == 0 else self._mine:
                    self._await_server(url, start_timeout_s)
        except BaseException:
            self.close()
            raise

    def take_load(self) -> dict[str, float]:
        """As `Measured`: how full this rank's servers were, by this run or by others."""
        return self._cache.take()

    def submit(self, request: Request) -> None:
        check_request(request, self._pending, self.context)
        url = self._server_for(request.episode)
        self._load[url] += 1
        name = uuid.uuid4().hex
        seed = seed_of(request.params, self._seeds)
        content = {
            "request_id": name,
            "token_ids": request.prompt_ids,
            "sampling_params": sampling_arguments(request.params, seed, self._eos_token_ids),
        }
        self._begin(request, self._generate(request, url, content), name)

    def _server_for(self, episode: object) -> str:
        """Return the server of an episode's last turn, or the one with the least to do where that has twice as much."""
        if self._down.issuperset(self._load):  # this rank's own
            self._load |= {url: self._load.get(url, 0) for url in self.living}
        asked = [url for url in self._load if url not in self._down]
        least = min(asked, key=self._load.__getitem__)
        home = least if episode is None else self._homes.get(id(episode), least)
        home = least if home in self._down else home
        # Counted with this request: otherwise a single one would be twice nothing.
        if self._load[home] + 1 > 2 * (self._load[least] + 1):
            home = least
        self._homes[id(episode)] = home
        return home

    def poll(self) -> list[Generation]:
        found = super().poll()
        if any(generation.finish_reason == "abort" for generation in found):
            raise RolloutError(f"a model server aborted a request without being asked to; {', '.join(self._mine)}")
        return found

    def interrupt(self) -> list[Generation]:
        begun: list[Generation] = []
        while self._pending:
            # By name, since other ranks may use the same server. The endpoint puts this word in front of each.
            names = [f"generate-tokens-{name}" for *_, name in self._pending.values()]
            for url in [url for url in self._load if url not in self._down]:
                try:
                    self._call(self._post(url, "/abort_requests", {"request_ids": names}))
                except _Lost as error:
                    self._leave_out(url, error)
            until = time.monotonic() + _AGAIN_S
            while self._pending and time.monotonic() < until:
                begun += super().poll()
        return [generation for generation in begun if generation.token_ids]

    async def _generate(self, request: Request, url: str, content: dict[str, Any]) -> Generation:
        try:
            headers = {WEIGHTS: "wanted"} if self._synced else {}
            choice = (await self._post(url, "/inference/v1/generate", content, headers=headers))["choices"][0]
            token_ids = choice["token_ids"]
            logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
            stopped = bool(request.params.stop) and choice["finish_reason"] == "stop"
            reason = finish_reason(token_ids, self._eos_token_ids, choice["finish_reason"], stopped=stopped)
            return Generation(request.id, token_ids, logprobs, reason)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise RolloutError(f"{url} answered strangely: {error!r}") from error
        except _Lost as error:
            self._leave_out(url, error)
            other = self._server_for(request.episode)
            self._load[other] += 1
            return await self._generate(request, other, content)
        finally:
            self._load[url] -= 1

    def _leave_out(self, url: str, error: _Lost) -> None:
        """Continue without a server, or raise its error if it is the last one."""
        if url not in self._down:
            if not [other for other in self.living if other != url]:
                raise error
            self._down.add(url)
            what = f"{url} is left out until it has new weights, the others take its turns: {error.what}"
            warnings.warn(what, stacklevel=2)

    # Weights.

    def sync(self, named_weights: Weights) -> None:
        """Replace the weights of all servers; every rank calls it, rank 0 sends, and `RolloutError` reaches all."""
        weights = iter(named_weights)
        self._look_for_servers()
        with barrier_on_error():
            try:
                if self._pending:
                    raise RolloutError(f"{self.pending} requests are pending; finish or abort them before sync")
                self._homes.clear()  # the prefixes go with the old weights
                if self._sends:
                    self._hand_over(weights)
                self._synced = True
            finally:
                # All ranks read the weights, also when one has failed: gathering a sharded weight takes all of them.
                for _ in weights:
                    pass

    @property
    def living(self) -> list[str]:
        return [url for url in self.urls if url not in self._down]

    def _look_for_servers(self) -> None:
        """Leave out servers that do not answer, in all processes, and take back the ones that answer again."""
        if len(self.urls) == 1:
            return
        down = set(gather({u for u in self.urls if not self._call(self._lives(u))} if self._sends else None)[0] or ())
        down = set() if len(down) == len(self.urls) else down  # then there is an error to report
        if down or self._down:
            self._sender.forget()
        self._down = down

    def _hand_over(self, weights: Weights) -> None:
        self._sender.send(weights)
        for url in self.living:
            try:
                answer = self._call(self._post(url, "/reset_prefix_cache", {}))
            except _Lost as error:
                self._leave_out(url, error)
                continue
            if not answer["success"]:
                raise RolloutError(f"{url} would not forget the prefixes it computed with the old weights")

    def call_workers(
        self, method: str, arguments: Sequence[dict[str, Any]], *, spare: bool = False
    ) -> Future[list[Any]]:
        """Call a method of `WeightReceiver` with the arguments for each server; return its workers' results.

        With `spare` a server that has died is left out, if there are others.
        """

        async def call(url: str, kwargs: dict[str, Any]) -> list[dict[str, str]]:
            content = {"method": method, "kwargs": kwargs}
            headers = {WEIGHTS: "given"} if method == "finish_weights" else {}
            try:
                answer = await self._post(url, "/collective_rpc", content, repeatable=False, headers=headers)
            except _Lost as error:
                if not spare:
                    raise
                self._leave_out(url, error)
                return []
            workers = answer["results"]
            for worker in workers:
                if worker.get("error"):
                    raise RolloutError(f"{url} did not take the weights: {worker['error']}")
            return workers

        async def call_all() -> list[Any]:
            return await asyncio.gather(*map(call, self.living, arguments))

        return asyncio.run_coroutine_threadsafe(call_all(), self._loop)

    def world_sizes(self) -> list[int]:
        return [from_json(self._call(self._get(url, "/get_world_size")))["world_size"] for url in self.living]

    def wake(self) -> None:
        """Do nothing: the server has its memory for itself."""

    def sleep(self) -> None:
        """Do nothing, as `wake`."""

    def close(self) -> None:
        self._sender.close()
        self._watch.cancel()
        super().close()

    async def _disconnect(self) -> None:
        await self._session.close()

    # HTTP.

    async def _open_session(self) -> Any:
        # No limit on connections: the server queues requests that it cannot decode yet. No limit on time either: a long
        # turn on a busy server is not a failure, and `_while_it_lives` finds out who is dead.
        if self._socket is None:
            connector = self._aiohttp.TCPConnector(limit=0)
        else:
            connector = self._aiohttp.UnixConnector(self._socket, limit=0)
        return self._aiohttp.ClientSession(
            connector=connector,
            timeout=self._aiohttp.ClientTimeout(total=None),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )

    async def _post(
        self,
        url: str,
        path: str,
        content: dict[str, Any],
        *,
        repeatable: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        for attempt in range(_RETRIES + 1):
            try:
                status, answer = await self._while_it_lives(url, self._send(url + path, content, headers))
                self._heard[url] = time.monotonic()
                if status == 200:
                    return from_json(answer or b"null")
                text = answer.decode(errors="replace")[:300]
                if status == 409:
                    raise _Lost(f"the model server {url} was started again and has no weights of this run: {text}")
                if status >= 500 and not await self._lives(url, looks=10):  # /health may show it later
                    raise _Lost(f"the engine of the model server {url} has ended: {text}")
                cure = "; start it with `agent-gym serve model`" if status == 404 else ""
                raise RolloutError(f"the model server {url} answered {status} to {path}: {text}{cure}")
            except (self._aiohttp.ClientError, OSError) as error:
                if attempt == _RETRIES or not repeatable:
                    what = f"{type(error).__name__}: {error}), tried {attempt + 1} times"
                    raise _Lost(f"the model server {url} cannot be reached ({what}") from error
            await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, address: str, content: Any, headers: Mapping[str, str] | None) -> tuple[int, bytes]:
        async with self._session.post(address, data=to_json(content), headers=headers) as answer:
            return answer.status, await answer.read()

    async def _while_it_lives(self, url: str, answer: Coroutine[Any, Any, tuple[int, bytes]]) -> tuple[int, bytes]:
        """Wait as long as the server lives: one whose engine has been killed may keep a call open for ever."""
        task = asyncio.ensure_future(answer)
        try:
            while not (await asyncio.wait([task], timeout=_SILENCE_S))[0]:
                if time.monotonic() - self._heard[url] > _SILENCE_S and not await self._lives(url):
                    raise _Lost(f"the model server {url} has ended, or its engine has: it gives no answer")
            return task.result()
        finally:
            task.cancel()

    async def _get(self, url: str, path: str) -> bytes:
        timeout = self._aiohttp.ClientTimeout(total=_HEALTH_S)
        async with self._session.get(url + path, timeout=timeout) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def _lives(self, url: str, looks: int = 1) -> bool:
        """Whether, at each look, a server answers, and its engine, a separate process, has not ended."""
        for look in range(looks):
            await asyncio.sleep(_LOOK_S if look else 0.0)
            try:
                await self._get(url, "/health")
                self._heard[url] = time.monotonic()
            except (self._aiohttp.ClientError, OSError):
                return False
        return True

    async def _look(self) -> None:
        """Look at the caches of this rank's servers while they have something to do."""
        while True:
            for url in set(self._load) - self._down if self._pending else ():
                with suppress(self._aiohttp.ClientError, OSError):  # who waits for an answer finds out who is dead
                    self._cache.read(url, (await self._get(url, "/metrics")).decode())
            await asyncio.sleep(_LOOK_S)

    def _await_server(self, url: str, timeout_s: float) -> None:
        """Wait until a server has loaded, and check its limits."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                allowed = from_json(self._call(self._get(url, "/v1/models")))["data"][0].get("max_model_len")
                self._call(self._get(url, "/get_world_size"))
                break
            except (self._aiohttp.ClientError, OSError, TimeoutError) as error:
                if getattr(error, "status", None) == 401:
                    raise ConfigError(f"{url} has another key than this trainer: set the same {VARIABLE}") from error
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"no model server at {url} within {timeout_s:g} s ({type(error).__name__}: {error}); start one "
                        "with `agent-gym serve model`, or correct the address"
                    ) from error
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise ConfigError(f"{url} is not a vLLM server: {error!r}") from error
            self._check_start()
            time.sleep(min(1.0, timeout_s))
        if allowed is not None and allowed < self.context:
            raise ConfigError(
                f"the server {url} allows {allowed} tokens and episodes may have {self.context}; start it with "
                f"--context {self.context}, or lower max_episode_tokens"
            )

    def _check_start(self) -> None:
        """Raise `ConfigError` if it is known that a server will not come."""
