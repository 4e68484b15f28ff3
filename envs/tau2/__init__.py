"""Customer service of tau2-bench: its tasks, its databases and tools, its verdicts, and a scripted customer."""
