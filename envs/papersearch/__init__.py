"""Searching for papers: a scholarly question, a search engine, citations to follow, a set of papers as the answer."""
