"""Where the bytes behind the slots lie."""
