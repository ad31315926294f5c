"""What fails beside a fault of formats: requirements that compare bytes or numbers it changes as well."""


def named(*numbers: int) -> tuple[str, ...]:
    """Return the requirements on formats of these numbers."""
    return tuple(f"KV-FMT-{number:03d}" for number in numbers)


#: What hardly any reader satisfies that reads some code wrongly.
ANY_READ = named(1, 6, 20, 22, 36, 37, 41, 70, 71, 73, 80, 81)
#: What hardly any writer satisfies whose casts are wrong.
ANY_WRITE = named(*range(2, 11), *range(20, 27), 73, 100)
#: What hardly any writer of an MX format satisfies whose scales are wrong.
MX_WRITE = (*ANY_WRITE, *named(*range(30, 36), 54, 70, 71))
#: The same for NVFP4.
TWO_LEVELS = (*ANY_WRITE, *named(*range(40, 46), 54, 70, 71))
#: What hardly any writer of asymmetric integers satisfies that has other scales or zero points.
AFFINE_WRITE = (*ANY_WRITE, *named(*range(50, 56), 70))
#: All requirements on codes that are packed, and on what is read from them.
PACKED = (*ANY_WRITE, *ANY_READ, *named(*range(30, 39), *range(40, 46), *range(50, 56)))
#: What hardly any attention over codes satisfies that reads other numbers than the codes stand for.
ANY_ATTENTION = named(20, 22, 37, 71, 90, 91, 92, 93, 94)


def less(names: tuple[str, ...], *broken: str) -> tuple[str, ...]:
    """Return requirements, once each, without those that are broken outright."""
    return tuple(name for name in dict.fromkeys(names) if name not in broken)
