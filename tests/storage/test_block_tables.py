"""Compressed and dense block tables: FlashInfer's figures, and round trips both ways."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError, BlockTableError, KVError, LengthError, ShapeError
from kvref.storage.block_tables import csr_to_dense, dense_to_csr


def test_lengths_around_a_block() -> None:
    """0, 1, a block less one, a block, a block and one: where the last length turns over."""
    tables = [[9, 9], [4, 9], [2, 9], [7, 9], [5, 3]]
    csr = dense_to_csr(tables, [0, 1, 3, 4, 5], block_size=4)
    assert csr.kv_indptr.tolist() == [0, 0, 1, 2, 3, 5]
    assert csr.kv_indices.tolist() == [4, 2, 7, 5, 3]
    assert csr.kv_last_page_len.tolist() == [1, 1, 3, 4, 1]
    assert {x.dtype for x in csr} == {np.dtype(np.int32)}
    dense = csr_to_dense(*csr, block_size=4, padding=6)
    assert dense.block_tables.tolist() == [[6, 6], [4, 6], [2, 6], [7, 6], [5, 3]]
    assert dense.seq_lens.tolist() == [0, 1, 3, 4, 5]
    assert {x.dtype for x in dense} == {np.dtype(np.int32)}


@pytest.mark.parametrize("last", [-7, 0, 1, 4, 99])
def test_last_length_of_an_empty_request_says_nothing(last: int) -> None:
    """Engines leave anything there; block_size · (0 − 1) + last would be a length of its own."""
    dense = csr_to_dense([0, 0, 2], [3, 1], [last, 2], block_size=4)
    assert dense.seq_lens.tolist() == [0, 6]
    assert dense.block_tables.tolist() == [[-1, -1], [3, 1]]


def test_batch_without_requests() -> None:
    """No request and no block is a batch like any other."""
    assert [x.tolist() for x in dense_to_csr(np.zeros((0, 0), int), [], block_size=4)] == [[0], [], []]
    assert csr_to_dense([0], [], [], block_size=4).block_tables.shape == (0, 0)


batches = st.lists(st.integers(0, 40), max_size=6)


@given(batches, st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**31))
def test_dense_and_compressed_name_the_same_slots(
    lens: list[int], block_size: int, spare: int, seed: int
) -> None:
    """Through compressed rows and back: the same blocks in the same order, whatever padded the matrix."""
    rng = np.random.default_rng(seed)
    width = max([0, *(-(-n // block_size) for n in lens)])
    tables = rng.integers(0, 1000, (len(lens), width + spare))
    live = np.arange(width + spare) < -(-np.array(lens, int) // block_size)[:, None]
    tables[~live] = -77
    csr = dense_to_csr(tables, lens, block_size=block_size)
    for request, n in enumerate(lens):
        blocks = csr.kv_indices[csr.kv_indptr[request] : csr.kv_indptr[request + 1]]
        assert [blocks[p // block_size] for p in range(n)] == [
            tables[request, p // block_size] for p in range(n)
        ]
    back = csr_to_dense(*csr, block_size=block_size, padding=-77)
    assert (back.block_tables == tables[:, :width]).all()
    assert back.seq_lens.tolist() == lens
    again = dense_to_csr(*back, block_size=block_size)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(csr, again, strict=True))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"seq_lens": [1, -2]}, LengthError, r"seq_lens\[1\] = -2, expected >= 0"),
        ({"seq_lens": [1, 9]}, BlockTableError, r"has 2 entries a request, but seq_lens\[1\] = 9 needs 3"),
        ({"seq_lens": [1]}, ShapeError, r"block_tables has shape \[2, 2\], expected \[1, max_blocks\]"),
        ({"block_tables": [[0, 1], [-1, 0]]}, BlockTableError, "block_tables names block -1"),
        ({"block_tables": [[0, 1], [2**31, 0]]}, BlockTableError, "block_tables names block 2147483648"),
        ({"block_size": 0}, ArgumentError, "block_size = 0"),
        ({"seq_lens": [1, 2**31], "block_size": 2**30}, LengthError, r"seq_lens\[1\] = 2147483648"),
    ],
)
def test_impossible_matrix_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """Only entries that a length needs are judged."""
    good = {"block_tables": [[0, -1], [3, 2]], "seq_lens": [1, 8], "block_size": 4}
    dense_to_csr(**good)
    with pytest.raises(error, match=says):
        dense_to_csr(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kv_indptr": [0, 2, 2]}, LengthError, "expected to rise from 0 to 3, the blocks in kv_indices"),
        ({"kv_indptr": [1, 2, 3]}, LengthError, "expected to rise from 0"),
        ({"kv_indptr": [0, 4, 3]}, LengthError, "expected to rise from 0"),
        ({"kv_indptr": [0, 3]}, ShapeError, r"kv_indptr has shape \[2\], expected \[3\]"),
        ({"kv_last_page_len": [0, 4]}, LengthError, r"kv_last_page_len\[0\] = 0, expected 1 to 4"),
        ({"kv_last_page_len": [4, 5]}, LengthError, r"kv_last_page_len\[1\] = 5, expected 1 to 4"),
        ({"kv_indices": [0, -1, 2]}, BlockTableError, "kv_indices names block -1"),
        ({"block_size": -1}, ArgumentError, "block_size = -1"),
        (
            {"block_size": 2**31},
            LengthError,
            r"kv_last_page_len\[1\] = 2147483649, expected at most 2147483647",
        ),
        ({"padding": 2**31}, ArgumentError, "padding = 2147483648, expected an int32"),
        ({"padding": 1.5}, ArgumentError, "padding = 1.5, expected an integer"),
    ],
)
def test_impossible_rows_are_refused(change: dict, error: type[KVError], says: str) -> None:
    """A last length of 0 beside blocks is FlashInfer's own forbidden case."""
    good = {"kv_indptr": [0, 1, 3], "kv_indices": [5, 1, 2], "kv_last_page_len": [4, 1], "block_size": 4}
    csr_to_dense(**good)
    with pytest.raises(error, match=says):
        csr_to_dense(**{**good, **change})
