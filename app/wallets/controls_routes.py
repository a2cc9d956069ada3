"""`/v1/wallets/{id}/controls`: the limits of a wallet, read and set."""

from __future__ import annotations

from typing import Any

from app.core.unit_of_work import reading, unit_of_work
from app.errors import ControlsLocked, InvalidInput, NotFound, Unauthorized
from app.spending import service as spending
from app.wallets import schemas
from app.wallets.routes import blp
from app.wallets.service import WalletView


@blp.get("/<string:wallet_id>/controls")
@blp.response(200, schemas.ControlsStanding)
@blp.raises(Unauthorized, NotFound)
def get_controls(wallet: WalletView) -> dict[str, Any]:
    """Read the controls and what was used of them today, this week and this month (UTC)."""
    with reading():
        found = spending.standing(wallet.id)
    if found.controls is None:
        message = "No spending controls are set: this wallet spends without limits. Set them with PUT."
        return {"wallet_id": wallet.id, "controls": None, "message": message}
    return {
        "wallet_id": wallet.id,
        "controls": found.controls,
        "usage_today": found.today,
        "usage_week": found.week,
        "usage_month": found.month,
    }


@blp.put("/<string:wallet_id>/controls")
@blp.arguments(schemas.ControlsBody)
@blp.response(200, schemas.UpdatedControls)
@blp.raises(Unauthorized, NotFound, ControlsLocked)
def put_controls(body: dict[str, Any], wallet: WalletView) -> dict[str, Any]:
    """Create or change the controls; fields that are left out keep their value.

    At least one field has to be sent, also where no controls are set yet: an empty object is refused.
    """
    if not body:
        known = ", ".join(schemas.ControlsBody().fields)
        raise InvalidInput(
            f"Send at least one of {known}.", details={"fields": {"body": ["has no field to set"]}}
        )
    with unit_of_work():
        controls = spending.put_controls(wallet.id, spending.Changes(**body), by_agent=True)
    return {"wallet_id": wallet.id, "controls": controls, "updated": True}
