"""HTTP: the servers of search, sandbox and chat, and the client of the first two."""
