"""Adds a person's answers to the prompt of the agent that asked."""

from __future__ import annotations

from itertools import groupby

from delegate.model import Mode
from delegate.runner.assignment import AnsweredQuestion, Assignment
from delegate.runner.prompts.rendering import render
from delegate.runner.prompts.sanitize import fence_text, reveal_hidden


def add_answers(assignment: Assignment, fresh: str, resumed: str) -> tuple[str, str]:
    """The prompts for a new session and for a resumed one, with the answers added."""
    if not assignment.questions:
        return fresh, resumed
    facts = {
        "answers": [_answer(list(asked), answer) for answer, asked in groupby(assignment.questions, _answer_text)],
        "is_in_workspace": assignment.mode is not Mode.IN_PLACE,
        "is_reviewed": assignment.mode is Mode.PULL_REQUEST,
    }
    answers, resumed_answers = (render("answered.j2", is_resumed=is_resumed, **facts) for is_resumed in (False, True))
    return f"{fresh}\n{answers}", resumed_answers


def _answer_text(question: AnsweredQuestion) -> str:
    return question.answer


def _answer(asked: list[AnsweredQuestion], answer: str) -> dict[str, object]:
    """One answer covers all questions that were asked together."""
    questions = [fence_text("question", reveal_hidden("\n".join([one.text, *_option_lines(one)]))) for one in asked]
    return {"questions": questions, "text": fence_text("answer", reveal_hidden(answer))}


def _option_lines(question: AnsweredQuestion) -> list[str]:
    return [f"- {option}" for option in question.options]
