"""Maps a task's preferences to the options that an agent's session offers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from delegate.runner.agents.lines import as_list, as_object, as_text

MODEL = "model"
EFFORT = "thought_level"
VALUE_MAX = 200

# Kinds of tools that change nothing, and those that change files only.
READ_ONLY_KINDS = frozenset({"read", "search", "think"})
EDIT_KINDS = READ_ONLY_KINDS | {"edit"}
QUESTION_KINDS = READ_ONLY_KINDS | {
    "fetch",
    "other",
    "",
}  # kinds that agents use for the ask tool; a missing kind means `other`
ALLOW_OPTION_KINDS = ("allow_once", "allow_always")  # `always` may be saved in the user's settings
REJECT_OPTION_KINDS = ("reject_once", "reject_always")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting of the session with a list of values."""

    id: str
    category: str
    current: str
    values: tuple[str, ...]

    def value_for(self, wanted: str) -> str | None:
        """The matching value: equal, or with a provider prefix (`anthropic/claude-sonnet-4-5`)."""
        if wanted in self.values:
            return wanted
        return next((value for value in self.values if value.endswith(f"/{wanted}")), None)


def options_of(answer: dict[str, object]) -> list[Option]:
    found = []
    for entry in as_list(answer.get("configOptions")):
        option = as_object(entry)
        found.append(
            Option(
                id=as_text(option.get("id"))[:VALUE_MAX],
                category=as_text(option.get("category")),
                current=as_text(option.get("currentValue"))[:VALUE_MAX],
                values=tuple(_values(option)),
            )
        )
    return found


def option_for(options: list[Option], category: str) -> Option | None:
    return next((option for option in options if option.category == category and option.id), None)


def offers_mode(answer: dict[str, object], mode: str) -> bool:
    modes = as_list(as_object(answer.get("modes")).get("availableModes"))
    return any(as_object(entry).get("id") == mode for entry in modes)


def choose_permission_option(params: dict[str, object], allowed: frozenset[str] | None) -> tuple[str | None, bool]:
    """The option to choose in a permission request, and whether it permits; `allowed` None: everything."""
    is_allowed = allowed is None or as_text(as_object(params.get("toolCall")).get("kind")) in allowed
    offered = [as_object(entry) for entry in as_list(params.get("options"))]
    for kind in ALLOW_OPTION_KINDS if is_allowed else REJECT_OPTION_KINDS:
        for option in offered:
            if option.get("kind") == kind and as_text(option.get("optionId")):
                return as_text(option.get("optionId")), is_allowed
    return None, False


def allowed_kinds(permission_mode: str | None) -> frozenset[str] | None:
    """The kinds of tools that the mode allows; agents run unattended, so all others are refused."""
    match permission_mode:
        case None | "bypassPermissions":
            return None
        case "acceptEdits":
            return EDIT_KINDS
        case _:
            return READ_ONLY_KINDS


def _values(option: dict[str, object]) -> list[str]:
    """The values, from one list or from groups of lists."""
    found = []
    for entry in as_list(option.get("options")):
        choice = as_object(entry)
        inner = as_list(choice.get("options"))
        found += [as_text(as_object(one).get("value")) for one in inner] if inner else [as_text(choice.get("value"))]
    return [value for value in found if 0 < len(value) <= VALUE_MAX]
