"""Forks services at once: everything is imported once. Reads `DATABASE PORT MODEL URL`, answers with the process's number."""

import os
import signal
import sys
import time

import uvicorn.protocols.http.auto  # noqa: F401  (imported before the fork, as all of these)

import quire.log.postgres
import quire.recall
import quire.send.connect
import quire.send.transport  # noqa: F401
from quire import QuireError
from quire.server.app import Running, all_routes
from quire.server.service import Service, ServiceLimits


def serve(db: str, port: str, model: str, base_url: str) -> None:
    """What `quire serve` does; where it cannot begin it is begun again, as a supervisor would."""
    while True:
        try:
            service = Service(db, limits=ServiceLimits(per_s=0), model=model, base_url=base_url)
            Running(service, port=int(port)).run()
            return
        except QuireError:  # the database is being restarted, or the one that was killed still holds the port
            time.sleep(0.1)


all_routes()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are killed
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        serve(*line.split())
        os._exit(0)
    os.write(1, f"{child}\n".encode())
