"""What a run found, as data, and the ways to show it: terminal, JSON, JUnit, HTML, Markdown, badge."""
