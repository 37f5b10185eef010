"""A look at the machine's processes sees those that begin while it reads."""

from __future__ import annotations

import subprocess

from fanout.orchestrator.deep_agent.backends.proc_table import other_processes


def test_a_process_that_begins_during_the_look_is_seen() -> None:
    started: list[subprocess.Popen[bytes]] = []
    seen = []
    try:
        for pid, _session in other_processes():
            seen.append(pid)
            if len(started) < 3 and (not started or pid == started[-1].pid):
                started.append(subprocess.Popen(["/bin/sleep", "60"]))
        assert [one.pid for one in started] == [
            pid for pid in seen if pid in {p.pid for p in started}
        ]
        assert len(started) == 3
        assert len(set(seen)) == len(seen)
    finally:
        for one in started:
            one.kill()
            one.wait()
