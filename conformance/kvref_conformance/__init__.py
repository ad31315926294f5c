"""The conformance suite: judges any implementation of the contracts against the spec."""
