"""Generated worlds and questions about them, for a start without any download."""
