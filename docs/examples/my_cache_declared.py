"""The same cache, with what it does past the largest number declared."""

from my_cache import Subject as Undeclared

from kvref_conformance.claims import Claims


class Subject(Undeclared):
    claims = Claims(name="my_cache", formats=("fp8_e4m3",), choices={"e4m3-overflow": "nan"})
