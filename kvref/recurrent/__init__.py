"""Recurrences with a state of fixed size: pure functions of a state and of the tokens read after it."""
