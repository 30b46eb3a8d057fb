"""Policies take turns on the real stack, and in the simulator under the same requests.

`python -m dev.experiments.live fidelity` asks how close the simulator comes, `... switchback` which policy is better.
"""
