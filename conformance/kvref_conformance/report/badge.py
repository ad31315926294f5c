"""A badge: the JSON that shields.io reads from an endpoint."""

import json

from kvref_conformance.report.model import Report


def to_badge(report: Report) -> str:
    """Return the badge of a report: how many claimed areas are conformant."""
    claimed = [area for area in report.areas if area.verdict != "not claimed"]
    good = [area for area in claimed if area.verdict == "conformant"]
    message = f"{len(good)} of {len(claimed)} areas conformant, spec {report.spec_version}"
    if report.broken:
        message = "run broken"
    badge = {
        "schemaVersion": 1,
        "label": "kvref",
        "message": message,
        "color": "brightgreen" if claimed and len(good) == len(claimed) and not report.broken else "red",
    }
    return json.dumps(badge, indent=1) + "\n"
