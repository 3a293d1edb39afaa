"""The instructions that the MCP servers send to a client when it connects."""

from __future__ import annotations

FOR_DELEGATING = """\
Delegate runs other coding agents in the background, on the user's own machines. Delegate work that does not need you: \
work in another repository, independent parts of a large change, long test runs, anything the user does not want to \
wait for. Do it yourself if doing it is quicker than describing it, or if it depends on this conversation.

Write each prompt for a colleague who has not seen this conversation: the goal, the files, the constraints, and how \
to check that the work is done. Tasks that run at the same time in one directory see each other's changes: give each \
task its own directory with worktree or pr, or order the tasks with dependsOn. With continueFrom a task also gets the \
checkpoint of the task it continues. agent "shell" runs the prompt as a shell command.

DelegateTask returns at once, and the task keeps running when you stop. Do not poll in a loop: continue with your own \
work, then check with TaskStatus. To wait, call TaskLogs with `since` set to the last `next`: it returns when the task \
ends, when there are `tail` new lines, or after 50 seconds. A task with status waiting has asked a question \
(`questions`): answer it with AnswerTask if you know the answer, otherwise ask your user. After a failure, read \
TaskLogs first; ResumeTask with additionalContext continues where the task stopped, RetryTask runs it again unchanged. \
Use ScheduleTask for work that runs later or repeatedly, CreatePipeline for steps that run in order. Tell the user the \
ids of the tasks you start.
"""

FOR_CHILDREN = """\
You work on a delegated task, and can delegate parts of it to other coding agents with DelegateTask; each part counts \
against the limits of your own task. Write each prompt for a colleague who has not seen this conversation. \
DelegateTask returns at once. To wait, call TaskLogs with `since` set to the last `next`. TaskStatus, TaskLogs and \
CancelTask take the ids of tasks that you have submitted. ask_user sends a question to the person who delegated your \
task: ask only what you cannot find out and must not guess, then end your turn: the answer comes as your next message.
"""

FOR_ASKING = """\
You work on a delegated task, and the person who delegated it is not watching. ask_user sends them a question. Ask \
only what you cannot find out and must not guess. After asking, end your turn: the answer comes as your next message.
"""
