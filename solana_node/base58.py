"""Base58 of byte strings of any length, for transactions and instruction data.

solders encodes only the fixed lengths of keys, hashes and signatures.
"""

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def encode(raw: bytes) -> str:
    """Return bytes in base58, one leading `1` for each leading zero byte."""
    number = int.from_bytes(raw, "big")
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = ALPHABET[digit] + digits
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + digits


def decode(text: str) -> bytes:
    """Decode base58.

    Raises:
        ValueError: a character is not in the alphabet.
    """
    number = 0
    for character in text:
        number = number * 58 + ALPHABET.index(character)
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return b"\0" * (len(text) - len(text.lstrip("1"))) + body
