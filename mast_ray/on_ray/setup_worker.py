"""What Ray runs to set a worker up that has an environment of its own, as those of a training have: in place of Ray's script of
this name, which takes a second to import Ray and then starts Python once more. It asks the worker server (worker_server.py) for a
process in which torch is there already, hands it arguments, environment and streams, and stays until that process has ended.
Where no server answers, or an environment needs more than variables, Ray's own script takes over.

Run by its path, with the standard library alone: it is up in hundredths of a second.
"""

import json
import os
import signal
import socket
import sys

SOCKET = "MAST_WORKER_SOCKET"
CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
STARTED, OOM_SCORE = b"s", "/proc/self/oom_score_adj"
WAIT_S = 20.0  # for a server that still imports, or is starved; Ray waits a minute for a worker


def main(argv: list[str]) -> None:
    """Until the worker has ended."""
    words = [word for word in argv if not word.startswith((CONTEXT, LANGUAGE))]
    given = next((word.removeprefix(CONTEXT) for word in argv if word.startswith(CONTEXT)), "{}")
    context = {"env_vars": {}, **json.loads(given)}
    is_python = next((word for word in argv if word.startswith(LANGUAGE)), "") == f"{LANGUAGE}PYTHON"
    connection = ask(words, context) if is_python and is_plain(context) else None
    if connection is not None:
        connection.recv(1)
        return
    scripts = [os.path.dirname(word) for word in words if word.endswith("default_worker.py")]
    own = os.path.join(scripts[0], os.path.basename(__file__))
    os.execv(sys.executable, [sys.executable, own, *argv])


def is_plain(context: dict) -> bool:
    """Whether an environment is of this Python, and has variables alone, which name no others."""
    others = [value for name, value in context.items() if name not in ("env_vars", "py_executable")]
    is_ours = context.get("py_executable", sys.executable) == sys.executable
    return is_ours and not any(others) and not any("$" in value for value in context["env_vars"].values())


def ask(words: list[str], context: dict) -> socket.socket | None:
    """A connection that lasts as long as the worker does; None where there is no server."""
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
    variables = {**os.environ, **context["env_vars"]}
    asked = {
        "argv": words, "env": variables, "cwd": os.getcwd(), "blocked": blocked,
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "oom": _oom_score(),
    }  # fmt: skip
    body = json.dumps(asked).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(WAIT_S)
    try:
        connection.connect(os.environ.get(SOCKET, ""))
        socket.send_fds(connection, [len(body).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(body)
        if connection.recv(1) == STARTED:
            connection.settimeout(None)
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _oom_score() -> str:
    """How gladly the kernel ends this process when memory is out: Ray has its workers ended before itself."""
    with open(OOM_SCORE, encoding="ascii") as file:
        return file.read()


if __name__ == "__main__":
    main(sys.argv[1:])
