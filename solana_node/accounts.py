"""The states of every account by slot, for reads at each commitment level."""

from collections.abc import Iterator

from solders.account import Account

GENESIS_SLOT = 0


class AccountVersions:
    """States of the accounts that changed since genesis, kept until they are final."""

    def __init__(self) -> None:
        self._versions: dict[str, list[tuple[int, Account | None]]] = {}

    def __contains__(self, address: str) -> bool:
        return address in self._versions

    def __iter__(self) -> Iterator[str]:
        """Iterate over the addresses, oldest first; accounts may be added during the iteration."""
        return iter(list(self._versions))

    def __len__(self) -> int:
        return len(self._versions)

    def at(self, address: str, *, slot: int) -> Account | None:
        """Return the state of an account at the end of a slot; None if it did not exist."""
        for changed_in, account in reversed(self._versions.get(address, [])):
            if changed_in <= slot:
                return account
        return None

    def record(self, address: str, account: Account | None, *, slot: int, finalized_slot: int) -> None:
        """Record the state of an account as of a slot."""
        versions = self._versions.setdefault(address, [])
        if versions and versions[-1][0] == slot:
            versions.pop()
        versions.append((slot, account))
        while len(versions) > 1 and versions[1][0] <= finalized_slot:
            versions.pop(0)
