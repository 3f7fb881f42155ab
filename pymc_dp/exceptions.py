"""The package's own errors, whose messages contain advice.

Errors depend on arguments, the model's structure, the shapes and types of the data, and which entries are missing. The
few refusals that one entry can cause are listed in ``docs/guarantee.md``, "Entries that refuse a table".
"""

from typing import Any


class PrivacyError(Exception):
    """Base class of every error that this package raises on purpose."""


class BudgetExceeded(PrivacyError):
    """A run, or a single release, does not fit the remaining privacy budget."""


class BudgetFileError(PrivacyError, OSError):
    """The file of a saved budget is gone, locked, or cannot be read or written now. Nothing was spent by this call."""


class InvalidArgument(PrivacyError, ValueError):
    """An argument is missing, of the wrong type or out of range."""


class MissingBackend(PrivacyError, ImportError):
    """The backend of a plot is not installed."""


class NoDpAccountingEvent(PrivacyError):
    """Releases cannot be passed to ``dp_accounting``: it has no such event, or is not installed."""


class NoPlan(PrivacyError):
    """A step cannot run without a plan that has been charged to a budget."""


class RunInterrupted(PrivacyError):
    """A run ended early, after it was charged, by an error that is not the user's own.

    Attributes
    ----------
    partial : DataTree
        The draws and releases until then, which were charged: the tree that `sample` would have
        returned, with ``complete`` 0 in the attributes of its ``privacy`` group.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class TableChanged(PrivacyError):
    """A table has changed since it was opened: nothing more is computed from it."""


class UnsupportedTable(PrivacyError, ValueError):
    """A table cannot be used, because of its columns, their types, missing entries or the order of its rows."""


class WorkersLost(PrivacyError):
    """The workers that hold a table are gone, or did not answer in time."""


class UnsupportedModel(PrivacyError):
    """The model's likelihood is not a sum over units, or cannot be shown to be one."""


class UnsupportedOption(PrivacyError, ValueError):
    """An option of ``sample`` that cannot be combined with a differentially private step."""
