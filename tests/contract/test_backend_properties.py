"""What holds for every path, pattern, edit and order of operations, on every backend."""

import asyncio
import contextlib
import posixpath
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from tests.contract.file_tools import Tools

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""Few examples of many steps each: a container answers in a millisecond or two."""

NAMES = st.sampled_from(["a", "b", "a.txt", "b.md", "c d", ".dot", "ü", "x~"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TEXTS = st.text(st.sampled_from("ab\n\r é"), max_size=8)
GLOBS = st.sampled_from(
    ["**/*", "*", "*.txt", "**/*.{txt,md}", "a/**", "?", "[ab]*", ".*", "**/.dot", "{a,b}/*"]
)

OPERATIONS = st.one_of(
    st.tuples(st.just("write_file"), st.fixed_dictionaries({"file_path": PATHS, "content": TEXTS})),
    st.tuples(
        st.just("edit_file"),
        st.fixed_dictionaries(
            {
                "file_path": PATHS,
                "old_string": TEXTS,
                "new_string": TEXTS,
                "replace_all": st.booleans(),
            }
        ),
    ),
    st.tuples(
        st.just("read_file"),
        st.fixed_dictionaries(
            {"file_path": PATHS, "offset": st.integers(-1, 3), "limit": st.integers(0, 3)}
        ),
    ),
    st.tuples(st.just("delete_file"), st.fixed_dictionaries({"file_path": PATHS})),
    st.tuples(st.just("ls"), st.fixed_dictionaries({"path": PATHS})),
    st.tuples(st.just("glob"), st.fixed_dictionaries({"pattern": GLOBS, "path": st.just("")})),
    st.tuples(
        st.just("grep"),
        st.fixed_dictionaries(
            {
                "pattern": st.sampled_from(["a", "b", "é", " ", "ab"]),
                "path": st.just(""),
                "glob": st.one_of(st.none(), GLOBS),
                "output_mode": st.sampled_from(["files_with_matches", "content", "count"]),
            }
        ),
    ),
)


def comparable(value: Any, root: str) -> Any:
    """A result without what backends may differ in: where their root is, times, and hints.

    A hint names what else is there, such as the files of other examples.
    """
    if isinstance(value, dict):
        return {key: comparable(item, root) for key, item in value.items() if key != "modified_at"}
    if isinstance(value, list):
        return [comparable(item, root) for item in value]
    if not isinstance(value, str):
        return value
    return value.partition(". Did you mean ")[0].replace(root, "")


def below(args: dict[str, Any], root: str) -> dict[str, Any]:
    """The arguments with their paths under a root."""
    named = {"file_path", "path"} & set(args)
    return {**args, **{name: posixpath.join(root, args[name]).rstrip("/") for name in named}}


@pytest.fixture
def fresh(tools: Tools) -> Callable[[], tuple[Tools, str]]:
    """A session of its own and an empty folder for each example."""
    made = 0

    def make() -> tuple[Tools, str]:
        nonlocal made
        made += 1
        return tools.another_agent(), tools.at(f"example{made}")

    return make


async def test_the_same_operations_give_the_same_answers_everywhere(
    fresh: Callable[[], tuple[Tools, str]],
) -> None:
    """Against the state backend, step by step.

    A directory that was emptied is the one known difference.
    """
    loop = asyncio.get_running_loop()

    async def compare(operations: list[tuple[str, dict[str, Any]]]) -> None:
        agent, root = fresh()
        model, model_root = Tools(StateBackend(DictState())), "/model"
        for side, folder in ((agent, root), (model, model_root)):
            await side.put(f"{folder}/keep/file", "")
        for name, args in operations:
            expected = comparable(await model(name, **below(args, model_root)), model_root)
            answer = comparable(await agent(name, **below(args, root)), root)
            if not (name == "ls" and answer == {"status": "success", "entries": []}):
                assert (name, args, answer) == (name, args, expected)
            await _forget_empty_folders(agent, root)

    @MODEL
    @given(st.lists(OPERATIONS, max_size=15))
    def run(operations: list[tuple[str, dict[str, Any]]]) -> None:
        asyncio.run_coroutine_threadsafe(compare(operations), loop).result(30)

    await asyncio.to_thread(run)


async def _forget_empty_folders(agent: Tools, path: str) -> bool:
    """Remove directories without files, which a state does not have; whether this is one."""
    entries = (await agent("ls", path=path)).get("entries", [])
    folders = [entry["path"] for entry in entries if entry["is_dir"]]
    emptied = [await _forget_empty_folders(agent, folder) for folder in folders]
    if len(folders) == len(entries) and all(emptied):
        with contextlib.suppress(OSError):
            await agent.backend.delete(path)
        return True
    return False


PATCH = """\
*** Begin Patch
*** Update File: {path}
*** Move to: {other}
@@
-canary outside
+x
*** End Patch"""

HOSTILE = st.lists(
    st.sampled_from(
        [
            "..",
            ".",
            "",
            "a",
            "out",
            "abs",
            "etc",
            "passwd",
            "~",
            "\\..\\..",
            "C:",
            "secret",
            "up",
            "\0",
            "…",
            "-f",
        ]
    ),
    max_size=6,
).map("/".join)


async def test_no_path_pattern_or_edit_leaves_the_root(tools: Tools) -> None:
    """Links out of the root are there where a backend can have them.

    Nothing outside is seen or changed.
    """
    loop = asyncio.get_running_loop()
    secret = "canary outside"  # noqa: S105 - nobody's
    outside = tools.folder.parent / f"{tools.folder.name}-outside" if tools.folder else None
    if outside is not None and tools.folder is not None:
        await asyncio.to_thread(_plant, outside, tools.folder, secret)

    async def attack(path: str, other: str) -> None:
        agent = tools.another_agent()
        for target in (path, f"{tools.root}/{path}", f"{tools.root}/out/{path}"):
            shown = [
                await agent("read_file", file_path=target),
                await agent("edit_file", file_path=target, old_string=secret, new_string="x"),
                await agent("apply_patch", input=PATCH.format(path=target, other=other)),
                await agent("glob", pattern=other or "*", path=target),
                await agent("glob", pattern=target, path=tools.root),
                await agent(
                    "grep", pattern="canary", path=target, glob=other, output_mode="content"
                ),
            ]
            assert secret not in str(shown)
            if target.startswith(tools.root):
                await agent("write_file", file_path=target, content="x")

    @settings(MODEL, max_examples=20)
    @given(HOSTILE, HOSTILE)
    def run(path: str, other: str) -> None:
        asyncio.run_coroutine_threadsafe(attack(path, other), loop).result(30)

    await asyncio.to_thread(run)
    if outside is not None:
        assert await asyncio.to_thread(_content, outside) == {"secret": secret}
        await asyncio.to_thread(_remove, outside)


def _plant(outside: Any, root: Any, secret: str) -> None:
    outside.mkdir()
    (outside / "secret").write_text(secret)
    (root / "out").symlink_to(outside)
    (root / "abs").symlink_to(outside / "secret")
    (root / "up").symlink_to("..")


def _content(folder: Any) -> dict[str, str]:
    return {item.name: item.read_text() for item in folder.iterdir()}


def _remove(folder: Any) -> None:
    (folder / "secret").unlink()
    folder.rmdir()
