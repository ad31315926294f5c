"""What a number becomes in the cache: elements, scales, bytes, and what is lost. Formats are data."""
