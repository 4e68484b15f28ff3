"""Small mazes, seen in images."""
