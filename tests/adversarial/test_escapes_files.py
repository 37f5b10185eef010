"""Attempts on the worker's file operations and on the scan of what a job changed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from fanout.workers.sandbox.inside import frames
from fanout.workers.sandbox.protocol import Command
from tests.adversarial.escape_lab import Lab

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def clean(lab: Lab) -> None:
    """The workspace begins empty."""
    lab.shell("chmod -R u+rwx /workspace 2>/dev/null; cd / && find /workspace -mindepth 1 -delete")


LINKS = {
    "to the root": "ln -s / out",
    "to the host's password file": "ln -s /etc/passwd out",
    "to the resident's memory": "ln -s /proc/self/mem out",
    "to the resident's output": "ln -s /proc/self/fd/1 out",
    "to the resident's input": "ln -s /proc/self/fd/4 out",
    "to the resident's environment": "ln -s /proc/self/environ out",
    "above the workspace": "ln -s ../../../../../../etc out",
    "to itself": "ln -s out out",
    "in a ring": "ln -s ring out; ln -s out ring",
    "to a name of 4,000 bytes": "ln -s $(printf 'x%.0s' $(seq 4000)) out",
    "to a device": "ln -s /dev/zero out",
    "to the code of the resident": "ln -s /opt/fanout out",
}


@pytest.mark.representative
@pytest.mark.parametrize("link", LINKS)
def test_a_job_that_makes_a_link(lab: Lab, link: str) -> None:
    """It is carried as a link; the worker's operations do no more than the job's own would."""
    lab.shell(LINKS[link])

    for operation in (
        lab.sandbox.read_bytes("/workspace/out", 4096),
        lab.sandbox.list("/workspace/out"),
        lab.sandbox.stat("/workspace/out"),
        lab.sandbox.write_bytes("/workspace/out", b"through the link"),
        lab.sandbox.write_bytes("/workspace/out/passwd", b"through the link"),
    ):
        with contextlib.suppress(OSError):
            lab.do(operation)
    assert "through" not in lab.shell("cat /etc/passwd")
    changed = lab.changes()
    assert "out" in changed
    assert all(not path.startswith("/") and ".." not in path.split("/") for path in changed)


RACES = {
    "a file for a link to the resident's output": ("/proc/self/fd/4", "/proc/self/fd/1"),
    "a file for a link to the resident's memory": ("/proc/self/mem", "/etc/passwd"),
}


@pytest.mark.representative
@pytest.mark.parametrize("race", RACES)
def test_a_job_that_swaps(lab: Lab, race: str) -> None:
    """While the worker reads, writes, lists and scans, what it names becomes a link and back."""
    first, second = RACES[race]
    swap = f"""
import itertools, os
for target in itertools.cycle(({first!r}, {second!r}, None)):
    try:
        os.unlink("/workspace/swap")
    except OSError:
        pass
    try:
        os.symlink(target, "/workspace/swap") if target else open("/workspace/swap", "w").close()
    except OSError:
        pass
"""

    async def work() -> None:
        swapping = asyncio.create_task(
            lab.sandbox.run(Command(argv=["python3", "-c", swap], timeout_seconds=2))
        )
        while not swapping.done():
            for operation in (
                lab.sandbox.read_bytes("/workspace/swap", 100),
                lab.sandbox.write_bytes("/workspace/swap", b"x" * 100),
                lab.sandbox.list("/workspace"),
                lab.sandbox.delete("/workspace/swap"),
            ):
                with contextlib.suppress(OSError):
                    await operation
        await swapping

    lab.do(work())
    lab.changes()


async def test_a_job_that_replaces_an_incomplete_upload_by_the_residents_stream(lab: Lab) -> None:
    """The frames that a model was made to write would be the resident's own."""
    forged = frames.pack_frame(frames.REPLY, 1, {"result": {"forged": True}}) * 30_000
    swap = """
import glob, os, time
end = time.monotonic() + 2
while time.monotonic() < end:
    for staged in glob.glob("/workspace/.fanout-*") + glob.glob("/tmp/.fanout-*"):
        for number in (4, 3, 1):
            try:
                os.unlink(staged)
                os.symlink("/proc/self/fd/%d" % number, staged)
            except OSError:
                pass
"""

    async def work() -> None:
        swapping = asyncio.create_task(
            lab.sandbox.run(Command(argv=["python3", "-c", swap], timeout_seconds=5))
        )
        while not swapping.done():
            with contextlib.suppress(OSError):
                await lab.sandbox.write_bytes("/workspace/large", forged)
            command = Command(argv="head -c 100 | wc -c", stdin=forged)
            taken = await lab.sandbox.run(command)
            assert taken.output.strip() == b"100"  # what was sent, not the worker's next request
        await swapping

    await asyncio.to_thread(lab.do, work())
    assert lab.do(lab.sandbox.list("/workspace")) is not None


