"""A shop of another design than django-oscar: one test per way in which a purchase can go wrong unnoticed."""

from __future__ import annotations

import socket
from decimal import Decimal

import pytest

from app.adapters.shopper import BrowserShopper
from app.ports.shopper import FailureCode, OrderReview, PurchaseFailed
from shopper.process import egress
from shopper.process.egress import EgressProxy
from tests.browser.conftest import FULL, MINIMAL, RecordingHandler, SharedBrowserShopper, purchase
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.shops.corner import PASSWORD, Behaviour, Corner
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser
ACCOUNT = {"username": "ada@example.com", "password": PASSWORD}


def test_a_refused_authorization_prevents_the_order_and_a_cart_behind_a_panel_is_emptied_before_and_after_it(
    shopper: SharedBrowserShopper, corner: Corner
) -> None:
    corner.behaviour = Behaviour(opens_drawer=True)
    corner.left_in_cart["ada@example.com"] = {"table": 1, "pen-holder": 4}
    refusing = RecordingHandler(refuses_order=PurchaseFailed(FailureCode.LIMIT_EXCEEDED, "Too dear."))
    refused = purchase(shopper, corner.product, quantity=3, handler=refusing, **ACCOUNT)
    assert (refused.failure_code, corner.orders) == ("limit_exceeded", [])
    assert [review.total_nanos for review in refusing.reviews] == [41 * 10**9]
    assert [session.cart for session in corner.sessions.values() if session.user] == [{}]


def test_a_restored_cart_is_emptied_first_and_an_echoed_password_is_redacted_from_all_messages(
    browser: str, corner: Corner
) -> None:
    """In a separate process, as in production: the service redacts what the page echoes."""
    corner.behaviour = Behaviour(echoes_password=True)
    corner.left_in_cart["ada@example.com"] = {"table": 1, "pen-holder": 4}
    result = purchase(
        BrowserShopper(browser, private=True, sandbox_required=False), corner.product, quantity=3, **ACCOUNT
    )
    assert result.confirmation is not None, result.failed
    assert (result.confirmation.order_number, result.confirmation.total_nanos) == ("PX-20931", 41 * 10**9)
    assert result.confirmation.payment_pending
    [order] = corner.orders
    assert order["cart"] == {"pen-holder": 3}
    assert [order[key] for key in ("who", "where", "place", "code", "pay")] == [
        "Ada Buyer", "1 Main Street", "San Francisco", "94107", "Pay on delivery",
    ]  # fmt: skip
    assert corner.logins == [("ada@example.com", PASSWORD)]
    assert {"product", "review", "confirmation"} <= result.handler.pictures.keys()
    reported = repr([result.confirmation, result.handler.products, result.handler.reviews, result.handler.steps])
    assert PASSWORD not in reported
    assert "ada@example.com" not in reported


def test_a_wrong_password_is_tried_once_and_never_becomes_a_guest_order(
    shopper: SharedBrowserShopper, corner: Corner
) -> None:
    result = purchase(shopper, corner.product, username="ada@example.com", password="wrong")
    assert result.failure_code == "login_failed"
    assert (corner.orders, corner.logins) == ([], [("ada@example.com", "wrong")])


def test_a_missing_option_is_reported_with_its_choices(shopper: SharedBrowserShopper, corner: Corner) -> None:
    corner.behaviour = Behaviour(colours=("White", "Black"))
    result = purchase(shopper, corner.product)
    assert result.failure_code == "options_required"
    assert result.failed is not None
    assert result.failed.choices == ("White", "Black")
    assert corner.orders == []


def test_a_chosen_variant_is_bought_with_a_corrected_name_and_without_a_preselected_extra(
    shopper: SharedBrowserShopper, corner: Corner
) -> None:
    corner.behaviour = Behaviour(
        colours=("White", "Black"), prefilled_name="Bob Other", number=None, adds_insurance=True
    )
    result = purchase(shopper, corner.product, options={"Colour": "Black"})
    assert result.confirmation is not None, result.failed
    # No number could be recognized: the order was placed all the same.
    assert result.confirmation.order_number is None
    [order] = corner.orders
    assert (order["colour"], order["who"], order["total"]) == ("Black", "Ada Buyer", "17.00")


