"""Custody: sealed secrets open only in their location, and the keys are those of MetaMask and Phantom."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import pickle
import string
import traceback

import pytest
from coincurve import PrivateKey, PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from eth_account.hdaccount import key_from_seed
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st
from mnemonic import Mnemonic
from pydantic import SecretStr
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.adapters.vault import _ENGLISH, LocalSigner, LocalVault, phrase, wallet_keys
from app.config import Settings
from app.core import hpke
from app.ports.errors import Rejected
from app.ports.vault import NewWallet, SecretLocation, Signer, Vault

_OLD = ("old", bytes(range(32)))
_NEW = ("new-2", bytes(range(32, 64)))
_PLACE = SecretLocation("wallets", "sealed_entropy", "1b4e28ba-2fa1-41d2-883f-0016d3cca427")
_ABANDON = " ".join(["abandon"] * 11 + ["about"])
_JUNK = " ".join(["test"] * 11 + ["junk"])
_SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def _vault() -> Vault:
    return LocalVault([_NEW, _OLD])


def _settlement_keys(evm: str = "", solana: str = "") -> tuple[bytes | None, bytes | None]:
    """Return what the operator's setting reads in the two forms in which wallets export a key."""
    return Settings.model_construct(
        x402_settlement_key_evm=SecretStr(evm), x402_settlement_key_solana=SecretStr(solana)
    ).settlement_keys()


def _open_wallet(words: str) -> Signer:
    entropy = bytes(_ENGLISH.to_entropy(words))
    return _vault().signer(_vault().seal(entropy, _PLACE), _PLACE)


@given(secret=st.binary(max_size=200))
def test_a_sealed_secret_opens_in_its_location_and_never_contains_the_secret(secret: bytes) -> None:
    sealed = _vault().seal(secret, _PLACE)
    assert _vault().open(sealed, _PLACE) == secret
    assert sealed.startswith("new-2.")
    assert "=" not in sealed


def test_equal_secrets_are_sealed_differently() -> None:
    vault = _vault()
    assert len({vault.seal(b"same", _PLACE) for _ in range(100)}) == 100


def test_data_of_the_previous_key_still_opens_and_new_data_gets_the_new_key() -> None:
    sealed = LocalVault([_OLD]).seal(b"before rotation", _PLACE)
    assert sealed.startswith("old.")
    assert _vault().open(sealed, _PLACE) == b"before rotation"
    assert _vault().current_key_id == "new-2"


@pytest.mark.parametrize(
    "place",
    [
        SecretLocation("walletss", "ealed_entropy", _PLACE.row_id),
        SecretLocation("retired_keys", _PLACE.column, _PLACE.row_id),
        SecretLocation(_PLACE.table, "sealed_name", _PLACE.row_id),
        SecretLocation(_PLACE.table, _PLACE.column, "1b4e28ba-2fa1-41d2-883f-0016d3cca428"),
        SecretLocation(_PLACE.table + _PLACE.column, "", _PLACE.row_id),
    ],
)
def test_a_ciphertext_moved_to_another_location_does_not_open(place: SecretLocation) -> None:
    with pytest.raises(Rejected, match=r"^sealed_unreadable$"):
        _vault().open(_vault().seal(b"secret", _PLACE), place)


def test_every_changed_letter_of_a_sealed_text_is_detected() -> None:
    sealed = _vault().seal(b"0123456789abcdef", _PLACE)
    for position, letter in enumerate(sealed):
        changed = sealed[:position] + ("A" if letter != "A" else "B") + sealed[position + 1 :]
        with pytest.raises(Rejected, match=r"^sealed_unreadable$"):
            _vault().open(changed, _PLACE)


@pytest.mark.parametrize(
    "sealed",
    [
        "",
        "new-2",
        "new-2.",
        ".AAAA",
        "new-2.AAAA",
        "new-2." + "A" * 37,
        "new-2." + "=" * 40,
        "unknown." + "A" * 60,
        "new-2.…" + "A" * 60,
        "new-2." + "A" * 60 + "\n",
        "new-2." + "A" * 60 + ".A",
        "old." + "/" * 60,
    ],
)
def test_garbage_is_refused_like_any_other_unreadable_text(sealed: str) -> None:
    with pytest.raises(Rejected, match=r"^sealed_unreadable$") as caught:
        _vault().open(sealed, _PLACE)
    assert caught.value.details == {}


def test_a_second_spelling_of_the_same_ciphertext_is_refused() -> None:
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    sealed = _vault().seal(bytes(16), _PLACE)
    respelled = sealed[:-1] + alphabet[alphabet.index(sealed[-1]) ^ 1]
    body = [base64.urlsafe_b64decode(text.partition(".")[2] + "=") for text in (sealed, respelled)]
    assert body[0] == body[1]
    with pytest.raises(Rejected):
        _vault().open(respelled, _PLACE)


