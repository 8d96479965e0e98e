"""Work on all cores, within one process.

Online the parties take turns: while one computes, the other waits for its message. So each may use all cores, though
with one thread a core in all. Threads of OpenMP would spin for a while after each product, on the core that the other
party needs by then; these sleep.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

CORES = len(os.sched_getaffinity(0))


def in_parallel(tasks: Sequence[Callable[[], object]]) -> None:
    """Do all tasks, one of them at least in this thread, each with one thread of torch."""
    if not tasks:
        return
    own, *others = tasks
    begun = [(task, _helpers().submit(task)) for task in others]
    own()
    for task, future in reversed(begun):
        if future.cancel():  # nobody had time for it
            task()
        else:
            future.result()


@cache
def _helpers() -> ThreadPoolExecutor:
    """A thread for each core but one."""
    threads = torch.get_num_threads()
    helpers = ThreadPoolExecutor(max(1, CORES - 1), "product", torch.set_num_threads, (1,))
    helpers.submit(int).result()
    torch.set_num_threads(threads)  # a helper has set what new threads begin with
    return helpers


os.register_at_fork(after_in_child=_helpers.cache_clear)
