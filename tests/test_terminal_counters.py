"""How a command's counters read the kernel's files, in the forms of machines that are not this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_gym.sandbox.inside.groups import Group
from agent_gym.sandbox.inside.usage import UsageMeter

MEMORY = 100 << 20


def opened(path: Path, text: str) -> int:
    path.write_text(text)
    return os.open(path, os.O_RDONLY)


def meter(tmp_path: Path, total_kb: int, available_kb: int) -> UsageMeter:
    lines = f"MemTotal: {total_kb} kB\nMemFree: 10 kB\nMemAvailable: {available_kb} kB\nBuffers: 1 kB\n"
    loadavg = opened(tmp_path / "loadavg", "0.1 0.1 0.1 1/20 77\n")
    return UsageMeter(1.0, MEMORY, None, None, opened(tmp_path / "meminfo", lines), loadavg)


@pytest.mark.parametrize(("total", "available"), [(8_000_000, 400_000), (64_000_000, 524_288), (64_000_000, 3_000_000)])
def test_no_command_ends_while_the_reserve_of_the_machine_is_there(total: int, available: int, tmp_path: Path) -> None:
    one = meter(tmp_path, total, available)
    assert not any(one._short(float(now), MEMORY) for now in range(100))


@pytest.mark.parametrize(("total", "available"), [(8_000_000, 399_000), (64_000_000, 524_000), (1_000_000, 0)])
def test_the_largest_command_ends_first_in_a_shortage(total: int, available: int, tmp_path: Path) -> None:
    large, small = (meter(tmp_path, total, available) for _ in range(2))
    assert large._short(100.0, MEMORY)
    assert not small._short(100.0, MEMORY // 10)
    assert not small._short(101.7, MEMORY // 10)
    assert small._short(101.9, MEMORY // 10)


def test_a_shortage_that_has_passed_is_forgotten(tmp_path: Path) -> None:
    one = meter(tmp_path, 8_000_000, 1000)
    assert not one._short(100.0, 0)
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 900000 kB\n")
    assert not one._short(103.0, 0)
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 1000 kB\n")
    assert not one._short(104.0, 0)


def test_memory_of_a_group_of_either_version_is_without_pages_that_can_be_dropped(tmp_path: Path) -> None:
    second = "anon 4000\nfile 5000\nkernel 900\ninactive_file 3000\nactive_file 1000\nslab_reclaimable 500\n"
    first = "cache 5000\nrss 4000\ninactive_file 1\nactive_file 1\ntotal_inactive_file 3000\ntotal_active_file 1000\n"
    for number, (text, dropped) in enumerate([(second, 4500), (first, 4000)]):
        used = opened(tmp_path / f"{number}.current", "10000\n")
        group = Group(used, opened(tmp_path / f"{number}.stat", text))
        assert group.memory() == 10_000 - dropped
        group.before = 700
        assert group.memory() == 10_000 - dropped - 700


def test_new_processes_are_noticed_by_the_last_number(tmp_path: Path) -> None:
    one = meter(tmp_path, 8_000_000, 900_000)
    assert one._forks() and not one._forks()
    (tmp_path / "loadavg").write_text("0.1 0.1 0.1 1/20 78\n")
    assert one._forks() and not one._forks()