def test_a_sealed_text_opens_under_no_other_key_of_the_same_name() -> None:
    sealed = LocalVault([("k", bytes(32))]).seal(b"secret", _PLACE)
    with pytest.raises(Rejected):
        LocalVault([("k", bytes(31) + b"\1")]).open(sealed, _PLACE)


@pytest.mark.parametrize(
    "keys", [[], [("", bytes(32))], [("a b", bytes(32))], [("a" * 33, bytes(32))], [("a", b"p" * 16)], [_OLD, _OLD]]
)
def test_invalid_vault_keys_are_refused_without_showing_them(keys: list[tuple[str, bytes]]) -> None:
    with pytest.raises(ValueError, match="a vault needs at least one key") as caught:
        LocalVault(keys)
    assert "pppp" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "evm", "solana"),
    [
        (_JUNK, "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "oeYf6KAJkLYhBuR8CiGc6L4D4Xtfepr85fuDgA9kq96"),
        (_ABANDON, "0x9858EfFD232B4033E47d90003D41EC34EcaEda94", "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk"),
    ],
)
def test_a_phrase_opens_the_addresses_that_metamask_and_phantom_show(words: str, evm: str, solana: str) -> None:
    signer = _open_wallet(words)
    assert (signer.evm_address, signer.solana_address) == (evm, solana)


@pytest.mark.parametrize(
    ("evm_hex", "address"),
    [
        # Accounts 0 and 1 of Hardhat and Foundry, as their documentation prints them.
        (
            "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80",
            "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
        ),
        (
            "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
            "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
        ),
    ],
)
def test_a_private_key_in_hex_opens_the_address_that_metamask_shows(evm_hex: str, address: str) -> None:
    evm, _ = _settlement_keys(evm=evm_hex)
    imported = _vault().import_wallet(_PLACE, evm=evm, solana=None)
    signer = _vault().signer(imported.sealed, _PLACE)
    assert (imported.evm_address, signer.evm_address) == (address, address)


@pytest.mark.parametrize(
    ("seed_hex", "address"),
    [
        # Tests 1 and 2 of RFC 8032, section 7.1: a secret key and its public key, which is the address.
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        ),
    ],
)
def test_a_keypair_in_base58_opens_the_address_that_phantom_shows(seed_hex: str, address: str) -> None:
    exported = str(Keypair.from_seed(bytes.fromhex(seed_hex)))
    assert len(bytes(Keypair.from_base58_string(exported))) == 64
    _, solana = _settlement_keys(solana=exported)
    imported = _vault().import_wallet(_PLACE, evm=None, solana=solana)
    signer = _vault().signer(imported.sealed, _PLACE)
    shown = str(Pubkey(bytes.fromhex(address)))
    assert (imported.solana_address, signer.solana_address) == (shown, shown)


def test_bip39_seed_follows_its_published_vector() -> None:
    # github.com/trezor/python-mnemonic vectors.json, first English entry.
    assert phrase(bytes(16)) == _ABANDON
    assert Mnemonic.to_seed(_ABANDON, "TREZOR").hex() == (
        "c55257c360c07c72029aebc1b53c05ed0362ada38ead3e3e9efa3708e53495531f09a6987599d18264c1e1c92f2cf141630c7a3c4ab7c81b2f001698e7463b04"
    )


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("m", "e8f32e723decf4051aefac8e2c93c9c5b214313817cdb01a1494b917c8436b35"),
        ("m/0'", "edb2e14f9ee77d26dd93b4ecede8d16ed408ce149b6cd80b0715a2d911a0afea"),
        ("m/0'/1", "3c6cb8d0f6a264c91ea8b5030fadaa8e538b020f0a387421a12de9319dc93368"),
        ("m/0'/1/2'", "cbce0d719ecf7431d88e6a89fa1483e02e35092af60c042b1df2ff59fa424dca"),
        ("m/0'/1/2'/2", "0f479245fb19a38a1954c5c7c0ebab2f9bdfd96a17563ef28a6a4b1a2a764ef4"),
        ("m/0'/1/2'/2/1000000000", "471b76e389e528d6de6d816857e012c5455051cad6660850e58372a6c3e6e7c8"),
    ],
)
def test_bip32_follows_its_test_vector_1(path: str, secret: str) -> None:
    assert key_from_seed(bytes(range(16)), path).hex() == secret


_VECTOR_3 = (
    "4b381541583be4423346c643850da4b320e46a87ae3d2a4e6da11eba819cd4ac"
    "ba45d239319ac14f863b8d5ab5a0d0c64d2e8a1e7d1457df2e5a3c51c73235be"
)
_VECTOR_4 = "3ddd5602285899a946114506157c7997e5444528f3003f6134712147db19b678"