NAMES = {
    "a line break": "a\\nb",
    "a terminal's escape": "a\\033[2Jb",
    "a clipboard's escape (OSC 52)": "a\\033]52;c;cm0gLXJmIC8=\\007b",
    "a title's escape": "a\\033]0;owned\\007b",
    "a carriage return": "harmless\\rb",
    "a backspace": "a\\bb",
    "bytes that are not UTF-8": "a\\377\\376b",
    "an encoded surrogate": "a\\355\\240\\200b",
    "255 bytes": "x" * 255,
    "a text from right to left": "a\\342\\200\\256txt.exe",
    "a leading dash": "-rf",
    "only a space": " ",
    "dots": "...",
    "a quote and a dollar": "\\047$(id)`id`",
    "a whiteout of other layers": ".wh.canary",
    "an opaque whiteout": ".wh..wh..opq",
    "a Windows path": "C:\\\\x",
    "a null of another alphabet": "a\\300\\200b",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_names_a_file_with(lab: Lab, name: str) -> None:
    lab.shell(f"printf x > \"$(printf -- '{NAMES[name]}')\"")

    entries = lab.do(lab.sandbox.list("/workspace"))
    changed = lab.changes()

    assert len(entries) == 1
    assert lab.do(lab.sandbox.read_bytes(entries[0].path)) == b"x"
    assert len(changed) <= 1
    lab.do(lab.sandbox.delete(entries[0].path))
    assert lab.do(lab.sandbox.list("/workspace")) == ()


SET = 'python3 -c \'import os, sys; os.setxattr("special", "user." + sys.argv[1], sys.argv[2].encode())\''
"""Also what the overlay keeps for itself in such attributes."""

OUTSIDE = [
    "/workspace/../etc/x", "/workspace/a/../../opt/fanout/x", "/proc/1/mem", "/proc/self/mem", "/sys/x",
]  # fmt: skip

SPECIALS = {
    "a FIFO": "mkfifo special",
    "a socket": "python3 -c 'import socket; socket.socket(1).bind(\"special\")'",
    "a file of 8 EiB": "truncate -s 8E special || truncate -s 16M special",
    "a file of the year 2200": "touch -d '2200-01-01' special",
    "a file of the year 1901": "touch -d '1901-12-14' special",
    "a file of the year 2446": "touch -d '2446-05-10' special || touch special",
    "an unreadable file": "echo x > special; chmod 0 special",
    "an unreadable folder": "mkdir special; echo x > special/x; chmod 0 special",
    "a setuid file": "cp /bin/true special; chmod 6755 special",
    "a sticky folder": "mkdir -m 7777 special; echo x > special/x",
    "a hard link to a file of the image": "ln /etc/passwd special 2>/dev/null || echo x > special",
    "two hard links": "echo x > other; ln other special",
    "an attribute of the overlay: redirect": f"mkdir special; {SET} overlay.redirect /etc",
    "an attribute of the overlay: opaque": f"mkdir special; {SET} overlay.opaque y; echo x > special/x",
    "an attribute of the overlay: metacopy": f"echo x > special; {SET} overlay.metacopy ''",
    "an attribute of the overlay: whiteout": f"echo x > special; {SET} overlay.whiteout y",
    "a large attribute": f"echo x > special; {SET} large {'x' * 4000}",
    "an immutable file": "echo x > special; chattr +i special 2>/dev/null; true",
    "a git folder with a hook": "mkdir -p special/.git/hooks; cp /bin/sh special/.git/hooks/post-checkout",
    "a bare repository": "git init -q --bare special; git -C special config core.fsmonitor x",
    "a git link": "mkdir special; echo 'gitdir: /etc' > special/.git",
    "a tar bomb": "mkdir special; head -c 1000000 /dev/zero | gzip -9 > special/bomb.tar.gz",
}  # fmt: skip


@pytest.mark.parametrize("special", SPECIALS)
def test_a_job_that_leaves(lab: Lab, special: str) -> None:
    """Scanning, listing, reading, searching and deleting it ends, in time."""
    lab.shell(SPECIALS[special])

    lab.changes()
    lab.do(lab.sandbox.list("/workspace"))
    lab.do(lab.sandbox.walk("/workspace", max_entries=1000, timeout_seconds=5))
    lab.do(lab.sandbox.grep("x", "/workspace", only=None, max_hits=10, timeout_seconds=1))
    with contextlib.suppress(OSError):
        lab.do(lab.sandbox.read_bytes("/workspace/special", 4096))
    lab.check_steward_is_well()


def test_a_job_that_removes_and_replaces_its_workspace(lab: Lab) -> None:
    lab.shell(
        "cd /; rm -rf /workspace; mv /workspace /tmp/w; ln -sfn / /workspace; rmdir /workspace"
    )

    assert lab.changes() == {}
    lab.do(lab.sandbox.write_bytes("/workspace/still", b"here"))
    assert list(lab.changes()) == ["still"]


def test_a_job_that_deletes_the_folder_in_which_commands_start(lab: Lab) -> None:
    lab.shell("mkdir /workspace/gone")
    result = lab.do(
        lab.sandbox.run(
            Command(argv="rm -rf /workspace/gone; cd /workspace/gone", cwd="/workspace/gone")
        )
    )
    assert result.exit_code != 0
    assert lab.do(lab.sandbox.run(Command(argv="true", cwd="/workspace/gone"))).exit_code == 127


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/../etc/x",
        "/workspace/a/../../opt/fanout/x",
        "/proc/1/mem",
        "/proc/self/mem",
        "/sys/x",
    ],
)
def test_a_worker_that_is_told_a_path_outside(lab: Lab, path: str) -> None:
    with pytest.raises(OSError):
        lab.do(lab.sandbox.write_bytes(path, b"x"))
    with pytest.raises(OSError):
        lab.do(lab.sandbox.write_bytes(path, b"x" * (2 << 20)))


