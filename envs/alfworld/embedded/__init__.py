"""Generated games, for a start without any download."""
