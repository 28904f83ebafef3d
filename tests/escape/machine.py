"""`Machine`: what the process that runs scripts has about it, and a careless one would hand on."""

import ctypes
import os
import pty
import secrets
import select
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

_KEYCTL = {"x86_64": 250}.get(os.uname().machine, 219)
_ADD_KEY = {"x86_64": 248}.get(os.uname().machine, 217)
_JOIN_SESSION, _SESSION_KEYRING = 1, -3
KEY_NAME = "escape"

_libc = ctypes.CDLL(None, use_errno=True)


class Terminal:
    """A terminal, seen from the side where the user sits."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.path = os.ttyname(slave)
        Path(self.path).chmod(0o666)
        self._slave = slave

    def shown(self) -> str:
        """Return what has been written to it."""
        text = b""
        while select.select([self._master], [], [], 0)[0]:
            text += os.read(self._master, 4096)
        return text.decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)


class Machine:
    """An environment, a folder, a descriptor, a key and a terminal, each with a token."""

    def __init__(self) -> None:
        self.token = "h" + secrets.token_hex(12)
        self.secret = "s" + secrets.token_hex(12) + "?/&"
        self._stack = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="escape-machine-", dir="/tmp"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)
        (self.folder / "canary").write_text(self.token)
        (self.folder / "python").mkdir()
        (self.folder / "python" / "sitecustomize.py").write_text(
            f"import sys; sys.stderr.write('python-{self.token}\\n')\n"
        )
        (self.folder / "bash").write_text(f"echo bash-{self.token}\n")
        self.descriptor = os.memfd_create("machine")
        self._stack.callback(os.close, self.descriptor)
        os.write(self.descriptor, f"descriptor-{self.token}".encode())
        self.environment = {
            "ESCAPE_SECRET": f"environment-{self.token}",
            "PYTHONPATH": str(self.folder / "python"),
            "BASH_ENV": str(self.folder / "bash"),
            "LD_PRELOAD": f"/preload-{self.token}.so",
        }
        self.terminals: dict[str, Terminal] = {}
        self._plant_key()

    def __enter__(self) -> "Machine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def terminal(self, name: str) -> Terminal:
        """Return the terminal from which the process of this name was started."""
        if name not in self.terminals:
            self.terminals[name] = Terminal()
            self._stack.callback(self.terminals[name].close)
        return self.terminals[name]

    def _plant_key(self) -> None:
        """Put a key into the session's keyring, which child processes inherit."""
        _libc.syscall(_KEYCTL, _JOIN_SESSION, None)
        payload = f"key-{self.token}".encode()
        _libc.syscall(_ADD_KEY, b"user", KEY_NAME.encode(), payload, len(payload), _SESSION_KEYRING)
