"""What the server tells an agent before its first call."""

from __future__ import annotations

FOR_DELEGATING = """\
Delegate runs other coding agents in the background, on the user's own machines. Delegate what can go on without you: \
work in another repository, independent parts of a large change, long test runs, anything the user does not want to \
wait for. Do yourself what is quicker done than described, and what needs this conversation to be understood.

Write each prompt for a colleague who has seen nothing of this conversation: the goal, the files, the constraints, how \
to know that it is done. Tasks that run at once in one directory see each other's changes; give each its own with \
worktree or pr, or order them with dependsOn. continueFrom also tells a task what the one before it has left. \
agent "shell" runs the prompt as a plain command.

DelegateTask answers at once, and the task goes on when you stop. Do not poll in a loop: go on with your own work, \
then look with TaskStatus. To wait, call TaskLogs with `since` set to the last `next`: it comes back when the task \
ends, with `tail` new lines, or after 50 seconds. A task that is waiting has asked something (`questions`): answer \
with AnswerTask if you know, ask your user if you do not. After a failure read TaskLogs first; ResumeTask with \
additionalContext goes on from where the task stopped, RetryTask runs it again as it was. ScheduleTask is for later or \
again and again, CreatePipeline for steps that follow each other. Tell the user the ids of the tasks you start.
"""

FOR_ASKING = """\
You work on a delegated task, and the person who gave it to you is not watching. ask_user sends them a question. Ask \
only what you cannot find out and must not guess. After asking, end your turn: the answer comes as your next message.
"""
