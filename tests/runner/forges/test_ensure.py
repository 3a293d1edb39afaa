"""One pull request per task, whatever fails: the real gh against the loopback GitHub."""

from __future__ import annotations

from dataclasses import replace

import anyio
import anyio.to_thread
import pytest
from tests.runner.forges.scene import BRANCH, REPOSITORY, Scene, allowed, body_of

from delegate.runner.forges.base import EnsuredPullRequest, PrRejected, PullState, WantedPullRequest, ensure
from delegate.runner.forges.local import Local

pytestmark = [pytest.mark.real, pytest.mark.anyio]


async def test_it_is_opened_as_it_was_wished(scene: Scene) -> None:
    ensured = await scene.ensure(is_draft=True)

    (pull,) = scene.pulls
    assert (pull.title, pull.body, pull.base, pull.head) == (scene.wanted.title, scene.wanted.body, "main", BRANCH)
    assert pull.is_draft
    assert not ensured.adopted
    assert ensured.pull_request.url == pull.url == "https://github.com/acme/demo/pull/1"


@pytest.mark.promise("P2")
async def test_asking_twice_opens_it_once_and_edits_nothing(scene: Scene) -> None:
    first = await scene.ensure()
    second = await scene.ensure()

    assert len(scene.pulls) == 1
    assert second.adopted
    assert second.pull_request.url == first.pull_request.url
    assert scene.asked("PATCH") == 0


@pytest.mark.promise("P2")
@pytest.mark.parametrize("fault", ["fail", "drop"])
async def test_an_answer_lost_after_it_was_opened_is_looked_for(scene: Scene, fault: str) -> None:
    getattr(scene.hub, fault)("PullRequestCreate", after_acting=True)

    ensured = await scene.ensure()

    assert len(scene.pulls) == 1
    assert ensured.pull_request.number == 1


@pytest.mark.promise("P2")
@pytest.mark.parametrize("what", ["PullRequestList", "PullRequestCreate"])
async def test_two_failures_are_tried_again(scene: Scene, what: str) -> None:
    scene.hub.fail(what, times=2)

    await scene.ensure()

    assert len(scene.pulls) == 1


@pytest.mark.promise("P2")
async def test_one_that_a_rival_opens_between_look_and_deed_is_adopted(scene: Scene) -> None:
    gate = scene.hub.hold("PullRequestCreate")
    ends: list[EnsuredPullRequest] = []

    async def ask() -> None:
        ends.append(await scene.ensure())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            assert await anyio.to_thread.run_sync(gate.reached.wait, 20)
            scene.person_opens(body=body_of("task-1a", "The rival's words."))
            gate.open()

    assert len(scene.pulls) == 1
    assert ends[0].adopted
    assert scene.pulls[0].body == scene.wanted.body


async def test_when_nothing_helps_the_words_say_what_to_do_and_the_branch_stays(scene: Scene) -> None:
    scene.hub.fail("PullRequestCreate", times=99)

    with pytest.raises(PrRejected) as refused:
        await scene.ensure()

    assert f"`gh pr create -R github.com/acme/demo --base main --head {BRANCH}`" in str(refused.value)
    assert "HTTP 502" in str(refused.value)
    assert not refused.value.may_exist
    assert scene.asked("PullRequestCreate") == 3
    assert scene.loopback.head(REPOSITORY, BRANCH) == scene.wanted.commit


async def test_one_that_may_have_been_opened_before_the_forge_went_blind_is_said_to_be_possible(scene: Scene) -> None:
    scene.hub.drop("PullRequestCreate", after_acting=True)
    gate = scene.hub.hold("PullRequestList")
    gate.open()
    scene.hub.fail("PullRequestList", times=99)

    with pytest.raises(PrRejected) as refused:
        await scene.ensure()

    assert refused.value.may_exist
    assert len(scene.pulls) == 1


async def test_what_a_person_wrote_stays_when_theirs_is_adopted(scene: Scene) -> None:
    scene.person_opens()

    ensured = await scene.ensure()

    (pull,) = scene.pulls
    assert ensured.adopted
    assert pull.title == "By hand"
    assert pull.body == f"My own words.\n\n---\n\n{scene.wanted.body}"


async def test_the_next_task_of_the_lineage_writes_over_our_part_only(scene: Scene) -> None:
    await scene.ensure()
    scene.pulls[0].body = f"- [x] read it\r\n\r\n{scene.pulls[0].body}\r\n\r\nReviewer's note."
    scene.commit()

    await scene.ensure(task_id="task-2b", body=body_of("task-2b", "More."))

    assert scene.pulls[0].body == f"- [x] read it\r\n\r\n{body_of('task-2b', 'More.')}\r\n\r\nReviewer's note."


async def test_one_that_cannot_be_edited_is_there_all_the_same(scene: Scene) -> None:
    scene.person_opens()
    scene.hub.fail("PATCH", times=99)

    ensured = await scene.ensure()

    assert ensured.pull_request.number == 1
    assert "HTTP 502" in (ensured.warning or "")


@pytest.mark.promise("P2")
async def test_one_that_was_merged_is_done_even_without_its_branch(scene: Scene) -> None:
    await scene.ensure()
    repository = scene.hub.repository(REPOSITORY)
    repository.merge(repository.pulls[1], "SQUASH")
    repository.git("update-ref", "-d", f"refs/heads/{BRANCH}")

    ensured = await scene.ensure()

    assert ensured.pull_request.state is PullState.MERGED
    assert len(scene.pulls) == 1


