"""MiniWoB++: small web pages with one instruction each, in a real browser."""
