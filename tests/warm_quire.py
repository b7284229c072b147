"""A program `quire` that starts at once, for tests that run many commands in a shell.

`with warm_quire(folder):` puts it into the folder. A process that has everything loaded forks for each call; the fork
has the caller's arguments, environment, folder, input and output, and runs the command as a process of its own would.
"""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from shlex import quote
from tempfile import TemporaryDirectory

# Loads nothing but what sends its arguments, environment and files over.
_CALL = """import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    told = [os.getcwd(), str(len(sys.argv)), *sys.argv, *(f"{{k}}={{v}}" for k, v in os.environ.items())]
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall("\\0".join(told).encode(errors="surrogateescape"))
    server.shutdown(socket.SHUT_WR)
    code = server.recv(8)
sys.exit(int(code or 70))
"""


@contextmanager
def warm_quire(folder: Path, *without: str) -> Iterator[Path]:
    """The program, in a folder that can be put on the PATH; packages that it is `without` are as good as not installed."""
    program, call = folder / "quire", folder / "call.py"
    program.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -IS {quote(str(call))} "$@"\n')
    program.chmod(0o755)
    # A socket's path has to be short.
    with TemporaryDirectory() as short:
        call.write_text(_CALL.format(address=f"{short}/s"))
        with subprocess.Popen([sys.executable, __file__, f"{short}/s", *without], stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"ready\n"
            yield program
            server.terminate()


def serve(address: str, *without: str) -> None:
    """Fork for each that connects, until this process is ended."""
    sys.modules.update(dict.fromkeys(without))  # type: ignore[arg-type]
    import quire
    from quire import QuireError
    from quire.cli.main import main
    from quire.tokens import counter

    # What commands load when they need it, but for what few do and takes long: frameworks, pytest, MCP.
    found = walk_packages(quire.__path__, "quire.", onerror=lambda name: None)
    ours = [each.name for each in found if not any(word in each.name for word in ("adapters", "mcp", "recording"))]
    theirs = "anthropic anyio._backends._asyncio h11 httpcore2 httpx rich.progress Stemmer"
    for module in (*ours, *theirs.split()):
        with suppress(ImportError, QuireError):
            import_module(module)
    counter().count("warm")
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(16)
        print("ready", flush=True)
        while True:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                code = 70
                try:
                    _take_over(caller)
                    threading.Thread(target=_end_with, args=(caller,), daemon=True).start()
                    code = _ended(main)
                finally:
                    with suppress(OSError):  # the caller may be gone
                        caller.sendall(str(code).encode())
                    os._exit(code)
            caller.close()


def _take_over(caller: socket.socket) -> None:
    """Be what the caller is: its files, its folder, its arguments, its environment."""
    _, given, _, _ = socket.recv_fds(caller, 1, 3)
    for stream, file in enumerate(given):
        os.dup2(file, stream)
        os.close(file)
    told = b"".join(iter(lambda: caller.recv(65536), b"")).decode(errors="surrogateescape").split("\0")
    folder, count, rest = told[0], int(told[1]), told[2:]
    os.chdir(folder)
    sys.argv[:] = ["quire", *rest[1:count]]
    os.environ.clear()
    os.environ.update(each.split("=", 1) for each in rest[count:])
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - open to the end
        for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )


def _end_with(caller: socket.socket) -> None:
    """A caller that is killed takes the command with it."""
    gone = select.poll()
    gone.register(caller, 0)  # that the other end is closed is told in any case
    gone.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _ended(main: object) -> int:
    """The code with which a command ends; a fault is printed as Python prints it."""
    assert callable(main)
    try:
        main()
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    serve(*sys.argv[1:])
