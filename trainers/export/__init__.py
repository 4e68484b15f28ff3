"""Export: trained checkpoints as plain Hugging Face folders with a card, trajectories as data sets."""
