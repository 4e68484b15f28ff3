"""Environments for LLM agents that speak text and report who wrote which token."""
