"""A coding agent for tests: it speaks ACP and does what its first prompt has between @@.

That is a JSON object: `turns`, a list of steps for each prompt, and `told`, the steps of a session
that is told of earlier work. A session is kept in HOME, step by step, so that another process goes
on with it. It needs nothing but Python, because it runs in a sandbox.

    python3 acp_agent.py [--no-load]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

SESSIONS = pathlib.Path(os.environ["HOME"]) / "acp-sessions"
WITHOUT_LOAD = "--no-load" in sys.argv


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def around(text):
    return " ".join(text.split("@@")[::2])


class Cancelled(Exception):
    pass


class Session:
    def __init__(self, name):
        self.name = name
        self.path = SESSIONS / f"{name}.json"
        self.state = {"program": {}, "turn": 0, "step": 0, "prompts": [], "said": []}

    def save(self):
        SESSIONS.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.rename(self.path)

    def update(self, update, **fields):
        said = {"sessionUpdate": update, **fields}
        send({"method": "session/update", "params": {"sessionId": self.name, "update": said}})

    def say(self, text, kind="agent_message_chunk"):
        self.state["said"].append(text)
        for word in text.split(" "):
            self.update(kind, content={"type": "text", "text": word + " "})

    def prompt(self, number, text):
        state = self.state
        if not state["program"]:
            state["program"] = json.loads(text.split("@@")[-2])
            if "<earlier>" in around(text) and "told" in state["program"]:
                state["program"] = {"turns": [state["program"]["told"]]}
        is_interrupted = bool(state["prompts"]) and state.get("open")
        if not is_interrupted:
            state["turn"], state["step"] = len(state["prompts"]), 0
            state["prompts"].append(text)
        state["open"] = True
        self.save()
        turns = state["program"]["turns"]
        steps = turns[min(state["turn"], len(turns) - 1)]
        end = {"stopReason": "end_turn"}
        try:
            while state["step"] < len(steps):
                end.update(self.do(steps[state["step"]], text) or {})
                state["step"] += 1
                self.save()
        except Cancelled:
            end = {"stopReason": "cancelled"}
        else:
            state["open"] = False
        self.save()
        send({"id": number, "result": end})
        if "quits" in end:
            sys.exit(0)

    def do(self, step, prompt):
        ((name, value),) = step.items()
        return getattr(self, f"do_{name}")(value, prompt)

    def call(self, kind, title, raw, work):
        call = f"call_{self.state['turn']}_{self.state['step']}"
        self.update("tool_call", toolCallId=call, title=title, kind=kind, status="pending")
        self.update("tool_call_update", toolCallId=call, status="in_progress", rawInput=raw)
        output = work()
        content = [{"type": "content", "content": {"type": "text", "text": output}}]
        self.update("tool_call_update", toolCallId=call, status="completed", content=content)

    def do_say(self, text, _):
        self.say(text)

    def do_think(self, text, _):
        self.say(text, "agent_thought_chunk")

    def do_said_prompt(self, words, prompt):
        """Say which of these words the prompt has, around the scripts in it."""
        self.say("told: " + ", ".join(word for word in words if word in around(prompt)))

    def do_write(self, files, _):
        for path, text in files.items():
            work = lambda path=path, text=text: str(pathlib.Path(path).write_text(text))  # noqa: E731
            self.call("edit", f"Write {path}", {"path": path}, work)

    def do_append(self, files, _):
        for path, text in files.items():
            with pathlib.Path(path).open("a") as file:
                file.write(text)

    def do_run(self, command, _):
        def work():
            done = subprocess.run(
                ["sh", "-c", command], check=False, capture_output=True, text=True
            )
            return done.stdout + done.stderr

        self.call("execute", command, {"command": command}, work)

    def do_start(self, command, _):
        """Begin a call and never end it."""
        self.update(
            "tool_call", toolCallId="long", title=command, kind="execute", status="in_progress",
            rawInput={"command": command},
        )  # fmt: skip
        subprocess.Popen(["sh", "-c", command], start_new_session=True)

    def do_wait_for(self, path, _):
        while not pathlib.Path(path).exists():
            time.sleep(0.05)

    def do_hold(self, name, _):
        """Wait for ever, unless another process has waited here before."""
        mark = SESSIONS / f"held-{name}"
        if not mark.exists():
            mark.touch()
            self.say("holding")
            while True:
                time.sleep(60)

    def do_search(self, parts, _):
        """Say where the parts, joined, are found: in environments, in files, in own memory."""
        wanted, found = "".join(parts).encode(), []
        paths = [*pathlib.Path("/proc").glob("[0-9]*/environ")]
        for top in (os.environ["HOME"], "/home", "/tmp", "/workspace", "/etc", "/run"):
            paths += [path for path in pathlib.Path(top).rglob("*") if path.is_file()]
        for path in paths:
            try:
                if wanted in path.read_bytes():
                    found.append(str(path))
            except OSError:
                continue
        self.say(f"searched {len(paths) > 10}, found {found}")

    def do_ask(self, asked, _):
        """Ask for permission, and do the steps of `then` if it is given."""
        call = f"ask_{self.state['step']}"
        self.update(
            "tool_call", toolCallId=call, title=asked["title"], kind=asked["kind"],
            status="pending", rawInput=asked.get("input"),
        )  # fmt: skip
        options = [
            {"optionId": f"option-{kind}", "name": kind, "kind": kind}
            for kind in asked.get("options", ("allow_always", "allow_once", "reject_once"))
        ]
        params = {
            "sessionId": self.name, "toolCall": {"toolCallId": call}, "options": options,
        }  # fmt: skip
        send({"id": "q1", "method": "session/request_permission", "params": params})
        while True:
            message = read()
            if message.get("method") == "session/cancel":
                raise Cancelled
            if message.get("id") == "q1":
                break
        outcome = message["result"]["outcome"]
        chosen = outcome.get("optionId", outcome["outcome"])
        is_allowed = chosen == "option-allow_once"
        self.update(
            "tool_call_update", toolCallId=call, status="completed" if is_allowed else "failed"
        )
        self.say(f"{asked['title']}: {chosen}.")
        for step in asked.get("then", ()) if is_allowed else ():
            self.do(step, "")

    def do_plan(self, entries, _):
        kept = [
            {"content": text, "priority": "medium", "status": status} for text, status in entries
        ]
        self.update("plan", entries=kept)

    def do_cost(self, amount, _):
        cost = {"amount": amount, "currency": "USD"}
        self.update("usage_update", used=100, size=1000, cost=cost)

    def do_tokens(self, counts, _):
        read_tokens, written = counts
        total = read_tokens + written
        return {
            "usage": {"inputTokens": read_tokens, "outputTokens": written, "totalTokens": total}
        }

    def do_quit(self, _value, _prompt):
        """End the process with the turn."""
        return {"quits": True}

    def do_stop(self, reason, _):
        return {"stopReason": reason}

    def do_unknown(self, _value, _prompt):
        self.update("telepathy", content={"type": "aura"})
        send({"method": "session/unheard_of", "params": {}})
        send({"id": "x1", "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}})
        answer = read()
        self.say(f"refused: {answer['error']['code']}")

    def do_exit(self, ending, _):
        code, text = ending
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.exit(code)

    def do_garbage(self, lines, _):
        for _number in range(lines):
            sys.stdout.write("this is no JSON {\n")
        sys.stdout.flush()

    def do_flood(self, what, _):
        """Write 100 MB: `line`, one without an end; `updates`, in messages."""
        if what == "line":
            block = "x" * 2**20
            for _number in range(100):
                sys.stdout.write(block)
        else:
            text = "y" * 10_000
            for _number in range(10_000):
                self.update("agent_message_chunk", content={"type": "text", "text": text})
        sys.stdout.flush()

    def do_hang(self, _value, _prompt):
        """Never end, whatever it is told."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(60)


