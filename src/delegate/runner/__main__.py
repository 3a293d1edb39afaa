"""Run one runner in the foreground: `python -m delegate.runner --slot K --relay-url URL`."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # until the modules are loaded: collections would take a sixth of that time

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing

import anyio
import stamina.instrumentation

from delegate.config.paths import Home
from delegate.config.settings import Settings, load, receive_secrets
from delegate.errors import DelegateError
from delegate.log import configure, filter_log_lines
from delegate.runner.context import build_context
from delegate.runner.keeper_link import KeeperLink
from delegate.runner.loop import run_until_shutdown
from delegate.runner.process.agent_process import become_subreaper
from delegate.runner.slot import FILE_NAME, Slot


def slot_name(text: str) -> str:
    if not FILE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("a slot name consists of letters, digits and -")
    return text


async def run(settings: Settings, environ: Mapping[str, str], slot: Slot, arguments: argparse.Namespace) -> None:
    link = KeeperLink(arguments.report_fd)
    fatal: DelegateError | None = None
    try:
        runner_context = build_context(
            settings, environ, slot=slot, name=arguments.slot, url=arguments.relay_url, keeper_link=link
        )
        filter_log_lines(runner_context.secrets.text)
        await run_until_shutdown(runner_context)
    except* DelegateError as problems:
        fatal = next(one for one in problems.exceptions if isinstance(one, DelegateError))
    if fatal is not None:
        link.report_fatal(fatal)
        raise fatal


def main() -> int:
    parser = argparse.ArgumentParser(prog="delegate-runner", description=__doc__)
    parser.add_argument(
        "--slot", required=True, type=slot_name, help="name of the runner's directory under runners/ in DELEGATE_HOME"
    )
    parser.add_argument("--relay-url", required=True, help="URL of the relay")
    parser.add_argument(
        "--report-fd", type=int, help="file descriptor for status reports to the keeper; set by the keeper"
    )
    parser.add_argument("--secrets-fd", type=int, help="file descriptor for secret settings; set by the keeper")
    arguments = parser.parse_args()
    gc.freeze()  # loaded modules stay; exclude them from garbage collection
    gc.enable()
    stamina.instrumentation.set_on_retry_hooks(())  # the relay link logs once that the relay is away, not at every try
    try:
        environ = {**os.environ, **receive_secrets(arguments.secrets_fd)}
        settings = load(environ)
        configure(settings.log_level)
        become_subreaper()
        with closing(Slot(Home(settings.home).runners / arguments.slot)) as slot:
            anyio.run(run, settings, environ, slot, arguments)
    except DelegateError as problem:
        sys.stderr.write(f"delegate: {problem.message}\n")
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
