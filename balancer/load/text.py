"""Numbers as people read them."""

import math


def milliseconds(seconds: float) -> str:
    """Three significant digits, thousands apart, `-` for what is not a number."""
    if not math.isfinite(seconds):
        return "-"
    value = seconds * 1e3
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def share(value: float) -> str:
    """Percent with one decimal, `-` for what is not a number."""
    return f"{value:.1%}" if math.isfinite(value) else "-"
