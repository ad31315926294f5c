"""How much cache is enough: traces of requests, the hit rates they give, and what they are counted by."""
