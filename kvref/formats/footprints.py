"""Footprints: how many bytes a format takes, of a token, of a block, and read in one step of decoding.

A token's bytes are those of its codes, of the scales and zero points of its groups, and of a second scale of
its own where it has one. A scale that a whole tensor or a whole head shares adds nothing to a token. What
several tokens share, a group of tokens or the fill of a block, counts as a fraction of it. Codes narrower
than a byte count their own bits: where an array here holds one code a byte, an engine packs them.

Realises: KV-FMT-072 record-bytes.
For porters: `bits_per_value` is the whole of it; the rest multiplies.
Source: the declarations of `kvref.formats.format` and `kvref.formats.records`.
"""

from collections.abc import Iterable
from fractions import Fraction

from kvref.arrays import check_count
from kvref.errors import ArgumentError, FormatError
from kvref.formats.elements import element_of
from kvref.formats.format import FORMATS, Format, format_of
from kvref.formats.records import GGML_BLOCKS, NUMBERS, RECORDS, Record, block_bytes

#: What a cache can hold: a format or an unquantised dtype, of every head; or a record, of every token.
Form = str | Format | Record


def form_of(form: Form) -> Form:
    """Return the format or record of a name; the name of an unquantised dtype is returned as it is.

    Raises: FormatError if there is none of that name.
    """
    if isinstance(form, Record) or (isinstance(form, str) and form in NUMBERS):
        return form
    if isinstance(form, str) and form in RECORDS:
        return RECORDS[form]
    if isinstance(form, str) and form not in FORMATS:
        names = ", ".join([*NUMBERS, *FORMATS, *RECORDS])
        raise FormatError(f"form = {form!r:.80}, expected one of {names}")
    return format_of(form)


def bits_per_value(form: str | Format, head_dim: int) -> Fraction:
    """Return how many bits a format takes for one number of a head of head_dim, scales included.

    Raises: FormatError if there is no such format, or its groups do not fill head_dim.

    >>> bits_per_value("nvfp4", 128)
    Fraction(9, 2)
    """
    format = form_of(form)
    if isinstance(format, Record):
        raise FormatError(f"form = {format.name}, a record; expected a format of single heads")
    check_count("head_dim", head_dim)
    if isinstance(format, str):
        return Fraction(8 * NUMBERS[format].itemsize)
    if format.family == "ggml":
        block = GGML_BLOCKS[format.name]
        size = next(field.count for field in block.rows if field.name == "codes")
        _check_fills(format, size, head_dim)
        return Fraction(8 * block.bytes, size)
    if format.group == "channels" or format.packed:
        _check_fills(format, format.size or 2, head_dim)
    sharing = {"given": 0, "tensor": 0, "token_head": head_dim}.get(format.group, format.size)
    stored = _scale_bits(format.scale_element) * (2 if format.zeros else 1)
    scales = Fraction(stored, sharing) if sharing else Fraction(0)
    second = Fraction(32, head_dim) if format.global_scale == "token_head" else Fraction(0)
    return element_of(format.element).bits + scales + second


def footprint(form: str | Format, *, over: str | Format = "bfloat16", head_dim: int = 128) -> Fraction:
    """Return how many bytes a format takes for each byte of another.

    >>> footprint("nvfp4", over="fp8_e4m3")
    Fraction(9, 16)
    """
    return bits_per_value(form, head_dim) / bits_per_value(over, head_dim)


def bytes_per_token(
    form: Form,
    *,
    num_kv_heads: int = 1,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
    block_size: int | None = None,
) -> int | Fraction:
    """Return what one token adds to one layer: key and value of every head, or the one vector of a record.

    `v_head_dim` is head_dim unless it is given. `block_size` is for records alone: it adds the token's share
    of what rounds a block up. A Fraction where tokens share bytes unevenly.
    Raises: FormatError, ArgumentError (an extent is missing, or is one that the form does not have).
    """
    found = form_of(form)
    if isinstance(found, Record):
        if num_kv_heads != 1 or head_dim is not None or v_head_dim is not None:
            raise FormatError(f"{found.name} is a record of one vector, expected no heads and no head_dim")
        return (
            found.bytes
            if block_size is None
            else _whole(Fraction(block_bytes(found, block_size), block_size))
        )
    if block_size is not None:
        name = found if isinstance(found, str) else found.name
        raise FormatError(
            f"block_size = {block_size!r:.80}, expected none: blocks of {name} are not rounded up"
        )
    check_count("num_kv_heads", num_kv_heads)
    k_dim = check_count("head_dim", head_dim)
    v_dim = k_dim if v_head_dim is None else check_count("v_head_dim", v_head_dim)
    bits = bits_per_value(found, k_dim) * k_dim + bits_per_value(found, v_dim) * v_dim
    return _whole(num_kv_heads * bits / 8)


def bytes_per_page(
    form: Form,
    *,
    block_size: int,
    num_kv_heads: int = 1,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
) -> int:
    """Return the bytes of a block of one layer, what rounds it up included.

    Raises: FormatError if the block cuts a group of tokens; as `bytes_per_token`.
    """
    found = form_of(form)
    if isinstance(found, Format) and found.group == "tokens":
        _check_fills(found, found.size, check_count("block_size", block_size), "block_size")
    share = bytes_per_token(
        found,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        block_size=block_size if isinstance(found, Record) else None,
    )
    whole = check_count("block_size", block_size) * Fraction(share)
    assert whole.denominator == 1  # groups and pairs are whole, so bytes are
    return int(whole)


def bytes_read_per_decode_step(
    form: Form,
    seq_lens: Iterable[int],
    *,
    num_kv_heads: int = 1,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
    window: int | None = None,
) -> int | Fraction:
    """Return what one layer reads of its cache to decode one token of every request: each live slot once.

    A kernel that reads whole blocks, or one slot for several query heads, reads more. `window` bounds how
    many slots a request has left to read.
    Raises: as `bytes_per_token`; ArgumentError if a length is negative, or `seq_lens` is no list of them.
    """
    bound = None if window is None else check_count("window", window)
    if not isinstance(seq_lens, Iterable) or getattr(seq_lens, "ndim", 1) != 1:
        raise ArgumentError(f"seq_lens = {seq_lens!r:.80}, expected a list of lengths, one a request")
    lengths = [check_count("seq_lens", length, minimum=0) for length in seq_lens]
    slots = sum(length if bound is None else min(length, bound) for length in lengths)
    share = bytes_per_token(form, num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim)
    return _whole(Fraction(slots * share))


def _scale_bits(element: str) -> int:
    return 8 * int(NUMBERS[element].itemsize) if element in NUMBERS else element_of(element).bits


def _check_fills(format: Format, size: int, extent: int, axis: str = "head_dim") -> None:
    if extent % size:
        raise FormatError(
            f"{axis} = {extent}, expected a multiple of {size}, the group of {format.name} (KV-FMT-072)"
        )


def _whole(x: Fraction) -> int | Fraction:
    return int(x) if x.denominator == 1 else x
