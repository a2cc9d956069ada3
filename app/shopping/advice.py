"""Advice on purchases that failed: the only place with advice, so that nothing contradicts it.

Messages say what happened; they give no advice on sending a purchase again, except that it does not help.
"""

from collections.abc import Mapping
from typing import Any

from app.ports.shopper import FailureCode

_OTHER_LIMIT = "Ask the owner about the wallet's limits; `limit_code` names the one that refused the order."
ADVICE: Mapping[str, str] = {
    FailureCode.OUT_OF_STOCK: "Choose another product, or try again later.",
    FailureCode.NOT_A_PRODUCT: "Send the URL of one product's own page.",
    FailureCode.PRODUCT_NOT_FOUND: "Check the URL; the shop does not have this page.",
    FailureCode.OPTIONS_REQUIRED: 'Send `options`, such as {"Color": "White"}, from `choices`, or quantity 1.',
    FailureCode.COUPON_NOT_APPLIED: "Check the code and its conditions, or leave out `coupon_code`.",
    FailureCode.DELIVERY_METHOD_NOT_OFFERED: "Send one of `choices` as `delivery_method`, or none.",
    FailureCode.ADDRESS_INCOMPLETE: "Add the fields in `missing` to `shippingAddress`, or store it in the shop.",
    FailureCode.ADDRESS_MISMATCH: "Send the whole address, or store it in the shop under this name and postal code.",
    FailureCode.LOGIN_FAILED: "Check `credentials` before another attempt: too many lock an account. Sign in by hand "
    "once if the shop asks for more than those, and leave them out if it has no sign-in.",
    FailureCode.LIMIT_EXCEEDED: "Raise `max_total_usd`.",
    FailureCode.PRICE_UNKNOWN: "This shop shows no price or total that can be read reliably; buy by hand.",
    FailureCode.CURRENCY_UNSUPPORTED: "Choose the shop's page in US dollars, if it has one.",
    FailureCode.CART_MISMATCH: "Empty the cart of the shop's account before another attempt. What the shop itself adds "
    "or does not show has to be bought by hand.",
    FailureCode.PAYMENT_DETAILS_REQUIRED: "Store a payment method in the shop's account first.",
    FailureCode.HUMAN_CHECK: "A person has to pass the shop's check.",
    FailureCode.LEFT_DOMAIN: "Add that domain to the wallet's `allowed_domains` if it belongs to the shop.",
    FailureCode.SHOP_UNREACHABLE: "Check the URL, or try again later.",
    FailureCode.STUCK: "Look at the screenshots; this shop may have to be used by hand.",
    FailureCode.BROWSER_ERROR: "Nothing was ordered; send it again.",
    FailureCode.TIMEOUT: "Nothing was ordered; send it again.",
    FailureCode.OUTCOME_UNKNOWN: "Check the orders of the shop's account before you buy again.",
}  # fmt: skip


ADVICE_ON_LIMITS: Mapping[str, str] = {
    "PER_TX_LIMIT_EXCEEDED": "Choose something cheaper, or ask the owner for a higher limit.",
    "DAILY_LIMIT_EXCEEDED": "Wait until the day ends (UTC), or ask the owner for a higher limit.",
    "WEEKLY_LIMIT_EXCEEDED": "Wait until the week ends (Sunday, UTC), or ask the owner for a higher limit.",
    "MONTHLY_LIMIT_EXCEEDED": "Wait until the month ends (UTC), or ask the owner for a higher limit.",
    "SESSION_LIMIT_EXCEEDED": "Open a session with a larger budget, or leave out `session_id`.",
    "APPROVAL_REQUIRED": "Send it again with the `max_total_usd` that the order needs; the owner is asked.",
    "NOT_FOUND": "The wallet or the session does not exist any more; choose another `session_id`, or none.",
    "WALLET_FROZEN": "Ask the owner; nothing can be bought while the wallet is frozen.",
    "DOMAIN_NOT_ALLOWED": "Ask the owner to add the shop to the wallet's `allowed_domains`.",
}  # fmt: skip


def advice_on(error: Mapping[str, Any]) -> str:
    if error.get("is_permanent"):
        return "Nothing was ordered. Send it again only after the operator of this service has fixed it."
    if limit_code := error.get("limit_code"):
        return ADVICE_ON_LIMITS.get(limit_code, _OTHER_LIMIT)
    return ADVICE[error["code"]]
