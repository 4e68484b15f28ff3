"""What only a GPU runs, held to what the installed libraries offer, and the list of what no test has run.

On CUDA vLLM takes its second model runner (V2), of which the CPU build has the source and not the kernels: here its
names and signatures are compared with what agent_gym uses. NCCL is in no CPU build of torch: a stand-in records what is
asked of it and moves the bytes by gloo, so that our own lines run.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tokenize
from collections import Counter
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOT_RUN = ROOT / "docs" / "not_run.md"
LINKS = tuple(f"agent_gym/{room}/" for room in ("envs", "trainers", "registry", "examples"))
torch = pytest.importorskip("torch")


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
    # Its `reload_weights` is that of V1 with another object as `self`: everything that this one reads must be there.
    assert "GPUModelRunnerV1.reload_weights(self" in inspect.getsource(V2.reload_weights)
    assert "weights_iterator" in inspect.signature(V1.reload_weights).parameters
    read = attributes_of_self(V1.reload_weights)
    assert {"get_model", "reset_lora_state", "reset_encoder_cache", "reset_mm_cache"} <= read
    assert not [name for name in sorted(read) if not has(V2, name)]
    assert "self.model_runner.reload_weights(*args, **kwargs)" in inspect.getsource(Worker.reload_weights)
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
