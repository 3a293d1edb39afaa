"""How the agent of one attempt asks a person: through the relay, with a token that opens this attempt and no more."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from delegate.tokens import AGENT_PREFIX

TOKEN_VARIABLE = "DELEGATE_ASK_TOKEN"  # noqa: S105
# Not plain `delegate`: under that name a user's own agents may have Delegate's other tools.
SERVER = "delegate_ask"
TOOL = "ask_user"
TOOL_NAMES = frozenset({f"mcp__{SERVER}__{TOOL}", f"{SERVER}_{TOOL}"})  # by which agents know the tool among all others
FILE = "mcp.json"
ASK_INSTRUCTIONS = f"""
You can ask the person who runs you: the tool `{TOOL}` of the MCP server `{SERVER}` passes a question on. Use it only
for a decision that is theirs to make and that you cannot go on well without; find out or decide everything else
yourself. Ask all you have to ask at once, then end your turn: the answer comes as your next message, perhaps later.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEndpoint:
    url: str  # of the relay's MCP server
    token: str
    file: Path  # in a directory of the attempt that only the runner's user can read


def ask_token(runner_token: str, claim_id: str) -> str:
    """Made from the runner's own token, which no agent gets; nobody has to keep it."""
    return AGENT_PREFIX + hmac.new(runner_token.encode(), claim_id.encode(), hashlib.sha256).hexdigest()
