"""Ids of a trace, numbered as they appear, and held to what makes hits of them hits of prefixes.

An id stands for a prefix, so it has one id before it wherever it appears, and its block one number of tokens.
Ids of chunks wherever they stand break the first rule. Ids of padded tails break the second: a prompt of five
tokens would hit a block of eight.

For porters: both checks need a number for each id and no list of what it appeared in.
Source: the definition of a prefix.
"""

from array import array

from kvref.planning.trace_lines import Place, TraceRequest


class PrefixIds:
    """The ids met so far in a file, in blocks of `block_size` tokens."""

    def __init__(self, file: str, block_size: int) -> None:
        self._file, self._block_size = file, block_size
        self._numbers: dict[int, int] = {}
        self._parents = array("q")  # of each number, the one before it; -1 at the start of a prompt
        self._tokens = array("q")  # of each number, how many its block holds

    def numbered(self, request: TraceRequest) -> list[int]:
        """Return the numbers of a request's ids.

        Raises: TraceError if an id follows another one, or stands for more or fewer tokens, than before.
        """
        numbers, parents, before = self._numbers, self._parents, -1
        known, found = len(parents), []
        for at, named in enumerate(request.hash_ids or ()):
            number = numbers.setdefault(named, len(parents))
            if number == len(parents):
                parents.append(before)
            elif parents[number] != before:
                Place(self._file, request.line).refuse(
                    f"hash_ids[{at}] = {named} follows another id than where it first appeared, "
                    "expected ids of whole prefixes"
                )
            found.append(number)
            before = number
        self._count_tokens(request, found, known)
        return found

    def _count_tokens(self, request: TraceRequest, found: list[int], known: int) -> None:
        """Note the tokens of new ids, which end a request; of the known, only the last can be partial."""
        new, size = len(self._parents) - known, self._block_size
        self._tokens.extend([size] * new)
        last = min(size, request.input_length - (len(found) - 1) * size)
        if new:
            self._tokens[-1] = last
        at = len(found) - 1 - new
        if at < 0:
            return
        held, once = size if new else last, self._tokens[found[at]]
        if held != once:
            named = (request.hash_ids or ())[at]
            Place(self._file, request.line).refuse(
                f"hash_ids[{at}] = {named} is a block of {held} tokens, and was one of {once} where it first "
                "appeared, expected ids of whole prefixes"
            )
