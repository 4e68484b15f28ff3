"""What only a GPU runs, held to what the installed libraries offer, and the list of what no test has run.

On CUDA vLLM takes its second model runner (V2), of which the CPU build has the source and not the kernels: here its
names and signatures are compared with what agent_gym uses. NCCL and CUDA IPC are in no CPU build of torch: stand-ins
record what is asked of them and move the bytes by gloo and by a mapped file, so that our own lines run.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import tokenize
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOT_RUN = ROOT / "docs" / "not_run.md"
LINKS = tuple(f"agent_gym/{room}/" for room in ("envs", "trainers", "registry"))
torch = pytest.importorskip("torch")

from agent_gym.errors import RolloutError  # noqa: E402

# vLLM's model runner V2.


def attributes_of_self(function: Any) -> set[str]:
    """Names of what a method reads of its object."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def has(kind: type, name: str) -> bool:
    """Whether a class has an attribute, of its own, inherited, or set in a method of a class that it is made of."""
    written = (inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("vllm"))
    return hasattr(kind, name) or any(re.search(rf"\bself\.{name}\b\s*(:[^=\n]*)?=[^=]", text) for text in written)


@pytest.mark.vllm
def test_the_runner_that_a_gpu_takes_has_what_is_used_of_it() -> None:
    pytest.importorskip("vllm")
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1
    from vllm.v1.worker.gpu_worker import Worker

    assert list(inspect.signature(V2.get_model).parameters) == ["self"]
    assert has(V2, "device"), "policies/vllm/weights.py asks where the weights go"
    # Up to vLLM 0.31 its `reload_weights` is that of V1 with another `self`; from 0.32 on both call one function.
    # Everything that the method reads of the runner must be there, as policies/vllm/reload.py takes the same steps.
    borrowed = "GPUModelRunnerV1.reload_weights(self" in inspect.getsource(V2.reload_weights)
    method = V1.reload_weights if borrowed else V2.reload_weights
    assert "weights_iterator" in inspect.signature(method).parameters
    read = attributes_of_self(method)
    assert {"get_model", "reset_lora_state", "reset_encoder_cache", "reset_mm_cache"} <= read
    assert not [name for name in sorted(read) if not has(V2, name)]
    assert "self.model_runner.reload_weights(*args, **kwargs)" in inspect.getsource(Worker.reload_weights)
    assert has(V2, "model_config") and has(V1, "model_config")
    assert has(Worker, "parallel_config") and has(Worker, "model_runner")
    assert list(inspect.signature(Worker.sleep).parameters) == ["self", "level"]


@pytest.mark.vllm
def test_the_engine_has_what_is_used_of_it() -> None:
    vllm = pytest.importorskip("vllm")
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher, UniProcExecutor

    engine = vllm.LLMEngine
    for name in ("add_request", "abort_request", "step", "reset_prefix_cache", "reset_encoder_cache", "wake_up"):
        assert callable(getattr(engine, name)), name
    assert "level" in inspect.signature(engine.sleep).parameters
    assert has(engine, "output_processor") and has(engine, "model_executor") and has(engine, "engine_core")
    assert has(OutputProcessor, "external_req_ids") and has(OutputProcessor, "request_states")
    made = list(inspect.signature(RequestState.make_request_output).parameters)
    assert made[1:5] == ["new_token_ids", "pooling_output", "finish_reason", "stop_reason"]
    assert has(UniProcExecutor, "driver_worker") and issubclass(ExecutorWithExternalLauncher, UniProcExecutor)
    known = inspect.signature(vllm.EngineArgs).parameters
    assert {"gpu_memory_utilization", "enable_sleep_mode", "distributed_executor_backend", "logprobs_mode"} <= {*known}


# NCCL.


class RecordingNCCL:
    """A process group with the constructor of torch's `ProcessGroupNCCL`; gloo moves the bytes."""

    calls: list[tuple[str, Any]] = []

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
        self.calls.append(("made", (rank, size, options._timeout)))
        self._group = torch.distributed.ProcessGroupGloo(store, rank, size, options._timeout)

    def broadcast(self, tensor: Any, root: int) -> Any:
        self.calls.append(("broadcast", (tensor.dtype, tensor.numel(), root)))
        return self._group.broadcast(tensor, root)

    def abort(self) -> None:
        self.calls.append(("abort", None))
        self._group.abort()