async def test_one_closed_by_a_person_is_never_opened_again(scene: Scene) -> None:
    await scene.ensure()
    scene.pulls[0].state = "CLOSED"

    with pytest.raises(PrRejected, match="pull/1 was closed without being merged"):
        await scene.ensure()

    assert [pull.state for pull in scene.pulls] == ["CLOSED"]


@pytest.mark.parametrize("end", ["MERGED", "CLOSED"])
async def test_a_later_task_may_have_one_of_its_own_when_the_first_has_ended(scene: Scene, end: str) -> None:
    await scene.ensure()
    scene.pulls[0].state = end
    commit = scene.commit()

    ensured = await scene.ensure(task_id="task-2b", body=body_of("task-2b"), commit=commit)

    assert ensured.pull_request.number == 2
    assert not ensured.adopted


async def test_a_later_task_with_the_commit_that_was_merged_needs_none(scene: Scene) -> None:
    await scene.ensure()
    scene.pulls[0].state = "MERGED"

    ensured = await scene.ensure(task_id="task-2b", body=body_of("task-2b"))

    assert ensured.pull_request.number == 1


async def test_one_from_a_strangers_copy_with_the_same_branch_name_is_not_ours(scene: Scene) -> None:
    stranger = scene.person_opens(body=body_of("task-1a", "Take this instead."))
    stranger.is_cross_repository, stranger.base = True, "other"

    ensured = await scene.ensure()

    assert ensured.pull_request.number == 2
    assert "Take this instead." in stranger.body


async def test_one_into_another_base_is_not_ours_unless_we_opened_it(scene: Scene) -> None:
    scene.loopback.seed(REPOSITORY, {"old.txt": "old\n"}, branch="release")
    scene.person_opens(base="release")

    ensured = await scene.ensure()
    scene.pulls[1].base = "release"
    again = await scene.ensure()

    assert (ensured.pull_request.number, again.pull_request.number) == (2, 2)


class Refused(Exception):
    """The lease is lost."""


async def test_nothing_is_done_when_the_guard_forbids_it(scene: Scene) -> None:
    async def forbidden() -> None:
        raise Refused

    with pytest.raises(Refused):
        await scene.ensure(guard=forbidden)

    assert scene.pulls == []
    assert scene.asked("mutation") == 0


async def test_the_guard_is_asked_before_each_deed(scene: Scene) -> None:
    asked: list[int] = []

    async def counting() -> None:
        asked.append(scene.asked("mutation") + scene.asked("PATCH"))

    await scene.ensure(guard=counting)
    await scene.ensure(guard=counting, body=body_of("task-1a", "Other."), is_draft=True)

    assert asked == [0, 1, 2]  # open, edit, and make it a draft


async def test_a_ready_one_becomes_a_draft_when_that_is_wished(scene: Scene) -> None:
    await scene.ensure()

    ensured = await scene.ensure(is_draft=True)

    assert scene.pulls[0].is_draft
    assert ensured.pull_request.is_draft


async def test_where_there_are_no_drafts_it_is_opened_ready(scene: Scene) -> None:
    scene.hub.repository(REPOSITORY).has_drafts = False

    first = await scene.ensure(is_draft=True)
    second = await scene.ensure(is_draft=True)

    assert [pull.is_draft for pull in scene.pulls] == [False]
    assert not first.pull_request.is_draft
    assert second.warning is None


async def test_a_login_that_is_not_accepted_is_not_tried_again(scene: Scene) -> None:
    with pytest.raises(PrRejected, match="gh auth login"):
        await scene.with_environ(GH_TOKEN="wrong").ensure()

    assert scene.asked("PullRequestList") == 1


async def test_no_login_says_how_to_log_in(scene: Scene) -> None:
    with pytest.raises(PrRejected, match=r"not logged in to github\.com .run `gh auth login --hostname github\.com`"):
        await scene.with_environ(GH_TOKEN="").ensure()


async def test_a_repository_that_the_login_cannot_see_is_named(scene: Scene) -> None:
    blind = replace(scene, forge=replace(scene.forge, repository="acme/secret"))

    with pytest.raises(PrRejected, match="cannot see the repository"):
        await blind.ensure()


async def test_without_gh_the_words_say_where_to_get_it(scene: Scene) -> None:
    without = replace(scene, forge=replace(scene.forge, command="/nonexistent/gh"))

    with pytest.raises(PrRejected, match=r"install it from https://cli\.github\.com"):
        await without.ensure()


async def test_a_branch_without_a_commit_of_its_own_is_refused_at_once(scene: Scene) -> None:
    with pytest.raises(PrRejected, match="no commits that are not on its base"):
        await scene.ensure(base=BRANCH)

    assert scene.asked("PullRequestCreate") == 1


async def test_one_that_must_go_is_closed_with_a_reason(scene: Scene) -> None:
    ensured = await scene.ensure()

    await scene.forge.close(ensured.pull_request, "Another runner has finished this task.")

    assert [(pull.state, pull.comments) for pull in scene.pulls] == [
        ("CLOSED", ["Another runner has finished this task."])
    ]


async def test_without_a_forge_the_review_stays_in_delegate() -> None:
    wanted = WantedPullRequest(
        task_id="task-1a", title="T", body="B", branch=BRANCH, base="main", commit="c0ffee", is_draft=False
    )

    ensured = await ensure(Local(), wanted, allowed)

    assert ensured.pull_request.url == f"local:{BRANCH}"
    assert ensured.pull_request.is_ours
