"""Draw the picture of a run's progress: `python docs/progress_picture.py` writes docs/_static/progress.svg.

One run as a terminal shows it: what the log has said and the bar, in the middle of the search, and again in the middle
of the second chain.
"""

import functools
import io
import logging
import re
import warnings
from pathlib import Path
from unittest import mock

import pymc as pm
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.progress import Progress
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

import pymc_dp as dp
from pymc_dp.__main__ import survey, survey_model

PICTURE = Path(__file__).parent / "_static" / "progress.svg"
DRAWS, COLUMNS = 1000, 120


class Terminal(logging.Handler):
    """What a terminal would show: lines of the log, and the bar that was started last."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True)
        self.bar, self.in_search = None, False

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(record.getMessage(), highlight=False)

    def show(self) -> None:
        """Show the bar as it is now."""
        self.console.print(self.bar.get_renderable())

    def start(self, bar: Progress) -> None:
        self.bar = bar

    def update(self, update, bar: Progress, task_id: int, **what) -> None:
        update(bar, task_id, **what)
        task = bar.tasks[task_id]
        if not self.in_search and task.description.startswith("Search") and task.completed >= task.total / 2:
            self.in_search = True
            self.show()

    def callback(self, trace, draw) -> None:
        if draw.chain == 1 and not draw.tuning and draw.draw_idx % DRAWS == DRAWS // 2:
            self.show()


def main() -> None:
    terminal = Terminal()
    log = logging.getLogger("pymc")
    log.handlers[:] = [terminal]
    watched = functools.partial(mock.patch.object, Progress, autospec=True)
    started = watched("start", side_effect=terminal.start)
    updated = watched("update", side_effect=functools.partial(terminal.update, Progress.update))
    with started, updated, survey_model(*survey()):
        budget = dp.PrivacyBudget(epsilon=3, delta=1e-6)
        pm.sample(DRAWS, chains=4, cores=1, budget=budget, callback=terminal.callback)
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # they are on the web
    terminal.console.save_svg(
        str(PICTURE), title="A private run", theme=DEFAULT_TERMINAL_THEME, code_format=without_fonts, unique_id="run"
    )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
