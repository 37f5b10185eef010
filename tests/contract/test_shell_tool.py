"""What S2 says of `execute`, and what it leaves open; on every backend with a shell."""

import asyncio
import re
from typing import Any

import pytest

from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.protocol import Execution, Shell
from tests.contract.file_tools import Tools
from tests.waits import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def lives(shell: Tools, file: str) -> bool:
    """Whether the process whose number is in the file runs, and does not just wait to be reaped."""
    shown = await shell.execute(command=f"sed 's/.*) //' /proc/$(cat {file})/stat")
    return shown["exit_code"] == 0 and shown["output"][:1] not in {"Z", "X"}


async def test_a_command_runs_on_the_files_and_answers_with_s2s_result(shell: Tools) -> None:
    await shell.ok("write_file", file_path=shell.at("a.txt"), content="hi\n")
    assert await shell.execute(command="cat a.txt; test -f a.txt && echo here") == {
        "status": "success",
        "output": "hi\nhere\n",
        "exit_code": 0,
        "truncated": False,
    }


async def test_the_shell_and_the_file_tools_have_the_same_paths(shell: Tools) -> None:
    assert (await shell.execute(command="pwd"))["output"].strip() == shell.root
    await shell.execute(command=f"mkdir -p sub && echo text > {shell.root}/sub/new")
    assert (await shell.ok("read_file", file_path=shell.at("sub/new")))["content"] == "     1\ttext"


async def test_a_failed_command_has_its_exit_code_and_what_it_said(shell: Tools) -> None:
    failed = await shell.execute(command="no-such-command")
    assert (failed["status"], failed["exit_code"]) == ("error", 127)
    assert "no-such-command" in failed["output"]
    assert (await shell.execute(command="echo out; echo err >&2; exit 3")) == {
        "status": "error",
        "output": "out\nerr\n",
        "exit_code": 3,
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("name", "code"), [("KILL", 137), ("SEGV", 139), ("TERM", 143), ("PIPE", 141)]
)
async def test_a_command_that_a_signal_killed_says_which_one(
    shell: Tools, name: str, code: int
) -> None:
    killed = await shell.execute(command=f"echo out; kill -{name} $$")
    assert killed == {
        "status": "error",
        "output": f"out\n\n[The command was killed by SIG{name}, signal {code - 128}.]",
        "exit_code": code,
        "truncated": False,
    }


async def test_a_command_over_its_time_is_killed_with_everything_that_it_started(
    shell: Tools,
) -> None:
    command = "(setsid sleep 310 & echo $! > child; wait) & sleep 320"
    late = await shell.execute(command=command, timeout_seconds=1.5)
    assert late == {
        "status": "error",
        "output": "Command timed out after 1.5s",
        "exit_code": -1,
        "truncated": False,
    }
    assert not await lives(shell, "child")


async def test_output_before_the_timeout_is_kept(shell: Tools) -> None:
    late = await shell.execute(command="echo begun; sleep 300", timeout_seconds=1.5)
    assert late["output"] == "Command timed out after 1.5s\nbegun\n"


MARK = re.compile(
    r"\[\.\.\. (\d+) bytes(?: \((\d+) lines\))? of the output are left out here\. .*\]"
)


async def test_a_long_output_is_cut_on_line_ends_with_a_mark_that_counts_what_is_missing(
    shell: Tools,
) -> None:
    loud = await shell.execute(command="seq 1 60000")
    assert loud["truncated"] is True
    head, mark, tail = re.split(r"\n(\[\.\.\. .*\.\.\.\])\n", loud["output"])
    first, last = [int(line) for line in head.split()], [int(line) for line in tail.split()]
    assert first == list(range(1, len(first) + 1))
    assert last == list(range(60001 - len(last), 60001))
    counted = MARK.fullmatch(mark)
    assert counted is not None
    assert int(counted[2]) == 60000 - len(first) - len(last)
    whole = "".join(f"{number}\n" for number in range(1, 60001))
    assert int(counted[1]) == len(whole) - len(head) - 1 - len(tail)
    assert len(head) + len(tail) <= 75_000
    assert f"All of it is in {loud['output_file']}" in mark


async def test_an_output_is_whole_up_to_its_limit_and_has_no_file(shell: Tools) -> None:
    just = await shell.execute(command="head -c 75000 /dev/zero | tr '\\0' x")
    assert (just["truncated"], len(just["output"])) == (False, 75_000)
    assert "output_file" not in just


async def test_the_whole_of_a_cut_output_is_read_by_the_file_tools_and_by_the_shell(
    shell: Tools,
) -> None:
    loud = await shell.execute(command="seq 1 60000")
    path = loud["output_file"]
    assert not path.startswith(f"{shell.root}/")
    shown = await shell.ok("read_file", file_path=path, offset=29_999, limit=2)
    assert shown["content"].split("\n")[:2] == [" 30000\t30000", " 30001\t30001"]
    hits = await shell.ok("grep", pattern="45678", path=path, output_mode="content")
    assert hits["result"] == f"{path}:45678:45678"
    again = await shell.execute(command=f"wc -l < {path}; sed -n 107p {path}")
    assert again["output"].split() == ["60000", "107"]
    assert (await shell.ok("ls", path=shell.root))["entries"] == []


async def test_a_cut_inside_a_line_is_said_to_be_one_and_splits_no_character(shell: Tools) -> None:
    loud = await shell.execute(command="printf 'a'; yes '\u00e4' | head -n 200000 | tr -d '\\n'")
    head, mark, tail = re.split(r"\n(\[\.\.\. .*\.\.\.\])\n", loud["output"])
    assert (set(head), set(tail)) == ({"a", "\u00e4"}, {"\u00e4"})
    assert MARK.fullmatch(mark)


