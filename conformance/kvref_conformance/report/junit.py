"""JUnit XML: one suite for each area, one test for each requirement in it."""

from xml.etree import ElementTree

from kvref_conformance.report.model import Report, RequirementResult


def to_junit(report: Report) -> str:
    """Return the report as JUnit XML; SHOULD failures are skipped tests, since they decide nothing."""
    root = ElementTree.Element("testsuites", name=f"kvref {report.subject}".strip())
    for area in report.areas:
        results = [r for r in report.requirements if r.area == area.area]
        if area.verdict == "not claimed":
            continue
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=area.area,
            tests=str(max(len(results), 1)),
            failures=str(sum(_fails(r) for r in results) + (not results)),
            errors="0",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (
            ("verdict", area.verdict),
            ("spec_version", report.spec_version),
            ("claimed_share", f"{area.claimed_share:.4f}"),
            ("margin", f"{area.margin:.4f}"),
        ):
            ElementTree.SubElement(properties, "property", name=name, value=value)
        for result in results:
            _add(suite, result)
        if not results:
            case = ElementTree.SubElement(suite, "testcase", classname=area.area, name="evidence")
            ElementTree.SubElement(case, "failure", message=area.reason)
    ElementTree.indent(root)
    body = _legal(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _add(suite: ElementTree.Element, result: RequirementResult) -> None:
    name = f"{result.requirement} {result.slug}"
    case = ElementTree.SubElement(suite, "testcase", classname=result.area, name=name)
    if result.failure is None:
        return
    message = f"{result.failed} of {result.cases} cases: {result.failure.message}"
    outcome = ElementTree.SubElement(case, "failure" if _fails(result) else "skipped", message=message)
    lines = [*result.failure.program, *(f"as if: {sentence}" for sentence in result.failure.as_if)]
    lines += [f"replay: {result.failure.replay}"] if result.failure.replay else []
    outcome.text = "\n".join(lines)


def _fails(result: RequirementResult) -> bool:
    return result.status == "fail" and result.level == "MUST"


def _legal(text: str) -> str:
    """Drop what XML cannot carry even when escaped: control characters, halves of surrogate pairs."""
    return "".join(
        c
        for c in text
        if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
    )
