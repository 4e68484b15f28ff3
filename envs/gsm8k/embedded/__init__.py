"""Generated word problems, for a start without any download."""
