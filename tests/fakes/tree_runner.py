"""A runner with one agent, to be killed or to lose its supervisor.

Arguments: the directory for `tree_agent.py`. Prints its pids, later how the agent ended, as JSON lines; closes
the agent at the first line of its input.
"""

import json
import os
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from delegate.runner.process.agent_process import AgentProcess, Command, become_subreaper, launch, start_spare
from delegate.runner.process.supervisor import read_process


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


async def read_all(agent: AgentProcess) -> None:
    try:
        while True:
            await agent.receive()
    except anyio.EndOfStream:
        return


async def report(agent: AgentProcess) -> None:
    ended = await agent.wait()
    await agent.aclose()
    say(code=ended.code, signal=ended.signal, lost=agent.supervisor_lost)


async def main() -> None:
    directory = sys.argv[1]
    become_subreaper()
    bystander = await anyio.open_process(["cat"], stdout=None)
    argv = (sys.executable, "-I", "-S", str(Path(__file__).with_name("tree_agent.py")), directory, "stay")
    agent = await launch(await start_spare(), Command(argv=argv, cwd=Path(directory), env=dict(os.environ)))
    leader = read_process(agent.pid)
    assert leader
    say(leader=agent.pid, supervisor=leader.parent, bystander=bystander.pid)
    async with anyio.create_task_group() as group:
        group.start_soon(read_all, agent)
        group.start_soon(report, agent)
        if await anyio.to_thread.run_sync(sys.stdin.readline):
            await agent.aclose()
    await bystander.aclose()


anyio.run(main)