@pytest.mark.parametrize(
    ("behaviour", "failure_code"),
    [
        (Behaviour(code="CAD"), "currency_unsupported"),
        (Behaviour(code="", symbol="€"), "currency_unsupported"),
        (Behaviour(code="", symbol=""), "price_unknown"),
        (Behaviour(several_products=True), "options_required"),
        (Behaviour(asks_for_captcha=True), "human_check"),
    ],
    ids=["declared-dollars-of-another-country", "euros", "no-currency", "several-products", "captcha"],
)
def test_an_ambiguous_product_is_not_added_to_a_cart(
    shopper: SharedBrowserShopper, corner: Corner, behaviour: Behaviour, failure_code: str
) -> None:
    corner.behaviour = behaviour
    result = purchase(shopper, corner.product)
    assert result.failure_code == failure_code
    assert corner.orders == []
    assert all(not session.cart for session in corner.sessions.values())


@pytest.mark.parametrize(
    ("behaviour", "failure_code"),
    [
        (Behaviour(raises_price=Decimal(3)), "cart_mismatch"),
        (Behaviour(hides_total=True), "price_unknown"),
        # Slow: the effect of a click shows late; the button is not clicked again and the purchase not ended.
        (Behaviour(asks_for_card=True, response_delay=0.6), "payment_details_required"),
        (Behaviour(recurring="Delivered every 2 weeks until you cancel."), "cart_mismatch"),
        (Behaviour(ignores_address="10001"), "address_mismatch"),
    ],
    ids=["a-price-that-rises", "no-total", "a-card", "recurring", "another-address"],
)
def test_a_defect_at_the_checkout_prevents_the_order_and_leaves_an_empty_cart(
    shopper: SharedBrowserShopper, corner: Corner, behaviour: Behaviour, failure_code: str
) -> None:
    corner.behaviour = behaviour
    result = purchase(shopper, corner.product)
    assert result.failure_code == failure_code, result.failed
    assert result.failed is not None
    # A person who finishes by hand reads where it ended, and what the page offers.
    for part in ('Page "Your details" (/pay).', "Buttons seen: ", "Empty fields: Voucher"):
        assert part in result.failed.message or failure_code == "cart_mismatch", result.failed.message
    assert 'Page "' in result.failed.message
    assert (corner.orders, result.handler.reviews) == ([], [])
    assert all(not session.cart for session in corner.sessions.values())
    assert "end" in result.handler.pictures


def test_a_checkout_that_no_rule_continues_is_continued_by_a_choice_and_only_by_one(
    shopper: SharedBrowserShopper, corner: Corner
) -> None:
    corner.behaviour = Behaviour(checkout_word="Off we go", other_word="Leave it")
    result = purchase(shopper, corner.product)
    assert (result.failure_code, corner.orders, result.handler.reviews) == ("stuck", [], [])
    handler = RecordingHandler(chooses=lambda _question: 0)
    result = purchase(shopper, corner.product, handler=handler)
    assert result.confirmation is not None, result.failed
    assert [len(corner.orders), len(handler.reviews)] == [1, 1]
    [question] = handler.questions
    assert [(item.role, item.name) for item in question.candidates] == [("button", "Off we go"), ("button", "Leave it")]
    assert [step.text for step in handler.steps if step.action == "ask_model"] == ["Off we go"]


def test_a_button_that_may_be_the_order_button_is_never_offered_to_a_language_model(
    shopper: SharedBrowserShopper, corner: Corner
) -> None:
    corner.behaviour = Behaviour(order_word="Yes, I want it")
    result = purchase(shopper, corner.product, handler=RecordingHandler(chooses=lambda _question: 0), dry_run=True)
    assert (result.handler.questions, corner.orders) == ([], [])


def test_missing_address_fields_are_named(shopper: SharedBrowserShopper, corner: Corner) -> None:
    result = purchase(shopper, corner.product, address=MINIMAL)
    assert result.failure_code == "address_incomplete"
    assert result.failed is not None
    assert result.failed.missing == ("address-line1", "address-level2")
    assert corner.orders == []


def test_a_total_that_rises_after_authorization_is_not_ordered(shopper: SharedBrowserShopper, corner: Corner) -> None:
    class Slow(RecordingHandler):
        """Authorizes slowly; meanwhile the shop recalculates its total, and shows it."""

        def authorize_order(self, review: OrderReview) -> None:
            self.reviews.append(review)
            corner.behaviour.shipping = Decimal(500)
            for _ in range(2):
                corner.quoted = Decimal(0)
                wait_until(lambda: corner.quoted == 512, 20, what="the new total")

    corner.behaviour = Behaviour(recalculates=True)
    result = purchase(shopper, corner.product, handler=Slow())
    assert result.outcome_unknown is not None, result.failed
    assert [review.total_nanos for review in result.handler.reviews] == [17 * 10**9]
    assert corner.orders == []


