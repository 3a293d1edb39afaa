"""A purge also removes what came from Linear with the task, and what was posted there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.linear.desk import Desk, open_desk

pytestmark = pytest.mark.anyio
LEAK = "canary-5d0e7c21b8"


def leaks(home: Path) -> list[str]:
    return [path.name for path in home.iterdir() if path.is_file() and LEAK.encode() in path.read_bytes()]


async def leaking_task(desk: Desk) -> str:
    await desk.map_project()
    project = desk.linear.get("Project", "delego-saas")
    issue = desk.linear.add_issue(f"Title {LEAK}", projectId=project.id, description=f"Text {LEAK}", number=44)
    session = desk.linear.delegate_issue(issue)
    await desk.settle()
    attempt = await desk.claim()
    desk.linear.reply(session, f"Reply {LEAK}")
    desk.linear.edit_issue(issue, title=f"New title {LEAK}")
    await desk.settle()
    await attempt.finish(message=LEAK, result={"summary": LEAK})
    await desk.settle()
    return attempt.task_id


@pytest.mark.parametrize("kind", ["client_credentials", "api_key"])
async def test_a_purged_task_from_linear_has_left_no_text_in_the_files_of_the_relay(tmp_path: Path, kind: str) -> None:
    async with open_desk(tmp_path, connects=kind) as desk:
        if kind == "api_key":
            await desk.map_project()
            project = desk.linear.get("Project", "delego-saas")
            issue = desk.linear.add_issue(f"Title {LEAK}", projectId=project.id, description=LEAK, number=44)
            person = desk.linear.add_user("Ana")
            desk.linear.add_label(issue, "delegate:claude", by=person)
            await desk.settle()
            attempt = await desk.claim()
            await attempt.finish(message=LEAK, result={"summary": LEAK})
            await desk.settle()
            task_id = attempt.task_id
        else:
            task_id = await leaking_task(desk)
        before = leaks(tmp_path)
        purged = await desk.http.post(f"/api/tasks/{task_id}/purge", json={})
        after = leaks(tmp_path)
        again = desk.linear.delegate_issue("PER-44") if kind != "api_key" else None
        await desk.settle()

    assert before
    assert (purged.status_code, after) == (200, [])
    assert "the issue PER-44 in Linear, and what was posted there" in purged.json()["remains"]
    assert again is None or desk.said(again)[0][0] == "thought"
