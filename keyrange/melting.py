"""PURE. Where a load lies, in fewer points: light neighbours are melted into the heaviest of them.

A point with more than its share of the load is never melted away, and no cost moves further than to a neighbour that is
kept. So cuts at the median stay right, and a heavy point stays a point.
"""


def melt_costs(costs: dict[int, int], points: int) -> list[tuple[int, int]]:
    """At most ``2 * points + 1`` of them, in order of points, with the same sum; what is heavy stays as it is."""
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
