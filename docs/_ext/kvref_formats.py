"""Tables of the pages on formats, computed when they are built: codes, casts, shared exponents, who does it.

```{codes} e4m3fn``` shows every code of an element. ```{casts} e4m3fn``` shows what libraries make of the
numbers at which they differ. ```{exponents} e2m1``` shows the rules of a shared exponent. ```{uses}``` holds
lines of `choice answer | who | how it is known`, and refuses answers that no choice has.
"""

import math
from typing import Any, ClassVar

import kvref_tables
import numpy as np
from docutils import nodes
from kvref_domain import SpecDirective, link
from kvref_libraries import CASTS, E8M0_CASTS, WITNESSES
from sphinx.application import Sphinx

from kvref.formats.casts import encode
from kvref.formats.elements import element_of, values
from kvref.formats.exponents import cast, shared_exponent
from kvref.formats.paths import PATHS, Path
from kvref_conformance.choices import CHOICES

#: How something is known about a library.
EVIDENCE = {
    "tested": "its result was compared",
    "read": "its source was read",
    "reported": "an issue or a document says so",
}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
#: The largest magnitudes at which the rules of a shared exponent part.
_AMAX = {
    "e2m1": (4.0, 5.0, 6.0, 6.5, 7.0, 7.75, 8.0, 0.0, math.inf),
    "e4m3fn": (256.0, 448.0, 449.0, 480.0, 495.0, 496.0, 512.0),
}


def spelled(x: float) -> str:
    """Return a number exactly: as a decimal where that is short, else as an odd number times a power of 2."""
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "−∞" if x < 0 else "∞"
    sign = "−" if math.copysign(1, x) < 0 else ""
    size = abs(x)
    short = f"{size:.15g}"
    if len(short) <= 5 and "e" not in short:
        return sign + short
    numerator, denominator = size.as_integer_ratio()
    shift = (numerator & -numerator).bit_length() - 1
    odd = numerator >> shift
    power = shift - (denominator.bit_length() - 1)
    raised = f"2{str(power).translate(_SUPERSCRIPT)}"
    return sign + (raised if odd == 1 else f"{odd}·{raised}")


class Codes(SpecDirective):
    """Every code of an element with its number."""

    def run(self) -> list[nodes.Node]:
        """Draw a table: a row for each first digit of the code, or for each sign of a code of four bits."""
        element = self.arguments[0]
        table = [spelled(float(x)) for x in values(element)]
        columns = 16 if len(table) == 256 else 8
        width = max(1, element_of(element).bits // 4)
        rows: list[list[Any]] = []
        for start in range(0, len(table), columns):
            rows.append([nodes.literal(text=f"0x{start:0{width}X}"), *table[start : start + columns]])
        headings = ["", *(f"+{column:X}" for column in range(columns))]
        shown = kvref_tables.table(headings, rows, widths=[8, *[6] * columns], wide=columns == 16)
        shown["classes"].append("codes")
        return [shown]


class Casts(SpecDirective):
    """What libraries make of the numbers at which they differ, computed under the path of each."""

    def run(self) -> list[nodes.Node]:
        """Draw a table: a row for each number, a column for each library."""
        element = self.arguments[0]
        x = np.array(WITNESSES[element], np.float32)
        if element == "e8m0":
            columns = {name: cast(x, **options) for name, options in E8M0_CASTS.items()}
        else:
            columns = {name: encode(x, element, path) for name, path in CASTS[element].items()}
        digits = 1 if element == "e2m1" else 2
        rows: list[list[Any]] = []
        for at, number in enumerate(WITNESSES[element]):
            codes = [f"{int(found[at]):0{digits}X}" for found in columns.values()]
            odd = len(set(codes)) > 1
            cells = [nodes.strong(text=code) if odd else nodes.literal(text=code) for code in codes]
            rows.append([_number(number), *cells])
        widths = [16, *[84 // len(columns)] * len(columns)]
        return [kvref_tables.table(["", *columns], rows, widths=widths)]


class Exponents(SpecDirective):
    """The exponent of a shared scale by each rule."""

    def run(self) -> list[nodes.Node]:
        """Draw a table: a row for each largest magnitude, a column for each rule."""
        element = self.arguments[0]
        amax = np.array(_AMAX[element], np.float32)
        rules = PATHS["mx_scale"]
        found = [shared_exponent(amax, element, Path(mx_scale=rule)).astype(int) - 127 for rule in rules]
        rows = [
            [_number(size), *(str(int(column[at])).replace("-", "−") for column in found)]
            for at, size in enumerate(_AMAX[element])
        ]
        widths = [20, *[80 // len(rules)] * len(rules)]
        return [kvref_tables.table(["amax", *rules], rows, widths=widths)]


class Uses(SpecDirective):
    """Who gives which answer to the choices of a format, and how that is known."""

    optional_arguments: ClassVar = 0

    def run(self) -> list[nodes.Node]:
        """Draw a table, in the order of the lines.

        Raises: ValueError if a line names no choice, no answer to it, or no kind of evidence.
        """
        rows: list[list[Any]] = []
        last = ""
        for line in self.content:
            if not line.strip():
                continue
            what, who, known = (part.strip() for part in line.split("|"))
            name, answer = what.split()
            choice = CHOICES[name]
            if answer not in (choice.canonical, *choice.alternatives) or known not in EVIDENCE:
                raise ValueError(f"{line!r}: expected an answer of {name}, and one of {', '.join(EVIDENCE)}")
            shown = [nodes.literal(text=answer)]
            if answer == choice.canonical:
                shown.append(nodes.Text(" canonical"))
            people = self.parse_inline(who)[0]
            rows.append([link("choice", name) if name != last else "", shown, people, known])
            last = name
        return [kvref_tables.table(["choice", "answer", "who", ""], rows, widths=[22, 22, 44, 12])]


def _number(x: float) -> str:
    """Return a number as it was written in the list, short or not."""
    if math.isnan(x):
        return "−NaN" if math.copysign(1, x) < 0 else "NaN"
    text = spelled(x)
    return text if len(text) < 8 else f"{x:.8g}".replace("-", "−")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("codes", Codes)
    app.add_directive("casts", Casts)
    app.add_directive("exponents", Exponents)
    app.add_directive("uses", Uses)
    return {"parallel_read_safe": True}
