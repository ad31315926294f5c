"""What a number becomes in the cache: elements, scales, bytes, and what each format loses. Formats are data."""
