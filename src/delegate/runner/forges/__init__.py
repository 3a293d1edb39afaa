"""Where pull requests live: GitHub through `gh`, or Delegate itself."""

from delegate.runner.forges.remotes import forge_for as forge_for
