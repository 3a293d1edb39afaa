"""Lets an agent reach the relay, to ask a person or to submit tasks, with a token that is valid for its attempt."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delegate.config.home_files import write_private
from delegate.config.values import agent_token_prefix

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "DELEGATE_TOKEN"  # noqa: S105
# Not `delegate`: a user's agents may use that name for Delegate's other tools.
SERVER = "delegate_ask"
TOOL = "ask_user"
TOOL_NAMES = frozenset({f"mcp__{SERVER}__{TOOL}", f"{SERVER}_{TOOL}"})  # as agents name the tool
FILE = "mcp.json"
# Of Delegate, of agents that run on Node or Bun, such as Claude Code, and of Codex. The last two add to the system's.
CA_VARIABLES = ("DELEGATE_CA_FILE", "NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE")
ASK_INSTRUCTIONS = f"""
You can ask the person who runs you with the tool `{TOOL}` of the MCP server `{SERVER}`. Use it only for a decision that
is theirs to make and that you need before you can continue; find out or decide everything else yourself. Ask all your
questions at once, then end your turn: the answer comes as your next message, perhaps much later.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEndpoint:
    url: str  # of the relay's MCP server
    token: str
    file: Path  # in a directory of the attempt that only the runner's user can read
    ca_file: Path | None = None  # of a private authority that signed the relay's certificate

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What the agent, and `delegate` inside it, need to reach a relay elsewhere. The local one is found by the
        home."""
        if not self.url.startswith("https:"):
            return {}
        trusted = {} if self.ca_file is None else {name: self._trust(name, environ) for name in CA_VARIABLES}
        return {"DELEGATE_RELAY_URL": self.url.removesuffix("/mcp"), **trusted}

    def _trust(self, variable: str, environ: Mapping[str, str]) -> str:
        """Return the file of the relay's authority; if the user's variable names other authorities, one with both."""
        users = environ.get(variable)
        if not users or users == str(self.ca_file) or self.ca_file is None:
            return str(self.ca_file)
        both = self.file.with_name(f"{variable}.pem")
        try:
            write_private(both, f"{Path(users).read_text()}\n{self.ca_file.read_text()}")
        except (OSError, ValueError) as error:
            log.warning("certificates not combined", extra={"path": users, "why": str(error)})
            return str(self.ca_file)
        return str(both)


def ask_token(runner_token: str, claim_id: str, machine: str) -> str:
    """Derived from the runner's token, which no agent gets, so that it need not be stored."""
    secret = hmac.new(runner_token.encode(), claim_id.encode(), hashlib.sha256).hexdigest()
    return agent_token_prefix(machine) + secret
