"""The kernel counts some things for a user over all containers: each job has a user of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import SnapshotFolder, changed_paths, make_sandbox_spec

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

TAKE_ALL_INOTIFY = """
import ctypes, time
library = ctypes.CDLL(None)
taken = 0
while library.inotify_init() >= 0: taken += 1
print(taken, flush=True)
time.sleep(60)
"""


async def test_a_job_that_takes_all_inotify_instances_takes_none_of_another_job(
    provider: DockerProvider,
) -> None:
    async with (
        provider.open(make_sandbox_spec()) as greedy,
        provider.open(make_sandbox_spec()) as modest,
    ):
        async with greedy.open_process(Command(argv=["python3", "-c", TAKE_ALL_INOTIFY])) as live:
            taken = int(await live.receive())
            again = "import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)"
            same = await greedy.run(Command(argv=["python3", "-c", again]))
            other = await modest.run(Command(argv=["python3", "-c", again]))

        assert taken > 10
        assert same.output == b"False\n"
        assert other.output == b"True\n"


async def test_jobs_at_the_same_time_have_different_users_and_own_their_files(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add({"given": b"text", "folder/given": b"text"})
    first, second = (make_sandbox_spec(snapshot=snapshot) for _ in range(2))
    look = (
        "id -u; stat -c %u:%g . given folder/given | sort -u; echo $HOME; touch $HOME/x && echo ok"
    )
    work = "echo more >> given && chmod 755 folder/given && git init -q . && git status --short"
    async with provider.open(first) as one, provider.open(second) as two:
        seen = [(await each.run(Command(argv=look))).output.decode().split() for each in (one, two)]
        done = [await each.run(Command(argv=work)) for each in (one, two)]

        users = [int(lines[0]) for lines in seen]
        assert len({*users, 0, 10001}) == 4
        assert all(user >= 100_000 for user in users)
        assert [lines[1:] for lines in seen] == [
            [f"{user}:10001", "/home/agent", "ok"] for user in users
        ]
        assert [each.exit_code for each in done] == [0, 0], done
        assert await changed_paths(one) == [("folder/given", "mode"), ("given", "modified")]


async def test_the_next_attempt_owns_the_files_whatever_its_user(
    make_provider: Callable[..., DockerProvider],
) -> None:
    spec = make_sandbox_spec()
    former, later = make_provider(first_uid=200_000), make_provider(first_uid=300_000)
    async with former.open(spec) as sandbox:
        await sandbox.run(Command(argv="umask 077; echo secret > note"))
    await former.close()
    async with later.open(spec) as sandbox:
        result = await sandbox.run(Command(argv="id -u; stat -c %u note; cat note; echo x > note"))

        user, owner, text = result.output.decode().split()
        assert user == owner
        assert int(user) >= 300_000
        assert text == "secret"
        assert result.exit_code == 0
    await later.discard(spec.job_id)


async def test_why_jobs_share_a_user_is_told(make_provider: Callable[..., DockerProvider]) -> None:
    own, shared = make_provider(), make_provider(disk_quota="watch")

    assert await own.shared_user() is None
    assert await shared.shared_user() == "the steward may not mount"
