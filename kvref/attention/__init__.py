"""Softmax attention over a KV cache: pure functions of the slots they read."""
