"""A shop of another build than django-oscar: what was wrong with purchases that looked right, one test each."""

from __future__ import annotations

import socket
from decimal import Decimal

import pytest

from app.adapters.shopper_browser import egress
from app.adapters.shopper_browser.egress import Egress
from app.adapters.shopper_browser.shopper import BrowserShopper
from app.ports.shopper import Failed, Review, Trouble
from tests.browser.conftest import FULL, MINIMAL, OneBrowser, Witness, send
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.shops.corner import PASSWORD, Behaviour, Corner
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ACCOUNT = {"username": "ada@example.com", "password": PASSWORD}


def test_an_old_cart_that_comes_back_is_emptied_first_and_an_echoed_password_gets_into_no_report(
    browser: str, corner: Corner
) -> None:
    """In a process of its own, as in production: what the page echoes is taken out on the other side."""
    corner.behaviour = Behaviour(echoes_password=True)
    corner.left_in_cart["ada@example.com"] = {"desk": 1, "pen-holder": 4}
    trial = send(BrowserShopper(browser, private=True), corner.product, quantity=3, **ACCOUNT)
    assert trial.bought is not None, trial.failed
    assert (trial.bought.order_number, trial.bought.total_nanos) == ("PX-20931", 41 * 10**9)
    assert trial.bought.payment_pending
    [order] = corner.orders
    assert order["cart"] == {"pen-holder": 3}
    assert [order[key] for key in ("who", "where", "place", "code", "pay")] == [
        "Ada Buyer", "1 Main Street", "San Francisco", "94107", "Pay on delivery",
    ]  # fmt: skip
    assert corner.logins == [("ada@example.com", PASSWORD)]
    assert {"product", "review", "confirmation"} <= trial.witness.pictures.keys()
    told = repr([trial.bought, trial.witness.products, trial.witness.reviews, trial.witness.steps])
    assert PASSWORD not in told
    assert "ada@example.com" not in told


def test_a_wrong_password_is_tried_once_and_never_becomes_a_guests_order(
    shopper: OneBrowser, corner: Corner
) -> None:
    trial = send(shopper, corner.product, username="ada@example.com", password="wrong")
    assert trial.trouble == "login_failed"
    assert (corner.orders, corner.logins) == ([], [("ada@example.com", "wrong")])


def test_a_variant_that_was_not_chosen_is_asked_for(shopper: OneBrowser, corner: Corner) -> None:
    corner.behaviour = Behaviour(colours=("White", "Black"))
    trial = send(shopper, corner.product)
    assert trial.trouble == "options_required"
    assert trial.failed is not None
    assert trial.failed.choices == ("White", "Black")
    assert corner.orders == []


def test_a_variant_that_was_chosen_is_bought_over_a_wrong_name_without_what_was_ticked_beforehand(
    shopper: OneBrowser, corner: Corner
) -> None:
    corner.behaviour = Behaviour(
        colours=("White", "Black"), prefilled_name="Somebody Else", number=None, adds_insurance=True
    )
    trial = send(shopper, corner.product, options={"Colour": "Black"})
    assert trial.bought is not None, trial.failed
    # No number could be recognised: the order was placed all the same.
    assert trial.bought.order_number is None
    [order] = corner.orders
    assert (order["colour"], order["who"], order["total"]) == ("Black", "Ada Buyer", "17.00")


@pytest.mark.parametrize(
    ("behaviour", "trouble"),
    [
        (Behaviour(code="CAD"), "currency_unsupported"),
        (Behaviour(code="", symbol="€"), "currency_unsupported"),
        (Behaviour(code="", symbol=""), "price_unknown"),
        (Behaviour(several_articles=True), "options_required"),
        (Behaviour(asks_for_person=True), "human_check"),
    ],
    ids=["declared-dollars-of-another-country", "euros", "no-currency", "several-articles", "captcha"],
)
def test_what_cannot_be_bought_for_certain_is_not_put_into_a_cart(
    shopper: OneBrowser, corner: Corner, behaviour: Behaviour, trouble: str
) -> None:
    corner.behaviour = behaviour
    trial = send(shopper, corner.product)
    assert trial.trouble == trouble
    assert corner.orders == []
    assert all(not session.cart for session in corner.sessions.values())


@pytest.mark.parametrize(
    ("behaviour", "trouble"),
    [
        (Behaviour(raises_price=Decimal(3)), "cart_mismatch"),
        (Behaviour(hides_total=True), "price_unknown"),
        # Slow: what was pressed shows late, and is not pressed again or given up.
        (Behaviour(asks_for_card=True, answers_late=0.6), "payment_details_required"),
        (Behaviour(comes_again="Delivered every 2 weeks until you cancel."), "cart_mismatch"),
        (Behaviour(ignores_address="10001"), "address_mismatch"),
    ],
    ids=["a-price-that-rises", "no-total", "a-card", "comes-again", "another-address"],
)
def test_what_turns_out_wrong_at_the_checkout_is_not_ordered_and_leaves_no_cart(
    shopper: OneBrowser, corner: Corner, behaviour: Behaviour, trouble: str
) -> None:
    corner.behaviour = behaviour
    trial = send(shopper, corner.product)
    assert trial.trouble == trouble, trial.failed
    assert (corner.orders, trial.witness.reviews) == ([], [])
    assert all(not session.cart for session in corner.sessions.values())
    assert "end" in trial.witness.pictures


