"""What runs on the other side: in the fork server, and in the processes it forks for the policy's programs.

These modules are imported by a bare interpreter as the package `inside`, without agent_gym, its dependencies and the
installed packages' start-up code. So they use the standard library alone and import each other relatively.
"""
