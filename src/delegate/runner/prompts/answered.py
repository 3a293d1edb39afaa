"""What an agent hears when a person has answered its questions."""

from __future__ import annotations

from itertools import groupby

from delegate.model import Mode
from delegate.runner.prompts.rendering import rendered
from delegate.runner.prompts.sanitize import fenced, visible
from delegate.wire.parts import QuestionView
from delegate.wire.runners import Assignment


def with_answers(assignment: Assignment, anew: str, resumed: str) -> tuple[str, str]:
    """The words for an agent that knows nothing yet, and for one whose session goes on, with the answers in them."""
    if not assignment.questions:
        return anew, resumed
    facts = {
        "answers": [_answer(list(asked), answer) for answer, asked in groupby(assignment.questions, _said)],
        "is_in_workspace": assignment.mode is not Mode.IN_PLACE,
        "is_reviewed": assignment.mode is Mode.PULL_REQUEST,
    }
    told, goes_on = (rendered("answered.j2", is_resumed=is_resumed, **facts) for is_resumed in (False, True))
    return f"{anew}\n{told}", goes_on


def _said(question: QuestionView) -> str:
    return question.answer or ""


def _answer(asked: list[QuestionView], answer: str) -> dict[str, object]:
    """One answer is for all that was asked together."""
    questions = [fenced("question", visible("\n".join([one.text, *_listed(one)]))) for one in asked]
    return {"questions": questions, "text": fenced("answer", visible(answer))}


def _listed(question: QuestionView) -> list[str]:
    return [f"- {option}" for option in question.options]