async def test_a_cut_output_whose_file_is_gone_or_replaced_by_a_link_harms_nobody(
    shell: Tools,
) -> None:
    path = (await shell.execute(command="seq 1 60000"))["output_file"]
    folder = path.rpartition("/")[0]
    await shell.execute(command=f"rm -f {path}; ln -s {shell.root}/elsewhere {path}")
    assert await shell.error("read_file", file_path=path)
    await shell.execute(command=f"rm -rf {folder}/* {folder}; ln -s {shell.root} {folder}")
    loud = await shell.execute(command="seq 1 60000")
    assert loud["output"].startswith("1\n2\n")
    assert MARK.search(loud["output"])


async def test_a_whole_output_is_kept_up_to_its_limit_and_said_to_be_a_beginning(
    shell: Tools,
) -> None:
    most = 64 * 1024**2
    loud = await shell.execute(command=f"head -c {most + 5_000_000} /dev/zero | tr '\\0' x")
    assert f"Only its first {most} bytes are in {loud['output_file']}" in loud["output"]
    size = await shell.execute(command=f"stat -c %s {loud['output_file']}")
    assert int(size["output"]) == most


async def test_output_that_is_no_text_is_shown_all_the_same(shell: Tools) -> None:
    result = await shell.execute(command="printf 'a\\377b\\n'")
    assert result["output"] == "a\N{REPLACEMENT CHARACTER}b\n"


async def test_a_background_child_does_not_make_the_call_wait(shell: Tools) -> None:
    result = await shell.execute(command="sleep 600 & echo done", timeout_seconds=60)
    assert (result["status"], result["output"]) == ("success", "done\n")


async def test_what_goes_on_in_the_background_is_named_and_its_output_is_read_by_the_next_call(
    shell: Tools,
) -> None:
    script = "until [ -e go ]; do sleep 0.05; done; echo from the background; echo ok > end"
    result = await shell.execute(command=f"({script}) & echo started")
    assert (result["exit_code"], result["output"]) == (0, "started\n")
    found = re.search(r"Stop with: kill [\d ]+\. .* is kept in (/.+)\.$", result["background"])
    assert found is not None
    assert "until [ -e go ]" in result["background"]
    path = found[1]
    assert not path.startswith(f"{shell.root}/")

    await shell.execute(command="touch go; until [ -e end ]; do sleep 0.05; done")
    seen = await shell.execute(command=f"until [ -s {path} ]; do sleep 0.05; done; cat {path}")
    assert seen["output"] == "from the background\n"
    assert "from the background" in (await shell.ok("read_file", file_path=path))["content"]
    assert "background" not in seen


async def test_commands_are_for_bash(shell: Tools) -> None:
    result = await shell.execute(
        command="[[ a == a ]] && diff <(echo {a,b}) <(echo a b) && echo same"
    )
    assert (result["exit_code"], result["output"]) == (0, "same\n")


async def test_nobody_can_be_asked_by_a_command(shell: Tools) -> None:
    result = await shell.execute(command="cat; read answer || echo nobody", timeout_seconds=5)
    assert result["output"] == "nobody\n"


async def test_a_cancelled_call_leaves_no_process(shell: Tools) -> None:
    running = asyncio.create_task(shell.execute(command="echo $$ > new; mv new pid; sleep 30"))
    await eventually(lambda: shell.found("pid"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not await lives(shell, "pid")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"command": " "}, "non-empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "x" * 140_000}, "shorter"),
        ({"command": "ls", "timeout_seconds": 0}, "timeout_seconds"),
        ({"command": "ls", "timeout_seconds": 9999}, "timeout_seconds"),
        ({"command": "ls", "cwd": "/"}, "cwd"),
    ],
)
async def test_a_wrong_call_is_told_in_words(
    shell: Tools, args: dict[str, object], named: str
) -> None:
    result = await shell.execute(**args)
    assert result["status"] == "error"
    assert named in result["error"]


async def test_an_edit_is_refused_when_the_shell_changed_the_file(shell: Tools) -> None:
    await shell.ok("write_file", file_path=shell.at("a.txt"), content="hi\n")
    await shell.execute(command="echo changed > a.txt")
    message = await shell.error(
        "edit_file", file_path=shell.at("a.txt"), old_string="changed", new_string="x"
    )
    assert "changed since" in message


async def test_without_a_time_a_command_gets_120_seconds_and_75000_bytes(
    local_shell: Tools,
) -> None:
    asked: list[tuple[float, int]] = []

    class Remembering(LocalShellBackend):
        async def execute(
            self, command: str, timeout_seconds: float, max_output_bytes: int, on_output: Any = None
        ) -> Execution:
            asked.append((timeout_seconds, max_output_bytes))
            return await super().execute(command, timeout_seconds, max_output_bytes, on_output)

    assert local_shell.folder is not None
    await Tools(Remembering(local_shell.folder)).execute(command="true")
    assert asked == [(120.0, 75_000)]


async def test_output_is_handed_on_while_the_command_runs(shell: Tools) -> None:
    assert isinstance(shell.backend, Shell)
    heard: list[bytes] = []

    async def hear(data: bytes) -> None:
        heard.append(data)
        await shell.put(shell.at("go"), "")

    waiting = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo last"
    ended = await shell.backend.execute(waiting, 20, 1000, hear)
    assert (ended.output, b"".join(heard)) == (b"first\nlast\n", b"first\nlast\n")
