"""What threads beside the event loop's leave to it where they share its core."""

from __future__ import annotations

import os
import sys
import threading

import structlog

log = structlog.get_logger()


def stand_back(nice: int = 0) -> None:
    """Have the calling thread not take the core from another in the middle of its work when it wakes: it waits until
    that one sleeps or its slice ends. Woken while the loop works, it would but ask for the interpreter's lock and have
    the loop interrupted. On Linux; elsewhere threads have no policy of their own. Where it is forbidden all is slower
    and nothing wrong.

    Args:
        nice: raise its niceness by so much, too.
    """
    if sys.platform != "linux":
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as e:
        log.info("thread_priority_refused", thread=threading.current_thread().name, detail=str(e))
