"""Recurrences with a state of fixed size: pure functions of the state they begin from and the tokens they read."""
