"""Job ids are unique and ordered, in threads and after forks, too."""

import os
import re
import threading
import uuid

from rq_core.model.ids import JobIds, boot_id


def test_ids_increase_within_a_millisecond_and_when_the_clock_goes_back() -> None:
    times = iter([5.0] * 5000 + [4.0] * 100 + [6.0] * 100)
    make = JobIds(clock=lambda: next(times))

    ids = [make() for _ in range(5200)]

    assert ids == sorted(set(ids))


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    made = uuid.UUID(JobIds(clock=lambda: 1_700_000_000.123)())

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_700_000_000_123


def test_threads_create_distinct_ids_from_one_generator() -> None:
    make = JobIds()
    made: list[list[str]] = []

    def work() -> None:
        made.append([make() for _ in range(5_000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({each for ids in made for each in ids}) == 20_000
    assert all(ids == sorted(ids) for ids in made)


def test_a_forked_child_creates_other_ids_than_its_parent() -> None:
    """A server process forks. Jobs with equal ids would be answered "duplicate", and be lost."""
    make = JobIds(clock=lambda: 5.0)
    make()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, make().encode())
        os._exit(0)
    os.waitpid(child, 0)
    of_child = os.read(reader, 64).decode()
    os.close(reader)
    os.close(writer)
    of_parent = make()

    assert of_child[:16] == of_parent[:16]
    assert of_child != of_parent


def test_each_boot_id_is_a_valid_name_and_differs_from_every_other_boot_id() -> None:
    ids = {boot_id("w") for _ in range(100)}

    assert len(ids) == 100
    assert all(re.fullmatch(r"w-\d+-[0-9a-f]{12}", each) for each in ids)
