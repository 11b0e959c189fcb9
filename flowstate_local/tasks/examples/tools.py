"""The tools of the examples, on a small data set of their own. What they publish and file lives in memory only."""

from typing import TypedDict

from flowstate_local.errors import ToolError
from flowstate_local.tools import Toolbox, ToolContext, tool

_NEWS = {
    "tea": ["A dry spring in Assam", "Auction volumes up by a tenth", "New rules for pesticides"],
    "coffee": ["Frost in Minas Gerais", "Freight rates ease"],
}
_PRICES = {"tea": [3.1, 3.2, 3.4], "coffee": [5.0, 5.3, 5.2]}
_HOTELS = {"Hotel Aurora": (200, 80), "Hotel Belmar": (160, 20)}
_published: dict[str, int] = {}
_filed: list[str] = []


class Published(TypedDict):
    """What publishing returns."""

    number: int


class Terms(TypedDict):
    """What was paid for a booking, and what cancelling it costs, in dollars."""

    paid: int
    fee: int


@tool(idempotent=True)
def fetch_news(topic: str, days: int = 3) -> list[str]:
    """Fetch headlines about a topic."""
    if topic not in _NEWS:
        raise ToolError(f"no news about {topic!r}; there are news about {', '.join(_NEWS)}", kind="not_found")
    return _NEWS[topic][:days]


@tool(idempotent=True)
def fetch_prices(topic: str, days: int = 3) -> list[float]:
    """Fetch the latest prices; the exchange is closed, so this is down."""
    raise ToolError("the exchange is closed", kind="unavailable", retryable=True)


@tool(idempotent=True)
def cached_prices(topic: str) -> list[float]:
    """Take the prices that were fetched last week."""
    return _PRICES.get(topic, [])


@tool(idempotent=True)
def fetch_social(topic: str) -> list[str]:
    """Ask the social network; it is down, too."""
    raise ToolError("the network does not answer", kind="unavailable", retryable=True)


@tool(idempotent=True, for_model=False)
def summarise(
    topic: str, news: list[str], prices: list[float], social: list[str] | None, missing: str | None = None
) -> str:
    """Write a report from what there is."""
    lines = [f"The market of {topic}", *(f"- {line}" for line in news)]
    if prices:
        lines.append(f"Prices went from {prices[0]} to {prices[-1]}.")
    lines.append("The public: " + "; ".join(social) if social else f"The public: unknown ({missing}).")
    return "\n".join(lines)


@tool
def publish(text: str, context: ToolContext) -> Published:
    """Publish a report, which must not happen twice."""
    _published[context.idempotency_key] = len(_published) + 1
    return {"number": _published[context.idempotency_key]}


@tool(idempotent=True)
def find_published(key: str) -> Published | None:
    """Say whether a report was published under this key."""
    return {"number": _published[key]} if key in _published else None


@tool(idempotent=True)
def withdraw(number: int) -> str:
    """Withdraw a report."""
    for key in [key for key, value in _published.items() if value == number]:
        del _published[key]
    return f"report {number} is withdrawn"


@tool(idempotent=True)
def booking_terms(hotel: str) -> Terms:
    """Read what was paid for a hotel, and what cancelling costs."""
    paid, fee = _known(hotel)
    return {"paid": paid, "fee": fee}


@tool(idempotent=True)
def hotel_price(hotel: str) -> int:
    """Tell what a hotel costs now, in dollars."""
    return _known(hotel)[0]


@tool
def file_note(about: str, text: str) -> str:
    """File a note."""
    _filed.append(f"{about}: {text}")
    return f"note {len(_filed)} about {about}: {text}"


def _known(hotel: str) -> tuple[int, int]:
    if hotel not in _HOTELS:
        raise ToolError(f"no hotel {hotel!r}; there are {', '.join(_HOTELS)}", kind="not_found")
    return _HOTELS[hotel]


toolbox = Toolbox(
    [
        fetch_news,
        fetch_prices,
        cached_prices,
        fetch_social,
        summarise,
        publish,
        find_published,
        withdraw,
        booking_terms,
        hotel_price,
        file_note,
    ]
)
