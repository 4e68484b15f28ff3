"""Certifies each data set of reasoning-gym, and says how many keep which promise.

    python benchmarks/certificates.py                                   # all 105, quick, with 10 tasks a split
    python benchmarks/certificates.py countdown --checks fuzz leaks     # some, and some checks

All checks run in this process, which saves their start; `agent-gym certify` gives each environment one of its own.
Prints a line per data set, with the evidence of what fails, and the counts; exit code 0 in any case.
"""

from __future__ import annotations

import argparse
from collections import Counter

from agent_gym.certify import CHECKS, Subject, run_check
from agent_gym.contrib.reasoning_gym import data_sets

ELSEWHERE = ("copies", "isolation", "model", "learnable")
"""Copies and what stays behind are the adapter's own, the same for all; models play and learn in other benchmarks."""


def main() -> None:
    """Certify the data sets that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--checks", nargs="+", choices=[*CHECKS], default=[x for x in CHECKS if x not in ELSEWHERE])
    arguments = parser.parse_args()
    verdicts, whole, names = Counter[tuple[str, str]](), 0, arguments.names or data_sets()
    for name in names:
        subject = Subject("AgentR1/ReasoningGym-v0", {"dataset": name, "evaluation_rows": 10}, quick=True)
        records = [run_check(check, subject) for check in arguments.checks]
        verdicts.update((record.name, record.verdict) for record in records)
        failed = [f"{record.name}: {record.text}" for record in records if record.verdict == "fail"]
        whole += not failed
        print(f"{name:<28} {'; '.join(failed) or 'certifies'}", flush=True)
    print(f"\n{whole} of {len(names)} data sets pass all of these checks")
    for check in arguments.checks:
        counts = ", ".join(f"{verdicts[check, verdict]} {verdict}" for verdict in ("pass", "fail", "skipped"))
        print(f"{check:<12} {counts}")


if __name__ == "__main__":
    main()
