"""Our docstrings as reStructuredText: prose with single backticks, a few lines that begin with a label.

The sources are written to be read where they stand. Autodoc wants reStructuredText, in which a single
backtick and a star mean something else; nothing here changes a word.
"""

import re

#: Labels that begin a paragraph of their own.
_LABEL = re.compile(
    r"(Shapes and errors|Shapes|Raises|Returns|Realises|For porters|Source|Run)(?=[: ])(?::)?"
)
_REQUIREMENT = re.compile(r"\b(KV-[A-Z]+-\d{3})(?: ([a-z0-9]+(?:-[a-z0-9]+)+))?")
_LITERAL = re.compile(r"`([^`\n]+)`")


def as_rst(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText."""
    out: list[str] = []
    for block in _blocks(lines):
        if block[0].lstrip().startswith(">>>"):
            out += [*block, ""]
        elif all(line.startswith("    ") for line in block):
            out += ["::", "", *block, ""]
        else:
            for paragraph in _paragraphs(block):
                out += [_inline(paragraph), ""]
    return out


def _blocks(lines: list[str]) -> list[list[str]]:
    """Split lines at blank ones."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def _paragraphs(block: list[str]) -> list[str]:
    """Split a block where a line begins with a label, and where a labelled sentence ends with its line."""
    paragraphs: list[list[str]] = [[]]
    for line in block:
        last = paragraphs[-1]
        ended = last and _LABEL.match(last[0]) and last[-1].endswith(".")
        if last and (ended or _LABEL.match(line)):
            paragraphs.append([])
        paragraphs[-1].append(line.strip())
    return [" ".join(words) for words in paragraphs]


def _inline(text: str) -> str:
    """Escape what reStructuredText would take for markup, in one paragraph."""
    label = _LABEL.match(text)
    lead = ""
    if label and text[label.end() - 1] == ":":
        lead, text = f"**{label[1]}.** ", text[label.end() :].lstrip()
    parts = _LITERAL.split(text)
    shown = [_escaped(part) if at % 2 == 0 else f"``{part}``" for at, part in enumerate(parts)]
    return lead + "".join(shown)


def _escaped(text: str) -> str:
    # a literal must not touch a letter, in reStructuredText
    text = re.sub(r"([*|\\])", r"\\\1", text)
    text = re.sub(r"(\w)_(?=\W|$)", r"\1\\_", text)
    text = re.sub(r"(^|[\s(])(\[[a-z][^\]]*\])", lambda m: f"{m[1]}``{m[2]}``", text)
    return _REQUIREMENT.sub(lambda m: f":req:`{m[1]}`", text)
