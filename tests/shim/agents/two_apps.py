"""Two apps in one file: the command line must be told which. ``bare`` has no agent."""

from rollway_shim import RolloutApp

bare = RolloutApp()
other = RolloutApp()
other.rollout_entrypoint(lambda payload: {"rewards": 0})
