"""Tasks of libraries whose environments draw them from the seed: a task is a seed, a split a range of them."""

SEED_SPLITS = {"train": range(100_000), "validation": range(100_000, 101_000), "test": range(101_000, 102_000)}
