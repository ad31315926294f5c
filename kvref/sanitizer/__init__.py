"""The history checker: what an engine logged, replayed against shadow memory."""