def test_weights_go_through_nccl_as_through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_gym.policies.vllm import broadcast

    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", RecordingNCCL, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # For this module alone: its GPU is the CPU.
    seen = SimpleNamespace(**{**vars(torch), "device": lambda *words: torch.zeros(0).device})
    monkeypatch.setattr(broadcast, "torch", seen)
    monkeypatch.setattr(RecordingNCCL, "calls", [])
    buckets = [torch.arange(200, dtype=torch.uint8), torch.full((7,), 3, dtype=torch.uint8)]
    received: list[Any] = []
    store = broadcast.open_store("127.0.0.1")

    def receive() -> None:
        channel = broadcast.Channel(broadcast.reach_store("127.0.0.1", store.port), 1, 2, "nccl")
        for bucket in buckets:
            received.append(torch.zeros_like(bucket))
            channel.broadcast(received[-1])

    thread = Thread(target=receive)
    thread.start()
    channel = broadcast.Channel(store, 0, 2, "nccl")
    for bucket in buckets:
        channel.broadcast(bucket)
    thread.join(60)
    channel.close()
    assert [bucket.tolist() for bucket in received] == [bucket.tolist() for bucket in buckets]
    made = [what for call, what in RecordingNCCL.calls if call == "made"]
    assert sorted((rank, size) for rank, size, _ in made) == [(0, 2), (1, 2)]
    assert all(timeout.total_seconds() > 60 for *_, timeout in made), "NCCL's own limit would end a long gathering"
    roots = Counter(what[2] for call, what in RecordingNCCL.calls if call == "broadcast")
    assert set(roots) == {0} and roots[0] % 2 == 0, "both ends ask for the same messages"
    assert RecordingNCCL.calls[-1] == ("abort", None)


# CUDA IPC.