def test_an_order_without_a_confirmation_is_unknown_and_clicked_once(
    shopper: SharedBrowserShopper, corner: Corner
) -> None:
    corner.behaviour = Behaviour(confirms=False)
    result = purchase(shopper, corner.product)
    assert result.outcome_unknown is not None
    assert len(corner.orders) == 1
    assert "confirmation" in result.handler.pictures


def test_nothing_is_typed_into_a_page_of_another_host(shopper: SharedBrowserShopper, corner: Corner) -> None:
    with serve(lambda _asked: Reply(b"<h1>Elsewhere</h1><button>Add to cart</button> $1.00")) as elsewhere:
        corner.behaviour = Behaviour(redirects_to=elsewhere.url)
        result = purchase(shopper, corner.product, **ACCOUNT)
    assert result.failure_code == "left_domain"
    assert corner.logins == []


def test_a_missing_product_page_is_reported(shopper: SharedBrowserShopper, corner: Corner) -> None:
    assert purchase(shopper, f"{corner.url}/nowhere").failure_code == "product_not_found"


_ATTACKS = """
<!doctype html><title>Shop</title><h1>Shop</h1>
<img src="{inside}/img"><iframe src="{inside}/frame"></iframe>
<link rel="prefetch" href="{inside}/prefetch"><link rel="dns-prefetch" href="//localhost">
<img src="/redirect-img"><object data="{inside}/object"></object>
<script>
fetch("{inside}/fetch", {{mode: "no-cors"}}).catch(() => 0);
fetch("/redirect-fetch", {{mode: "no-cors"}}).catch(() => 0);
navigator.sendBeacon("{inside}/beacon"); new WebSocket("{inside}/socket".replace("http", "ws"));
new Worker(URL.createObjectURL(new Blob([`new WebTransport("https://127.0.0.1:{datagrams}/").ready.catch(() => 0);
  fetch("{inside}/worker", {{mode: "no-cors"}})`])));
open("{inside}/popup"); fetch("{mapped}/mapped", {{mode: "no-cors"}}).catch(() => 0);
const call = (frame) => {{
  const made = new frame.RTCPeerConnection({{iceServers: [{{urls: "stun:127.0.0.1:{datagrams}"}}]}});
  made.createDataChannel("x"); made.createOffer().then((offer) => made.setLocalDescription(offer));
}};
for (const frame of [window, document.body.appendChild(document.createElement("iframe")).contentWindow])
  try {{ call(frame); }} catch {{ fetch("/no-calls"); }}
setTimeout(() => location = "/redirect-page", 150);
</script>"""


def test_a_hostile_page_cannot_reach_the_internal_network(browser: str) -> None:
    with (
        serve(lambda _asked: Reply(b"secret")) as inside,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)  # noqa: FBT003 - the standard library's
        port = inside.url.rpartition(":")[2]
        page = _ATTACKS.format(
            inside=inside.url, mapped=f"http://[::ffff:127.0.0.1]:{port}", datagrams=datagrams.getsockname()[1]
        ).encode()

        def answer(asked: Asked) -> Reply:
            if asked.target.startswith("/redirect"):
                return Reply(b"", 302, {"Location": f"{inside.url}{asked.target}"})
            return Reply(page, 200, {"Content-Type": "text/html"})

        with serve(answer) as hostile:
            host = hostile.url.removeprefix("http://")
            shopper = BrowserShopper(browser, private=False, sandbox_required=False, reachable=[host])
            result = purchase(shopper, hostile.url, address=FULL)
            assert "/redirect-page" in [asked.target for asked in hostile.asked]
        assert result.failed is not None
        assert inside.asked == []
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)


def test_the_proxy_refuses_internal_addresses_and_malformed_requests() -> None:
    with serve(lambda _asked: Reply(b"secret")) as inside, egress.serve(EgressProxy(private=False)) as proxy:
        port = inside.url.rpartition(":")[2]
        asked = [
            f"CONNECT {host}:{number} HTTP/1.1\r\n\r\n"
            for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0", "0x7f000001", "2130706433")
            for number in (port, "443")
        ]
        asked += [
            f"GET {inside.url}/ HTTP/1.1\r\n\r\n", "GET file:///etc/passwd HTTP/1.1\r\n\r\n",
            "CONNECT 169.254.169.254:443 HTTP/1.1\r\n\r\n", "CONNECT 10.0.0.1:443 HTTP/1.1\r\n\r\n",
        ]  # fmt: skip
        for request in asked:
            with socket.create_connection(("127.0.0.1", int(proxy.rpartition(":")[2])), 5) as way:
                way.sendall(request.encode())
                assert way.recv(100).split()[1] in {b"403", b"502"}, request
        assert inside.asked == []
