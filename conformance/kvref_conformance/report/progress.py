"""A bar on stderr while a run lasts; nothing where stderr is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.runner.suite import Progress as Advance


@contextmanager
def progress_bar(total: int) -> Iterator[Advance]:
    """Yield the function that takes each piece of evidence as it comes."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking", total=total)
        failed = 0

        def advance(found: Evidence) -> None:
            nonlocal failed
            failed += found.status == "fail"
            described = f"{found.requirement}" + (f", {failed} failed" if failed else "")
            bar.update(task, advance=1, description=described)

        yield advance