@pytest.mark.parametrize(
    ("seed_hex", "path", "secret"),
    [
        (_VECTOR_3, "m", "00ddb80b067e0d4993197fe10f2657a844a384589847602d56f0c629c81aae32"),
        (_VECTOR_3, "m/0'", "491f7a2eebc7b57028e0d3faa0acda02e75c33b03c48fb288c41e2ea44e1daef"),
        (_VECTOR_4, "m", "12c0d59c7aa3a10973dbd3f478b65f2516627e3fe61e00c345be9a477ad2e215"),
        (_VECTOR_4, "m/0'", "00d948e9261e41362a688b916f297121ba6bfb2274a3575ac0e456551dfd7f7e"),
        (_VECTOR_4, "m/0'/1'", "3a2086edd7d9df86c3487a5905a1712a9aa664bce8cc268141e07549eaa8661d"),
    ],
)
def test_bip32_keeps_the_leading_zeros_of_its_test_vectors_3_and_4(seed_hex: str, path: str, secret: str) -> None:
    """Some libraries dropped them, and so derived other addresses for one phrase in 256."""
    assert key_from_seed(bytes.fromhex(seed_hex), path).hex() == secret


_SLIP10_VECTOR_2 = (
    "fffcf9f6f3f0edeae7e4e1dedbd8d5d2cfccc9c6c3c0bdbab7b4b1aeaba8a5a2"
    "9f9c999693908d8a8784817e7b7875726f6c696663605d5a5754514e4b484542"
)


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("m", "171cb88b1b3c1db25add599712e36245d75bc65a1a5c9e18d76f9f2b1eab4012"),
        ("m/0'", "1559eb2bbec5790b0c65d8693e4d0875b1747f4970ae8b650486ed7470845635"),
        ("m/0'/2147483647'", "ea4f5bfe8694d8bb74b7b59404632fd5968b774ed545e810de9c32a4fb4192f4"),
        ("m/0'/2147483647'/1'", "3757c7577170179c7868353ada796c839135b3d30554bbb74a4b1e4a5a58505c"),
        ("m/0'/2147483647'/1'/2147483646'", "5837736c89570de861ebc173b1086da4f505d4adb387c6a1b1342d5e4ac9ec72"),
        ("m/0'/2147483647'/1'/2147483646'/2'", "551d333177df541ad876a60ea71f00447931c0a9da16f227c11ea080d7391b8d"),
    ],
)
def test_slip10_follows_its_ed25519_test_vector_2(path: str, secret: str) -> None:
    assert Keypair.from_seed_and_derivation_path(bytes.fromhex(_SLIP10_VECTOR_2), path).secret().hex() == secret


def _split(key: bytes, message: bytes) -> tuple[bytes, bytes]:
    digest = hmac.digest(key, message, "sha512")
    return digest[:32], digest[32:]


@settings(max_examples=20, deadline=None)
@given(entropy=st.binary(min_size=16, max_size=16))
def test_the_libraries_derive_the_keys_that_the_standards_prescribe(entropy: bytes) -> None:
    seed = hashlib.pbkdf2_hmac("sha512", phrase(entropy).encode(), b"mnemonic", 2048)
    hardened = 1 << 31
    key, chain_code = _split(b"Bitcoin seed", seed)
    for index in (44 | hardened, 60 | hardened, hardened, 0, 0):
        public = b"\0" + key if index & hardened else PrivateKey(key).public_key.format()
        tweak, chain_code = _split(chain_code, public + index.to_bytes(4, "big"))
        key = PrivateKey(key).add(tweak).secret
    evm, solana = wallet_keys(entropy)
    assert evm.secret == key
    key, chain_code = _split(b"ed25519 seed", seed)
    for index in (44, 501, 0, 0):
        key, chain_code = _split(chain_code, b"\0" + key + (index | hardened).to_bytes(4, "big"))
    assert solana.private_bytes_raw() == key


def test_a_new_wallet_is_the_one_that_its_sealed_entropy_opens() -> None:
    vault = _vault()
    wallets = [vault.create_wallet(_PLACE) for _ in range(3)]
    assert len({wallet.evm_address for wallet in wallets}) == 3
    for wallet in wallets:
        signer = vault.signer(wallet.sealed, _PLACE)
        assert (signer.evm_address, signer.solana_address) == (wallet.evm_address, wallet.solana_address)
        entropy = vault.open(wallet.sealed, _PLACE)[:16]
        derived = LocalSigner(*wallet_keys(entropy))
        assert (derived.evm_address, derived.solana_address) == (wallet.evm_address, wallet.solana_address)
        assert vault.recovery_phrase(wallet.sealed, _PLACE) == phrase(entropy)


