"""Decompression that is paid for piece by piece, so that a bomb never goes off."""

import zlib

from skillwire.core.archive_limits import CHUNK, Meter
from skillwire.errors import InvalidArchiveError, LimitError

# bgzip writes a member per 64 KiB; a thousand of them is far past any skill.
MAX_GZIP_MEMBERS = 1024

_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class Inflater:
    """A deflate or gzip stream in memory, read forwards under the eyes of a `Meter`.

    Gzip members may follow each other, and zeros may follow the last one;
    anything else after it is refused. Each piece is decompressed into no more
    room than the meter allows, so what is allocated never depends on what the
    stream claims.
    """

    def __init__(self, data: memoryview, meter: Meter, *, gzip: bool) -> None:
        self._data = data
        self._meter = meter
        self._wbits = _GZIP if gzip else _RAW
        self._position = 0
        self._pending: bytes | memoryview = b""
        self._members = 1
        self._stream = zlib.decompressobj(self._wbits)

    @property
    def exhausted(self) -> bool:
        """Whether every byte of the data was part of the stream."""
        return not self._pending and self._position >= len(self._data)

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only when the stream has ended.

        Raises:
            InvalidArchiveError: The stream is damaged or stops too early.
            LimitError: The meter allows no more.
        """
        pieces: list[bytes] = []
        while size > 0 and (piece := self._next(min(size, self._meter.allowance()))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _next(self, most: int) -> bytes:
        """Return between one and `most` bytes, or none at the end of the stream."""
        while not self._stream.eof or self._next_member():
            if not self._pending:
                self._refill()
            starved = not self._pending
            try:
                piece = self._stream.decompress(self._pending, most)
            except zlib.error as error:
                raise InvalidArchiveError("the compressed data is damaged", requirement="ARC-15") from error
            self._pending = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                self._meter.spend(len(piece))
                return piece
            if starved and not self._stream.eof:
                raise InvalidArchiveError("the compressed data stops too early", requirement="ARC-15")
        return b""

    def _next_member(self) -> bool:
        """Step to the next gzip member, past any zeros; False when there is none."""
        if self._wbits == _RAW:
            return False
        self._pending = bytes(self._pending).lstrip(b"\0")
        while not self._pending:
            if self.exhausted:
                return False
            self._refill()
            self._pending = bytes(self._pending).lstrip(b"\0")
        self._members += 1
        if self._members > MAX_GZIP_MEMBERS:
            raise LimitError(f"the archive has more than {MAX_GZIP_MEMBERS} gzip members")
        self._stream = zlib.decompressobj(self._wbits)
        return True

    def _refill(self) -> None:
        self._pending = self._data[self._position : self._position + CHUNK]
        self._position += CHUNK
