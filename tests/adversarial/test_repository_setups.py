"""A repository's set-up is not trusted: what is none is refused with one sentence, soon."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from fanout.orchestrator.configuration.setup_definition import (
    REPOSITORY_FILE,
    UnusableSetup,
    read_repository_setup,
)
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.attempt.start_files import MAX_CONTENT_BYTES, StartFilesReader
from fanout.workers.sandbox.egress.uplink import AllowedHosts


def test_a_set_up_is_read_and_an_empty_file_is_none() -> None:
    found = read_repository_setup(
        b"commands: [make]\nnetwork: [a.example]\nkey_files: [a/b.lock]\n"
    )

    assert found.commands == ("make",)
    assert found.network == ("a.example",)
    assert found.key_files == ("a/b.lock",)
    assert read_repository_setup(b"# later\n").commands == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"commands: make\n", "commands: "),
        (b"commands: [1]\n", "commands.0: "),
        (b"commands: ['  ']\n", "commands.0: "),
        (b"commands: [a" + b", a" * 200 + b"]", "commands: "),
        (b"- commands\n", "it has to be a mapping"),
        (b"credentials: [{host: a.example, secret: KEY}]\n", "unknown key 'credentials'"),
        (b"key_files: [../other]\n", "'../other' is not a file's path"),
        (b"key_files: [/etc/passwd]\n", "'/etc/passwd' is not a file's path"),
        (b"key_files: [.git/config]\n", "'.git/config' is not a file's path"),
        (b"timeout_seconds: 1e9\n", "timeout_seconds: "),
        (b"timeout_seconds: .nan\n", "timeout_seconds: "),
        (b"a: &a [x, x]\ncommands: [*a, *a]\n", "it uses an alias"),
        (b"commands: !!python/object/apply:os.system [id]\n", "it is not YAML"),
        (b"commands: " + b"[" * 30_000, "it is not YAML"),
        (b"timeout_seconds: " + b"9" * 10_000 + b"\n", ""),
        (b"commands: [\xff]\n", "it is not UTF-8"),
        (b"commands: [a\n---\n", "it is not YAML"),
        (b"#" * (MAX_CONTENT_BYTES + 1), "it has more than 65,536 bytes"),
        (b"? {a: b}\n: c\n", "it"),
    ],
)
def test_what_is_no_set_up_is_refused_with_one_sentence(content: bytes, words: str) -> None:
    with pytest.raises(UnusableSetup) as refused:
        read_repository_setup(content)

    said = str(refused.value)
    assert said.startswith(f"{REPOSITORY_FILE} of the workspace cannot be used: ")
    assert words in said
    assert len(said) < 600
    assert "\n" not in said


async def test_the_files_of_a_start_are_read_without_following_or_unpacking_anything(
    tmp_path: Path,
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("link", tarfile.SYMTYPE), ("folder", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        huge = tarfile.TarInfo("huge")
        huge.size = 3 * MAX_CONTENT_BYTES
        archive.addfile(huge, io.BytesIO(b"x" * huge.size))
    blobs = BlobStore((tmp_path / "blobs").as_uri())
    start = StartFiles(await blobs.put(buffer.getvalue()))

    found = await StartFilesReader(blobs).read(
        start, frozenset({"link", "folder", "huge", "absent", "link/below"})
    )

    assert {name: file and file.kind for name, file in found.items()} == {
        "link": "symlink", "folder": "directory", "huge": "file", "absent": None, "link/below": None,
    }  # fmt: skip
    assert found["huge"]
    assert len(found["huge"].content) == MAX_CONTENT_BYTES + 1
    assert found["link"]
    assert not found["link"].content


def test_a_list_of_hosts_is_cut_to_those_that_another_one_permits() -> None:
    permitted = AllowedHosts(("a.example", "*.b.example", "192.0.2.7:8080", "c.example:8443"))

    asked = ("a.example", "a.example:22", "x.b.example", "*.x.b.example", "b.example", "*.c.example",
             "192.0.2.7", "192.0.2.7:8080", "c.example:8443", "c.example")  # fmt: skip
    assert permitted.cut(asked) == (
        "a.example", "x.b.example", "*.x.b.example", "192.0.2.7:8080", "c.example:8443",
    )  # fmt: skip
    assert AllowedHosts(()).cut(asked) == ()
    with pytest.raises(InvalidJob):
        permitted.cut(("no host",))
