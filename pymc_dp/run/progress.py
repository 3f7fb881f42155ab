"""What a run says before its chains start: the stage, releases made and what is spent, in PyMC's log and bar."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pymc.progress_bar import create_simple_progress

#: PyMC's own logger: what is said stands beside what PyMC says of the run.
_log = logging.getLogger("pymc")


class Progress:
    """The stages of a run before PyMC's own bar appears.

    Parameters
    ----------
    arguments : mapping of str
        Those of `pm.sample`: ``progressbar``, ``progressbar_theme`` and ``quiet`` are looked at.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._quiet, self._theme = bool(arguments["quiet"]), arguments["progressbar_theme"]
        self._has_bar = bool(arguments["progressbar"]) and not self._quiet

    def say(self, words: str) -> None:
        """Log a line."""
        if not self._quiet:
            _log.info(words)

    @contextmanager
    def releases(self, words: str, planned: int) -> Iterator[Callable[[], None]]:
        """Show a bar while releases are made.

        Parameters
        ----------
        words : str
            What they are made for.
        planned : int
            How many there may be; noise may lead to fewer.

        Yields
        ------
        callable
            To be called after each of them.
        """
        self.say(f"{words}: {planned} releases.")
        bar, made = create_simple_progress(self._has_bar, self._theme), 0
        with bar:
            task = bar.add_task(words, completed=0, total=planned)

            def noted() -> None:
                nonlocal made
                made += 1
                with suppress(Exception):  # no reason to lose what was paid for
                    bar.update(task, completed=made, description=f"{words}: {made} of {planned} releases")

            yield noted
