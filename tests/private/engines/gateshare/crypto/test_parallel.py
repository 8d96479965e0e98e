"""All tasks are done, once each, and their errors arrive."""

import os
import threading

import pytest
import torch

from deepshare.private.engines.gateshare.crypto.parallel import in_parallel


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_every_task_is_done_once(count: int) -> None:
    done: list[int] = []
    in_parallel([lambda i=i: done.append(i) for i in range(count)])  # type: ignore[misc]
    assert sorted(done) == list(range(count))


def test_two_tasks_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)
    in_parallel([both.wait, both.wait])


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_arrives(failing: int) -> None:
    def task(i: int) -> None:
        if i == failing:
            raise ValueError(str(i))

    with pytest.raises(ValueError, match=str(failing)):
        in_parallel([lambda: task(0), lambda: task(1)])


def test_threads_of_torch_stay_as_they_are() -> None:
    found: list[int] = []
    before = torch.get_num_threads()
    in_parallel([int, int])
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert [torch.get_num_threads(), *found] == [before, before]


def test_a_forked_process_has_helpers_of_its_own() -> None:
    in_parallel([int, int])
    child = os.fork()
    if not child:
        both = threading.Barrier(2, timeout=10)
        in_parallel([both.wait, both.wait])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
