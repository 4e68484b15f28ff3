"""Generated shops, for a start without any download."""
