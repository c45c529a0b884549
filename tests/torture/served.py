"""The explorer, as `bitmosaic explore` serves it: attacked, asked by 200 at once, and by clients that dawdle."""

import asyncio
import hashlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from bitmosaic import pipeline
from bitmosaic.explorer.pages import Pages
from bitmosaic.explorer.patience import PATIENCE
from bitmosaic.explorer.server import make_app
from bitmosaic.run import Run
from pictures import write_pictures
from torture.attacks import (
    SECRET,
    Attack,
    Target,
    drawn_attacks,
    edits_of_others,
    fault_of,
    known_attacks,
    odd_shapes,
)
from torture.crowd import crowd, slow_crowd, slow_kinds
from torture.tally import Tally

N_CLIENTS = 200
MOST_GROWTH = 200  # bytes a request, from one load to the next, which is as long
ROOM = 4  # MB that an allocator may keep or not
LONGEST_WAIT = 5.0  # seconds for an ordinary client among slow ones
LONGEST_STOP = 8.0  # seconds from Ctrl-C to the end
SHORT_PATIENCE = 2.0  # seconds, where one cannot wait as long as the server does
SHORT_OF_PATIENCE = f"from bitmosaic.explorer import patience; patience.PATIENCE = {SHORT_PATIENCE}"
SAME = [  # whatever is named
    *(f"/thumb/{row}" for row in range(0, 300, 7)),
    *(f"/api/search?q={text}" for text in ("disc", "noise%2F0012", "nothing", "png")),
    *("/", "/cluster/1", "/map", "/static/main.js", "/api/cluster/1/rows?start=5&count=20", "/api/outliers"),
]
PATHS = [
    *SAME,
    *("/api/run", "/api/clusters", "/api/cluster/2", "/api/picture/60", "/api/picture/7/neighbours", "/image/5"),
    *("/export/clusters.csv", "/export/clusters.parquet", "/api/cluster/0/views", "/api/map", "/api/duplicates"),
]


ATTACKS = "requests that attack the explorer"
SLOW = "slow clients of the explorer"
INTERRUPTS = "Ctrl-C amid clients of the explorer"


def lines(effort):
    return [ATTACKS, _load(effort), SLOW, INTERRUPTS]


def _load(effort):
    memory = "" if effort.whole else ", its memory not looked at"  # in a second, a server is not warm
    return f"requests of {_n_clients(effort)} clients at once, twice for {effort.load:.0f} s{memory}"


def _n_clients(effort):
    return N_CLIENTS if effort.whole else 100


def tallies(effort):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "secret.txt").write_text(SECRET)
        pictures = write_pictures(folder / "pictures", 100)
        run = pipeline.cluster(pictures, folder / "run", 3, views=("hog", "ch"), labels="folder").folder
        if effort.wants("attacks"):
            yield attacked(run, effort)
        if effort.wants("clients"):
            yield from crowded(run, effort)
        if effort.wants("interrupts"):
            yield interrupted(run, effort)


# ---- attacks


