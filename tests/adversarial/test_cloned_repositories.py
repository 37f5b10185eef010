"""Git repositories that strangers name: what they may not reach, and what runs on our machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fanout.orchestrator.server.uploads import GitHosts
from fanout.orchestrator.workspace.exchange.cloned import (
    CloneRefused,
    GitRules,
    GitSource,
    check_source,
    clone,
)
from tests.git_host import GitHost
from tests.https_host import PrivateAuthority
from tests.repositories import git

SIZE = 10 * 1024**2


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc",
        "/etc",
        "ext::sh -c touch% /tmp/x",
        "ssh://git@host/x",
        "git@host:x",
        "http://host/x",
        "https://user:secret@host/x",
        "https://user@host/x",
        "https://host/x?token=secret",
        "https:///x",
        "https://host:99999/x",
        "--upload-pack=touch /tmp/x",
        "https://host/x y",
        "https://host/x\n",
    ],
)
def test_only_plain_https_addresses_are_cloned(url: str) -> None:
    with pytest.raises(CloneRefused) as refused:
        check_source(GitSource(url))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "ref", ["--upload-pack=x", "-x", "a..b", "a@{1}", "a b", "", "+a:b", "a:b"]
)
def test_a_reference_is_no_option_and_no_mapping(ref: str) -> None:
    with pytest.raises(CloneRefused, match="ref"):
        check_source(GitSource("https://host/x", ref))


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:127.0.0.1"]
)
def test_hosts_of_a_private_network_are_not_cloned_from(address: str) -> None:
    hosts = GitHosts(resolve=lambda _host, _port: ["93.184.216.34", address])
    with pytest.raises(ValueError, match="public internet"):
        hosts("git.example", 443)
    with pytest.raises(ValueError, match=r"public internet|as usual"):
        GitHosts()(address, 443)
    allowed = GitHosts(["git.example"], lambda _host, _port: [address])
    assert allowed("git.example", 8443) == [address]
    with pytest.raises(ValueError, match="port"):
        GitHosts(resolve=lambda _host, _port: ["93.184.216.34"])("git.example", 22)
    with pytest.raises(ValueError, match="name, or an address"):
        GitHosts()("0x7f000001", 443)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[GitHost, GitRules]]:
    """A Git host with a hostile repository, and the rules with which it is cloned."""
    tree, bare = tmp_path / "tree", tmp_path / "repositories" / "hostile.git"
    tree.mkdir()
    git(tree, "init", "-q", "-b", "main")
    (tree / "readme").write_text("one\n")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    (tree / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (tree / ".gitmodules").write_text(
        '[submodule "x"]\n\tpath = x\n\turl = https://git.example/x\n\tupdate = !touch /tmp/x\n'
    )
    (tree / ".lfsconfig").write_text("[lfs]\n\turl = https://evil.example\n")
    (tree / "big").write_bytes(bytes(3 * 1024**2))
    (tree / "link").symlink_to("/etc/passwd")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "second")
    git(tree, "tag", "v1")
    bare.parent.mkdir()
    git(tree, "clone", "-q", "--bare", ".", str(bare))
    authority = PrivateAuthority(tmp_path / "authority")
    hosts = GitHosts(["git.example"], lambda _host, _port: ["127.0.0.1"])
    with GitHost(bare.parent, authority.context("git.example"), {}).serving() as serving:
        yield serving, GitRules(hosts, 30, authority.ca_file)


@pytest.mark.slow
def test_a_repository_is_cloned_shallow_bounded_and_without_running_anything(
    tmp_path: Path, host: tuple[GitHost, GitRules]
) -> None:
    serving, rules = host
    source = GitSource(f"https://git.example:{serving.port}/hostile.git")

    def cloned(source: GitSource, rules: GitRules = rules, size: int = SIZE) -> Path:
        folder = tmp_path / f"clone-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        clone(source, folder, rules, max_bytes=size)
        return folder

    folder = cloned(source)
    assert (folder / "readme").read_text() == "one\n"
    assert (folder / "link").readlink() == Path(
        "/etc/passwd"
    )  # inside a sandbox it is the sandbox's
    history = ["git", "-C", str(folder), "rev-list", "--count", "HEAD"]
    assert subprocess.run(history, check=True, capture_output=True).stdout == b"1\n"
    assert not list((folder / ".git").glob("hooks/*"))
    assert "git.example" not in (folder / ".git" / "config").read_text()
    deep = cloned(replace(source, ref="v1", depth=5))
    history[2] = str(deep)
    assert subprocess.run(history, check=True, capture_output=True).stdout == b"2\n"

    with pytest.raises(CloneRefused, match="more than 1,048,576 bytes"):
        cloned(source, size=1024**2)
    with pytest.raises(CloneRefused, match="cannot be cloned"):
        cloned(replace(source, ref="missing"))
    with pytest.raises(CloneRefused, match="cannot be cloned"):  # its certificate is not trusted
        cloned(source, replace(rules, ca_file=None))
    with pytest.raises(CloneRefused, match="took too long"):
        cloned(source, replace(rules, seconds=0.0))
    with pytest.raises(CloneRefused, match="no longer wanted"):
        clone(source, _new(tmp_path), rules, max_bytes=SIZE, is_wanted=lambda: False)


def _new(folder: Path) -> Path:
    (folder / "unwanted").mkdir()
    return folder / "unwanted"