def imported(vault: LocalVault, words: str) -> NewWallet:
    """Import words that a browser has sealed."""
    at = SecretLocation("key_transfers", "key_sealed", "import-1")
    sealed, public = vault.import_key(at)
    return vault.import_phrase(_PLACE, hpke.seal(words.encode(), hpke.point(public), "info"), "info", sealed, at)


def test_an_imported_phrase_of_24_words_is_returned_as_it_was() -> None:
    vault = LocalVault([("k" * 32, bytes(32))])
    words = "abandon " * 23 + "art"
    wallet = imported(vault, words)
    # As MetaMask and Phantom show it.
    assert wallet.evm_address == "0xF278cF59F82eDcf871d630F28EcC8056f25C1cdb"
    assert wallet.solana_address == "3Cy3YNTFywCmxoxt8n7UH6hg6dLo5uACowX3CFceaSnx"
    assert (len(words.split()), vault.recovery_phrase(wallet.sealed, _PLACE)) == (24, words)
    assert vault.signer(wallet.sealed, _PLACE).evm_address == wallet.evm_address


@pytest.mark.parametrize("words", ["", "abandon", "abandon " * 11 + "zoo", "abandon " * 14 + "address", "x" * 9999])
def test_a_phrase_with_a_wrong_word_number_or_checksum_is_refused_without_its_words(words: str) -> None:
    with pytest.raises(ValueError, match=r"^not 12 or 24 words of BIP-39 with the right checksum$"):
        imported(_vault(), words)


def test_a_wallet_sealed_for_one_row_cannot_sign_for_another() -> None:
    wallet = _vault().create_wallet(_PLACE)
    with pytest.raises(Rejected, match=r"^sealed_unreadable$"):
        _vault().signer(wallet.sealed, SecretLocation(_PLACE.table, _PLACE.column, "another row"))


def test_a_secret_other_than_entropy_opens_no_wallet() -> None:
    vault = _vault()
    for size in (15, 32, 79, 81, 97):
        with pytest.raises(Rejected, match=r"^sealed_unreadable$"):
            vault.signer(vault.seal(bytes(size), _PLACE), _PLACE)
    for size in (15, 64):
        with pytest.raises(Rejected, match=r"^sealed_unreadable$"):
            vault.recovery_phrase(vault.seal(bytes(size), _PLACE), _PLACE)


@settings(max_examples=25, deadline=None)
@given(digest=st.binary(min_size=32, max_size=32))
def test_digest_signatures_recover_to_the_address_and_are_low_and_deterministic(digest: bytes) -> None:
    signer = _open_wallet(_JUNK)
    y_parity, r, s = signer.sign_digest(digest, {})
    assert (y_parity, r, s) == signer.sign_digest(digest, {})
    assert y_parity in {0, 1}
    assert 0 < s <= _SECP256K1_ORDER // 2
    recoverable = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([y_parity])
    public = PublicKey.from_signature_and_message(recoverable, digest, hasher=None)
    assert keccak(public.format(compressed=False)[1:])[-20:].hex() == signer.evm_address[2:].lower()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_only_32_byte_digests_are_signed(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        _open_wallet(_JUNK).sign_digest(bytes(size), {})


def test_message_signatures_verify_under_the_solana_address() -> None:
    signer = _open_wallet(_ABANDON)
    signature = signer.sign_message(b"\x80message")
    assert len(signature) == 64
    public = Ed25519PublicKey.from_public_bytes(bytes(Pubkey.from_string(signer.solana_address)))
    public.verify(signature, b"\x80message")


def test_objects_with_secrets_neither_show_nor_copy_them() -> None:
    vault = LocalVault([_NEW])
    entropy = b"\x5a" * 16
    signer = vault.signer(vault.seal(entropy, _PLACE), _PLACE)
    evm, solana = wallet_keys(entropy)
    secrets = {form for key in (entropy, _NEW[1], evm.secret, solana.private_bytes_raw()) for form in _forms(key)}
    secrets |= {phrase(entropy), str(Keypair.from_seed(solana.private_bytes_raw()))}
    for holder in (vault, signer):
        shown = f"{holder!r} {holder!s} {[getattr(holder, name) for name in type(holder).__slots__]!r}"
        assert not [secret for secret in secrets if secret in shown]
        assert not hasattr(holder, "__dict__")
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                copied(holder)
    assert signer.evm_address in repr(signer)


def test_a_failed_opening_reveals_neither_secret_nor_key() -> None:
    sealed = _vault().seal(b"canary-secret", _PLACE)
    with pytest.raises(Rejected) as caught:
        _vault().open(sealed[:-4] + "AAAA", _PLACE)
    shown = "".join(traceback.format_exception(caught.value))
    assert "canary" not in shown
    assert sealed not in shown


def _forms(secret: bytes) -> set[str]:
    return {secret.hex(), repr(secret)[2:-1], str(int.from_bytes(secret, "big"))}
