"""Function calls of the Berkeley Function Calling Leaderboard: its tasks, its API classes, and its verdicts."""
