"""The small worlds on which RAGEN (arXiv:2504.20073) compares models: Sokoban, FrozenLake, a bandit and Countdown."""
