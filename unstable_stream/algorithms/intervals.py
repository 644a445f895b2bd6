"""The interval of a rate: how far the true one may be from what a few games show."""


def wilson_interval(count: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return the score interval of a rate (E. B. Wilson, 1927); (0, 1) if nothing was counted.

    Args:
        count: how often it happened.
        total: of how many.
        z: standard normal quantile of the confidence; by default that of 95 %.
    """
    if total == 0:
        return (0.0, 1.0)
    p = count / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * (p * (1 - p) / total + z * z / (4 * total * total)) ** 0.5
    # Rounding may put the bound of a rate of 0 or 1 a little outside.
    return (max(0.0, centre - half), min(1.0, centre + half))
