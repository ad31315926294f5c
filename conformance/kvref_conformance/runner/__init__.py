"""From checks and a subject to evidence."""
