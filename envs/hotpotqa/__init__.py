"""HotpotQA and its relatives: multi-hop questions over a search engine."""
