"""Real servers and a real browser for the tests: each on 127.0.0.1, each ended by its process id."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

START_SECONDS = 180.0
STOP_SECONDS = 20.0

CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    """Wait until a server that we started answers; say what its log says when it ends or never does.

    Args:
        ready: Whether the server answers.
        process: The server.
        log: The file that holds what the server prints.
        what: Name of the server, for the message.

    Raises:
        RuntimeError: If the server ended, or did not answer within `START_SECONDS`.
    """
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        late = time.monotonic() > deadline
        if late or process.poll() is not None:
            why = (
                f"did not answer within {START_SECONDS:.0f} s" if late else f"ended with {process.returncode}"
            )
            raise RuntimeError(f"{what} {why}:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.2)


@contextlib.contextmanager
def running(
    argv: Sequence[str], log: Path, *, stop: signal.Signals = signal.SIGTERM, **popen: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own and end that group afterwards, whatever happened meanwhile.

    Args:
        argv: The command.
        log: The file for its standard output and error.
        stop: The signal that asks it to end; SIGKILL follows after `STOP_SECONDS`.
        **popen: Further arguments of ``subprocess.Popen``.

    Yields:
        The process.
    """
    with log.open("wb") as sink:
        process = subprocess.Popen(argv, stdout=sink, stderr=sink, start_new_session=True, **popen)
    try:
        yield process
    finally:
        for sent in (stop, signal.SIGKILL):
            # The group outlives its leader where a child was slower to end.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)


@contextlib.contextmanager
def postgres_server(tmp_path: Path) -> Iterator[str]:
    """Run a PostgreSQL server with a new, empty database.

    PostgreSQL refuses to run as root, so under root it runs as the user ``postgres``, with its data in a
    folder that this user owns: it could not enter pytest's own.

    Args:
        tmp_path: Folder for the log.

    Yields:
        SQLAlchemy URL of the database, for psycopg2.
    """
    pytest.importorskip("psycopg2")
    bindir = _postgres_bindir()
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        as_user = _postgres_user()
    home = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        password = secrets.token_hex(16)
        secret = home / "password"
        secret.write_text(password)
        if as_user:
            for path in (home, secret):
                shutil.chown(path, as_user["user"], as_user["group"])
        data = home / "data"
        subprocess.run(
            [
                *(str(bindir / "initdb"), "--pgdata", str(data), "--username", "tester", "--no-sync"),
                *("--encoding", "UTF8", "--auth", "scram-sha-256", "--pwfile", str(secret)),
            ],
            check=True,
            capture_output=True,
            cwd=home,
            **as_user,
        )
        port = free_port()
        argv = [
            str(bindir / "postgres"),
            "-D",
            str(data),
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-k",
            str(home),
        ]
        log = tmp_path / "postgres.log"
        # SIGINT is PostgreSQL's fast shutdown: it ends the sessions that a failed test left open.
        with running([*argv, "-F"], log, stop=signal.SIGINT, cwd=home, **as_user) as process:
            url = f"postgresql+psycopg2://tester:{password}@127.0.0.1:{port}"
            wait_until(lambda: _postgres_answers(port, password), process, log, "PostgreSQL")
            yield f"{url}/postgres"
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def mlflow_server(backend_uri: str, artifact_root: Path | str, workdir: Path) -> Iterator[str]:
    """Run ``mlflow server`` on a database.

    Args:
        backend_uri: SQLAlchemy URL of the database.
        artifact_root: Folder that the server stores artifacts of its clients in.
        workdir: Folder that the server runs in, and that holds its log.

    Yields:
        Address of the server.
    """
    argv = ["server", "--backend-store-uri", backend_uri, "--artifacts-destination", str(artifact_root)]
    with mlflow_command(argv, workdir) as url:
        yield url


@contextlib.contextmanager
def mlflow_command(arguments: Sequence[str], workdir: Path) -> Iterator[str]:
    """Run an ``mlflow`` command that serves the UI, on a free port and with one worker.

    Args:
        arguments: What follows ``mlflow`` on the command line, without host, port and workers.
        workdir: Folder that the server runs in, and that holds its log.

    Yields:
        Address of the server.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    fixed = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    dropped = {"MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"}
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    # Without the job runner there is one process less to start, and none that outlives the server.
    env |= {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    workdir.mkdir(parents=True, exist_ok=True)
    log = workdir / "mlflow-server.log"
    with running([sys.executable, "-m", "mlflow", *arguments, *fixed], log, cwd=workdir, env=env) as process:
        wait_until(lambda: _answers(f"{url}/health"), process, log, "mlflow server")
        yield url


@contextlib.contextmanager
def chromium_page(width: int = 1600, height: int = 1000) -> Iterator[Page]:
    """Open a page in Debian's Chromium, with a new profile and no way out of this machine.

    Args:
        width: Width of the window in pixels.
        height: Height of the window in pixels.

    Yields:
        The page.
    """
    pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("no browser: the program chromium is not installed")
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile, _shared_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=executable,
            args=list(CHROMIUM_FLAGS),
            viewport={"width": width, "height": height},
        )
        try:
            context.route("**/*", _local_only)
            yield context.pages[0] if context.pages else context.new_page()
        finally:
            context.close()


_playwrights: list[Any] = []


@contextlib.contextmanager
def _shared_playwright() -> Iterator[Any]:
    """One Playwright for all pages of a process: a second one would not start inside the first one's loop."""
    if _playwrights:
        yield _playwrights[0]
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        _playwrights.append(playwright)
        try:
            yield playwright
        finally:
            _playwrights.clear()


def _local_only(route: Route) -> None:
    if urlsplit(route.request.url).hostname == "127.0.0.1":
        route.continue_()
    else:
        route.abort()


def _answers(url: str) -> bool:
    # A proxy in the environment is not for 127.0.0.1.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _postgres_bindir() -> Path:
    program = shutil.which("pg_config")
    if program is None:
        pytest.skip("no PostgreSQL: the program pg_config is not installed")
    found = Path(subprocess.check_output([program, "--bindir"], text=True).strip())
    missing = [name for name in ("initdb", "postgres") if not (found / name).is_file()]
    if missing:
        pytest.skip(f"no PostgreSQL server: {found} lacks {', '.join(missing)}")
    return found


def _postgres_user() -> dict[str, Any]:
    import pwd

    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres to run it as")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _postgres_answers(port: int, password: str) -> bool:
    import psycopg2

    try:
        psycopg2.connect(
            host="127.0.0.1",
            port=port,
            user="tester",
            password=password,
            dbname="postgres",
            connect_timeout=5,
        ).close()
    except psycopg2.OperationalError:
        return False
    return True
