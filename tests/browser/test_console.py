"""The operators' console in a browser: by keyboard and without scripts, on phones and desktops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Page

from app.core import clock
from app.core.chains import ChainName
from app.identity.principal import MasterKeyRole
from app.payments import settlement_capacity
from app.wallets.core.lifecycle import MovementStatus
from tests.api.test_console_figures import RESERVE
from tests.api.test_console_lookups import SECTIONS, acts_of
from tests.api.test_request_lookup import pay
from tests.browser.test_owner_pages import world
from tests.browser.test_owner_passkeys import Device
from tests.support.applications import change_settings
from tests.support.looks import PHONE, assert_good, navigation
from tests.support.market import offer
from tests.support.operators import Operator, operator
from tests.support.owner_world import World
from tests.support.screenshots import LONG_NAME, RIGHT_TO_LEFT

pytestmark = pytest.mark.browser
__all__ = ["world"]


def _enter(page: Page, world: World, role: MasterKeyRole = MasterKeyRole.ADMIN) -> Operator:
    with world.app.app_context():
        ops = operator(world.app.test_client(), "Ada", role=role)
    page.goto(f"{world.url}/admin")
    # The field has the focus when the page is shown, a moment after it is loaded.
    page.locator("#master-key:focus").wait_for()
    page.keyboard.type(ops.key)
    with navigation(page):
        page.keyboard.press("Enter")
    return ops


def test_every_page_is_readable_at_each_width_and_for_a_screen_reader(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    agent = world.register_long_ago(name=LONG_NAME)
    world.register_long_ago(name=RIGHT_TO_LEFT)
    world.add_month_of_history(agent)
    page = open_page()
    page.goto(f"{world.url}/admin/sign-in")
    assert_good(page, axe, "console-sign-in")
    ops = _enter(page, world)
    webhook = ops.post("/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]}).get_json()["id"]
    ops.post(f"/webhooks/{webhook}/test")
    world.number_events()
    bought = world.buy(agent)
    frozen = ops.post(f"/agents/{agent['agentId']}/freeze", {}).headers["X-Request-Id"]
    pending = {"status": MovementStatus.PENDING, "created_at": clock.now() - timedelta(hours=3)}
    world.add_transaction(agent, **pending, next_check_at=clock.now(), kind="bridge", error="payment_not_seen")
    page.goto(f"{world.url}/admin")
    assert_good(page, axe, "console-overview")
    places = ("agents", "approvals", "services", "usage", "keys", "master-keys", "webhooks", "audit", "doctor")
    of_agent = f"transactions?agent_id={agent['agentId']}", f"agents/{agent['agentId']}"
    assert world.call(agent, "POST", "/v1/services", offer())[0] == 201
    world.call(agent, "PUT", f"/v1/wallets/{agent['wallet']['id']}/controls", {"daily_limit_usd": 1_000_000})
    with world.app.app_context():
        settlement_capacity.store_gas_reserve(ChainName.BASE, RESERVE, 12_345_678)
    new = "stuck", "purchases", "payouts", "audit-verification", "costs?group_by=provider"
    more = "treasury", f"events?agent_id={agent['agentId']}", "budgets"
    ones = f"requests/{frozen}", f"purchases/{bought}", f"webhooks/{webhook}", f"deliveries?webhook_id={webhook}"
    for number, place in enumerate((*places, "transactions", *of_agent, *new, *ones, *more)):
        page.goto(f"{world.url}/admin/{place}")
        assert_good(page, axe, f"console-{number:02}-{place.partition('?')[0].partition('/')[0]}")


# The acts of each role, as docs/operations/administration.md states them.
_OF_OPERATORS = {
    "freeze_agent", "unfreeze_agent", "revoke_claim_code", "pause_service", "resume_service", "revoke_gateway_key",
    "test_platform_webhook", "replay_platform_webhook",
}  # fmt: skip
_OF_ADMINS = {each["view"].partition(".")[2] for section in SECTIONS.values() for each in acts_of(section)}


@pytest.mark.parametrize(
    ("role", "acts"),
    [
        (MasterKeyRole.VIEWER, set[str]()), (MasterKeyRole.OPERATOR, _OF_OPERATORS), (MasterKeyRole.ADMIN, _OF_ADMINS),
    ],
)  # fmt: skip
def test_each_role_has_the_buttons_of_its_acts_and_a_forged_form_of_another_is_refused(
    world: World, open_page: Callable[..., Page], role: MasterKeyRole, acts: set[str]
) -> None:
    agent, frozen = world.register_long_ago(name="Ada"), world.register_long_ago(name="Bob")
    services = [world.call(agent, "POST", "/v1/services", offer())[1]["id"] for _ in range(2)]
    page = open_page(script=True)
    _enter(page, world, role)
    with world.app.app_context():
        world.app.test_client().post("/v1/keys", json={})
        admin = operator(world.app.test_client(), "Eve")
        webhook = admin.post("/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]}).get_json()["id"]
        budget = admin.post("/budgets", {"name": "Team", "limit_usd": 5}).get_json()["id"]
        admin.post(f"/agents/{frozen['agentId']}/freeze", {})
        admin.post(f"/services/{services[1]}/pause")
        admin.post(f"/webhooks/{webhook}/test")
        pay(None)
        world.number_events()
        admin.post(f"/webhooks/{webhook}/replay", {"failed_since": "2026-01-01T00:00:00Z"})
    places = (
        f"agents/{agent['agentId']}", f"agents/{frozen['agentId']}", "services", f"budgets/{budget}", "keys",
        "master-keys", "payments", f"webhooks/{webhook}", f"deliveries?webhook_id={webhook}",
    )  # fmt: skip
    shown = set()
    for place in places:
        page.goto(f"{world.url}/admin/{place}")
        actions = page.eval_on_selector_all("main form[method=post]", "all => all.map(each => each.action)")
        shown |= {action.rpartition("/")[2] for action in actions}
    assert shown == acts
    forged = "grant_credits" if role is MasterKeyRole.OPERATOR else "freeze_agent"
    page.goto(f"{world.url}/admin/{places[0]}")
    with navigation(page):
        page.evaluate(
            """act => {
                const form = document.querySelector('form[action$="/sign-out"]').cloneNode(true);
                form.action = location.pathname + '/' + act;
                const amount = document.createElement('input');
                amount.name = 'credits_usd';
                amount.value = '5';
                form.append(amount);
                document.body.append(form);
                form.submit();
            }""",
            forged,
        )
    refusal = page.get_by_text("This operation needs the master key of")
    assert refusal.is_visible() is (role is not MasterKeyRole.ADMIN)
    shown_agent = admin.get(f"/agents/{agent['agentId']}").get_json()
    assert shown_agent["frozen"] is (role is MasterKeyRole.ADMIN)


def test_an_agent_is_found_and_frozen_without_scripts(world: World, open_page: Callable[..., Page]) -> None:
    world.register_long_ago(name="Buyer")
    page = open_page(script=False, width=PHONE)
    _enter(page, world, MasterKeyRole.OPERATOR)
    page.get_by_role("link", name="Agents", exact=True).first.click()
    page.get_by_label("Name, email, address or id").fill("buy")
    with navigation(page):
        page.keyboard.press("Enter")
    page.get_by_role("link", name="Buyer").click()
    with navigation(page):
        page.get_by_role("button", name="Freeze").click()
    assert page.get_by_role("status").get_by_text("Done.").is_visible()
    assert page.get_by_role("button", name="Unfreeze").is_visible()
    assert page.get_by_role("button", name="Grant credits").count() == 0


@pytest.fixture
def local(world: World) -> Iterator[World]:
    """The same service without https, at the name of loopback addresses that can be a relying party."""
    before = world.url
    world.url = world.url.replace("127.0.0.1", "localhost")
    change_settings(world.app, base_url=world.url)  # type: ignore[arg-type]
    yield world
    world.url = before
    change_settings(world.app, base_url="https://purser.test")  # type: ignore[arg-type]


def test_an_operator_adds_a_passkey_signs_in_and_makes_a_key_with_it(
    local: World, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page()
    device = Device(page)
    ops = _enter(page, local)
    page.get_by_role("link", name="Passkeys").click()
    assert_good(page, axe, "console-passkeys-none")
    page.get_by_label("Name").fill("Ada’s laptop")
    page.get_by_label("Your master key, again").fill(ops.key)
    for step in ("Continue", "Create passkey"):
        with navigation(page):
            page.get_by_role("button", name=step).click()
    page.get_by_text("The passkey was added.").wait_for()
    assert_good(page, axe, "console-passkeys")
    with navigation(page):
        page.get_by_role("button", name="Sign out").click()
    assert_good(page, axe, "console-sign-in-passkey")
    with navigation(page):
        page.get_by_role("button", name="Sign in with a passkey").click()
    assert page.url == f"{local.url}/admin"

    page.goto(f"{local.url}/admin/master-keys")
    page.get_by_label("Name", exact=True).fill("Night shift")
    page.get_by_label("Role").select_option("viewer")
    device.set_user_verified(False)
    page.get_by_role("button", name="Create a master key").click()
    page.get_by_text("No passkey was used.").wait_for()
    device.set_user_verified(True)
    with navigation(page):
        page.get_by_role("button", name="Create a master key").click()
    assert (page.locator("#shown-1").text_content() or "").startswith("mk_viewer_")
    assert_good(page, axe, "console-key-shown")

    page.goto(f"{local.url}/admin/passkeys")
    with navigation(page):
        page.get_by_role("button", name="Remove").click()
    page.get_by_text("The passkey was removed").wait_for()
