"""The memory in which weights travel: what is in a bucket, and files that both ends see.

Memory of a GPU that both ends see is in test_gpu_contract.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.policies.vllm import buckets  # noqa: E402
from agent_gym.policies.vllm.buckets import Bucket, FileBucket, Finder, pack, unpack  # noqa: E402

CPU = torch.device("cpu")
WEIGHTS = {
    "bytes": torch.arange(3, dtype=torch.uint8),  # the next may not begin right behind it
    "half": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "number": torch.tensor(2.5),
    "turned": torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).T,
    "large": torch.randn(3000, generator=torch.Generator().manual_seed(2)),
}


def gathered() -> Iterator[tuple[str, torch.Tensor]]:
    """Weights in memory that is used again for the next, as a sharded trainer may do."""
    for name, weight in WEIGHTS.items():
        whole = weight.clone()
        yield name, whole
        whole.zero_()


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float32])
def test_buckets_hold_each_weight_once_in_the_type_of_the_engine_where_that_is_smaller(
    bucket_bytes: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", bucket_bytes)
    found, sizes = [], []
    for contents, bucket, used in pack(gathered(), dtype, [Bucket(CPU), Bucket(CPU)]):
        named = unpack(json.loads(json.dumps(contents)), bucket.memory[:used])
        found += [(name, weight.clone()) for name, weight in named]
        sizes.append(used)
    assert [name for name, _ in found] == list(WEIGHTS)
    for name, weight in found:
        kind = torch.bfloat16 if dtype == torch.bfloat16 and name != "bytes" else WEIGHTS[name].dtype
        assert weight.dtype == kind and torch.equal(weight, WEIGHTS[name].to(kind)), name
    largest = max(weight.numel() * 4 for weight in WEIGHTS.values())
    assert max(sizes) <= max(bucket_bytes, largest) and (len(sizes) == 1) == (bucket_bytes == 1 << 20)


def test_two_buckets_take_turns_and_one_that_has_grown_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 64)
    pair, taken = [Bucket(CPU), Bucket(CPU)], []
    sizes = [500, 64, 100, 100, 100, 40, 160]
    named = [(str(size), torch.zeros(size, dtype=torch.uint8)) for size in sizes]
    for contents, bucket, used in pack(named, None, pair):
        taken.append((pair.index(bucket), [size for *_, (size,), _ in contents]))
        assert used <= len(bucket.memory) and len({memory.data_ptr() for memory in (b.memory for b in pair)}) == 2
    assert taken == [(0, [500]), (1, [64]), (0, [100, 100, 100, 40]), (1, [160])]
    assert [len(bucket.memory) for bucket in pair] == [500, 160]


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_holds_a_bucket_until_it_is_closed(
    mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_MEMORY", tmp_path)
    bucket, finder = FileBucket(None if mapped else tmp_path), Finder(CPU)
    for size in (10, 5000):
        bucket.grow(size)
        for seed in range(2):
            written = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
            bucket.memory.copy_(written)
            assert torch.equal(finder.find(bucket.address(size - 1), size - 1), written[:-1])
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0, "others cannot read the weights"
    address = bucket.address(size)
    bucket.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(RolloutError, match="the server does not see .*trainer and server must share that folder"):
        finder.find(address, size)


def test_a_lack_of_memory_is_an_error_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(buckets, "_MEMORY", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RolloutError, match=f"the weights cannot be written to {tmp_path}: .*No space left"):
        FileBucket(None).grow(10)
