"""Shopping: an instruction, a shop with a search engine and product pages, and a reward for the purchase."""
