"""`python -m support.plays_on_ray ADDRESS`: a pool on that cluster; says what it saw as JSON.

A process of its own, as Ray changes how the process that asks it logs.
"""

import json
import sys
import time

from simulator.pool import Ray


def node_of(_: int) -> str:
    """Busy for so long that one node does not get all."""
    import ray  # noqa: PLC0415  # on the node

    time.sleep(0.3)
    return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    told: list[tuple[int, int]] = []
    with Ray(sys.argv[1]) as pool:
        pool.progress = lambda done, total: told.append((done, total))
        nodes = {*pool.map(node_of, range(6))}
        try:
            pool.map(lambda task: 1 // task, [0])
        except ZeroDivisionError as error:
            failure = str(error)
    print(json.dumps({"nodes": len(nodes), "told": told, "failure": failure}))


if __name__ == "__main__":
    main()