def attacked(run, effort):
    tally = Tally(ATTACKS)
    before, routes = _hashes(run), tuple(make_app(Pages(Run(run))).routes)
    with exploring(run, tally) as (_, port):
        target = Target(port, _token(port), routes)
        edits = 0

        def attempt(attack):
            nonlocal edits
            tally.tried += 1
            answer = target.ask(attack.raw)
            edits += attack.raw.startswith(b"POST") and answer.startswith(b"HTTP/1.1 200")
            fault = fault_of(attack, answer)
            if fault:
                tally.crashes.append(f"{fault}: {attack.raw[:120]!r}")

        known = list(known_attacks(target))
        for attack in known if effort.whole else random.sample(known, len(known) // 5):
            attempt(attack)
        for attack in (*edits_of_others(target), *odd_shapes(target)):
            attempt(attack)
        deadline, batch = time.perf_counter() + effort.seconds, int(time.time()) if effort.whole else 0
        while time.perf_counter() < deadline:
            _drawn(drawn_attacks(target), attempt, batch)
            batch += 1
        attempt(Attack(target.request("GET", "/api/run")))
        if _edits(run) != edits:
            tally.losses.append(f"{_edits(run)} edits stand in the log, {edits} were confirmed")
    if {name: digest for name, digest in _hashes(run).items() if name in before} != before:
        tally.losses.append("a file of the run has changed")
    (run / "edits.jsonl").unlink(missing_ok=True)
    return tally


def _drawn(strategy, attempt, batch):
    @seed(batch)
    @settings(
        max_examples=200, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    @given(strategy)
    def go(attack):
        attempt(attack)

    go()


# ---- load


def crowded(run, effort):
    """Three loads, of which the first one warms up; then slow clients of the same server."""
    n_clients, load, slow = _n_clients(effort), Tally(_load(effort)), Tally(SLOW)
    with exploring(run, slow, "" if effort.whole else SHORT_OF_PATIENCE) as (process, port):
        token, target = _token(port), Target(port, "", ())
        expected = {path: _body(target, path) for path in SAME}
        edits, memory = 0, []
        for seconds in (effort.load / 2, effort.load, effort.load):
            seen = in_a_thread(crowd, port, n_clients, seconds, PATHS, expected, token)
            load.tried, edits = load.tried + seen.requests, edits + seen.edits
            load.crashes += seen.bad
            memory.append(_resident(process.pid))
            n_last = seen.requests
        if _edits(run) != edits:
            load.losses.append(f"{_edits(run)} edits stand in the log, {edits} were confirmed")
        load.how = f"{memory[1]:.0f} MB after the first, {memory[2]:.0f} MB after the second" if effort.whole else ""
        if effort.whole and memory[2] > memory[1] + ROOM + MOST_GROWTH * n_last / 1e6:
            load.crashes.append(f"memory grows: {memory} MB after each load")
        if {path: _body(target, path) for path in SAME} != expected:
            load.wrong.append("answers differ after the load")
        yield load

        n_each, limit = (25, 2 * PATIENCE) if effort.whole else (5, 3 * SHORT_PATIENCE)
        seen = in_a_thread(slow_crowd, port, token, n_each, limit)
        slow.tried, slow.crashes = seen.requests, seen.bad
        if max(seen.seconds) > LONGEST_WAIT:
            slow.crashes.append(f"an ordinary client waited for {max(seen.seconds):.1f} s")
    yield slow


def interrupted(run, effort):
    """Ctrl-C while some ask and others dawdle: it ends soon, quietly, and what was confirmed is there."""
    tally = Tally(INTERRUPTS)
    for _ in range(10 if effort.whole else 1):
        (run / "edits.jsonl").unlink(missing_ok=True)
        with ExitStack() as stack:
            with exploring(run, tally) as (_, port):
                token = _token(port)
                for begin, _ in slow_kinds(token).values():
                    stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(begin)
                background = stack.enter_context(ThreadPoolExecutor(1))
                asking = background.submit(asyncio.run, crowd(port, 20, 2, PATHS, {}, token))
                time.sleep(1)
            confirmed = asking.result().edits
        tally.tried += 1
        if _edits(run) < confirmed:
            tally.losses.append(f"{_edits(run)} edits stand in the log, {confirmed} were confirmed")
    return tally


# ---- the command


@contextmanager
def exploring(run, tally, before=""):
    """The command in a process of its own; stopped by Ctrl-C, and what it has said must be free of tracebacks."""
    program = f"{before}\nfrom bitmosaic.cli import main; main()"
    command = [sys.executable, "-c", program, "explore", str(run), "--port", "0", "--no-browser"]
    with open(run.parent / "errors.txt", "w+b") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            yield process, int(re.search(rb"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
            begun = time.perf_counter()
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LONGEST_STOP)
            if process.returncode != 0:
                tally.crashes.append(
                    f"Ctrl-C: exit code {process.returncode} after {time.perf_counter() - begun:.1f} s"
                )
        finally:
            process.kill()
            process.communicate()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if re.search("Traceback|Error|Exception", said):
            tally.crashes.append(f"the terminal says: {said[:2000]}")


def _token(port):
    page = Target(port, "", ()).ask(Target(port, "", ()).request("GET", "/"))
    return re.search(rb'name="token" content="([^"]+)"', page)[1].decode()


def _body(target, path):
    return target.ask(target.request("GET", path)).partition(b"\r\n\r\n")[2]


def _edits(run):
    """The lines of the log but the first."""
    log = run / "edits.jsonl"
    return log.read_bytes().count(b"\n") - 1 if log.exists() else 0


def _hashes(run):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.iterdir() if path.is_file()}


def _resident(pid):
    """Megabytes; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def in_a_thread(clients, *arguments):
    """What some clients have seen; this thread may have an event loop of its own, that of a browser."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(clients(*arguments))).result()
