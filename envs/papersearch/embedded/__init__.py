"""Generated fields of research and questions about them, for a start without any download."""
