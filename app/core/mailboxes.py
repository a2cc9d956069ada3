"""Mailboxes: the spellings of an e-mail address that arrive in one."""


def mailbox_of(address: str) -> str:
    """Return an address without case and sub-address (`+tag`), and without dots where they mean nothing.

    Two addresses with one result may still be two mailboxes: it is for limits, never for delivery.
    """
    local, _, domain = address.casefold().rpartition("@")
    domain = domain.rstrip(".")
    local = local.partition("+")[0] or local
    if domain in ("gmail.com", "googlemail.com"):
        local, domain = local.replace(".", ""), "gmail.com"
    return f"{local}@{domain}"
