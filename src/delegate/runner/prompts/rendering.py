"""Renders the prompt templates; a missing variable is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from delegate.runner.prompts.sanitize import fence_text, reveal_hidden

TEMPLATES = Path(__file__).parent / "templates"


def message_prompt(text: str) -> str:
    """A message sent while the agent works. It never comes first, where an agent may take it for a slash command."""
    return render("message.j2", message=fence_text("message", reveal_hidden(text)))


def render(template: str, **facts: object) -> str:
    return _environment().get_template(template).render(facts).strip() + "\n"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - a prompt is not HTML; text from outside is already quoted
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
