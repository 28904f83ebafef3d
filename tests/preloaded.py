"""Starting `skillwire`, or a script that needs as much, in a process of its own without importing it anew.

A nursery imports every command once and forks a process for each call. Such a
process has its own descriptors, folder, environment and end, and differs from
a program that was started the usual way only in what came before `main`. What
is about that (starting, memory) uses `python -m skillwire`.

The program itself is also here, `python -I -S preloaded.py SOCKET WORD…`: it
stands for the process it asks for, and can be named where a command is wanted.
It uses little of the standard library, so that it is there at once. When the
first word is the path of a script, that is run instead of `skillwire`.
"""

import array
import atexit
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import termios
import threading
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

_NOT_IMPORTED = (
    "skillwire.__main__",
    "skillwire.host.adapters.",
    "skillwire.runner.sandbox.init",
)
"""What no program needs: the command itself, frameworks of agents, and what runs in a sandbox alone."""
_SCRIPT = ".py"
_ENDED = 2
"""What a program that nobody can start any more ends with."""


def ask(path: str, words: list[str], cwd: str, env: dict[str, str], streams: tuple[int, int, int]) -> int:
    """Run a program at the nursery that listens at `path`, and return how it ended, as `waitpid` tells it.

    The program is sent the signals that this process is sent, and killed when this process is gone.
    """
    # A session has one terminal, and whoever asks gives it away: so it is the program that Ctrl-C reaches.
    has_terminal = os.getsid(0) == os.getpid() and os.isatty(streams[0])
    if has_terminal:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        fcntl.ioctl(streams[0], termios.TIOCNOTTY)
    request = json.dumps({"words": words, "cwd": cwd, "env": env, "has_terminal": has_terminal}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        connection.sendmsg([f"{len(request):08}".encode()], rights)
        connection.sendall(request)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: connection.sendall(bytes([number])))
        answer = connection.recv(16)
    return int(answer) if answer else _ENDED << 8


def keep(path: str) -> None:
    """Import everything, then fork a process for each request, until standard input ends."""
    entry = import_module("skillwire.cli.common")
    # Modules import others when those are first used: each process would do so anew.
    for module in walk_packages(import_module("skillwire").__path__, "skillwire."):
        if not module.name.startswith(_NOT_IMPORTED):
            import_module(module.name)
    # What is shared with every process stays shared when the collector goes about.
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    os.write(1, b"ready\n")
    if _is_child(listener):
        # Here and not where it was forked: nothing of the nursery is left on the stack when it ends.
        try:
            if sys.argv[0].endswith(_SCRIPT):
                import_module("runpy").run_path(sys.argv[0], run_name="__main__")
            else:
                entry.main()
        except SystemExit as error:
            if isinstance(error.code, str):
                raise
            _end(error.code or 0)
        _end(0)


def _end(code: int) -> None:
    """End this process as Python does, but without freeing every object, which takes longest."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _is_child(listener: socket.socket) -> bool:
    """Fork for each request; True in a process that is to be the program, and False when all is over."""
    while True:
        ready = select.select([listener, 0], [], [])[0]
        _bury()
        if 0 in ready and not os.read(0, 1):
            return False
        if listener in ready:
            talk, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _born(talk)
            talk.close()


def _bury() -> None:
    """Take note of those who have told how a program ended, and are over too."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _born(talk: socket.socket) -> bool:
    """Fork the program itself, wait for it here and tell how it ended."""
    head, streams, _, _ = socket.recv_fds(talk, 8, 3)
    body = b""
    while len(body) < int(head):
        body += talk.recv(int(head) - len(body))
    request = json.loads(body)
    child = os.fork()
    if child == 0:
        talk.close()
        _become(request["words"], request["cwd"], request["env"], streams)
        if request["has_terminal"]:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        return True
    for stream in (0, 1, 2, *streams):
        os.close(stream)

    def pass_signals_on() -> None:
        with suppress(ProcessLookupError):
            while number := talk.recv(1):
                os.kill(child, number[0])
            os.kill(child, signal.SIGKILL)

    threading.Thread(target=pass_signals_on, daemon=True).start()
    _, status = os.waitpid(child, 0)
    talk.sendall(str(status).encode())
    os._exit(0)


def _become(words: list[str], cwd: str, env: dict[str, str], streams: list[int]) -> None:
    """Take over a program's place: its streams, folder, environment and words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    is_script = bool(words) and words[0].endswith(_SCRIPT)
    sys.argv = words if is_script else ["skillwire", *words]
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [os.path.dirname(words[0]) if is_script else cwd, *paths]  # noqa: PTH120
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")
    sys.stdout = open(1, "w", encoding="utf-8")
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        keep(sys.argv[2])
    else:
        _ended = ask(sys.argv[1], sys.argv[2:], os.getcwd(), dict(os.environ), (0, 1, 2))  # noqa: PTH109
        if os.WIFSIGNALED(_ended):
            if os.WTERMSIG(_ended) != signal.SIGKILL:
                signal.signal(os.WTERMSIG(_ended), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(_ended))
        sys.exit(os.waitstatus_to_exitcode(_ended))
