"""How many threads share a pass over the rows, in this process and in those of chains."""

import os
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Threads:
    """Numbers of threads. What is computed has the same bits for any.

    Attributes
    ----------
    here : int
        In the process that makes this object: what is released before the chains start finds all cores idle.
    elsewhere : int
        In every other process: several chains share the cores.
    """

    here: int = 1
    elsewhere: int = 1
    process: int = field(default_factory=os.getpid)

    @property
    def now(self) -> int:
        """The number for the process that asks."""
        return self.here if os.getpid() == self.process else self.elsewhere
