"""Guessing a number: the smallest task in which a policy can learn to search better than its teacher."""
