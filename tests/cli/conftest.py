"""A command against a scripted relay."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.scripted_relay import Asked, Run, ScriptedRelay

from delegate.cli.main import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A command, and a relay that gives one answer to it."""

    def run(reply: bytes, *words: str) -> tuple[int, list[Asked]]:
        with ScriptedRelay([reply]) as relay:
            monkeypatch.setenv("DELEGATE_RELAY_URL", relay.url)
            monkeypatch.setenv("DELEGATE_TOKEN", "secret")
            monkeypatch.setenv("DELEGATE_HOME", str(tmp_path / "home"))
            monkeypatch.chdir(tmp_path)
            return main(words), relay.asked

    return run
