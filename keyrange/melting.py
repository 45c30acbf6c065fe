"""PURE. The distribution of a load in fewer points: light neighbours are melted into the heaviest of them.

A point with more than an average part of the load is never melted, and no cost moves further than to a neighbour that
remains. So cuts at the median stay right, and a heavy point stays a point.
"""


def melt_costs(costs: dict[int, int], points: int) -> list[tuple[int, int]]:
    """At most ``2 * points + 1`` pairs (point, cost), in order of points, with the same sum; heavy points stay."""
    light = sum(costs.values()) // points
    kept: list[tuple[int, int]] = []
    heaviest = (0, 0)
    total = 0
    for point, cost in [*sorted(costs.items()), (-1, light + 1)]:
        if cost <= light and total + cost <= light:
            heaviest = max(heaviest, (cost, -point))
            total += cost
            continue
        if total:
            kept.append((-heaviest[1], total))
            heaviest, total = (0, 0), 0
        if cost <= light:
            heaviest, total = (cost, -point), cost
        else:
            kept.append((point, cost))
    return kept[:-1]
