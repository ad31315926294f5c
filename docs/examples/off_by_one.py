"""The same kernel with one fault that happened: its window counts the positions before the query's own."""

import my_subject


class Subject(my_subject.Subject):
    """Passes `window` where the kernel would need `window - 1`."""

    def paged_attention(self, q, k_cache, v_cache, *, window=None, **batch):
        """Read one token too many."""
        return super().paged_attention(
            q, k_cache, v_cache, window=None if window is None else window + 1, **batch
        )
