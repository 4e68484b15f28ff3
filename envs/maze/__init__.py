"""Small mazes, seen and not told."""
