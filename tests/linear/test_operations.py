"""Every operation that Delegate sends is one that Linear's published schema knows."""

from __future__ import annotations

import pytest
from graphql import parse, validate
from tests.fakes.linear_deliveries import MAX_QUERY_COMPLEXITY, SCHEMA_PATH
from tests.fakes.linear_operations import complexity, load_schema

from delegate.linear import operations

DOCUMENTS = {
    name: text
    for name, text in vars(operations).items()
    if isinstance(text, str) and text.lstrip().startswith(("query", "mutation"))
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_operation_is_valid_and_not_too_complex(name: str) -> None:
    document = parse(DOCUMENTS[name])

    assert validate(load_schema(SCHEMA_PATH), document) == []
    assert complexity(document, document.definitions[0], {}) < MAX_QUERY_COMPLEXITY / 2  # type: ignore[arg-type]


def test_all_operations_are_tested() -> None:
    assert len(DOCUMENTS) >= 17
