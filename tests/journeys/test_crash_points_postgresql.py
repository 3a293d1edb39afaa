"""The same as test_crash_points with the other database, in a file of its own so that another worker takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.world import living
from tests.journeys.test_crash_points import COMMITS, ENDS, armed, batches, journey

pytestmark = pytest.mark.slow


@pytest.mark.promise("P1")
@pytest.mark.real
@pytest.mark.parametrize("points", batches(COMMITS), ids=lambda points: points[0])
def test_a_relay_killed_around_its_commits_to_postgresql_loses_and_repeats_nothing(
    points: list[str], tmp_path: Path, postgres_url: str
) -> None:
    marks = tmp_path / "marks"
    environment = {"DELEGATE_FAILPOINTS": armed(points, marks), "DELEGATE_DATABASE_URL": postgres_url}
    with living(tmp_path / "home", **environment) as world:
        ends = journey(world)

        world.audit(postgres_url.replace("postgresql://", "postgresql+psycopg://", 1))
        assert ends == ENDS
        assert sorted(path.name for path in marks.iterdir()) == sorted(points)