def main():
    sessions = {}
    while True:
        message = read()
        method, number, params = (message.get(name) for name in ("method", "id", "params"))
        if method == "initialize":
            capabilities = {"loadSession": not WITHOUT_LOAD}
            send(
                {"id": number, "result": {"protocolVersion": 1, "agentCapabilities": capabilities}}
            )
        elif method == "session/new":
            if "--login" in sys.argv:
                send(
                    {"id": number, "error": {"code": -32000, "message": "Authentication required"}}
                )
                continue
            session = Session(f"session-{os.urandom(4).hex()}")
            sessions[session.name] = session
            session.update("available_commands_update", availableCommands=[])
            send({"id": number, "result": {"sessionId": session.name}})
        elif method == "session/load":
            session = Session(params["sessionId"])
            try:
                session.state = json.loads(session.path.read_text())
            except OSError:
                send({"id": number, "error": {"code": -32602, "message": "no such session"}})
                continue
            sessions[session.name] = session
            for text in session.state["said"]:
                session.update("agent_message_chunk", content={"type": "text", "text": text})
            send({"id": number, "result": {}})
        elif method == "session/prompt":
            text = "".join(block.get("text", "") for block in params["prompt"])
            sessions[params["sessionId"]].prompt(number, text)
        elif number is not None and "result" not in message and "error" not in message:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


main()
