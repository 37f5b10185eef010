"""`config/fanout.example.toml`: it loads, has every setting and shows the defaults."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from fanout.orchestrator.cli.commands.configuration import effective_settings
from fanout.orchestrator.configuration.bundled import bundled
from fanout.orchestrator.configuration.settings import Settings, load_settings

WITHOUT_A_FIXED_DEFAULT = {
    "FANOUT_API__CALLERS__KEYS",
    "FANOUT_API__CALLERS__TENANTS",
    "FANOUT_API__KEYS",
    "FANOUT_STATE_DIR",
    "FANOUT_MODELS",
    "FANOUT_TENANTS",
    "FANOUT_TOOLS",
    "FANOUT_WORKSPACE",
}


def uncommented() -> str:
    text = (bundled("config") / "fanout.example.toml").read_text(encoding="utf-8")
    return re.sub(r'^#(?=[a-z\["])', "", text, flags=re.MULTILINE)


@pytest.fixture
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("FANOUT_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "config.toml"
    path.touch()
    monkeypatch.setenv("FANOUT_CONFIG", str(path))
    return path


def test_the_example_has_every_setting_and_their_defaults(no_settings: Path):
    defaults = {name: value for name, value, _ in effective_settings(load_settings())}
    no_settings.write_text(uncommented(), encoding="utf-8")

    loaded = list(effective_settings(load_settings()))

    assert [name for name, _, source in loaded if source != str(no_settings)] == []
    assert {
        name: value
        for name, value, _ in loaded
        if defaults[name] is not None
        and name not in WITHOUT_A_FIXED_DEFAULT
        and value != defaults[name]
    } == {}


def test_the_example_has_no_unknown_setting():
    assert set(tomllib.loads(uncommented())) <= set(Settings.model_fields)
