"""Bargaining: two roles divide a pool of items whose values the other does not know."""
