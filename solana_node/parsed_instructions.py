"""The `parsed` form of instructions (`encoding: jsonParsed`), for the programs that a validator parses.

Names and shapes: agave `transaction-status/src/parse_*.rs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from solana_node import base58
from solana_node.addresses import ASSOCIATED_TOKEN, MEMO_PROGRAMS, SYSTEM, TOKEN_PROGRAMS
from solana_node.errors import JsonObject
from solana_node.tokens import amount_json


@dataclass(frozen=True, slots=True)
class _Call:
    """An instruction: its accounts and data."""

    keys: list[str]
    data: bytes

    def named(self, *names: str) -> JsonObject:
        """Map names to the first accounts."""
        return {name: self.keys[index] for index, name in enumerate(names)}

    def u64(self, offset: int) -> int:
        return int.from_bytes(self.data[offset : offset + 8], "little")

    def key(self, offset: int) -> str:
        return base58.encode(self.data[offset : offset + 32])

    def amount(self) -> JsonObject:
        return {"amount": str(self.u64(1))}

    def checked_amount(self) -> JsonObject:
        return {"tokenAmount": amount_json(self.u64(1), decimals=self.data[9])}

    def signed_by(self, role: str, index: int) -> JsonObject:
        """Map the authority, which is a multisig account when further signers follow."""
        if len(self.keys) > index + 1:
            multisig = f"multisig{role[0].upper()}{role[1:]}"
            return {multisig: self.keys[index], "signers": self.keys[index + 1 :]}
        return {role: self.keys[index]}


_Parser = Callable[[_Call], JsonObject]


def parse_instruction(program: str, keys: list[str], data: bytes) -> JsonObject | None:
    """Return the `program` and `parsed` members of an instruction, or None if a validator has none."""
    call = _Call(keys, data)
    try:
        if program in MEMO_PROGRAMS:
            return {"program": "spl-memo", "parsed": data.decode()}
        if program == ASSOCIATED_TOKEN:
            return _parsed("spl-associated-token-account", _ASSOCIATED_TOKEN[data], call)
        if program == SYSTEM:
            return _parsed("system", _SYSTEM[int.from_bytes(data[:4], "little")], call)
        if program in TOKEN_PROGRAMS:
            return _parsed("spl-token", _TOKEN[data[0]], call)
    except (KeyError, IndexError, UnicodeDecodeError):
        # Not an instruction of that program: validators return it unparsed.
        return None
    return None


def _parsed(program: str, entry: tuple[str, _Parser], call: _Call) -> JsonObject:
    kind, parser = entry
    return {"program": program, "parsed": {"type": kind, "info": parser(call)}}


def _mint_fields(call: _Call) -> JsonObject:
    has_freeze_authority = len(call.data) > 34 and call.data[34]  # noqa: PLR2004 - offset of the option's tag
    return {
        "mint": call.keys[0],
        "decimals": call.data[1],
        "mintAuthority": call.key(2),
        **({"freezeAuthority": call.key(35)} if has_freeze_authority else {}),
    }


def _token_account_to_create(call: _Call) -> JsonObject:
    return call.named("source", "account", "wallet", "mint", "systemProgram", "tokenProgram")


_ASSOCIATED_TOKEN: Final[dict[bytes, tuple[str, _Parser]]] = {
    b"": ("create", _token_account_to_create),
    b"\x00": ("create", _token_account_to_create),
    b"\x01": ("createIdempotent", _token_account_to_create),
}

_SYSTEM: Final[dict[int, tuple[str, _Parser]]] = {
    0: (
        "createAccount",
        lambda call: {
            **call.named("source", "newAccount"),
            "lamports": call.u64(4),
            "space": call.u64(12),
            "owner": call.key(20),
        },
    ),
    1: ("assign", lambda call: {**call.named("account"), "owner": call.key(4)}),
    2: ("transfer", lambda call: {**call.named("source", "destination"), "lamports": call.u64(4)}),
    4: ("advanceNonce", lambda call: call.named("nonceAccount", "recentBlockhashesSysvar", "nonceAuthority")),
    5: (
        "withdrawFromNonce",
        lambda call: {
            **call.named("nonceAccount", "destination", "recentBlockhashesSysvar", "rentSysvar", "nonceAuthority"),
            "lamports": call.u64(4),
        },
    ),
    6: (
        "initializeNonce",
        lambda call: {
            **call.named("nonceAccount", "recentBlockhashesSysvar", "rentSysvar"),
            "nonceAuthority": call.key(4),
        },
    ),
    8: ("allocate", lambda call: {**call.named("account"), "space": call.u64(4)}),
}

_TOKEN: Final[dict[int, tuple[str, _Parser]]] = {
    0: ("initializeMint", lambda call: {**_mint_fields(call), "rentSysvar": call.keys[1]}),
    1: ("initializeAccount", lambda call: call.named("account", "mint", "owner", "rentSysvar")),
    3: (
        "transfer",
        lambda call: {**call.named("source", "destination"), **call.amount(), **call.signed_by("authority", 2)},
    ),
    4: ("approve", lambda call: {**call.named("source", "delegate"), **call.amount(), **call.signed_by("owner", 2)}),
    5: ("revoke", lambda call: {**call.named("source"), **call.signed_by("owner", 1)}),
    7: (
        "mintTo",
        lambda call: {**call.named("mint", "account"), **call.amount(), **call.signed_by("mintAuthority", 2)},
    ),
    8: ("burn", lambda call: {**call.named("account", "mint"), **call.amount(), **call.signed_by("authority", 2)}),
    9: ("closeAccount", lambda call: {**call.named("account", "destination"), **call.signed_by("owner", 2)}),
    12: (
        "transferChecked",
        lambda call: {
            **call.named("source", "mint", "destination"),
            **call.checked_amount(),
            **call.signed_by("authority", 3),
        },
    ),
    13: (
        "approveChecked",
        lambda call: {
            **call.named("source", "mint", "delegate"),
            **call.checked_amount(),
            **call.signed_by("owner", 3),
        },
    ),
    14: (
        "mintToChecked",
        lambda call: {**call.named("mint", "account"), **call.checked_amount(), **call.signed_by("mintAuthority", 2)},
    ),
    15: (
        "burnChecked",
        lambda call: {**call.named("account", "mint"), **call.checked_amount(), **call.signed_by("authority", 2)},
    ),
    17: ("syncNative", lambda call: call.named("account")),
    18: ("initializeAccount3", lambda call: {**call.named("account", "mint"), "owner": call.key(1)}),
    20: ("initializeMint2", _mint_fields),
    21: ("getAccountDataSize", lambda call: {**call.named("mint"), "extensionTypes": ["immutableOwner"]}),
    22: ("initializeImmutableOwner", lambda call: call.named("account")),
}