class RecordingCard:
    """A GPU that two processes share, in place of `torch.cuda`; mapped files are its memory.

    `calls` are in order: "told" and "found" of a piece of memory, by its number, "trainer waits", "worker waits" and
    "collect".
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.calls, self.error, self._made = folder, [], None, 0  # type: ignore[var-annotated]

    def torch(self, side: str) -> Any:
        """Return torch for a module of one side, with a GPU."""
        cuda = SimpleNamespace(
            is_available=lambda: True,
            current_device=lambda: 3,
            synchronize=lambda device: self.calls.append(f"{side} waits"),
            ipc_collect=lambda: self.calls.append("collect"),
            get_device_properties=lambda device: SimpleNamespace(uuid="GPU-1"),
        )
        other = {"cuda": cuda, "device": lambda kind, index=0: SimpleNamespace(type=kind, index=index)}
        return SimpleNamespace(**{**vars(torch), **other, "empty": self.empty})

    def empty(self, size: int, dtype: Any, device: Any) -> Any:
        if not size:
            return torch.empty(0, dtype=dtype)
        self._made += 1
        (self._folder / str(self._made)).write_bytes(bytes(size))
        return torch.from_file(str(self._folder / str(self._made)), shared=True, size=size, dtype=dtype)

    def share(self, storage: Any) -> tuple[Any, ...]:
        self.calls.append(f"told {self._made}")
        return 3, str(self._made).encode(), storage.nbytes(), 0, b"counter", 7, b"event\0", True

    def find(self, device: int, handle: bytes, size: int, *rest: Any) -> Any:
        assert (device, rest) == (0, (0, b"counter", 7, b"event\0", True))
        if self.error:
            raise self.error
        self.calls.append(f"found {handle.decode()}")
        return torch.UntypedStorage.from_file(str(self._folder / handle.decode()), True, size)


class LoneServer:
    """A server with `workers` in this process, asked as by HTTP, of which the first takes weights."""

    living = ["http://localhost"]

    def __init__(self, workers: int, loaded: dict[str, Any]) -> None:
        from agent_gym.policies.vllm.weights import WeightReceiver

        model, device = torch.nn.Linear(1, 1, dtype=torch.bfloat16), SimpleNamespace(type="cuda", index=0)
        self.workers = [WeightReceiver() for _ in range(workers)]
        for worker in self.workers:
            worker.model_runner = SimpleNamespace(get_model=lambda: model, device=device)
        self.loaded, self.asked = loaded, []  # type: ignore[var-annotated]

    def call_workers(self, method: str, arguments: Any, *, spare: bool = False) -> Future[list[Any]]:
        self.asked.append(method)
        answer: Future[list[Any]] = Future()
        found = [getattr(worker, method)(**json.loads(json.dumps(arguments[0]))) for worker in self.workers]
        if errors := [one["error"] for one in found if one.get("error")]:
            answer.set_exception(RolloutError(errors[0]))
        else:
            answer.set_result([found])
        return answer


class Loaded:
    """In place of a `Reload`: copies what comes."""

    def __init__(self, worker: Any) -> None:
        self.weights: dict[str, Any] = {}

    def load(self, named_weights: Any) -> None:
        self.weights |= {name: weight.clone() for name, weight in named_weights}

    def keep(self, memory: Any) -> None:
        pass

    def finish(self) -> None:
        LOADED.clear()
        LOADED.update(self.weights)


LOADED: dict[str, Any] = {}
SIZES = (20, 900, 700, 850, 30)
NAMED = {str(n): torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in SIZES}


@pytest.fixture
def shared_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingCard:
    from agent_gym.policies.vllm import buckets, weights

    card = RecordingCard(tmp_path)
    monkeypatch.setattr(buckets, "torch", card.torch("trainer"))
    monkeypatch.setattr(weights, "torch", card.torch("worker"))
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 100)
    monkeypatch.setattr(weights, "Reload", Loaded)
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda storage: card.share(storage), raising=False)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", staticmethod(card.find), raising=False)
    return card


def check_sync(sender: Any) -> None:
    LOADED.clear()
    sender.send(NAMED.items())
    assert LOADED.keys() == NAMED.keys()
    assert all(torch.equal(LOADED[name], weight.bfloat16()) for name, weight in NAMED.items())


def test_weights_go_through_the_memory_of_a_shared_gpu(shared_card: RecordingCard) -> None:
    from agent_gym.policies.vllm.weights import WeightSender

    server = LoneServer(1, LOADED)
    sender = WeightSender(server, "auto", None)  # type: ignore[arg-type]
    for _ in range(2):
        check_sync(sender)
    buckets = ["receive_bucket"] * 4
    assert server.asked == ["describe", "read_bucket", *buckets, "finish_weights", *buckets, "finish_weights"]
    calls = shared_card.calls
    told, found = ([call.split()[1] for call in calls if call.startswith(word)] for word in ("told", "found"))
    # One to try, and in each sync two buckets, of which one grows.
    assert told == found and len({*told}) == 1 + 2 * 3, "each piece is told and found once: torch counts"
    waits = [call for call in calls if call.endswith("waits")]
    assert waits == ["trainer waits"] + ["trainer waits", "worker waits"] * 8
    assert calls[-2:] == ["collect", "collect"] and server.workers[0]._finder is None, "nobody holds the memory now"


@pytest.mark.parametrize("error", [RuntimeError("pidfd_getfd: Operation not permitted"), None])
def test_weights_go_through_files_where_the_gpus_memory_cannot_be_shared(
    error: Exception | None, shared_card: RecordingCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_gym.policies.vllm.weights import WeightSender

    shared_card.error = error
    if error is None:
        empty = torch.UntypedStorage(16, device="cpu").fill_(0)
        monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", staticmethod(lambda *handle: empty))
    server = LoneServer(1, LOADED)
    sender = WeightSender(server, "auto", None)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=f"weights go through files, because .*{error or 'other bytes'}") as caught:
        check_sync(sender)
    check_sync(sender)
    assert len(caught) == 1 and server.asked.count("read_bucket") == 1, "it is tried once"


def test_memory_of_a_gpu_has_one_reader(shared_card: RecordingCard, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_gym.policies.vllm import weights

    monkeypatch.setattr(weights.WeightSender, "_join", lambda self: None)  # between GPUs it would be a broadcast
    server = LoneServer(2, LOADED)
    check_sync(weights.WeightSender(server, "auto", None))  # type: ignore[arg-type]
    assert "read_bucket" not in server.asked and not shared_card.calls.count("told 1")


def test_what_torch_tells_of_shared_memory_is_what_it_wants_to_find_it() -> None:
    from torch.multiprocessing import reductions

    told = re.search(r"\(([^()]*)\) = storage._share_cuda_\(\)", inspect.getsource(reductions.reduce_tensor))
    wanted = re.search(r"_new_shared_cuda\(([^()]*)\)", inspect.getsource(reductions.rebuild_cuda_tensor))
    assert told and wanted
    names = [[name.strip().removeprefix("storage_") for name in one[1].split(",")][:8] for one in (told, wanted)]
    assert names[0] == names[1] and names[0][0] == "device"


# What no test has run.


def places(file: Path) -> set[str]:
    """Return `file: function` for what names cuda or nccl outside of comments and docstrings."""
    with file.open("rb") as stream:
        tokens = list(tokenize.tokenize(stream.readline))
    lines = {t.start[0] for t in tokens if t.type != tokenize.COMMENT and re.search("cuda|nccl", t.string, re.I)}
    scopes = [(0, "module")]

    def visit(node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                lines.difference_update(range(child.lineno, (child.end_lineno or 0) + 1))
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                inner = f"{place}.{child.name}".lstrip(".")
                # What follows it belongs to what is around it again.
                scopes.extend([(child.lineno, inner), ((child.end_lineno or 0) + 1, place or "module")])
            visit(child, inner)

    visit(ast.parse(file.read_text()), "")
    # Of two that begin in a line the later is the inner one.
    return {
        f"{file.relative_to(ROOT).as_posix()}: {max((s for s in scopes if s[0] <= line), key=lambda s: s[0])[1]}"
        for line in lines
    }


def test_all_code_for_gpus_stands_in_the_list_of_what_was_not_run() -> None:
    files = [file for room in ("agent_gym", "trainers", "registry", "examples") for file in (ROOT / room).rglob("*.py")]
    own = [file for file in files if not file.relative_to(ROOT).as_posix().startswith(LINKS)]
    found = set().union(*map(places, own))
    rows = re.findall(r"^\| `(\S+\.py)` `([\w.]+)` \|", NOT_RUN.read_text(), re.MULTILINE)
    listed = {f"{file}: {place}" for file, place in rows}
    assert not found - listed, (
        f"add what is new to {NOT_RUN.name}, with the test that runs it or the reason why none does"
    )
    assert not listed - found, f"take what is gone out of {NOT_RUN.name}"


def test_the_tests_that_the_list_names_exist() -> None:
    named = re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`", NOT_RUN.read_text())
    assert named
    for file, function in named:
        assert f"def {function}" in (ROOT / file).read_text(), (file, function)
