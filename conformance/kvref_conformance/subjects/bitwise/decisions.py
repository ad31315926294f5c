"""What the declaration answers, where formats leave a decision open."""

from kvref_conformance.claims import Claims


class Decisions:
    """A codec that does what its claims say."""

    claims: Claims

    def says(self, decision: str) -> str:
        """Return the declared answer to a decision, canonical where nothing is declared."""
        return self.claims.choice(decision)