def test_what_the_shop_wants_of_the_address_is_named(shopper: OneBrowser, corner: Corner) -> None:
    trial = send(shopper, corner.product, address=MINIMAL)
    assert trial.trouble == "address_incomplete"
    assert trial.failed is not None
    assert trial.failed.missing == ("address-line1", "address-level2")
    assert corner.orders == []


def test_who_sent_the_shopper_has_the_last_word_before_the_order(shopper: OneBrowser, corner: Corner) -> None:
    witness = Witness(refuses=Failed(Trouble.LIMIT_EXCEEDED, "Too dear."))
    trial = send(shopper, corner.product, witness=witness)
    assert (trial.trouble, corner.orders) == ("limit_exceeded", [])
    assert [review.total_nanos for review in witness.reviews] == [17 * 10**9]
    assert all(not session.cart for session in corner.sessions.values())


def test_a_total_that_rises_once_it_was_allowed_is_not_ordered(shopper: OneBrowser, corner: Corner) -> None:
    class Slow(Witness):
        """Takes its time to allow; meanwhile the shop counts anew, and shows that."""

        def may_order(self, review: Review) -> None:
            self.reviews.append(review)
            corner.behaviour.shipping = Decimal(500)
            for _ in range(2):
                corner.quoted = Decimal(0)
                wait_until(lambda: corner.quoted == 512, 20, what="the new total")

    corner.behaviour = Behaviour(counts_anew=True)
    trial = send(shopper, corner.product, witness=Slow())
    assert trial.unclear is not None, trial.failed
    assert [review.total_nanos for review in trial.witness.reviews] == [17 * 10**9]
    assert corner.orders == []


def test_an_order_that_the_shop_does_not_confirm_is_unclear_and_pressed_once(
    shopper: OneBrowser, corner: Corner
) -> None:
    corner.behaviour = Behaviour(confirms=False)
    trial = send(shopper, corner.product)
    assert trial.unclear is not None
    assert len(corner.orders) == 1
    assert "confirmation" in trial.witness.pictures


def test_a_page_of_another_host_is_left_before_anything_is_typed(shopper: OneBrowser, corner: Corner) -> None:
    with serve(lambda _asked: Reply(b"<h1>Elsewhere</h1><button>Add to cart</button> $1.00")) as elsewhere:
        corner.behaviour = Behaviour(redirects_to=elsewhere.url)
        trial = send(shopper, corner.product, **ACCOUNT)
    assert trial.trouble == "left_domain"
    assert corner.logins == []


def test_a_page_that_does_not_exist_is_named(shopper: OneBrowser, corner: Corner) -> None:
    assert send(shopper, f"{corner.url}/nowhere").trouble == "product_not_found"


_ATTACKS = """
<!doctype html><title>Shop</title><h1>Shop</h1>
<img src="{inside}/img"><iframe src="{inside}/frame"></iframe>
<link rel="prefetch" href="{inside}/prefetch"><link rel="dns-prefetch" href="//localhost">
<img src="/redirect-img"><object data="{inside}/object"></object>
<script>
fetch("{inside}/fetch", {{mode: "no-cors"}}).catch(() => 0);
fetch("/redirect-fetch", {{mode: "no-cors"}}).catch(() => 0);
navigator.sendBeacon("{inside}/beacon"); new WebSocket("{inside}/socket".replace("http", "ws"));
new Worker(URL.createObjectURL(new Blob(["fetch('{inside}/worker', {{mode: 'no-cors'}})"])));
open("{inside}/popup"); fetch("{mapped}/mapped", {{mode: "no-cors"}}).catch(() => 0);
const call = (frame) => {{
  const made = new frame.RTCPeerConnection({{iceServers: [{{urls: "stun:127.0.0.1:{datagrams}"}}]}});
  made.createDataChannel("x"); made.createOffer().then((offer) => made.setLocalDescription(offer));
}};
for (const frame of [window, document.body.appendChild(document.createElement("iframe")).contentWindow])
  try {{ call(frame); }} catch {{ fetch("/no-calls"); }}
setTimeout(() => location = "/redirect-page", 150);
</script>"""


def test_a_hostile_page_reaches_nothing_inside_by_any_way(browser: str) -> None:
    with (
        serve(lambda _asked: Reply(b"secret")) as inside,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)  # noqa: FBT003 - the standard library's
        port = inside.url.rpartition(":")[2]
        page = _ATTACKS.format(
            inside=inside.url,
            mapped=f"http://[::ffff:127.0.0.1]:{port}",
            datagrams=datagrams.getsockname()[1],
        ).encode()

        def answer(asked: Asked) -> Reply:
            if asked.target.startswith("/redirect"):
                return Reply(b"", 302, {"Location": f"{inside.url}{asked.target}"})
            return Reply(page, 200, {"Content-Type": "text/html"})

        with serve(answer) as hostile:
            host = hostile.url.removeprefix("http://")
            shopper = BrowserShopper(browser, private=False, reachable=[host])
            trial = send(shopper, hostile.url, address=FULL)
            assert "/redirect-page" in [asked.target for asked in hostile.asked]
        assert trial.failed is not None
        assert inside.asked == []
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)


def test_without_the_proxys_leave_no_address_inside_is_reached() -> None:
    with (
        serve(lambda _asked: Reply(b"secret")) as inside,
        egress.serve(Egress(private=False)) as proxy,
    ):
        port = inside.url.rpartition(":")[2]
        asked = [
            f"CONNECT {host}:{number} HTTP/1.1\r\n\r\n"
            for host in (
                "127.0.0.1",
                "localhost",
                "[::1]",
                "[::ffff:127.0.0.1]",
                "0",
                "0x7f000001",
                "2130706433",
            )
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
