"""What was found in other deep agents (`notes/peers-deepagents.md`), on every backend.

The findings there, by number, and what tests or prevents them here:

- 1 code runs through options of grep: test_no_option_of_a_search_program_is_taken_from_a_text
- 2 glob and grep leave the virtual root: test_patterns_and_links_…, test_backend_properties.py
- 3 the default backend is no jail: test_files_of_this_machine_are_not_there
- 4, 5 a delegation drops or replaces a policy: unit/deep_agent/test_subagents.py,
  unit/deep_agent/*approval*
- 4 a list of commands is matched loosely: nothing matches commands: a sandbox confines them
- 6 a client names the folder a worker uses: a job's spec has no folder: it starts from a snapshot
- 7 fetching a URL reaches inside: test_no_tool_fetches, unit/test_egress_rules.py
- 8 the shell sees keys in the environment: test_the_shell_sees_no_key_of_this_process
- 8 tracebacks reach the model: test_a_tool_that_fails_tells_its_reason_and_no_traceback
- 9 wrapping a tool overwrites globals: no tool is wrapped: `MethodTool` calls the method
- an escaping link ends the run: test_patterns_and_links_…
- traversal and corruption through edit: test_an_edit_cannot_be_led_away_…, test_file_writing.py
- a swapped link wins a race: test_a_folder_that_is_swapped_…, unit/deep_agent/test_jail.py
- output is held whole: test_300_mb_of_output_take_no_memory
- a search or a command blocks the event loop: test_no_pattern_…, test_no_depth_…,
  test_commands_run_at_…
- a killed command leaves processes: test_shell_tool.py
- archives with hostile names: adversarial/test_archives.py, unit/test_merge.py
"""

import asyncio
import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from fanout.orchestrator.deep_agent.tools import search as search_module
from tests.contract.file_tools import Tools
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "canary-outside"  # noqa: S105 - nobody's

OPTIONS = ["--pre=sh", "--pre", "-f", "-e", "--files", "-r", "--exec=sh", "-exec", "--", "-"]


@pytest.mark.parametrize("option", OPTIONS)
async def test_no_option_of_a_search_program_is_taken_from_a_text(
    tools: Tools, option: str
) -> None:
    await tools.put(tools.at("attack.sh"), f"touch {tools.root}/pwned /tmp/pwned\n")
    await tools.put(tools.at("notes"), f"see {option} here\n")
    found = await tools.ok("grep", pattern=option)
    assert found["result"].split("\n")[-1] in {tools.at("notes"), tools.at("attack.sh")}
    await tools("grep", pattern="touch", glob=option)
    await tools("grep", pattern="touch", path=option)
    await tools("grep", pattern="touch", path=tools.at(option))
    await tools("glob", pattern=option, path=tools.root)
    assert await tools.found("**/pwned") == []


@pytest.mark.parametrize(
    "pattern",
    [
        "../*",
        "../../../../etc/host*",
        "{.,}./*",
        "{..,a}/*",
        "[.][.]/*",
        "@(..)/*",
        "\\.\\./*",
        "out/*",
        "out/**",
    ],
)
async def test_patterns_and_links_lead_nowhere_outside(
    shell: Tools, tmp_path: Path, pattern: str
) -> None:
    await asyncio.to_thread((tmp_path / "secret").write_text, SECRET)
    await shell.execute(
        command=f"mkdir in; ln -s {tmp_path} out; ln -s {tmp_path}/secret abs; ln -s .. up"
    )
    base = shell.at("in")
    shown = [
        await shell("glob", pattern=pattern, path=base),
        await shell("glob", pattern=pattern, path=shell.root),
        await shell("grep", pattern="canary", path=base, glob=pattern, output_mode="content"),
        await shell("grep", pattern="canary", glob=pattern, output_mode="content"),
        await shell("grep", pattern="canary", path=shell.at("out"), output_mode="content"),
        await shell("read_file", file_path=shell.at("out/secret")),
        await shell("read_file", file_path=shell.at("abs")),
        await shell("ls", path=shell.at("out")),
    ]
    assert SECRET not in str(shown)
    assert "hostname" not in str(shown)
    assert all(result["status"] == "error" for result in shown[-4:]), shown[-4:]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/proc/self/environ", "/proc/self/cwd/README.md", "/root"]
)
async def test_files_of_this_machine_are_not_there(tools: Tools, path: str) -> None:
    if getattr(tools.backend, "kind", "") == "docker":
        pytest.skip("these are the container's own files")
    assert await tools.error("read_file", file_path=path)
    assert await tools.error("edit_file", file_path=path, old_string="root", new_string="x")
    assert await tools.error("ls", path=path)


async def test_an_edit_cannot_be_led_away_by_what_lies_at_its_path(
    shell: Tools, tmp_path: Path
) -> None:
    await asyncio.to_thread((tmp_path / "secret").write_text, SECRET)
    await shell.execute(command=f"ln -s {tmp_path}/secret file; ln -s {tmp_path} folder")
    for name in ("file", "folder/secret", "folder/new"):
        await shell("edit_file", file_path=shell.at(name), old_string=SECRET, new_string="changed")
        await shell(
            "write_file", file_path=shell.at(name), content="changed"
        )  # maybe in a /tmp of its own
        patch = f"*** Update File: {shell.at(name)}\n-{SECRET}\n+changed"
        await shell("apply_patch", input=f"*** Begin Patch\n{patch}\n*** End Patch")
        patch = f"*** Add File: {shell.at(name)}\n+changed"
        await shell("apply_patch", input=f"*** Begin Patch\n{patch}\n*** End Patch")
        await shell("write_file", file_path=shell.at(name), content="changed", overwrite=True)
    await shell.ok("delete_file", file_path=shell.at("folder"))
    await shell.ok("delete_file", file_path=shell.at("file"))
    assert [
        item.read_text() for item in await asyncio.to_thread(lambda: [*tmp_path.iterdir()])
    ] == [SECRET]


