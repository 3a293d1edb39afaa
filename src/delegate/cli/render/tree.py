"""Draws which task waits for which: every task below the one it depends on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delegate.cli.render.status import task_name
from delegate.cli.render.terminal import ABOVE, GAP, PROMPT_MIN, OutputStyle, cells, fit, one_line, pad, paint_status_at

if TYPE_CHECKING:
    from delegate.client.responses import TaskData

PREFIX_MIN = 6  # columns for the lines before a task; with fewer, a task takes two lines


@dataclass(frozen=True, slots=True)
class Marks:
    tee: str
    corner: str
    bar: str
    space: str
    cut: str


LINES = Marks("├─ ", "└─ ", "│  ", "   ", "…")
ASCII = Marks("|- ", "`- ", "|  ", "   ", "~")
NARROW = {LINES: Marks("├ ", "└ ", "│ ", "  ", "…"), ASCII: Marks("| ", "` ", "| ", "  ", "~")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One line of the drawing: the task, and for each level down to it whether it is the last of that level."""

    task: TaskData
    lasts: tuple[bool, ...]
    is_repeated: bool
    has_children: bool
    outside: tuple[str, ...]  # dependencies that are not drawn

    @property
    def text(self) -> str:
        more = f" and {len(self.outside) - 1} more" if len(self.outside) > 1 else ""
        after = f"(after {one_line(self.outside[0])}{more}) " if self.outside else ""
        return after + task_name(self.task)

    def prefix(self, marks: Marks) -> str:
        if not self.lasts:
            return ""
        return _bars(self.lasts[:-1], marks) + (marks.corner if self.lasts[-1] else marks.tee)

    def below(self, marks: Marks) -> str:
        """The prefix of a second line of the same task."""
        return _bars((*self.lasts, not self.has_children), marks)


def _bars(lasts: Sequence[bool], marks: Marks) -> str:
    return "".join(marks.space if last else marks.bar for last in lasts)


def draw(tasks: Sequence[TaskData], style: OutputStyle, marks: Marks) -> list[str]:
    """All graphs among the tasks, newest first; the dependents of a task are drawn only once."""
    graphs = [list(_nodes(graph)) for graph in connected_components(tasks)]
    nodes = [node for graph in graphs for node in graph]
    ids = max(cells(_id(node)) for node in nodes)
    states = max(len(_state(node)) for node in nodes)
    most = style.width - ids - states - 2 * len(GAP) - PROMPT_MIN
    if most < PREFIX_MIN:
        narrow = NARROW[marks]
        return [line for node in nodes for line in _two_lines(node, style, narrow, style.width - ids)]
    labels = [[_cut_left(node.prefix(marks), most, marks) + _id(node) for node in graph] for graph in graphs]
    width = max(cells(label) for graph in labels for label in graph)
    drawn = [
        [_line(node, pad(label, width), states, style, marks) for node, label in zip(graph, names, strict=True)]
        for graph, names in zip(graphs, labels, strict=True)
    ]
    return _separate_graphs(drawn)


def _separate_graphs(graphs: Sequence[list[str]]) -> list[str]:
    """An empty line around every graph of more than one task."""
    lines: list[str] = []
    before = 1
    for graph in graphs:
        if lines and max(before, len(graph)) > 1:
            lines.append("")
        lines += graph
        before = len(graph)
    return lines


def _line(node: Node, label: str, states: int, style: OutputStyle, marks: Marks) -> str:
    state = _state(node)
    room = style.width - cells(label) - states - 2 * len(GAP)
    words = "" if node.is_repeated else fit(node.text, room, marks.cut)
    line = f"{label}{GAP}{pad(state, states)}{GAP}{words}".rstrip()
    return paint_status_at(line, len(label) + len(GAP), state, style)


def _two_lines(node: Node, style: OutputStyle, marks: Marks, most: int) -> list[str]:
    first = fit(_cut_left(node.prefix(marks), most, marks) + _id(node), style.width, marks.cut)
    below = _cut_left(node.below(marks), most, marks)
    words = "" if node.is_repeated else f" {node.text}"
    second = fit(f"{below}{_state(node)}{words}", style.width, marks.cut)
    return [first, paint_status_at(second, len(below), _state(node), style)]


def _cut_left(prefix: str, most: int, marks: Marks) -> str:
    """In a deep graph, keep only the lines nearest to the task."""
    return prefix if len(prefix) <= most else (marks.cut + prefix[len(prefix) - most + 1 :])[:most]


def _id(node: Node) -> str:
    return one_line(node.task["taskId"])


def _state(node: Node) -> str:
    return ABOVE if node.is_repeated else node.task["status"]


def connected_components(tasks: Sequence[TaskData]) -> list[list[TaskData]]:
    """The graphs that have no task in common, in the order of their first task; the tasks keep their order."""
    edges: dict[str, set[str]] = {task["taskId"]: set() for task in tasks}
    for task in tasks:
        for other in edges.keys() & set(task["dependsOn"]):
            edges[task["taskId"]].add(other)
            edges[other].add(task["taskId"])
    graph_of: dict[str, int] = {}
    for number, task in enumerate(tasks):
        pending = [] if task["taskId"] in graph_of else [task["taskId"]]
        while pending:
            one = pending.pop()
            graph_of[one] = number
            pending += [other for other in edges[one] if other not in graph_of]
    graphs: dict[int, list[TaskData]] = {}
    for task in tasks:
        graphs.setdefault(graph_of[task["taskId"]], []).append(task)
    return list(graphs.values())


def _nodes(graph: Sequence[TaskData]) -> Iterator[Node]:
    """Every task below each of its dependencies, oldest first; its dependents only at its first occurrence."""
    oldest_first = sorted(graph, key=lambda task: task["createdAt"])
    known = {task["taskId"]: task for task in oldest_first}
    children: dict[str, list[str]] = {task_id: [] for task_id in known}
    for task in oldest_first:
        for parent in known.keys() & set(task["dependsOn"]):
            children[parent].append(task["taskId"])
    roots = [task["taskId"] for task in oldest_first if not known.keys() & set(task["dependsOn"])]
    seen: set[str] = set()
    for root in roots:
        yield from _walk(root, (), known, children, seen)


def _walk(
    task_id: str,
    lasts: tuple[bool, ...],
    known: Mapping[str, TaskData],
    children: Mapping[str, Sequence[str]],
    seen: set[str],
) -> Iterator[Node]:
    is_repeated = task_id in seen
    below = () if is_repeated else children[task_id]
    seen.add(task_id)
    outside = tuple(other for other in known[task_id]["dependsOn"] if other not in known)
    yield Node(task=known[task_id], lasts=lasts, is_repeated=is_repeated, has_children=bool(below), outside=outside)
    for number, child in enumerate(below, 1):
        yield from _walk(child, (*lasts, number == len(below)), known, children, seen)