def test_a_job_whose_files_change_while_they_are_read(lab: Lab) -> None:
    async def work() -> None:
        growing = asyncio.create_task(
            lab.sandbox.run(
                Command(
                    argv="while :; do echo more >> grows; truncate -s 0 grows; done",
                    timeout_seconds=1,
                )
            )
        )
        while not growing.done():
            with contextlib.suppress(OSError):
                await lab.sandbox.read_bytes("/workspace/grows")
            await lab.sandbox.changes()
        await growing

    lab.do(work())


@pytest.mark.slow
def test_a_job_that_nests_folders_4096_deep(lab: Lab) -> None:
    program = """
for depth in range(4096):
    os.mkdir("d")
    os.chdir("d")
write("deep", b"at the bottom")
print(depth)
"""
    assert lab.python(program).strip() == "4095"

    walk = lab.do(lab.sandbox.walk("/workspace", max_entries=10_000, timeout_seconds=20))
    hits = lab.do(
        lab.sandbox.grep("bottom", "/workspace", only=None, max_hits=9, timeout_seconds=20)
    )
    lab.changes()

    assert not walk.complete  # it says that there is more
    assert not hits.complete
    with contextlib.suppress(OSError):
        lab.do(lab.sandbox.delete("/workspace/d"))
    lab.check_steward_is_well()


def test_a_job_that_makes_10000_files(lab: Lab) -> None:
    lab.python("for n in range(10000): open('f%d' % n, 'w').close()")

    entries = lab.do(lab.sandbox.list("/workspace"))
    walk = lab.do(lab.sandbox.walk("/workspace", max_entries=100, timeout_seconds=20))

    assert len(entries) == 10000
    assert (len(walk.entries), walk.complete) == (100, False)


@pytest.mark.slow
def test_a_job_that_makes_a_list_too_long_for_an_answer(lab: Lab) -> None:
    folder = "/".join(["/workspace", *("n" * 250 for _ in range(3))])
    lab.python(f"os.makedirs({folder!r}); os.chdir({folder!r})\n"
               "for n in range(10000): open('%0200d' % n, 'w').close()", seconds=60)  # fmt: skip

    with pytest.raises(OSError, match="File too large"):
        lab.do(lab.sandbox.list(folder))
    walk = lab.do(lab.sandbox.walk("/workspace", max_entries=1_000_000, timeout_seconds=20))

    assert not walk.complete
