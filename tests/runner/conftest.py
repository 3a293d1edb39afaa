from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn

from delegate.config.home_files import machine_id, make_token
from delegate.config.paths import Home
from delegate.config.settings import Settings
from delegate.relay.app import make_app
from delegate.relay.requests import Relay
from delegate.runner.assignment import Assignment
from delegate.runner.context import RunnerContext, build_context
from delegate.runner.slot import Slot
from delegate.store.database import open_database
from delegate.store.schema import prepare
from delegate.tokens import hash_token
from delegate.wire.runners import ClaimRequest
from delegate.wire.tasks import TaskDetail

QUICK = Settings(
    heartbeat=timedelta(seconds=0.2),
    lease=timedelta(seconds=2),
    reclaim_after=timedelta(seconds=5),
    grace=timedelta(seconds=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A real relay on loopback, and what a runner and a client need to speak to it."""

    relay: Relay
    url: str
    client: httpx2.AsyncClient
    work: Path
    handed_out: list[RunnerContext] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return self.relay.settings

    def equipment(self, slot: str = "1", **environ: str) -> RunnerContext:
        """Everything a runner of this home works with."""
        directory = Home(self.settings.home).runners / slot
        surroundings = {"PATH": "/usr/bin:/bin", **environ}
        made = build_context(self.settings, surroundings, slot=Slot(directory), name=slot, url=self.url)
        self.handed_out.append(made)
        return made

    async def leave(self, equipment: RunnerContext) -> None:
        """The runner with this equipment is gone, so that another may have its slot."""
        self.handed_out.remove(equipment)
        await equipment.spares.discard()
        await equipment.link.aclose()
        equipment.slot.close()

    async def submit(self, prompt: str, **fields: Any) -> str:
        body = {
            "prompt": prompt,
            "agent": "shell",
            "workingDirectory": str(self.work),
            "machine": machine_id(Home(self.settings.home)),
            **fields,
        }
        answer = await self.client.post("/api/tasks", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["taskId"])

    async def claim(self, equipment: RunnerContext) -> Assignment:
        request = ClaimRequest(claim_id=equipment.slot.claim_id(), agents=["shell", "claude"], wait=5)
        answer = await equipment.link.claim(request)
        equipment.slot.forget_claim()
        assert answer is not None
        return answer

    async def take(self, prompt: str, **fields: Any) -> tuple[RunnerContext, Assignment]:
        """A registered runner that has just been given this task."""
        await self.submit(prompt, **fields)
        equipment = self.equipment()
        await equipment.link.register()
        return equipment, await self.claim(equipment)

    async def detail(self, task_id: str) -> TaskDetail:
        answer = await self.client.get(f"/api/tasks/{task_id}")
        return TaskDetail.model_validate_json(answer.content)

    async def output(self, task_id: str, stream: str = "all") -> bytes:
        return (await self.client.get(f"/api/tasks/{task_id}/output/raw", params={"stream": stream})).content

    async def news(self, task_id: str, until: str) -> None:
        """Follow the task until a line of its stream has this in it."""
        async with self.client.stream("GET", f"/api/tasks/{task_id}/stream") as stream:
            async for line in stream.aiter_lines():
                if until in line:
                    return

    async def ended(self, task_id: str) -> TaskDetail:
        await self.news(task_id, "event: end")
        return await self.detail(task_id)


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrated once: that takes longer than most of the tests."""
    home = Home(tmp_path_factory.mktemp("blank"))
    prepare(home, url="", now=datetime.now(UTC))
    return home.database


@pytest.fixture
async def stage(tmp_path: Path, blank_database: Path) -> AsyncIterator[Stage]:
    home = Home(tmp_path / "home")
    settings = replace(QUICK, home=home.root)
    token = make_token(home)
    shutil.copy(blank_database, home.database)
    work = tmp_path / "work"
    work.mkdir()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with open_database(path=home.database, url="") as database:
            relay = Relay(
                settings=settings, database=database, token_hash=hash_token(token), started_at=datetime.now(UTC)
            )
            server = uvicorn.Server(uvicorn.Config(make_app(relay), log_config=None, lifespan="on"))
            headers = {"authorization": f"Bearer {token}"}
            async with (
                httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30) as client,
                anyio.create_task_group() as group,
            ):
                group.start_soon(server._serve, [listening])
                made = Stage(relay=relay, url=url, client=client, work=work)
                yield made
                for equipment in list(made.handed_out):
                    await made.leave(equipment)
                relay.hub.close()
                server.should_exit = True
