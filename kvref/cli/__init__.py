"""The `kvref` command: check an implementation, read the spec, visit the museum, see the figures.

Every subcommand imports what it needs when it runs, takes `--json`, and ends an error about its input with
exit code 2 and a sentence that says what was found and what was expected.
"""

import io
import sys

import click

import kvref
from kvref.cli.check import check
from kvref.cli.museum import museum
from kvref.cli.sanitize import sanitize
from kvref.cli.show import show
from kvref.cli.size import size
from kvref.cli.smoke import smoke
from kvref.cli.spec import spec
from kvref.cli.trace import trace


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(kvref.__version__, package_name="kvref")
def main() -> None:
    """Check implementations of the LLM KV cache against its executable specification."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without ± gets \xb1, not an error
            stream.reconfigure(errors="backslashreplace")


for _command in (check, smoke, spec, museum, show, size, trace, sanitize):
    main.add_command(_command)
