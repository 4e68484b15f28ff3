"""vLLM in the training process: continuous batching, prefixes kept across turns, weights pushed in memory.

One engine per rank, each with its own requests. Tensor parallelism is left out: all ranks of a group would have to
submit the same requests in the same order. A model that needs it is served by server.py's engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_gym.errors import ConfigError, RolloutError, require
from agent_gym.policies.base import Generation, Request, check_request
from agent_gym.policies.loading import whole_source
from agent_gym.policies.transformers import seed_of
from agent_gym.policies.vllm import SERVED_LIKE_THIS, engine_arguments, finish_reason, process, sampling_arguments
from agent_gym.policies.vllm.load import CacheLoad
from agent_gym.policies.vllm.reload import Reload
from agent_gym.policies.vocabulary import end_tokens
from agent_gym.threads import use_cores

if TYPE_CHECKING:
    from agent_gym.images import Vision


class VLLMPolicy:
    """Samples from a vLLM engine in this process.

    Args:
        model: folder, hub id or prepared name of a model; its weights are replaced by `sync`.
        eos_token_ids: tokens that end a turn. The ones of the model's own configuration are ignored.
        context: longest sequence in tokens, at most the model's limit.
        max_num_seqs: most requests decoded at once; the others wait inside the engine.
        dtype: type of weights and activations, "auto" for that of the checkpoint. None takes float32 on a CPU and
            "auto" on a GPU. Where it differs from the trainer's, so do the logprobs.
        kv_cache_gib: size of the key/value cache on a CPU, in GiB; the environment's `VLLM_CPU_KVCACHE_SPACE` wins.
        gpu_memory_utilization: share of the GPU's memory that the engine takes, cache included.
        sleep: prepare the engine for `sleep`; costs a special allocator. GPU only.
        vision: of the processor's `ChatRenderer`; needed only for requests that show images.
        seed: of the stream that serves requests without their own seed.
        engine_args: further arguments of `vllm.EngineArgs`; they win over the above.

    In a distributed run every rank must construct the policy at the same point. The global random generators and the
    process group are left as they were. `ConfigError` when vLLM is not installed or cannot serve this model here.
    """

    continuous = True

    def __init__(
        self,
        model: str | Path,
        eos_token_ids: Collection[int | None],
        *,
        context: int,
        max_num_seqs: int = 64,
        dtype: str | None = None,
        kv_cache_gib: float = 1.0,
        gpu_memory_utilization: float = 0.4,
        sleep: bool = False,
        vision: Vision | None = None,
        seed: int = 0,
        **engine_args: Any,
    ) -> None:
        ends = sorted(end_tokens(eos_token_ids))
        if engine_args.get("tensor_parallel_size", 1) != 1:
            raise ConfigError(
                f"tensor_parallel_size={engine_args['tensor_parallel_size']} is not supported inside the training "
                "process; use 1, each rank then runs its own engine"
            )
        vllm, platform, output_kind = process.import_vllm()
        self.vision, self.context = vision, context
        self._on_cpu: bool = platform.is_cpu()
        self._sleeps = sleep and not self._on_cpu
        self._asleep: set[str] = set()  # whose memory was given up, by vLLM's names
        self._stale = False
        self._eos_token_ids = ends
        self._seeds = torch.Generator().manual_seed(seed)
        self._pending: dict[int, Request] = {}
        self._heard: Counter[int] = Counter()  # how many tokens were passed on, by request
        self._cache = CacheLoad()
        self._final_only, self._cumulative = output_kind.FINAL_ONLY, output_kind.CUMULATIVE
        self._sampling_params: Callable[..., Any] = vllm.SamplingParams

        arguments: dict[str, Any] = {"model": whole_source(str(model)), "max_num_seqs": max_num_seqs}
        arguments["dtype"] = dtype or ("float32" if self._on_cpu else "auto")
        arguments |= self._common_arguments()
        if self._on_cpu:
            arguments |= self._cpu_arguments(kv_cache_gib)
        else:
            arguments |= {"gpu_memory_utilization": gpu_memory_utilization, "enable_sleep_mode": self._sleeps}
        self._engine: Any = _started(arguments | engine_args, str(model), context)
        self._worker: Any = self._engine.model_executor.driver_worker.worker
        self._scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self._cache.count_preemptions(self._scheduler)
        if self._on_cpu:
            process.install_sampler(self._worker.model_runner)
            use_cores(self._worker.model_runner.get_model())

    def _common_arguments(self) -> dict[str, Any]:
        return {
            "max_model_len": self.context,
            **SERVED_LIKE_THIS,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            **process.executor_arguments(),
            # vLLM makes room for the largest input of each kind when it starts: no image is less than a token.
            **({} if self.vision is None else {"limit_mm_per_prompt": {"image": self.context, "video": 0}}),
        }

    def _cpu_arguments(self, kv_cache_gib: float) -> dict[str, Any]:
        arguments = engine_arguments(self.context, kv_cache_gib)
        arguments["block_size"] = process.block_size(arguments["block_size"])
        process.pass_over_impostors()
        if self.vision is not None:
            process.see_without_torchvision()
        return arguments

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, request: Request) -> None:
        """Queue a request; `RolloutError` when the engine slept or failed to take weights, and was not synced since."""
        check_request(request, self._pending, self.context, sees=self.vision is not None)
        if self._stale:
            raise RolloutError("the engine's weights are gone or only half replaced; call sync before submit")
        sampling = self._sampling_params(
            **sampling_arguments(request.params, seed_of(request.params, self._seeds), self._eos_token_ids),
            flat_logprobs=True,
            output_kind=self._cumulative if request.on_token else self._final_only,
        )
        try:
            self._engine.add_request(str(request.id), self._prompt(request), sampling)
        except ValueError as error:
            raise ConfigError(f"vLLM refuses request {request.id}: {error}") from error
        self._pending[request.id] = request

    def poll(self) -> list[Generation]:
        """Decode one token of every running request; `RolloutError` when the engine fails, which is its end."""
        if not self._pending:
            return []
        try:
            with process.eager() if self._on_cpu else nullcontext():
                outputs = self._engine.step()
        except Exception as error:
            raise RolloutError(f"vLLM failed while decoding: {error}") from error
        self._cache.see(self._scheduler.kv_cache_manager.usage)
        finished = []
        for output in outputs:
            request = self._pending.get(int(output.request_id))
            if request is None:
                continue
            sampled = output.outputs[0]
            if request.on_token:
                news = sampled.token_ids[self._heard[request.id] :]
                self._heard[request.id] += len(news)
                for token in news:
                    request.on_token(token)
            if output.finished:
                if request.images and output.prompt_token_ids != request.prompt_ids:
                    raise RolloutError(
                        "vLLM reads an image as other tokens than its processor says: versions or settings differ"
                    )
                del self._pending[request.id], self._heard[request.id]
                finished.append(self._generation(request.id, sampled))
        return finished

    def take_load(self) -> dict[str, float]:
        return self._cache.take()

    def abort(self, request_id: int) -> None:
        if self._pending.pop(request_id, None):
            del self._heard[request_id]
            self._engine.abort_request([str(request_id)])

    def interrupt(self) -> list[Generation]:
        from vllm.v1.engine import FinishReason as Reason

        begun = []
        processor = self._engine.output_processor
        for request_id in sorted(self._pending):
            # Before the abort, which forgets it.
            (key,) = processor.external_req_ids[str(request_id)]
            state = processor.request_states[key]
            if state.detokenizer.num_output_tokens():
                output = state.make_request_output([], None, Reason.ABORT, None)
                begun.append(self._generation(request_id, output.outputs[0]))
            self.abort(request_id)
        return begun

    def _generation(self, request_id: int, sampled: Any) -> Generation:
        ids, stopped = list(sampled.token_ids), isinstance(sampled.stop_reason, str)
        reason = finish_reason(ids, self._eos_token_ids, sampled.finish_reason, stopped=stopped)
        return Generation(request_id, ids, sampled.logprobs.logprobs[: len(ids)], reason)

    def _prompt(self, request: Request) -> dict[str, Any]:
        if self.vision is None or not request.images:
            return {"prompt_token_ids": request.prompt_ids}
        pillow = require("PIL.Image", "train")
        return {
            # vLLM writes out the tokens of images itself. Images go as Pillow's, whose axes have one meaning only.
            "prompt_token_ids": self.vision.collapse(request.prompt_ids, request.images),
            "multi_modal_data": {"image": [pillow.fromarray(image.pixels) for image, *_ in request.images]},
        }

    def sync(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace every weight, and forget the prefixes that were computed with the old ones.

        The given weights must stay as they are until then: vLLM keeps the weights of a layer until the last has come.

        Raises:
            RolloutError: when requests are pending, or the weights do not cover the model; requests are then refused
                until a sync succeeds.
        """
        if self._pending:
            raise RolloutError(f"{len(self._pending)} requests are pending; finish or abort them before sync")
        self.wake()
        self._stale = True
        reload = Reload(self._worker)
        reload.load(named_weights)
        reload.finish()
        # The cache comes last: the gathered weights are free again.
        self.wake("kv_cache")
        if self.vision is not None:
            # The old weights' features of an image are kept apart from the prefixes, under the image's own name.
            self._engine.reset_encoder_cache()
        for _ in range(3):
            if self._engine.reset_prefix_cache():
                self._stale = False
                return
            # With asynchronous scheduling a batch may still be under way when the last request finishes, and holds on
            # to its blocks until its step is taken.
            self._engine.step()
        raise RolloutError("vLLM would not forget the prefixes it computed with the old weights")

    def wake(self, what: str = "weights") -> None:
        """Take back the memory of weights given up by `sleep`; `sync` does so too, and then takes the rest."""
        if what in self._asleep:
            # The allocator of torch keeps memory that the trainer freed; vLLM's cannot use it.
            torch.cuda.empty_cache()
            self._engine.wake_up([what])
            self._asleep.remove(what)

    def sleep(self) -> None:
        """Give back the memory of weights and cache; on a CPU, or without `sleep=True`, do nothing."""
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=2)
            self._asleep, self._stale = {"weights", "kv_cache"}, True

    def close(self) -> None:
        engine, self._engine, self._worker, self._scheduler = self._engine, None, None, None
        self._pending.clear()
        if engine is not None:
            process.stop_engine(engine)


def _started(arguments: dict[str, Any], model: str, context: int) -> Any:
    try:
        return process.start_engine(arguments)
    except Exception as error:  # from a wrong path over too little memory to a missing `lscpu`
        # On one line, without the dump of arguments that pydantic adds.
        reason = " ".join(str(error).split(" [type=")[0].split())[:400].rstrip(".")
        raise ConfigError(
            f"vLLM cannot serve {model!r}: {reason}. Check the model's path "
            f"and that it allows a context of {context}; if memory is short, lower `context` or "
            "`max_num_seqs`, or change `kv_cache_gib` (CPU) or `gpu_memory_utilization` (GPU)"
        ) from error
