"""Presets of `accelerate launch` for four GPUs on one machine; each file says what it is for."""
