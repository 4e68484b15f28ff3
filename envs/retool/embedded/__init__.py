"""Generated problems for which a program helps, for a start without any download."""