async def test_a_folder_that_is_swapped_for_a_link_is_never_read_changed_or_emptied(
    local_shell: Tools, tmp_path: Path
) -> None:
    assert local_shell.folder is not None
    await asyncio.to_thread((tmp_path / "secret").write_text, SECRET)
    with _swapping(local_shell.folder / "door", tmp_path):
        for _ in range(60):
            at = local_shell.at("door/secret")
            shown = [
                await local_shell("read_file", file_path=at),
                await local_shell(
                    "edit_file", file_path=at, old_string=SECRET, new_string="changed"
                ),
                await local_shell("grep", pattern="canary", output_mode="content"),
                await local_shell("grep", pattern="canary", path=local_shell.at("door"), glob="*"),
                await local_shell("delete_file", file_path=at),
            ]
            assert SECRET not in str(shown)
    assert await asyncio.to_thread((tmp_path / "secret").read_text) == SECRET


@contextlib.contextmanager
def _swapping(door: Path, outside: Path):
    """A folder that is a link to the outside half of the time."""
    stop, aside = threading.Event(), door.with_name("aside")

    def swap() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                door.mkdir(exist_ok=True)
                door.rename(aside)
                door.symlink_to(outside)
                door.unlink()
                aside.rmdir()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def test_the_shell_sees_no_key_of_this_process(
    shell: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "FANOUT_REDIS_URL",
        "LD_PRELOAD_X",
        "SOME_TOKEN",
    ):
        monkeypatch.setenv(name, SECRET)
    seen = await shell.execute(command="env; set; export")
    assert seen["status"] == "success"
    assert SECRET not in seen["output"]
    assert "PATH=" in seen["output"]


async def test_300_mb_of_output_take_no_memory(shell: Tools) -> None:
    own = psutil.Process()
    before = own.memory_info().rss
    loud = asyncio.create_task(shell.execute(command="head -c 300000000 /dev/zero"))
    most = before
    while not loud.done():
        most = max(most, own.memory_info().rss)
        await asyncio.sleep(0.01)
    assert (await loud)["truncated"] is True
    assert most - before < 50_000_000


@pytest.mark.parametrize(
    "pattern",
    ["**/a/" * 6 + "b", "*a" * 60 + "b", "{a,{a,{a,{a,b}}}}" * 3, "[[:alpha:]-z]*" * 9 + "!"],
)
async def test_no_pattern_outlasts_its_time_or_stops_the_loop(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """With `re` the first one takes hours, in which no other thread runs."""
    monkeypatch.setattr(search_module, "SEARCH_SECONDS", 1.0)
    await tools.put(tools.at("a/" * 90 + "c"), "x")
    await tools.put(tools.at("a" * 250), "x")
    searching = asyncio.create_task(tools("glob", pattern=pattern, path=tools.root))
    turns = 0
    while not searching.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await searching)["status"] in {"success", "error"}
    assert turns > 1


async def test_no_depth_uses_up_descriptors_or_the_stack(tools: Tools) -> None:
    if tools.folder is not None:
        await asyncio.to_thread(_dig, tools.folder, 1100)
    deep = "/d" * 1100
    for name, args in (
        ("read_file", {"file_path": f"{tools.root}{deep}/f"}),
        ("write_file", {"file_path": f"{tools.root}{deep}/g", "content": "x"}),
        ("ls", {"path": f"{tools.root}{deep}"}),
        ("glob", {"pattern": "**/f", "path": tools.root}),
        ("grep", {"pattern": "x", "path": tools.root}),
        ("delete_file", {"file_path": tools.at("d")}),
    ):
        assert (await tools(name, **args))["status"] in {"success", "error"}
    if tools.folder is not None:
        await asyncio.to_thread(_clear, tools.folder)


def _dig(folder: Path, depth: int) -> None:
    """Directories in each other, deeper than one path can name."""
    subprocess.run(
        [sys.executable, "-c", f"import os\nfor _ in range({depth}): os.mkdir('d'); os.chdir('d')"],
        cwd=folder,
        check=True,
    )


def _clear(folder: Path) -> None:
    subprocess.run(["rm", "-rf", str(folder / "d")], check=True)


async def test_commands_run_at_the_same_time(shell: Tools) -> None:
    """Each waits for the other: neither would end if a command stopped the loop."""
    meet = "touch {}; for _ in $(seq 200); do [ -e {} ] && exit; sleep 0.05; done; exit 1"
    first, second = await asyncio.gather(
        shell.execute(command=meet.format("a", "b")), shell.execute(command=meet.format("b", "a"))
    )
    assert (first["exit_code"], second["exit_code"]) == (0, 0)


async def test_no_tool_fetches(shell: Tools) -> None:
    for name, tool in shell.by_name.items():
        declaration = tool._get_declaration()
        assert declaration is not None
        assert "url" not in str(declaration.parameters_json_schema).lower(), name
    assert await shell.error("read_file", file_path="http://127.0.0.1/")
    assert await shell.error("read_file", file_path="file:///etc/passwd")


async def test_a_tool_that_fails_tells_its_reason_and_no_traceback() -> None:
    async def fragile() -> dict[str, str]:
        """Somebody's tool."""
        raise RuntimeError("the disk is gone")

    run = await Run(
        scripted([{"calls": [call("fragile")]}, {"text": "done"}]), tools=[fragile]
    ).to_end()
    assert run.results == [
        {"status": "error", "error": "fragile failed: RuntimeError: the disk is gone"},
    ]
    assert run.text == "done"
