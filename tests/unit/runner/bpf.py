"""A small interpreter for filters of system calls, as strict as the kernel that would take them.

It shares nothing with the code that builds filters: not a number, not a line.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000

AUDIT_X86_64 = 0xC000003E
AUDIT_AARCH64 = 0xC00000B7

MOST_INSTRUCTIONS = 4096

LD_W_ABS = 0x20
ALU_AND_K = 0x54
JMP_JA = 0x05
JMP_JEQ_K = 0x15
JMP_JGT_K = 0x25
JMP_JGE_K = 0x35
JMP_JSET_K = 0x45
RET_K = 0x06

CONDITIONS = {JMP_JEQ_K, JMP_JGT_K, JMP_JGE_K, JMP_JSET_K}
KNOWN = {LD_W_ABS, ALU_AND_K, JMP_JA, RET_K} | CONDITIONS

WORD = 0xFFFFFFFF


def errno(number: int) -> int:
    """The verdict by which a call fails with this error."""
    return ERRNO | number


@dataclass(frozen=True, slots=True)
class Call:
    """A system call, as a filter sees it (`struct seccomp_data`)."""

    architecture: int
    number: int
    arguments: Sequence[int] = ()
    pointer: int = 0

    def packed(self) -> bytes:
        arguments = [*self.arguments, 0, 0, 0, 0, 0, 0][:6]
        return struct.pack("<IIQ6Q", self.number & WORD, self.architecture, self.pointer, *arguments)


@dataclass(frozen=True, slots=True)
class Instruction:
    code: int
    if_so: int
    if_not: int
    value: int


@dataclass(frozen=True, slots=True)
class Program:
    """A filter that the kernel would take."""

    instructions: tuple[Instruction, ...] = field(repr=False)

    @classmethod
    def parse(cls, raw: bytes) -> "Program":
        """Read a program, and check all that the kernel checks before it takes one."""
        assert len(raw) % 8 == 0
        program = tuple(
            Instruction(code, if_so, if_not, value)
            for code, if_so, if_not, value in struct.iter_unpack("<HBBI", raw)
        )
        assert 0 < len(program) <= MOST_INSTRUCTIONS
        for place, one in enumerate(program):
            left = len(program) - place - 1
            assert one.code in KNOWN, f"instruction {place} has the unknown code {one.code:#x}"
            if one.code == LD_W_ABS:
                assert one.value % 4 == 0 and one.value < 64, f"instruction {place} loads past the call"
            if one.code == JMP_JA:
                assert one.value < left, f"instruction {place} leaps out of the program"
            if one.code in CONDITIONS:
                assert one.if_so < left and one.if_not < left, f"instruction {place} leaps out of the program"
        assert program[-1].code == RET_K
        return cls(program)

    def run(self, call: Call) -> tuple[int, int]:
        """Judge a call: the verdict, and how many instructions it took."""
        seen, place, accumulator, steps = call.packed(), 0, 0, 0
        while True:
            one = self.instructions[place]
            place += 1
            steps += 1
            match one.code:
                case 0x20:
                    (accumulator,) = struct.unpack_from("<I", seen, one.value)
                case 0x54:
                    accumulator &= one.value
                case 0x05:
                    place += one.value
                case 0x06:
                    return one.value, steps
                case _:
                    place += one.if_so if _holds(one, accumulator) else one.if_not

    def verdict(self, call: Call) -> int:
        return self.run(call)[0]

    def unreachable(self) -> set[int]:
        """The places of instructions that no call can lead to by any jump."""
        reached: set[int] = set()
        todo = [0]
        while todo:
            place = todo.pop()
            if place in reached:
                continue
            reached.add(place)
            one = self.instructions[place]
            if one.code in CONDITIONS:
                todo += [place + 1 + one.if_so, place + 1 + one.if_not]
            elif one.code != RET_K:
                todo.append(place + 1 + (one.value if one.code == JMP_JA else 0))
        return set(range(len(self.instructions))) - reached


def _holds(one: Instruction, accumulator: int) -> bool:
    match one.code:
        case 0x15:
            return accumulator == one.value
        case 0x25:
            return accumulator > one.value
        case 0x35:
            return accumulator >= one.value
        case _:
            return accumulator & one.value != 0
