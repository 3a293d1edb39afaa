"""Where pull requests live: GitHub through `gh`, or Delegate itself."""
