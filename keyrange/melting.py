"""PURE. The distribution of a load in fewer points: light neighbours are melted into the heaviest of them.

A point with more than an average part of the load is never melted, and no cost moves further than to a neighbour that
remains. So cuts at the median stay right, and a heavy point stays a point.

The rule: go through the points in order, and gather light points as long as their sum is light. The gathered cost goes
to the heaviest of the gathered points.
"""


def melt_costs(costs: dict[int, int], points: int) -> list[tuple[int, int]]:
    """At most ``2 * points + 1`` pairs (point, cost), in order of points, with the same sum; heavy points stay.

    A point is light when its cost is at most the sum of all costs divided by ``points``.
    """
    light_max = sum(costs.values()) // points
    melted: list[tuple[int, int]] = []
    heaviest = (0, 0)
    gathered = 0
    end = (-1, light_max + 1)  # a heavy point behind all others: the last light points are gathered by then
    for point, cost in [*sorted(costs.items()), end]:
        if cost <= light_max and gathered + cost <= light_max:
            heaviest = max(heaviest, (cost, -point))
            gathered += cost
            continue
        if gathered:
            melted.append((-heaviest[1], gathered))
            heaviest, gathered = (0, 0), 0
        if cost <= light_max:
            heaviest, gathered = (cost, -point), cost
        else:
            melted.append((point, cost))
    return melted[:-1]
