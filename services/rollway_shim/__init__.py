"""The shim: inside an agent's container, one decorator makes the agent a fire-and-forget rollout server.

    from rollway_shim import RolloutApp

    app = RolloutApp()

    @app.rollout_entrypoint
    def rollout(payload, context):
        ...
        return {"rewards": reward}

`AgentCoreRLApp` is another name for `RolloutApp`: an agent of agentcore-rl-toolkit changes its import and nothing else.
"""

from rollway_shim.app import AgentCoreRLApp, RolloutApp
from rollway_shim.reward import RewardFunction

__all__ = ["AgentCoreRLApp", "RewardFunction", "RolloutApp"]
