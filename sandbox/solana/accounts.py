"""Every account's states by slot, so that each commitment level sees its own past."""

from collections.abc import Iterator

from solders.account import Account

GENESIS_SLOT = 0


class AccountVersions:
    """States of the accounts that changed since genesis, kept no longer than finality needs them."""

    def __init__(self) -> None:
        self._versions: dict[str, list[tuple[int, Account | None]]] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._versions

    def __iter__(self) -> Iterator[str]:
        """Go over the addresses, oldest known first; safe against accounts added meanwhile."""
        return iter(list(self._versions))

    def __len__(self) -> int:
        return len(self._versions)

    def at(self, address: str, *, slot: int) -> Account | None:
        """Tell an account's state as of the end of a slot; None where it did not exist."""
        for changed_in, account in reversed(self._versions.get(address, [])):
            if changed_in <= slot:
                return account
        return None

    def remember(self, address: str, account: Account | None, *, slot: int, finalized_slot: int) -> None:
        """Record the state an account has from this slot on."""
        versions = self._versions.setdefault(address, [])
        if versions and versions[-1][0] == slot:
            versions.pop()
        versions.append((slot, account))
        while len(versions) > 1 and versions[1][0] <= finalized_slot:
            versions.pop(0)
