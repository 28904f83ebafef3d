"""Ordinary programs under the filter of system calls: they notice nothing."""

import shutil
from pathlib import Path

import pytest

from integration.runner.filtering import Shell, where_there_is_a_filter

pytestmark = [pytest.mark.requirement("EXEC-12"), where_there_is_a_filter]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


PROGRAMS = {
    "threads": """
        import concurrent.futures, threading
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(len, ["abc"] * 100)))
        local, event = threading.local(), threading.Event()
        threading.Thread(target=event.set).start()
        assert event.wait(10)
    """,
    "subprocesses": """
        import os, subprocess, sys
        done = subprocess.run(["cat"], input=b"through cat", stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"through cat"
        subprocess.run("exit 3", shell=True, cwd="/", start_new_session=True)
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"], {})
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(os.popen("echo 300").read().strip())
    """,
    "processes": """
        import multiprocessing
        from multiprocessing import shared_memory
        if __name__ == "__main__":
            shared = shared_memory.SharedMemory(create=True, size=64)
            shared.close()
            shared.unlink()
            for method in ("fork", "spawn", "forkserver"):
                context = multiprocessing.get_context(method)
                with context.Pool(2) as pool:
                    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
                queue, lock = context.Queue(), context.Lock()
                child = context.Process(target=queue.put, args=(300,))
                child.start()
                with lock:
                    assert queue.get(timeout=30) == 300
                child.join()
            print(300)
    """,
    "sockets": """
        import socket, threading
        for family, address in ((socket.AF_UNIX, "talk"), (socket.AF_INET, ("127.0.0.1", 0))):
            with socket.socket(family) as server:
                server.bind(address)
                server.listen()
                with socket.socket(family) as client:
                    client.connect(server.getsockname())
                    with server.accept()[0] as peer:
                        peer.sendall(b"x" * 300)
                        peer.close()
                        total = sum(len(part) for part in iter(lambda: client.recv(99), b""))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("127.0.0.1", 0))
            datagrams.sendto(b"x", datagrams.getsockname())
            assert datagrams.recv(9) == b"x"
        left, right = socket.socketpair()
        socket.send_fds(left, [b"x"], [0])
        assert len(socket.recv_fds(right, 9, 9)[1]) == 1
        for one in (left, right):
            one.close()
        print(total)
    """,
    "asyncio": """
        import asyncio
        async def main():
            async def answer(reader, writer):
                writer.write(await reader.readline())
                writer.close()
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"300\\n")
                echoed = await asyncio.wait_for(reader.read(), 10)
                writer.close()
            child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            assert (await child.communicate(echoed))[0] == echoed
            await asyncio.to_thread(len, "x")
            print(int(echoed))
        asyncio.run(main())
    """,
    "files": """
        import fcntl, json, mmap, os, shutil, sqlite3, tempfile, zipfile
        with tempfile.TemporaryDirectory(dir=".") as folder:
            os.chdir(folder)
            os.mkfifo("fifo")
            os.symlink("a", "link")
            with open("a", "w") as file:
                json.dump({"count": 300}, file)
                fcntl.flock(file, fcntl.LOCK_EX)
                os.fsync(file.fileno())
            shutil.copy2("a", "b")
            os.rename("b", "c")
            with zipfile.ZipFile("z", "w") as archive:
                archive.write("c")
            with open("c", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                assert memory[:1] == b"{"
            base = sqlite3.connect("base")
            base.execute("create table t (x)")
            base.commit()
            base.close()
            assert len(os.listdir()) == 6
            print(json.load(open("c"))["count"])
            os.chdir("..")
    """,
    "signals and foreign functions": """
        import ctypes, os, resource, select, signal, time
        caught = []
        signal.signal(signal.SIGALRM, lambda *_: caught.append(300))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()
        ordered = (ctypes.c_int * 3)(3, 1, 2)
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
        ctypes.CDLL(None).qsort(ordered, 3, 4, compare(lambda a, b: a[0] - b[0]))
        assert list(ordered) == [1, 2, 3]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with select.epoll() as poll:
            poll.poll(0.01)
        time.sleep(0.001)
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        os.nice(1)
        print(caught[0])
    """,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_python_works_as_ever(program: str, shell: Shell) -> None:
    lines = PROGRAMS[program].strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())

    done = shell.python("\n".join(line[indent:] for line in lines))

    assert (done.returncode, done.stdout) == (0, "300\n"), done.stderr


PIPES = """
set -eu -o pipefail
mkfifo fifo
(echo from a fifo > fifo) &
cat fifo
wait
printf '%s\\n' 3 1 2 | sort -n | tee all | head -n 1 | sed 's/1/one/'
awk '{ total += $1 } END { print total }' all
cat <(echo substituted)
timeout 10 env -i sh -c 'echo "$((6 * 7))"'
cp -a all copy && touch -d @0 copy && find . -name copy -newermt 1969-12-01 | xargs basename
tar cf - all copy | tar tf - | wc -l | tr -d ' '
mktemp -d --tmpdir=. > /dev/null && date -u -d @0 +%Y
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_with_pipes_works_as_ever(shell: Shell) -> None:
    done = shell.run(shutil.which("bash") or "", "-c", PIPES)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == [
        "from a fifo",
        "one",
        "6",
        "substituted",
        "42",
        "copy",
        "2",
        "1970",
    ]


NODE = """
const { execFileSync } = require("child_process");
const fs = require("fs/promises");
const http = require("http");
const { Worker } = require("worker_threads");
const zlib = require("zlib");

async function main() {
  await fs.writeFile("a.txt", "x".repeat(100));
  const read = (await fs.readFile("a.txt", "utf8")).length;
  const echoed = Number(execFileSync("echo", ["100"]).toString());
  const worker = new Worker("require('worker_threads').parentPort.postMessage(99)", { eval: true });
  const posted = await new Promise((done) => worker.once("message", done));
  const unpacked = zlib.gunzipSync(zlib.gzipSync("x")).length;
  const server = http.createServer((_, response) => response.end("served")).listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  const response = await new Promise((done) => http.get(server.address(), done));
  server.close();
  console.log(read + echoed + posted + unpacked, response.statusCode);
}
main();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_node_works_as_ever(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "script.js").write_text(NODE, "utf-8")

    done = shell.run(shutil.which("node") or "", "script.js")

    assert (done.returncode, done.stdout) == (0, "300 200\n"), done.stderr
