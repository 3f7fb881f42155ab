"""The memory of the machine, for refusing a run that needs more before it is charged."""

import os
from pathlib import Path

#: Files with a container's limit, in both versions of control groups.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
#: The assumed memory in bytes where the system gives none.
_UNKNOWN = 16 * 2**30


def memory_of_this_machine() -> int:
    """Return the memory of this machine, or of the container that this process runs in, in bytes."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        found = _UNKNOWN
    for limit in _LIMITS:
        try:
            found = min(found, int(limit.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found
