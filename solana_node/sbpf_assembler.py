"""A small assembler for sBPF (version 0), so that the node needs neither a toolchain nor binaries.

Sources: github.com/anza-xyz/sbpf `doc/bytecode.md` for the instructions, the ELF specification for the file.
"""

import struct
from typing import Final

_ALU: Final = {
    "add": 0x07, "sub": 0x17, "mul": 0x27, "div": 0x37, "or": 0x47, "and": 0x57, "lsh": 0x67, "rsh": 0x77,
    "mov": 0xB7,
}  # fmt: skip
_JUMPS: Final = {"eq": 0x15, "gt": 0x25, "ge": 0x35, "ne": 0x55, "lt": 0xA5, "le": 0xB5}
_SIZES: Final = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
_BY_REGISTER: Final = 0x08
_TEXT_AT: Final = 0x120
_INSTRUCTION_BYTES: Final = 8
_RELOCATION_BY_NAME: Final = 10  # R_BPF_64_32


class SbpfProgram:
    """A list of instructions. A string such as `"r3"` is a register, a number is an immediate."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []
        self._calls: list[tuple[int, str]] = []

    def op(self, name: str, target: int, value: str | int) -> None:
        """Add an operation: `target = target <name> value`."""
        if isinstance(value, str):
            self._emit(_ALU[name] | _BY_REGISTER, target, int(value[1:]))
        else:
            self._emit(_ALU[name], target, immediate=value)

    def swap(self, register: int) -> None:
        """Reverse the eight bytes of a register (big-endian to little-endian)."""
        self._emit(0xDC, register, immediate=64)

    def load(self, size: int, target: int, base: int, offset: int = 0) -> None:
        """Read `size` bytes at a register's address plus an offset."""
        self._emit(0x61 | _SIZES[size], target, base, offset)

    def store(self, size: int, base: int, offset: int, value: str | int) -> None:
        """Write `size` bytes at a register's address plus an offset."""
        if isinstance(value, str):
            self._emit(0x63 | _SIZES[size], base, int(value[1:]), offset)
        else:
            self._emit(0x62 | _SIZES[size], base, 0, offset, value)

    def address(self, target: int, base: int, offset: int) -> None:
        """Set a register to another's value plus an offset."""
        self.op("mov", target, f"r{base}")
        self.op("add", target, offset)

    def label(self, name: str) -> None:
        """Define a label here."""
        self._labels[name] = len(self._code)

    def jump(self, label: str) -> None:
        """Jump to a label."""
        self._jumps.append((len(self._code), label))
        self._emit(0x05)

    def jump_if(self, comparison: str, register: int, value: str | int, label: str) -> None:
        """Jump to a label if a comparison of a register holds."""
        self._jumps.append((len(self._code), label))
        if isinstance(value, str):
            self._emit(_JUMPS[comparison] | _BY_REGISTER, register, int(value[1:]))
        else:
            self._emit(_JUMPS[comparison], register, immediate=value)

    def call(self, syscall: str) -> None:
        """Call the runtime; arguments in registers 1 to 5, the result in register 0."""
        self._calls.append((len(self._code), syscall))
        self._emit(0x85, immediate=-1)

    def exit(self, code: int | None = None) -> None:
        """Return a code, or the value of register 0."""
        if code is not None:
            self.op("mov", 0, code)
        self._emit(0x95)

    def elf(self) -> bytes:
        """Return the program as an ELF file."""
        code = list(self._code)
        for place, label in self._jumps:
            op, target, source, _, immediate = code[place]
            code[place] = (op, target, source, self._labels[label] - place - 1, immediate)
        text = b"".join(
            struct.pack("<BBhi", op, target | source << 4, offset, immediate)
            for op, target, source, offset, immediate in code
        )
        return _elf(text, self._calls)

    def _emit(self, op: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> None:
        self._code.append((op, target, source, offset, immediate))


def _elf(text: bytes, calls: list[tuple[int, str]]) -> bytes:
    names = list(dict.fromkeys(name for _, name in calls))
    strings = b"\0entrypoint\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, _TEXT_AT, len(text))
    for name in names:
        symbols += struct.pack("<IBBHQQ", len(strings), 0x10, 0, 0, 0, 0)
        strings += name.encode() + b"\0"
    dynamic_at = _TEXT_AT + len(_padded(text))
    symbols_at = dynamic_at + 11 * 16
    strings_at = symbols_at + len(symbols)
    relocations_at = strings_at + len(_padded(strings))
    relocations = b"".join(
        struct.pack("<QQ", _TEXT_AT + place * _INSTRUCTION_BYTES, (2 + names.index(name)) << 32 | _RELOCATION_BY_NAME)
        for place, name in calls
    )
    entries = (
        (0x1E, 4), (0x11, relocations_at), (0x12, len(relocations)), (0x13, 16), (6, symbols_at), (11, 24),
        (5, strings_at), (10, len(strings)), (0x16, 0), (0, 0), (0, 0),
    )  # fmt: skip
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)
    section_names = b"\0.text\0.dynamic\0.dynsym\0.dynstr\0.rel.dyn\0.shstrtab\0"
    names_at = relocations_at + len(relocations)
    sections = bytes(64)
    for section, kind, flags, at, size, link, entry in (
        (b".text", 1, 6, _TEXT_AT, len(text), 0, 0),
        (b".dynamic", 6, 3, dynamic_at, len(dynamic), 4, 16),
        (b".dynsym", 11, 2, symbols_at, len(symbols), 4, 24),
        (b".dynstr", 3, 2, strings_at, len(strings), 0, 0),
        (b".rel.dyn", 9, 2, relocations_at, len(relocations), 3, 16),
        (b".shstrtab", 3, 0, names_at, len(section_names), 0, 0),
    ):
        first_local = 1 if section == b".dynsym" else 0
        sections += struct.pack(
            "<IIQQQQIIQQ",
            *(section_names.index(b"\0" + section + b"\0") + 1, kind, flags, at if flags else 0, at, size),
            *(link, first_local, 8 if flags else 1, entry),
        )
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", *(3, 247, 1, _TEXT_AT, 64, names_at + len(_padded(section_names)), 0, 64, 56, 3, 64, 7, 6)
    )
    for kind, flags, at, size in (
        (1, 5, _TEXT_AT, len(text)),
        (1, 4, dynamic_at, names_at - dynamic_at),
        (2, 6, dynamic_at, len(dynamic)),
    ):
        head += struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, 0x1000 if kind == 1 else 8)
    parts = (_padded(text), dynamic, symbols, _padded(strings), relocations, _padded(section_names), sections)
    return head.ljust(_TEXT_AT, b"\0") + b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
